//! Members of a message: a type and a name.

use std::{fmt, str::FromStr};

use berth_wire::memory_pack::{Guid, Unmanaged};

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

/// A member of a message, declared as in `CorrelationId guid?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// As in the C# source.
    pub name: String,
    /// Its type.
    pub scalar: Scalar,
    /// Whether it can be absent.
    pub nullable: bool,
}

impl Member {
    /// A member that is always there.
    pub fn new(name: &str, scalar: Scalar) -> Self {
        Self { name: name.to_owned(), scalar, nullable: false }
    }

    /// A member that can be absent.
    pub fn nullable(name: &str, scalar: Scalar) -> Self {
        Self { nullable: true, ..Self::new(name, scalar) }
    }

    /// Its type as declared, such as `guid?`.
    pub fn type_word(&self) -> String {
        format!("{}{}", self.scalar.word(), if self.nullable { "?" } else { "" })
    }

    /// Bytes in the packed formats.
    pub(crate) fn packed(&self) -> usize {
        usize::from(self.nullable) + self.scalar.size()
    }

    /// Bytes of a nullable in front of its value in MemoryPack: the flag and padding; 0 if it is none.
    pub(crate) fn front(&self) -> usize {
        if self.nullable { self.scalar.align() } else { 0 }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.type_word())
    }
}

/// Why a declaration is none of a member.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// It is not a name and a type.
    #[error("{0:?} is not a member; write \"NAME TYPE\", such as \"Priority u8\"")]
    Form(String),
    /// The name cannot stand in a C header.
    #[error("{0:?} is not a name; use a letter, then letters, digits and underscores, 64 at most")]
    Name(String),
    /// There is no such type.
    #[error("{0:?} is not a type; there are: {words}, each with ? for one that can be absent",
        words = Scalar::WORDS.map(|(word, _)| word).join(" "))]
    Type(String),
}

impl FromStr for Member {
    type Err = MemberError;

    fn from_str(text: &str) -> Result<Self, MemberError> {
        let mut words = text.split_whitespace();
        let (Some(name), Some(kind), None) = (words.next(), words.next(), words.next()) else {
            return Err(MemberError::Form(text.to_owned()));
        };
        if !is_identifier(name) {
            return Err(MemberError::Name(name.to_owned()));
        }
        let (word, nullable) = kind.strip_suffix('?').map_or((kind, false), |word| (word, true));
        let known = Scalar::WORDS.iter().find(|(known, _)| *known == word);
        let (_, scalar) = *known.ok_or_else(|| MemberError::Type(kind.to_owned()))?;
        Ok(Self { name: name.to_owned(), scalar, nullable })
    }
}

/// Whether a name can be one in C.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut bytes = name.bytes();
    name.len() <= 64
        && bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
