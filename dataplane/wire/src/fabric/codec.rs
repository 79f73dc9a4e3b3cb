//! Primitives: integers, `bytes`, `list`, both TLV widths, optional fields (section "Conventions"). All big-endian.

use std::fmt;

/// Why bytes do not parse as a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FabricError {
    /// Fewer bytes than the layout or a length word requires.
    Truncated,
    /// Bytes are left over after the message (decision 3).
    Surplus,
    /// A length or count exceeds its limit; carries the field's name.
    Limit(&'static str),
    /// The first bytes are not this protocol's magic.
    Magic,
    /// A protocol version that this side does not speak.
    Version,
    /// An undefined flag bit, or flags that exclude each other; carries the field's name.
    Flags(&'static str),
    /// A value that the field's table or rules do not allow; carries the field's name.
    Value(&'static str),
    /// Text that is not UTF-8.
    Utf8,
}

impl fmt::Display for FabricError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the message ends before its last field"),
            Self::Surplus => f.write_str("bytes follow the last field of the message"),
            Self::Limit(field) => write!(f, "{field}: more than the limit"),
            Self::Magic => f.write_str("not the magic of this protocol"),
            Self::Version => f.write_str("not a version of this protocol that is spoken here"),
            Self::Flags(field) => write!(f, "{field}: a bit that is not defined, or bits that exclude each other"),
            Self::Value(field) => write!(f, "{field}: not a value of its table"),
            Self::Utf8 => f.write_str("text is not UTF-8"),
        }
    }
}

impl std::error::Error for FabricError {}

/// A cursor that takes fields off the front of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes the next value.
    #[inline]
    pub fn get<T: Wire<'a>>(&mut self) -> Result<T, FabricError> {
        T::read(self)
    }

    /// Takes the next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], FabricError> {
        let (array, rest) = self.rest.split_first_chunk().ok_or(FabricError::Truncated)?;
        self.rest = rest;
        Ok(array)
    }

    /// Takes the next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], FabricError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(FabricError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes all bytes that are left.
    #[inline]
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Number of bytes not yet taken.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Fails with [`FabricError::Surplus`] if bytes are left.
    #[inline]
    pub fn finish(&self) -> Result<(), FabricError> {
        if self.rest.is_empty() { Ok(()) } else { Err(FabricError::Surplus) }
    }
}

/// A value with exactly one encoding. Parsing allocates nothing; parts of variable length borrow from the message.
pub trait Wire<'a>: Sized {
    /// Takes the value off the front of `from`.
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError>;

    /// Appends the value's encoding.
    fn write(&self, to: &mut Vec<u8>);

    /// Reads a value that fills `bytes` exactly.
    #[inline]
    fn parse(bytes: &'a [u8]) -> Result<Self, FabricError> {
        let mut from = Reader::new(bytes);
        let value = Self::read(&mut from)?;
        from.finish()?;
        Ok(value)
    }

    /// The value's encoding in a vector of its own.
    fn to_vec(&self) -> Vec<u8> {
        let mut to = Vec::new();
        self.write(&mut to);
        to
    }
}

macro_rules! integers {
    ($($int:ty)*) => {$(
        impl<'a> Wire<'a> for $int {
            #[inline]
            fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
                Ok(Self::from_be_bytes(*from.array()?))
            }

            #[inline]
            fn write(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 u128 i32);

impl<'a> Wire<'a> for bool {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        match from.get::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FabricError::Value("flag byte (0 or 1)")),
        }
    }

    fn write(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }
}

impl<'a, const N: usize> Wire<'a> for [u8; N] {
    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        from.array().copied()
    }

    #[inline]
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }
}

/// An optional field: a byte 0 or 1, followed by the field if it is 1.
impl<'a, T: Wire<'a>> Wire<'a> for Option<T> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        if from.get()? { from.get().map(Some) } else { Ok(None) }
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.is_some().write(to);
        if let Some(value) = self {
            value.write(to);
        }
    }
}

/// `bytes`: a u32 length and at most `MAX` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes<'a, const MAX: usize>(&'a [u8]);

impl<'a, const MAX: usize> Bytes<'a, MAX> {
    /// Encodes as a length word of 0.
    pub const EMPTY: Self = Self(&[]);

