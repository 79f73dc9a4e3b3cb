//! The fundamental types and state spaces of PTX (PTX ISA 5.1, 5.2).

use std::fmt;

/// How an instruction looks at the bits of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// `.b8` to `.b64`.
    Bits,
    /// `.u8` to `.u64`.
    Unsigned,
    /// `.s8` to `.s64`.
    Signed,
    /// `.f32`, `.f64`.
    Float,
    /// `.pred`, of one bit.
    Pred,
}

/// A fundamental type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Type {
    /// What the bits are.
    pub class: Class,
    /// How many there are: 1 of a predicate, else 8, 16, 32 or 64.
    pub bits: u8,
}

const NAMES: [(&str, Type); 15] = {
    const fn of(class: Class, bits: u8) -> Type {
        Type { class, bits }
    }
    [
        (".b8", of(Class::Bits, 8)),
        (".b16", of(Class::Bits, 16)),
        (".b32", Type::B32),
        (".b64", Type::B64),
        (".u8", of(Class::Unsigned, 8)),
        (".u16", of(Class::Unsigned, 16)),
        (".u32", Type::U32),
        (".u64", of(Class::Unsigned, 64)),
        (".s8", of(Class::Signed, 8)),
        (".s16", of(Class::Signed, 16)),
        (".s32", Type::S32),
        (".s64", of(Class::Signed, 64)),
        (".f32", Type::F32),
        (".f64", Type::F64),
        (".pred", Type::PRED),
    ]
};

impl Type {
    /// `.b32`
    pub const B32: Self = Self { class: Class::Bits, bits: 32 };
    /// `.b64`
    pub const B64: Self = Self { class: Class::Bits, bits: 64 };
    /// `.u32`
    pub const U32: Self = Self { class: Class::Unsigned, bits: 32 };
    /// `.s32`
    pub const S32: Self = Self { class: Class::Signed, bits: 32 };
    /// `.f32`
    pub const F32: Self = Self { class: Class::Float, bits: 32 };
    /// `.f64`
    pub const F64: Self = Self { class: Class::Float, bits: 64 };
    /// `.pred`
    pub const PRED: Self = Self { class: Class::Pred, bits: 1 };

    /// The type of a modifier with its point, such as `.u32`; `None` of other modifiers and of types that are not
    /// covered, such as `.f16`.
    pub fn parse(modifier: &str) -> Option<Self> {
        NAMES.iter().find(|(name, _)| *name == modifier).map(|(_, ty)| *ty)
    }

    /// How many bytes a value takes in memory.
    pub fn bytes(self) -> u64 {
        u64::from(self.bits).div_ceil(8)
    }

    pub(crate) fn is_float(self) -> bool {
        self.class == Class::Float
    }

    pub(crate) fn is_signed(self) -> bool {
        self.class == Class::Signed
    }

    /// Whether a register of this type may be an operand of that type and of the same size.
    pub(crate) fn suits(self, operand: Self) -> bool {
        match (self.class, operand.class) {
            (Class::Pred, other) | (other, Class::Pred) => other == Class::Pred,
            (Class::Bits, _) | (_, Class::Bits) => true,
            (own, other) => (own == Class::Float) == (other == Class::Float),
        }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(_, ty)| ty == self).map_or("?", |(name, _)| name))
    }
}

/// A state space that an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// No space is named: the address says which.
    Generic,
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.param`
    Param,
}

impl Space {
    /// The space of a modifier with its point, such as `.shared::cta`; `None` of other modifiers.
    pub fn parse(modifier: &str) -> Option<Self> {
        Some(match modifier {
            ".global" => Self::Global,
            ".const" => Self::Const,
            ".shared" | ".shared::cta" => Self::Shared,
            ".local" => Self::Local,
            ".param" | ".param::entry" | ".param::func" => Self::Param,
            _ => return None,
        })
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Global => "global",
            Self::Const => "const",
            Self::Shared => "shared",
            Self::Local => "local",
            Self::Param => "param",
        })
    }
}
