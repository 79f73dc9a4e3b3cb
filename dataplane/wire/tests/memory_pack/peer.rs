//! Against the `memorypack` crate, an implementation of others, in all that it does as .NET does: not `Guid`, which it has in
//! another byte order, nor nullables of it.

use std::collections::HashMap;

use berth_wire::memory_pack::{Error, Reader, Text, Writer};
use memorypack::{MemoryPackReader, MemoryPackSerializer, MemoryPackWriter, varint};
use proptest::prelude::*;
use zerocopy::little_endian::I32;

/// Tuples are their parts, one after the other, as the members of an object are.
type Numbers = (u8, i16, u32, i64, f32, f64, bool);
type Maybe = (Option<u8>, Option<i16>, Option<i32>, Option<f64>);
type Rest = (String, Vec<i32>, HashMap<i32, String>);

fn written(write: impl FnOnce(&mut Writer<'_>) -> Result<(), Error>) -> Vec<u8> {
    let mut buffer = vec![0xEE; 8192];
    let mut writer = Writer::new(&mut buffer);
    write(&mut writer).unwrap();
    let len = writer.len();
    buffer.truncate(len);
    buffer
}

fn text(reader: &mut Reader<'_>) -> Result<String, Error> {
    Ok(match reader.string()? {
        Some(Text::Utf8(text)) => text.to_owned(),
        Some(text) => text.chars().map(Result::unwrap).collect(),
        None => panic!("null"),
    })
}

fn write((numbers, maybe, (text, words, map)): &(Numbers, Maybe, Rest), w: &mut Writer<'_>) -> Result<(), Error> {
    w.value(numbers.0)?;
    w.value(numbers.1)?;
    w.value(numbers.2)?;
    w.value(numbers.3)?;
    w.value(numbers.4)?;
    w.value(numbers.5)?;
    w.value(numbers.6)?;
    w.nullable(maybe.0)?;
    w.nullable(maybe.1)?;
    w.nullable(maybe.2)?;
    w.nullable(maybe.3)?;
    w.utf8(Some(text))?;
    w.array(Some(&words.iter().map(|word| I32::new(*word)).collect::<Vec<_>>()))?;
    w.list(Some(map.len()))?;
    map.iter().try_for_each(|(key, value)| w.value(*key).and_then(|()| w.utf8(Some(value))))
}

fn read(bytes: &[u8]) -> Result<(Numbers, Maybe, Rest), Error> {
    let mut r = Reader::new(bytes);
    let numbers = (r.value()?, r.value()?, r.value()?, r.value()?, r.value()?, r.value()?, r.value()?);
    let maybe = (r.nullable()?, r.nullable()?, r.nullable()?, r.nullable()?);
    let (text, words) = (text(&mut r)?, r.array::<I32>()?.unwrap().iter().map(|word| word.get()).collect());
    let mut map = HashMap::new();
    r.list(8, |reader| {
        map.insert(reader.value()?, self::text(reader)?);
        Ok(())
    })?;
    r.finish().map(|()| (numbers, maybe, (text, words, map)))
}

proptest! {
    #[test]
    fn all_that_both_know_is_the_same_bytes(
        numbers: Numbers,
        maybe: Maybe,
        // A map of one has one order.
        rest in (
            "\\PC{0,40}",
            prop::collection::vec(any::<i32>(), 0..20),
            prop::collection::hash_map(any::<i32>(), "\\PC{0,9}", 0..2),
        ),
    ) {
        let ours = (numbers, maybe, rest);
        let theirs = MemoryPackSerializer::serialize(&ours).unwrap();
        prop_assert_eq!(written(|writer| write(&ours, writer)), theirs.clone());
        prop_assert_eq!(read(&theirs), Ok(ours.clone()));
        prop_assert_eq!(MemoryPackSerializer::deserialize::<(Numbers, Maybe, Rest)>(&theirs).unwrap(), ours);
    }

    #[test]
    fn integers_of_variable_length_are_the_same_bytes(value: i64, shift in 0..64) {
        let value = value >> shift;
        let ours = written(|writer| writer.varint(value));
        prop_assert_eq!(varint::read_varint(&mut MemoryPackReader::new(&ours)).unwrap(), value);
        let mut theirs = MemoryPackWriter::with_capacity(9);
        varint::write_varint(&mut theirs, value).unwrap();
        prop_assert_eq!(&theirs.into_bytes(), &ours);
        prop_assert_eq!(Reader::new(&ours).varint(), Ok(value));
    }
}