    /// Wraps bytes to send; [`FabricError::Limit`] if there are more than `MAX`.
    pub fn of(bytes: &'a [u8]) -> Result<Self, FabricError> {
        if bytes.len() <= MAX { Ok(Self(bytes)) } else { Err(FabricError::Limit("bytes")) }
    }

    /// The content, without the length word.
    pub fn get(&self) -> &'a [u8] {
        self.0
    }
}

impl<const MAX: usize> std::ops::Deref for Bytes<'_, MAX> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0
    }
}

impl<'a, const MAX: usize> Wire<'a> for Bytes<'a, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let len = from.get::<u32>()? as usize;
        if len > MAX {
            return Err(FabricError::Limit("bytes"));
        }
        from.take(len).map(Self)
    }

    fn write(&self, to: &mut Vec<u8>) {
        (self.0.len() as u32).write(to);
        to.extend_from_slice(self.0);
    }
}

/// `bytes` that must be UTF-8; at most `MAX` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Text<'a, const MAX: usize>(&'a str);

impl<'a, const MAX: usize> Text<'a, MAX> {
    /// Wraps text to send; [`FabricError::Limit`] if it has more than `MAX` bytes.
    pub fn of(text: &'a str) -> Result<Self, FabricError> {
        if text.len() <= MAX { Ok(Self(text)) } else { Err(FabricError::Limit("text")) }
    }

    /// The content, without the length word.
    pub fn get(&self) -> &'a str {
        self.0
    }
}

impl<'a, const MAX: usize> Wire<'a> for Text<'a, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let bytes: Bytes<'a, MAX> = from.get()?;
        utf8(bytes.get()).map(Self)
    }

    fn write(&self, to: &mut Vec<u8>) {
        Bytes::<MAX>(self.0.as_bytes()).write(to);
    }
}

/// UTF-8 text behind a u16 length, as kernel names and trust domains have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShortText<'a, const MAX: usize>(&'a str);

impl<'a, const MAX: usize> ShortText<'a, MAX> {
    /// Wraps text to send; [`FabricError::Limit`] if it has more than `MAX` bytes.
    pub fn of(text: &'a str) -> Result<Self, FabricError> {
        const { assert!(MAX <= u16::MAX as usize) };
        if text.len() <= MAX { Ok(Self(text)) } else { Err(FabricError::Limit("text")) }
    }

    /// The content, without the length word.
    pub fn get(&self) -> &'a str {
        self.0
    }
}

impl<'a, const MAX: usize> Wire<'a> for ShortText<'a, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let len = from.get::<u16>()? as usize;
        if len > MAX {
            return Err(FabricError::Limit("text"));
        }
        utf8(from.take(len)?).map(Self)
    }

    fn write(&self, to: &mut Vec<u8>) {
        (self.0.len() as u16).write(to);
        to.extend_from_slice(self.0.as_bytes());
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str, FabricError> {
    std::str::from_utf8(bytes).map_err(|_| FabricError::Utf8)
}

/// `list`: a u16 count and at most `MAX` items. A received list is checked once and decoded again on each iteration.
#[derive(Clone, Copy)]
pub struct List<'a, T, const MAX: usize>(Items<'a, T>);

#[derive(Clone, Copy)]
enum Items<'a, T> {
    Received { count: u16, bytes: &'a [u8] },
    Given(&'a [T]),
}

impl<'a, T: Wire<'a> + Copy, const MAX: usize> List<'a, T, MAX> {
    /// Encodes as a count of 0.
    pub const EMPTY: Self = Self(Items::Given(&[]));

    /// Wraps items to send; [`FabricError::Limit`] if there are more than `MAX`.
    pub fn of(items: &'a [T]) -> Result<Self, FabricError> {
        const { assert!(MAX <= u16::MAX as usize) };
        if items.len() <= MAX { Ok(Self(Items::Given(items))) } else { Err(FabricError::Limit("list")) }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        match self.0 {
            Items::Received { count, .. } => usize::from(count),
            Items::Given(items) => items.len(),
        }
    }

    /// Whether the count is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Iterates over the items in wire order.
    pub fn iter(&self) -> ListIter<'a, T> {
        match self.0 {
            Items::Received { bytes, .. } => ListIter::Received(Reader::new(bytes)),
            Items::Given(items) => ListIter::Given(items.iter()),
        }
    }
}

