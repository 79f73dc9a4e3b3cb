//! Members of a message: a type and a name.

use std::{fmt, str::FromStr};

use berth_wire::memory_pack::{MessageMember, Scalar};

/// A member of a message, declared as in `CorrelationId guid?`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// As in the C# source.
    pub name: String,
    /// Type of the value; each has one size.
    pub scalar: Scalar,
    /// Whether it can be absent; in every format a flag is then before the value.
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

impl From<&MessageMember> for Member {
    fn from(&MessageMember { name, scalar, nullable }: &MessageMember) -> Self {
        Self { name: name.to_owned(), scalar, nullable }
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
