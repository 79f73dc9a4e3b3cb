//! A value that has every part of the format in it, to any depth. The fuzz target reads it from arbitrary bytes.

use berth_wire::memory_pack::{Char, Circular, Error, Guid, Members, Reader, Text, Writer};
use zerocopy::little_endian::{I32, U16};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tree {
    Null,
    Values(Box<Values>),
    Utf8(String),
    Utf16(Vec<u16>),
    Bytes(Vec<u8>),
    Words(Option<Vec<i32>>),
    List(Vec<Tree>),
    Map(Vec<(u16, Tree)>),
    Tolerant(Vec<Tree>),
    Circular(u32, Vec<Tree>),
    Reference(u32),
    Varint(i64),
}

/// Every unmanaged type, and its nullable. Floating-point numbers are their bits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Values {
    pub(crate) whole: (u8, i8, u16, i16, u32, i32, u64, i64),
    pub(crate) other: (bool, u16, u32, u64, [u8; 16]),
    pub(crate) small: (Option<u8>, Option<bool>, Option<i16>, Option<u16>),
    pub(crate) large: (Option<i32>, Option<u32>, Option<u64>, Option<u64>),
    pub(crate) guid: Option<[u8; 16]>,
}

/// Of a union, which has them all, some beyond one byte.
const TAGS: [u16; 11] = [0, 1, 2, 249, 250, 251, 255, 256, 300, 65_534, 65_535];

fn units(text: &[u16]) -> Vec<U16> {
    text.iter().map(|unit| U16::new(*unit)).collect()
}

fn all(members: &mut Members<'_, '_>) -> Result<Vec<Tree>, Error> {
    let mut list = Vec::new();
    while !members.is_done() {
        list.push(members.next(Tree::read)?.unwrap_or(Tree::Null));
    }
    Ok(list)
}

impl Tree {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let Some(tag) = reader.union()? else { return Ok(Self::Null) };
        Ok(match TAGS.iter().position(|known| *known == tag).ok_or(Error::Reserved(tag as u8))? {
            0 => Self::Values(Box::new(Values::read(reader)?)),
            1 => match reader.string()? {
                None => Self::Null,
                Some(Text::Utf8(text)) => Self::Utf8(text.to_owned()),
                Some(Text::Utf16(units)) => Self::Utf16(units.iter().map(|unit| unit.get()).collect()),
            },
            2 => Self::Utf16(reader.array::<U16>()?.unwrap_or_default().iter().map(|unit| unit.get()).collect()),
            3 => Self::Bytes(reader.array()?.unwrap_or_default().to_vec()),
            4 => Self::Words(reader.array::<I32>()?.map(|words| words.iter().map(|word| word.get()).collect())),
            5 => {
                let mut list = Vec::new();
                reader.list(1, |reader| {
                    list.push(Self::read(reader)?);
                    Ok(())
                })?;
                Self::List(list)
            }
            6 => {
                let mut map = Vec::new();
                reader.list(3, |reader| {
                    map.push((reader.value()?, Self::read(reader)?));
                    Ok(())
                })?;
                Self::Map(map)
            }
            7 => reader.tolerant(all)?.map_or(Self::Null, Self::Tolerant),
            8 => match reader.circular(|_, members| all(members))? {
                None => Self::Null,
                Some(Circular::Object(id, members)) => Self::Circular(id, members),
                Some(Circular::Reference(id)) => Self::Reference(id),
            },
            9 => Self::Varint(reader.varint()?),
            _ => return Err(Error::Reserved(0)),
        })
    }

    pub(crate) fn write(&self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let tag = match self {
            Self::Null => return writer.null(),
            Self::Values(_) => 0,
            Self::Utf8(_) | Self::Utf16(_) => 1,
            Self::Bytes(_) => 3,
            Self::Words(_) => 4,
            Self::List(_) => 5,
            Self::Map(_) => 6,
            Self::Tolerant(_) => 7,
            Self::Circular(..) | Self::Reference(_) => 8,
            Self::Varint(_) => 9,
        };
        writer.union(TAGS[tag])?;
        match self {
            Self::Null => Ok(()),
            Self::Values(values) => values.write(writer),
            Self::Utf8(text) => writer.utf8(Some(text)),
            Self::Utf16(text) => writer.utf16(Some(&units(text))),
            Self::Bytes(bytes) => writer.array(Some(bytes)),
            Self::Words(words) => {
                let words = words.as_ref().map(|words| words.iter().map(|word| I32::new(*word)).collect::<Vec<_>>());
                writer.array(words.as_deref())
            }
            Self::List(list) => {
                writer.list(Some(list.len()))?;
                list.iter().try_for_each(|element| element.write(writer))
            }
            Self::Map(map) => {
                writer.list(Some(map.len()))?;
                map.iter().try_for_each(|(key, value)| writer.value(*key).and_then(|()| value.write(writer)))
            }
            Self::Tolerant(list) => writer.tolerant(list.len() as u8, |writer, at| list[usize::from(at)].write(writer)),
            Self::Circular(id, list) => {
                writer.circular(list.len() as u8, *id, |writer, at| list[usize::from(at)].write(writer))
            }
            Self::Reference(id) => writer.reference(*id),
            Self::Varint(value) => writer.varint(*value),
        }
    }
}