/// Iterator over the items of a [`List`].
#[derive(Debug, Clone)]
pub enum ListIter<'a, T> {
    /// Decodes from a received message.
    Received(Reader<'a>),
    /// Walks the slice given to [`List::of`].
    Given(std::slice::Iter<'a, T>),
}

impl<'a, T: Wire<'a> + Copy> Iterator for ListIter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            // Every item was read once when the list was: only the end is left to fail.
            Self::Received(from) => from.get().ok(),
            Self::Given(items) => items.next().copied(),
        }
    }
}

impl<'a, T: Wire<'a> + Copy, const MAX: usize> IntoIterator for List<'a, T, MAX> {
    type Item = T;
    type IntoIter = ListIter<'a, T>;

    fn into_iter(self) -> ListIter<'a, T> {
        self.iter()
    }
}

impl<'a, T: Wire<'a> + Copy, const MAX: usize> IntoIterator for &List<'a, T, MAX> {
    type Item = T;
    type IntoIter = ListIter<'a, T>;

    fn into_iter(self) -> ListIter<'a, T> {
        self.iter()
    }
}

impl<'a, T: Wire<'a> + Copy, const MAX: usize> Wire<'a> for List<'a, T, MAX> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        let count = from.get::<u16>()?;
        if usize::from(count) > MAX {
            return Err(FabricError::Limit("list"));
        }
        let all = from.rest;
        for _ in 0..count {
            from.get::<T>()?;
        }
        let bytes = &all[..all.len() - from.remaining()];
        Ok(Self(Items::Received { count, bytes }))
    }

    fn write(&self, to: &mut Vec<u8>) {
        (self.len() as u16).write(to);
        match self.0 {
            Items::Received { bytes, .. } => to.extend_from_slice(bytes),
            Items::Given(items) => items.iter().for_each(|item| item.write(to)),
        }
    }
}

impl<'a, T: Wire<'a> + Copy + PartialEq, const MAX: usize> PartialEq for List<'a, T, MAX> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Wire<'a> + Copy + Eq, const MAX: usize> Eq for List<'a, T, MAX> {}

impl<'a, T: Wire<'a> + Copy + fmt::Debug, const MAX: usize> fmt::Debug for List<'a, T, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Wire<'a> + Copy, const MAX: usize> Default for List<'a, T, MAX> {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    #[test]
    fn primitives_are_laid_out_as_documented() {
        exact(&0x0102_0304_0506_0708_u64, "0102030405060708");
        exact(&-2_i32, "fffffffe");
        exact(&Some(7_u16), "01 0007");
        exact(&None::<u16>, "00");
        exact(&Bytes::<8>::of(b"abc").unwrap(), "00000003 616263");
        exact(&Text::<8>::of("né").unwrap(), "00000003 6ec3a9");
        exact(&ShortText::<8>::of("ab").unwrap(), "0002 6162");
        exact(&List::<u16, 4>::of(&[1, 2]).unwrap(), "0002 0001 0002");
    }

    #[test]
    fn limits_are_kept_on_both_sides() {
        assert_eq!(Bytes::<2>::parse(&hex("00000003 616263")), Err(FabricError::Limit("bytes")));
        assert_eq!(Bytes::<2>::parse(&hex("ffffffff")), Err(FabricError::Limit("bytes")));
        assert_eq!(Bytes::<2>::of(&[0; 3]), Err(FabricError::Limit("bytes")));
        assert_eq!(Text::<2>::of("abc"), Err(FabricError::Limit("text")));
        assert_eq!(ShortText::<2>::parse(&hex("0003 616263")), Err(FabricError::Limit("text")));
        assert_eq!(List::<u8, 2>::parse(&hex("0003 010203")), Err(FabricError::Limit("list")));
        assert_eq!(List::<u8, 2>::of(&[0; 3]), Err(FabricError::Limit("list")));
        assert_eq!(Text::<2>::parse(&hex("00000001 ff")), Err(FabricError::Utf8));
        assert_eq!(Option::<u8>::parse(&[2, 0]), Err(FabricError::Value("flag byte (0 or 1)")));
    }
}
