//! Puts a message together in the caller's buffer.

use zerocopy::{Immutable, IntoBytes, little_endian::U16};

use super::{Error, MAX_MEMBERS, NULL, Unmanaged, WIDE};

/// A message at the front of a buffer. After an error, what was written is unspecified.
#[derive(Debug)]
pub struct Writer<'b> {
    buffer: &'b mut [u8],
    len: usize,
    /// Whether nullables have no padding, as in the packed formats of messages.
    packed: bool,
}

impl<'b> Writer<'b> {
    /// Writes to the front of `buffer`.
    pub fn new(buffer: &'b mut [u8]) -> Self {
        Self { buffer, len: 0, packed: false }
    }

    /// Writes nullables without their padding.
    pub(super) fn packed(buffer: &'b mut [u8]) -> Self {
        Self { packed: true, ..Self::new(buffer) }
    }

    /// Bytes written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn room(&mut self, n: usize) -> Result<&mut [u8], Error> {
        let room = self.buffer[self.len..].get_mut(..n).ok_or(Error::NoRoom)?;
        self.len += n;
        Ok(room)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes a number, a `bool`, a `char`, a `Guid`; an enum as the integer under it.
    #[inline]
    pub fn value<T: Unmanaged>(&mut self, value: T) -> Result<(), Error> {
        value.put(self.room(T::SIZE)?)
    }

    /// Writes a `T?`.
    #[inline]
    pub fn nullable<T: Unmanaged>(&mut self, value: Option<T>) -> Result<(), Error> {
        if !self.packed {
            return self.value(value);
        }
        self.value(value.is_some())?;
        let room = self.room(T::SIZE)?;
        room.fill(0);
        value.map_or(Ok(()), |value| value.put(room))
    }

    /// Writes the header of an object; its members follow.
    pub fn object(&mut self, members: u8) -> Result<(), Error> {
        if members > MAX_MEMBERS { Err(Error::Reserved(members)) } else { self.value(members) }
    }

    /// Writes an object or a union that is null.
    pub fn null(&mut self) -> Result<(), Error> {
        self.value(NULL)
    }

    /// Writes a version-tolerant object; `member` is called for each of its members in order, from 0. A member that
    /// writes nothing is left out.
    pub fn tolerant(
        &mut self,
        members: u8,
        member: impl FnMut(&mut Self, u8) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.with_lengths(members, None, member)
    }

    /// Writes a circular object with the id that references to it have, like [`Writer::tolerant`].
    pub fn circular(
        &mut self,
        members: u8,
        id: u32,
        member: impl FnMut(&mut Self, u8) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.with_lengths(members, Some(id), member)
    }

    /// Writes a reference to the circular object with this id.
    pub fn reference(&mut self, id: u32) -> Result<(), Error> {
        self.value(WIDE)?;
        self.id(id)
    }

    /// Writes the tag of a union; its value follows.
    pub fn union(&mut self, tag: u16) -> Result<(), Error> {
        match u8::try_from(tag) {
            Ok(tag) if tag < WIDE => self.value(tag),
            _ => self.value(WIDE).and_then(|()| self.value(tag)),
        }
    }

    /// Writes the number of elements of a collection, which follow; `None` is null.
    pub fn list(&mut self, count: Option<usize>) -> Result<(), Error> {
        let count = count.map_or(Ok(-1), |count| i32::try_from(count).map_err(|_| Error::NoRoom))?;
        self.value(count)
    }

    /// Writes a collection of bytes or of little-endian numbers; `None` is null.
    pub fn array<T: IntoBytes + Immutable>(&mut self, elements: Option<&[T]>) -> Result<(), Error> {
        self.list(elements.map(<[T]>::len))?;
        self.put(elements.unwrap_or_default().as_bytes())
    }

    /// Writes a string as UTF-8; `None` is null.
    pub fn utf8(&mut self, text: Option<&str>) -> Result<(), Error> {
        match text {
            None => self.value(-1_i32),
            Some("") => self.value(0_i32),
            Some(text) => {
                let bytes = i32::try_from(text.len()).map_err(|_| Error::NoRoom)?;
                self.value(!bytes)?;
                self.value(text.encode_utf16().count() as i32)?;
                self.put(text.as_bytes())
            }
        }
    }

    /// Writes a string as UTF-16 units; `None` is null.
    pub fn utf16(&mut self, units: Option<&[U16]>) -> Result<(), Error> {
        self.array(units)
    }

    /// Writes an integer of variable length, as .NET does one that is signed.
    pub fn varint(&mut self, value: i64) -> Result<(), Error> {
        if let Ok(own @ -120..) = i8::try_from(value) {
            self.value(own)
        } else if let Ok(value) = i8::try_from(value) {
            self.value(-122_i8).and_then(|()| self.value(value))
        } else if let Ok(value) = i16::try_from(value) {
            self.value(-124_i8).and_then(|()| self.value(value))
        } else if let Ok(value) = i32::try_from(value) {
            self.value(-126_i8).and_then(|()| self.value(value))
        } else {
            self.value(-128_i8).and_then(|()| self.value(value))
        }
    }

    /// Writes an id, as .NET does an integer of variable length that is unsigned.
    fn id(&mut self, id: u32) -> Result<(), Error> {
        if let Ok(own @ ..=127) = u8::try_from(id) {
            self.value(own)
        } else if let Ok(id) = u16::try_from(id) {
            self.value(-123_i8).and_then(|()| self.value(id))
        } else {
            self.value(-125_i8).and_then(|()| self.value(id))
        }
    }

    /// Writes the members where they would stand if each length took one byte, and moves them back when a length takes
    /// more. Nothing is kept beside the buffer, as members may be such objects themselves, and deep.
    fn with_lengths(
        &mut self,
        members: u8,
        id: Option<u32>,
        mut member: impl FnMut(&mut Self, u8) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.object(members)?;
        let mut length_at = self.len;
        self.room(members.into())?;
        id.map_or(Ok(()), |id| self.id(id))?;
        for at in 0..members {
            let start = self.len;
            member(self, at)?;
            let length = i64::try_from(self.len - start).map_err(|_| Error::NoRoom)?;
            let (mut bytes, end) = ([0; 9], self.len);
            let mut varint = Writer::new(&mut bytes);
            varint.varint(length)?;
            let takes = varint.len;
            self.room(takes - 1)?;
            self.buffer.copy_within(length_at + 1..end, length_at + takes);
            self.buffer[length_at..length_at + takes].copy_from_slice(&bytes[..takes]);
            length_at += takes;
        }
        Ok(())
    }
}