impl Values {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Error> {
        let read = |members: &mut Members<'_, '_>| {
            let mut values = Self::default();
            let Self { whole, other, small, large, guid } = &mut values;
            let (a, b, c, d, e, f, g, h) = whole;
            members.next(|r| {
                (*a, *b, *c, *d) = (r.value()?, r.value()?, r.value()?, r.value()?);
                (*e, *f, *g, *h) = (r.value()?, r.value()?, r.value()?, r.value()?);
                Ok(())
            })?;
            members.next(|r| {
                (other.0, other.1) = (r.value()?, r.value::<Char>()?.0);
                (other.2, other.3) = (r.value::<f32>()?.to_bits(), r.value::<f64>()?.to_bits());
                other.4 = r.value::<Guid>()?.0;
                Ok(())
            })?;
            members.next(|r| {
                *small = (r.nullable()?, r.nullable()?, r.nullable()?, r.nullable::<Char>()?.map(|unit| unit.0));
                Ok(())
            })?;
            members.next(|r| {
                (large.0, large.1) = (r.nullable()?, r.nullable()?.map(f32::to_bits));
                (large.2, large.3) = (r.nullable()?, r.nullable()?.map(f64::to_bits));
                *guid = r.nullable::<Guid>()?.map(|guid| guid.0);
                Ok(())
            })?;
            Ok(values)
        };
        Ok(reader.object(4, read)?.unwrap_or_default())
    }

    fn write(&self, w: &mut Writer<'_>) -> Result<(), Error> {
        w.object(4)?;
        let (a, b, c, d, e, f, g, h) = self.whole;
        w.value(a).and_then(|()| w.value(b)).and_then(|()| w.value(c)).and_then(|()| w.value(d))?;
        w.value(e).and_then(|()| w.value(f)).and_then(|()| w.value(g)).and_then(|()| w.value(h))?;
        let (flag, unit, single, double, guid) = self.other;
        w.value(flag)?;
        w.value(Char(unit))?;
        w.value(f32::from_bits(single))?;
        w.value(f64::from_bits(double))?;
        w.value(Guid(guid))?;
        let (a, b, c, d) = self.small;
        w.nullable(a).and_then(|()| w.nullable(b)).and_then(|()| w.nullable(c))?;
        w.nullable(d.map(Char))?;
        let (a, b, c, d) = self.large;
        w.nullable(a).and_then(|()| w.nullable(b.map(f32::from_bits)))?;
        w.nullable(c).and_then(|()| w.nullable(d.map(f64::from_bits)))?;
        w.nullable(self.guid.map(Guid))
    }
}
