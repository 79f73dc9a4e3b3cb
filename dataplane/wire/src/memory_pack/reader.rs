//! Takes a message apart where it lies.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned, little_endian::U16};

use super::{Error, MAX_DEPTH, MemoryPack, NULL, Text, Unmanaged, WIDE};

/// The bytes of a message that have not been read yet.
///
/// After an error, what is left is unspecified; to read on does no harm.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Objects, unions and collections that are being read.
    depth: u16,
    /// Whether nullables have no padding, as in the packed formats of messages.
    packed: bool,
}

/// A circular object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Circular<T> {
    /// One that is here for the first time, with the id that later references have.
    Object(u32, T),
    /// A reference to one that was there before, by its id.
    Reference(u32),
}

/// The members of an object that have not been read yet.
#[derive(Debug)]
pub struct Members<'r, 'a> {
    reader: &'r mut Reader<'a>,
    /// Lengths of the members that are left, if the object has lengths.
    lengths: Option<Reader<'a>>,
    left: u8,
}

impl<'a> Members<'_, 'a> {
    /// Whether there is none left.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Reads the next member. `None` if whoever wrote the object knew of fewer members, or left this one out.
    pub fn next<T>(&mut self, read: impl FnOnce(&mut Reader<'a>) -> Result<T, Error>) -> Result<Option<T>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        self.left = left;
        let Some(lengths) = &mut self.lengths else { return read(self.reader).map(Some) };
        let length = lengths.length()?;
        if length == 0 {
            return Ok(None);
        }
        let mut member = Reader { rest: self.reader.take(length)?, ..*self.reader };
        let value = read(&mut member)?;
        member.finish()?;
        Ok(Some(value))
    }

    /// Reads the next member; [absent](MemoryPack::absent) if it was left out.
    pub fn member<T: MemoryPack<'a>>(&mut self) -> Result<T, Error> {
        self.next(T::read)?.map_or_else(T::absent, Ok)
    }

    /// Passes over so many members, which the type has no more, of an object with lengths.
    pub fn pass_over(&mut self, members: u8) -> Result<(), Error> {
        for _ in 0..members.min(self.left) {
            let lengths = self.lengths.as_mut().ok_or(Error::Members(self.left))?;
            self.reader.take(lengths.length()?)?;
            self.left -= 1;
        }
        Ok(())
    }

    /// Passes over the members that the type does not have. Only their lengths allow that.
    fn finish(mut self) -> Result<(), Error> {
        self.pass_over(self.left)
    }
}

