//! MemoryPack, the serializer of .NET programs: a [`Reader`] that borrows from the message and a [`Writer`] into the
//! caller's buffer. Everything is little-endian, and neither allocates.
//!
//! The format does not describe itself: both sides know the type, and read or write its parts in the same order.
//!
//! | type | bytes |
//! |---|---|
//! | number, `bool`, `char`, enum, `Guid` | as in memory: [`Unmanaged`] |
//! | `T?` of those | a flag, padding up to `T`'s alignment, `T`; of one size, whether there is a value or not |
//! | object | member count, members; 255 is null |
//! | version-tolerant object | member count, a variable-length integer for each member's length in bytes, members |
//! | circular object | as version-tolerant, with an id before the members; 250 and an id is a reference |
//! | union | tag, value; a tag from 250 on is 250 and two bytes; 255 is null |
//! | tuple, key with its value | one part after the other |
//! | collection, map | count in 4 bytes, -1 is null; elements |
//! | string | [`Text`] |
//!
//! A type that is one of these as a whole implements [`MemoryPack`], and `#[derive(MemoryPack)]` writes that:
//!
//! | declaration | is |
//! |---|---|
//! | `struct` | an object |
//! | `struct` with `#[memory_pack(tolerant)]` | a version-tolerant object; `#[memory_pack(order = N)]` where members are gone |
//! | `struct` with `#[memory_pack(circular)]` | the members of a [`Circular`] object, with `order` as well |
//! | `struct` with `#[memory_pack(unmanaged)]` | a .NET struct without references: its image, padding included |
//! | `struct` with `#[memory_pack(message)]` | an object of fixed size, which is a [`Message`], too |
//! | `enum` with `#[repr(i32)]` or another integer | an enum |
//! | `enum` of `#[memory_pack(tag = N)] A(Of)` | a union |
//! | `Option<T>` | `T` or null |
//! | [`Text`], `String` | a string in either form |
//! | `&[T]` of bytes or little-endian numbers, [`List<T>`](List), `Vec<T>` | a collection; the first two stay in the message |
//! | any of these of `(K, V)` | a map: its pairs as they come |
//! | `(A, B)`, `Box<T>` | a tuple; `T` |
//!
//! Without `Option`, null is refused. A member that the object ends before or leaves out is 0 or null.
//!
//! Counts and lengths are held against the bytes that are there before anything follows from them, and nesting against
//! [`MAX_DEPTH`].

mod message;
mod reader;
mod types;
mod value;
mod writer;

use std::{char::DecodeUtf16Error, fmt};

pub use berth_memory_pack_derive::MemoryPack;
pub use message::{Fixed, Format, Message, MessageMember, Scalar};
pub use reader::{Circular, Members, Reader};
pub use types::{CircularMembers, List, MemoryPack, Nullable};
pub use value::{Char, Guid, Unmanaged};
pub use writer::Writer;
use zerocopy::little_endian::U16;

/// Objects, unions and collections that may be inside each other, as in .NET.
pub const MAX_DEPTH: u16 = 1000;

/// The most members of an object.
pub const MAX_MEMBERS: u8 = 249;

/// In place of a member count: a tag of two bytes follows, or the id of an object that was there before.
const WIDE: u8 = 250;
/// In place of a member count or a tag: null.
const NULL: u8 = 255;

/// The characters of a string, in the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text<'a> {
    /// What writers send unless told otherwise: the complement of the length in bytes, the length in UTF-16 units or -1,
    /// the bytes.
    Utf8(&'a str),
    /// The length in units, the units. They may be no valid text, as in .NET itself.
    Utf16(&'a [U16]),
}

impl<'a> Text<'a> {
    /// The characters, and in their place surrogates without their other half.
    pub fn chars(self) -> impl Iterator<Item = Result<char, DecodeUtf16Error>> + use<'a> {
        let (utf8, utf16) = match self {
            Self::Utf8(text) => (text, &[][..]),
            Self::Utf16(units) => ("", units),
        };
        utf8.chars().map(Ok).chain(char::decode_utf16(utf16.iter().map(|unit| unit.get())))
    }
}

/// Why bytes are not the message that was expected, or why one could not be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// The message ends before what it announces.
    Truncated,
    /// A member count or tag that has no meaning here: 250 to 254.
    Reserved(u8),
    /// An object with more members than the type has, or a message with another number.
    Members(u8),
    /// Null, where only a value can be.
    Null,
    /// A tag that the union does not have.
    Tag(u16),
    /// A number that is no value of the enum.
    Value(i64),
    /// A length or count below -1, beyond the bytes that follow, or not that of what follows.
    Length(i64),
    /// More than [`MAX_DEPTH`] objects inside each other.
    Depth,
    /// Bytes that are no UTF-8.
    Text,
    /// So many bytes behind the end.
    Trailing(usize),
    /// The buffer is too short for the message.
    NoRoom,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the message ends early"),
            Self::Reserved(byte) => write!(f, "{byte} is reserved and stands for no member count or tag here"),
            Self::Members(count) => write!(f, "an object of {count} members, which are not those of its type"),
            Self::Null => f.write_str("null where only a value can be"),
            Self::Tag(tag) => write!(f, "{tag} is no tag of this union"),
            Self::Value(number) => write!(f, "{number} is no value of this enum"),
            Self::Length(length) => write!(f, "{length} is not the length of what follows"),
            Self::Depth => write!(f, "more than {MAX_DEPTH} objects inside each other"),
            Self::Text => f.write_str("a string that is no UTF-8"),
            Self::Trailing(bytes) => write!(f, "{bytes} bytes behind the end of the message"),
            Self::NoRoom => f.write_str("the message does not fit the buffer"),
        }
    }
}

impl std::error::Error for Error {}
