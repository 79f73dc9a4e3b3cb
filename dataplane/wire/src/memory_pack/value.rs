//! Values whose bytes on the wire are those in the memory of a .NET program.

/// A type without references: its bytes are copied as they are.
pub trait Unmanaged: Copy {
    /// Its size in bytes.
    const SIZE: usize;
    /// What its address is a multiple of in .NET; where a `T?` has its `T`.
    const ALIGN: usize;

    /// Reads [`SIZE`](Self::SIZE) bytes; `None` if there are more or fewer.
    fn get(bytes: &[u8]) -> Option<Self>;

    /// Writes [`SIZE`](Self::SIZE) bytes; `None` if there is room for more or fewer.
    fn put(self, bytes: &mut [u8]) -> Option<()>;
}

/// Bytes of a `T?`: a flag at the front, `T` at its alignment.
pub const fn nullable_size<T: Unmanaged>() -> usize {
    T::ALIGN + T::SIZE
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
    ($($number:ty),*) => { $(
        impl Unmanaged for $number {
            const SIZE: usize = size_of::<Self>();
            const ALIGN: usize = Self::SIZE;

            #[inline]
            fn get(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(bytes.try_into().ok()?))
            }

            #[inline]
            fn put(self, bytes: &mut [u8]) -> Option<()> {
                *<&mut [u8; Self::SIZE]>::try_from(bytes).ok()? = self.to_le_bytes();
                Some(())
            }
        }
    )* };
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// One byte: 0 is false, others are true; written as 0 or 1.
impl Unmanaged for bool {
    const SIZE: usize = 1;
    const ALIGN: usize = 1;

    #[inline]
    fn get(bytes: &[u8]) -> Option<Self> {
        u8::get(bytes).map(|byte| byte != 0)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Option<()> {
        u8::from(self).put(bytes)
    }
}

impl Unmanaged for Char {
    const SIZE: usize = 2;
    const ALIGN: usize = 2;

    #[inline]
    fn get(bytes: &[u8]) -> Option<Self> {
        u16::get(bytes).map(Self)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Option<()> {
        self.0.put(bytes)
    }
}

impl Unmanaged for Guid {
    const SIZE: usize = 16;
    const ALIGN: usize = 4;

    #[inline]
    fn get(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    #[inline]
    fn put(self, bytes: &mut [u8]) -> Option<()> {
        *<&mut [u8; 16]>::try_from(bytes).ok()? = self.0;
        Some(())
    }
}
