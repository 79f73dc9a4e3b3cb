//! Messages of fixed size, which have three formats.

use super::{Error, Guid, Reader, Unmanaged, Writer};

/// How a message of fixed size lies on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The number of members in a byte, then the members, packed; a nullable is a flag and its value.
    DotCompute,
    /// The same with a nullable as MemoryPack has it: its value at its alignment behind the flag.
    MemoryPack,
    /// The members, packed. What kernels see.
    Raw,
}

impl Format {
    /// Every format and its word.
    pub const WORDS: [(&str, Self); 3] =
        [("dotcompute", Self::DotCompute), ("memorypack", Self::MemoryPack), ("raw", Self::Raw)];

    /// The word that stands for it.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, format)| *format == self).map_or("", |(word, _)| word)
    }
}

/// The type of a member that is not null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// One byte, 0 or 1.
    Bool,
    /// One byte, signed.
    I8,
    /// One byte.
    U8,
    /// Two bytes, signed.
    I16,
    /// Two bytes.
    U16,
    /// Four bytes, signed.
    I32,
    /// Four bytes.
    U32,
    /// Eight bytes, signed.
    I64,
    /// Eight bytes.
    U64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// Sixteen bytes, which nothing here reorders.
    Guid,
}

impl Scalar {
    /// Every type and its word.
    pub const WORDS: [(&str, Self); 12] = [
        ("bool", Self::Bool),
        ("i8", Self::I8),
        ("u8", Self::U8),
        ("i16", Self::I16),
        ("u16", Self::U16),
        ("i32", Self::I32),
        ("u32", Self::U32),
        ("i64", Self::I64),
        ("u64", Self::U64),
        ("f32", Self::F32),
        ("f64", Self::F64),
        ("guid", Self::Guid),
    ];

    /// The word that stands for it in declarations.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, scalar)| *scalar == self).map_or("", |(word, _)| word)
    }

    /// Its size in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
            Self::Guid => Guid::SIZE,
        }
    }

    /// What its offset in a `T?` of MemoryPack is: its alignment in .NET, in bytes.
    pub const fn align(self) -> usize {
        if matches!(self, Self::Guid) { Guid::ALIGN } else { self.size() }
    }
}

/// A Rust type that is a [`Scalar`].
pub trait Fixed: Unmanaged {
    /// Which one.
    const SCALAR: Scalar;
}

/// A member of a [`Message`], as it is declared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageMember {
    /// As in the C# source: `MessageId` for `message_id`.
    pub name: &'static str,
    /// Its type.
    pub scalar: Scalar,
    /// Whether it can be absent.
    pub nullable: bool,
}

/// An object whose members have each one size: what ring kernels take and answer.
///
/// `#[derive(MemoryPack)]` with `#[memory_pack(message)]` implements it.
pub trait Message: Sized {
    /// The name of the type.
    const NAME: &'static str;
    /// The members in the order of their declaration.
    const MEMBERS: &'static [MessageMember];

    /// Reads one member after the other.
    fn read_members(reader: &mut Reader<'_>) -> Result<Self, Error>;

    /// Writes one member after the other.
    fn write_members(&self, writer: &mut Writer<'_>) -> Result<(), Error>;

    /// Reads a message that is all of `bytes`. It has exactly the members of the type, unlike an object.
    fn read_in(format: Format, bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = if format == Format::MemoryPack { Reader::new(bytes) } else { Reader::packed(bytes) };
        if format != Format::Raw {
            let count: u8 = reader.value()?;
            if usize::from(count) != Self::MEMBERS.len() {
                return Err(Error::Members(count));
            }
        }
        let message = Self::read_members(&mut reader)?;
        reader.finish()?;
        Ok(message)
    }

    /// Writes the message to the front of `buffer`, and returns its length.
    fn write_in(&self, format: Format, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut writer = if format == Format::MemoryPack { Writer::new(buffer) } else { Writer::packed(buffer) };
        if format != Format::Raw {
            writer.object(Self::MEMBERS.len() as u8)?;
        }
        self.write_members(&mut writer)?;
        Ok(writer.len())
    }
}
