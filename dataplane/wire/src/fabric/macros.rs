//! Macros that define structs, code tables and bit sets together with their codecs.

/// Defines a struct whose encoding is its fields in order.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl<'w> Wire<'w> for $name {
            #[inline]
            fn read(from: &mut Reader<'w>) -> Result<Self, FabricError> {
                Ok(Self { $($field: from.get()?,)* })
            }

            #[inline]
            fn write(&self, to: &mut Vec<u8>) {
                $(self.$field.write(to);)*
            }
        }
    )*};
    ($($(#[$meta:meta])* pub struct $name:ident<$life:lifetime> { $($(#[$doc:meta])* pub $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name<$life> {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl<$life> Wire<$life> for $name<$life> {
            fn read(from: &mut Reader<$life>) -> Result<Self, FabricError> {
                Ok(Self { $($field: from.get()?,)* })
            }

            fn write(&self, to: &mut Vec<u8>) {
                $(self.$field.write(to);)*
            }
        }
    )*};
}
pub(super) use wire;

/// Defines an enum of wire codes with names and one-line meanings. Undefined codes are refused when read.
macro_rules! codes {
    ($($(#[$meta:meta])* pub enum $name:ident: $int:ty {
        $($variant:ident = $code:literal, $text:literal, $meaning:literal;)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($int)]
        pub enum $name {
            $(#[doc = $meaning] $variant = $code,)*
        }

        impl $name {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number on the wire.
            #[inline]
            pub const fn code(self) -> $int {
                self as $int
            }

            /// Decodes a number from the wire; `None` if it is not defined.
            #[inline]
            pub const fn from_code(code: $int) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name that the wire document and the profile use.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// A one-line explanation for people.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)*
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl<'w> Wire<'w> for $name {
            #[inline]
            fn read(from: &mut Reader<'w>) -> Result<Self, FabricError> {
                Self::from_code(from.get()?).ok_or(FabricError::Value(stringify!($name)))
            }

            #[inline]
            fn write(&self, to: &mut Vec<u8>) {
                self.code().write(to);
            }
        }
    )*};
}
pub(crate) use codes;

/// Defines a bit set with names and one-line meanings. Undefined bits are refused when read.
macro_rules! bits {
    ($($(#[$meta:meta])* pub struct $name:ident: $int:ty {
        $($bit:ident = $value:literal, $meaning:literal;)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name($int);

        impl $name {
            $(#[doc = $meaning] pub const $bit: Self = Self($value);)*
            /// The empty set.
            pub const NONE: Self = Self(0);
            /// Every defined bit.
            pub const ALL: Self = Self($($value)|*);

            /// The set as it goes on the wire.
            #[inline]
            pub const fn bits(self) -> $int {
                self.0
            }

            /// Decodes a number from the wire; `None` if a bit is not defined.
            #[inline]
            pub const fn from_bits(bits: $int) -> Option<Self> {
                if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
            }

            /// Whether every bit of `other` is in this set.
            #[inline]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The intersection.
            #[inline]
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }

            /// The union.
            #[inline]
            #[must_use]
            pub const fn or(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits of this set that are not in `other`.
            #[inline]
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Names of the bits in the set, in lower case.
            pub fn names(self) -> impl Iterator<Item = String> {
                [$((Self::$bit, stringify!($bit))),*]
                    .into_iter()
                    .filter(move |(bit, _)| self.contains(*bit))
                    .map(|(_, name)| name.to_ascii_lowercase())
            }

            /// The bit with this name; case does not matter.
            pub fn from_name(name: &str) -> Option<Self> {
                [$((Self::$bit, stringify!($bit))),*]
                    .into_iter()
                    .find_map(|(bit, of)| of.eq_ignore_ascii_case(name).then_some(bit))
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.or(other)
            }
        }

        impl<'w> Wire<'w> for $name {
            #[inline]
            fn read(from: &mut Reader<'w>) -> Result<Self, FabricError> {
                Self::from_bits(from.get()?).ok_or(FabricError::Flags(stringify!($name)))
            }

            #[inline]
            fn write(&self, to: &mut Vec<u8>) {
                self.0.write(to);
            }
        }
    )*};
}
pub(super) use bits;
