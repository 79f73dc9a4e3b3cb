//! Derived types with every part of the format in them. The fuzz target reads them from arbitrary bytes.

use berth_wire::memory_pack::{Char, Circular, Guid, List, MemoryPack, Text};
use zerocopy::little_endian::I32;

/// `enum Colour { Red, Blue = 7, None = -2 }`.
#[derive(Debug, Clone, Copy, PartialEq, MemoryPack)]
#[repr(i32)]
pub(crate) enum Colour {
    Red,
    Blue = 7,
    None = -2,
}

/// `struct Point { byte X; long Y; short? Z; }`.
#[derive(Debug, Clone, Copy, PartialEq, MemoryPack)]
#[memory_pack(unmanaged)]
pub(crate) struct Point {
    pub(crate) x: u8,
    pub(crate) y: i64,
    pub(crate) z: Option<i16>,
}

type Large = (Option<i32>, Option<f32>, Option<u64>, Option<f64>);

#[derive(Debug, Clone, PartialEq, MemoryPack)]
pub(crate) struct Everything<'a> {
    pub(crate) whole: (u8, i8, u16, i16, u32, i32, u64),
    pub(crate) other: (i64, f32, f64, bool, Char, Guid, Colour),
    pub(crate) small: (Option<u8>, Option<bool>, Option<i16>, Option<Char>),
    pub(crate) large: Large,
    pub(crate) others: (Option<Guid>, Option<Colour>),
    pub(crate) text: Option<Text<'a>>,
    pub(crate) owned: Option<String>,
    pub(crate) bytes: Option<&'a [u8]>,
    pub(crate) words: Option<&'a [I32]>,
    pub(crate) points: Option<Vec<Option<Point>>>,
    pub(crate) map: Option<List<'a, (Text<'a>, Option<Text<'a>>)>>,
    pub(crate) inner: Option<Box<Everything<'a>>>,
    pub(crate) one_of: Option<OneOf<'a>>,
    pub(crate) tolerant: Option<Tolerant<'a>>,
    pub(crate) node: Option<Circular<Node<'a>>>,
}

#[derive(Debug, Clone, PartialEq, MemoryPack)]
pub(crate) enum OneOf<'a> {
    #[memory_pack(tag = 0)]
    Everything(Box<Everything<'a>>),
    #[memory_pack(tag = 250)]
    Words(&'a [I32]),
    #[memory_pack(tag = 1000)]
    Nested(Box<OneOf<'a>>),
}

/// The members 1 and 2 are gone.
#[derive(Debug, Clone, PartialEq, MemoryPack)]
#[memory_pack(tolerant)]
pub(crate) struct Tolerant<'a> {
    pub(crate) number: i32,
    #[memory_pack(order = 3)]
    pub(crate) text: Option<Text<'a>>,
    pub(crate) inner: Option<Box<Tolerant<'a>>>,
}

#[derive(Debug, Clone, PartialEq, MemoryPack)]
#[memory_pack(circular)]
pub(crate) struct Node<'a> {
    pub(crate) name: Option<Text<'a>>,
    pub(crate) next: Option<Box<Circular<Node<'a>>>>,
}