impl<'a> Reader<'a> {
    /// Reads a message that starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, depth: 0, packed: false }
    }

    /// Lets only so many objects, unions and collections be inside each other: [`MAX_DEPTH`] of a type whose values are
    /// large may take more stack than there is.
    #[must_use]
    pub fn with_depth(self, most: u16) -> Self {
        Self { depth: MAX_DEPTH.saturating_sub(most), ..self }
    }

    /// Reads nullables without their padding.
    pub(super) fn packed(bytes: &'a [u8]) -> Self {
        Self { packed: true, ..Self::new(bytes) }
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that nothing is left.
    pub fn finish(self) -> Result<(), Error> {
        if self.rest.is_empty() { Ok(()) } else { Err(Error::Trailing(self.rest.len())) }
    }

    #[inline]
    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Error::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Reads a number, a `bool`, a `char`, a `Guid`; an enum as the integer under it.
    #[inline]
    pub fn value<T: Unmanaged>(&mut self) -> Result<T, Error> {
        T::get(self.take(T::SIZE)?)
    }

    /// Reads a `T?`.
    #[inline]
    pub fn nullable<T: Unmanaged>(&mut self) -> Result<Option<T>, Error> {
        if !self.packed {
            return self.value();
        }
        let (is_some, value): (bool, _) = (self.value()?, self.take(T::SIZE)?);
        is_some.then(|| T::get(value)).transpose()
    }

    /// Reads an object of a type with `members` members; `None` is null. An object with fewer ends early, as from a
    /// writer whose type has not got them yet.
    pub fn object<T>(
        &mut self,
        members: u8,
        read: impl FnOnce(&mut Members<'_, 'a>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(count) = self.count()? else { return Ok(None) };
        if count > members {
            return Err(Error::Members(count));
        }
        self.nested(|reader| reader.members(count, None, read)).map(Some)
    }

    /// Reads a version-tolerant object; `None` is null. Members that the type does not have are passed over.
    pub fn tolerant<T>(
        &mut self,
        read: impl FnOnce(&mut Members<'_, 'a>) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let Some(count) = self.count()? else { return Ok(None) };
        self.nested(|reader| {
            let lengths = reader.lengths(count)?;
            reader.members(count, Some(lengths), read)
        })
        .map(Some)
    }

    /// Reads an object of a type that allows references to itself; `None` is null. `read` is told its id.
    pub fn circular<T>(
        &mut self,
        read: impl FnOnce(u32, &mut Members<'_, 'a>) -> Result<T, Error>,
    ) -> Result<Option<Circular<T>>, Error> {
        if self.rest.first() == Some(&WIDE) {
            self.take(1)?;
            return Ok(Some(Circular::Reference(self.id()?)));
        }
        let Some(count) = self.count()? else { return Ok(None) };
        self.nested(|reader| {
            let lengths = reader.lengths(count)?;
            let id = reader.id()?;
            let value = reader.members(count, Some(lengths), |members| read(id, members))?;
            Ok(Some(Circular::Object(id, value)))
        })
    }

    /// Reads the tag of a union, which its value follows; `None` is null.
    pub fn union(&mut self) -> Result<Option<u16>, Error> {
        match self.value::<u8>()? {
            NULL => Ok(None),
            WIDE => self.value().map(Some),
            tag if tag < WIDE => Ok(Some(tag.into())),
            reserved => Err(Error::Reserved(reserved)),
        }
    }

    /// Reads a union: `read` is told the tag, and reads the value that follows; `None` is null.
    pub fn variant<T>(&mut self, read: impl FnOnce(&mut Self, u16) -> Result<T, Error>) -> Result<Option<T>, Error> {
        let Some(tag) = self.union()? else { return Ok(None) };
        self.nested(|reader| read(reader, tag)).map(Some)
    }

    /// Reads a collection: calls `each` once for every element, and returns their number; `None` is null. An element has
    /// at least `least` bytes. Of a map, an element is a key and its value.
    pub fn list(
        &mut self,
        least: usize,
        mut each: impl FnMut(&mut Self) -> Result<(), Error>,
    ) -> Result<Option<usize>, Error> {
        let Some(count) = self.elements(least)? else { return Ok(None) };
        self.nested(|reader| (0..count).try_for_each(|_| each(reader)))?;
        Ok(Some(count))
    }

    /// Reads a collection of bytes or of little-endian numbers in one piece; `None` is null.
    pub fn array<T: FromBytes + Immutable + KnownLayout + Unaligned>(&mut self) -> Result<Option<&'a [T]>, Error> {
        let Some(count) = self.elements(size_of::<T>())? else { return Ok(None) };
        self.units(count).map(Some)
    }

    /// Reads a string; `None` is null.
    pub fn string(&mut self) -> Result<Option<Text<'a>>, Error> {
        let length: i32 = self.value()?;
        if length == -1 {
            return Ok(None);
        }
        let wrong = Error::Length(length.into());
        if length >= 0 {
            return self.units::<U16>(length as usize).map(|units| Some(Text::Utf16(units))).map_err(|_| wrong);
        }
        let utf16: i32 = self.value()?;
        let bytes = self.take(!length as usize).map_err(|_| wrong)?;
        let text = str::from_utf8(bytes).map_err(|_| Error::Text)?;
        if utf16 != -1 && text.encode_utf16().count() as i64 != i64::from(utf16) {
            return Err(Error::Length(utf16.into()));
        }
        Ok(Some(Text::Utf8(text)))
    }

    /// Reads an integer of variable length: itself, if from -120 to 127, or the code of a type and a value of it.
    pub fn varint(&mut self) -> Result<i64, Error> {
        Ok(match self.value::<i8>()? {
            -121 => self.value::<u8>()?.into(),
            -122 => self.value::<i8>()?.into(),
            -123 => self.value::<u16>()?.into(),
            -124 => self.value::<i16>()?.into(),
            -125 => self.value::<u32>()?.into(),
            -126 => self.value::<i32>()?.into(),
            -127 => {
                let wide: u64 = self.value()?;
                i64::try_from(wide).map_err(|_| Error::Length(i64::MAX))?
            }
            -128 => self.value()?,
            own => own.into(),
        })
    }

    /// The member count of an object; `None` is null.
    fn count(&mut self) -> Result<Option<u8>, Error> {
        match self.value::<u8>()? {
            NULL => Ok(None),
            count if count < WIDE => Ok(Some(count)),
            reserved => Err(Error::Reserved(reserved)),
        }
    }

    fn members<T>(
        &mut self,
        left: u8,
        lengths: Option<Self>,
        read: impl FnOnce(&mut Members<'_, 'a>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut members = Members { reader: self, lengths, left };
        let value = read(&mut members)?;
        members.finish()?;
        Ok(value)
    }

    /// Passes over the lengths of `count` members, and returns what reads them.
    fn lengths(&mut self, count: u8) -> Result<Self, Error> {
        let lengths = self.clone();
        for _ in 0..count {
            self.length()?;
        }
        Ok(lengths)
    }

    /// A length of a member, within what is left here.
    fn length(&mut self) -> Result<usize, Error> {
        let length = self.varint()?;
        usize::try_from(length).ok().filter(|length| *length <= self.rest.len()).ok_or(Error::Length(length))
    }

    fn id(&mut self) -> Result<u32, Error> {
        let id = self.varint()?;
        u32::try_from(id).map_err(|_| Error::Length(id))
    }

    /// The number of elements of a collection, each of at least `least` bytes.
    fn elements(&mut self, least: usize) -> Result<Option<usize>, Error> {
        let count: i32 = self.value()?;
        if count == -1 {
            return Ok(None);
        }
        let fits = |count: &usize| *count <= self.rest.len() / least.max(1);
        usize::try_from(count).ok().filter(fits).map(Some).ok_or(Error::Length(count.into()))
    }

    fn units<T: FromBytes + Immutable + KnownLayout + Unaligned>(&mut self, count: usize) -> Result<&'a [T], Error> {
        let (units, rest) = <[T]>::ref_from_prefix_with_elems(self.rest, count).map_err(|_| Error::Truncated)?;
        self.rest = rest;
        Ok(units)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == MAX_DEPTH {
            return Err(Error::Depth);
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }
}
