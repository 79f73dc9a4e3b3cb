//! Values whose bytes on the wire are those in the memory of a .NET program.

use super::{Error, Fixed, Scalar};

/// A type without references: its bytes are copied as they are.
pub trait Unmanaged: Copy {
    /// Its size in bytes.
    const SIZE: usize;
    /// What its address is a multiple of in .NET; where a `T?` has its `T`.
    const ALIGN: usize;

    /// Reads [`SIZE`](Self::SIZE) bytes.
    ///
    /// # Errors
    /// If there are more or fewer, or if they are no such value.
    fn get(bytes: &[u8]) -> Result<Self, Error>;

    /// Writes [`SIZE`](Self::SIZE) bytes.
    ///
    /// # Errors
    /// If there is room for more or fewer.
    fn put(self, bytes: &mut [u8]) -> Result<(), Error>;
}

/// A UTF-16 unit, the `char` of .NET.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Char(pub u16);

/// A `System.Guid` as `ToByteArray` has it: the first three groups of its text are little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// All zeros, which stands for none.
    pub const EMPTY: Self = Self([0; 16]);

    /// The same bytes in the order of the text, or back.
    #[must_use]
    pub fn swapped(self) -> Self {
        let Self(mut bytes) = self;
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Self(bytes)
    }
}

macro_rules! numbers {
    ($($number:ident $scalar:ident),*) => { $(
        impl Unmanaged for $number {
            const SIZE: usize = size_of::<Self>();
            const ALIGN: usize = Self::SIZE;

            #[inline]
            fn get(bytes: &[u8]) -> Result<Self, Error> {
                bytes.try_into().map(Self::from_le_bytes).map_err(|_| Error::Truncated)
            }

            #[inline]
            fn put(self, bytes: &mut [u8]) -> Result<(), Error> {
                *<&mut [u8; Self::SIZE]>::try_from(bytes).map_err(|_| Error::NoRoom)? = self.to_le_bytes();
                Ok(())
            }
        }

        impl Fixed for $number {
            const SCALAR: Scalar = Scalar::$scalar;
        }
    )* };
}

numbers!(u8 U8, i8 I8, u16 U16, i16 I16, u32 U32, i32 I32, u64 U64, i64 I64, f32 F32, f64 F64);

/// One byte: 0 is false, others are true; written as 0 or 1.
impl Unmanaged for bool {
    const SIZE: usize = 1;
    const ALIGN: usize = 1;

    #[inline]
    fn get(bytes: &[u8]) -> Result<Self, Error> {
        u8::get(bytes).map(|byte| byte != 0)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Result<(), Error> {
        u8::from(self).put(bytes)
    }
}

impl Fixed for bool {
    const SCALAR: Scalar = Scalar::Bool;
}

impl Unmanaged for Char {
    const SIZE: usize = 2;
    const ALIGN: usize = 2;

    #[inline]
    fn get(bytes: &[u8]) -> Result<Self, Error> {
        u16::get(bytes).map(Self)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.put(bytes)
    }
}

impl Unmanaged for Guid {
    const SIZE: usize = 16;
    const ALIGN: usize = 4;

    #[inline]
    fn get(bytes: &[u8]) -> Result<Self, Error> {
        bytes.try_into().map(Self).map_err(|_| Error::Truncated)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Result<(), Error> {
        *<&mut [u8; 16]>::try_from(bytes).map_err(|_| Error::NoRoom)? = self.0;
        Ok(())
    }
}

impl Fixed for Guid {
    const SCALAR: Scalar = Scalar::Guid;
}

/// A `T?`: a flag at the front, `T` at its alignment. What stands in the padding is ignored: .NET may leave anything there. It is
/// written as zeros, as runtimes that read the flag as a wider integer need it.
impl<T: Unmanaged> Unmanaged for Option<T> {
    const SIZE: usize = T::ALIGN + T::SIZE;
    const ALIGN: usize = T::ALIGN;

    #[inline]
    fn get(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() != Self::SIZE {
            return Err(Error::Truncated);
        }
        // Where there is none, anything may stand in its place.
        (bytes[0] != 0).then(|| T::get(&bytes[T::ALIGN..])).transpose()
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Result<(), Error> {
        if bytes.len() != Self::SIZE {
            return Err(Error::NoRoom);
        }
        bytes.fill(0);
        bytes[0] = self.is_some().into();
        self.map_or(Ok(()), |value| value.put(&mut bytes[T::ALIGN..]))
    }
}
