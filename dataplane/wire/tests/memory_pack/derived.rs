//! Derived types. The bytes are worked out by hand from the format's description.

use std::fmt::Debug;

use berth_wire::memory_pack::{Char, Circular, Error, Guid, List, MAX_DEPTH, MemoryPack, Reader, Text, Writer};
use memorypack::MemoryPackSerializer;
use proptest::prelude::*;
use zerocopy::little_endian::{I32, U16};

use super::everything::{Colour, Everything, Node, OneOf, Point, Tolerant};

fn written<'a>(value: &impl MemoryPack<'a>) -> Vec<u8> {
    let mut buffer = vec![0xEE; 1 << 16];
    let mut writer = Writer::new(&mut buffer);
    value.write(&mut writer).unwrap();
    let len = writer.len();
    buffer.truncate(len);
    // A buffer of exactly its length is enough, and none that is shorter.
    assert_eq!(value.write(&mut Writer::new(&mut vec![0; len])), Ok(()));
    assert_eq!(value.write(&mut Writer::new(&mut vec![0; len - 1])), Err(Error::NoRoom));
    buffer
}

fn read<'a, T: MemoryPack<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    let mut reader = Reader::new(bytes);
    let value = T::read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// `bytes` are `value`, and no cut of them is one.
fn same<'a, T: MemoryPack<'a> + PartialEq + Debug>(value: &T, bytes: &'a [u8]) {
    assert_eq!(written(value), bytes, "{value:?}");
    assert_eq!(read::<T>(bytes).as_ref(), Ok(value));
    for cut in 0..bytes.len() {
        assert!(read::<T>(&bytes[..cut]).is_err(), "{cut} of {}", bytes.len());
    }
}

#[test]
fn an_enum_is_the_integer_under_it() {
    same(&Colour::Red, &[0, 0, 0, 0]);
    same(&Colour::Blue, &[7, 0, 0, 0]);
    same(&Colour::None, &[0xFE, 0xFF, 0xFF, 0xFF]);
    same(&Some(Colour::Blue), &[1, 0, 0, 0, 7, 0, 0, 0]); // the flag, padding up to the alignment of an int, the value
    same(&None::<Colour>, &[0; 8]);
    assert_eq!(read::<Colour>(&[8, 0, 0, 0]), Err(Error::Value(8)));
    assert_eq!(read::<Option<Colour>>(&[0, 0, 0, 0, 8, 0, 0, 0]), Ok(None), "an absent value may be anything");
    assert_eq!(read::<Option<Colour>>(&[1, 0, 0, 0, 8, 0, 0, 0]), Err(Error::Value(8)));
}

#[test]
fn a_struct_without_references_is_its_image() {
    let bytes = [
        9, // X at 0
        0, 0, 0, 0, 0, 0, 0, // padding: Y is aligned to 8
        0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, // Y = -2 at 8
        1, 0, 5, 0, // Z at 16: there is one, padding to 2, 5
        0, 0, 0, 0, // the struct's size is a multiple of 8
    ];
    let point = Point { x: 9, y: -2, z: Some(5) };
    same(&point, &bytes);
    let mut dirty = bytes;
    dirty[1..8].fill(0xEE);
    dirty[20..].fill(0xEE);
    assert_eq!(read(&dirty), Ok(point), "padding may be anything");
    // Point?: its value at 8, the alignment of Y.
    same(&Some(point), &[&[1, 0, 0, 0, 0, 0, 0, 0][..], &bytes].concat());
    // Point[] of one.
    same(&vec![point], &[&[1, 0, 0, 0][..], &bytes].concat());
}

/// `class Order { int Id; string? Note; Line[]? Lines; Line? First; }`, `class Line { string Of; }`.
#[derive(Debug, Clone, PartialEq, MemoryPack)]
struct Order<'a> {
    id: i32,
    note: Option<Text<'a>>,
    lines: Option<List<'a, Line>>,
    first: Option<Line>,
}

#[derive(Debug, Clone, PartialEq, MemoryPack)]
struct Line {
    of: String,
}

#[test]
fn an_object_is_its_count_and_its_members() {
    let lines = [
        2, 0, 0, 0, // Lines: two
        1, // a Line of one member
        0xFD, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0, 0xC3, 0xA9, // Of: ~2 bytes, one unit, e with an acute accent
        1, 0, 0, 0, 0, // a Line, its string empty
    ];
    let bytes = [
        &[4][..],                           // four members
        &[5, 0, 0, 0],                      // Id
        &[2, 0, 0, 0, 0x41, 0, 0x3D, 0xD8], // Note, in UTF-16: two units, A and half of a pair
        &lines,
        &[255], // First: null
    ]
    .concat();
    let units = [0x41, 0xD83D].map(U16::new);
    let note = Some(Text::Utf16(&units));
    let order = Order { id: 5, note, lines: read(&lines).unwrap(), first: None };
    same(&order, &bytes);
    let of = |of: &str| Line { of: of.to_owned() };
    let lines = order.lines.as_ref().unwrap();
    assert_eq!((lines.len(), lines.elements().collect::<Vec<_>>()), (2, vec![of("é"), of("")]));
    // Half of a pair is no character, so a String cannot have it.
    assert_eq!(read::<String>(&[1, 0, 0, 0, 0x3D, 0xD8]), Err(Error::Text));
    assert_eq!(read::<String>(&[1, 0, 0, 0, 0xE9, 0]), Ok("é".to_owned()));

    // An older writer knew one member: the others are null.
    let older = [1, 5, 0, 0, 0];
    assert_eq!(read(&older), Ok(Order { id: 5, note: None, lines: None, first: None }));
    // And where no null can be, that is an error.
    assert_eq!(read::<Line>(&[0]), Err(Error::Null));
    assert_eq!(read::<Line>(&[255]), Err(Error::Null));
    assert_eq!(read::<Line>(&[1, 0xFF, 0xFF, 0xFF, 0xFF]), Err(Error::Null));
    assert_eq!(read::<Line>(&[2, 0, 0, 0, 0, 9]), Err(Error::Members(2)), "more than the type has");
}

#[test]
fn a_map_is_its_pairs() {
    let bytes = [
        1, 0, 0, 0, // one pair
        0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0, b'k', // the key: ~1 byte, one unit
        1, 7, // the value, a byte?: there is one
    ];
    same(&vec![("k".to_owned(), Some(7_u8))], &bytes);
    let list: List<'_, (Text<'_>, Option<u8>)> = read(&bytes).unwrap();
    same(&list, &bytes);
    assert_eq!(list.elements().next(), Some((Text::Utf8("k"), Some(7))));
    same(&None::<Vec<(u8, u8)>>, &[0xFF; 4]);
    // A pair has 10 bytes at least: a count beyond that is refused before anything is read.
    let huge = [&i32::MAX.to_le_bytes()[..], &[0; 100]].concat();
    let wrong = Err(Error::Length(i32::MAX.into()));
    assert_eq!(read::<Vec<(String, Option<i16>)>>(&huge).map(drop), wrong);
    assert_eq!(read::<List<'_, (Text<'_>, Option<i16>)>>(&huge).map(drop), wrong);
    let fits = [&13_i32.to_le_bytes()[..], &[0; 100]].concat();
    assert_eq!(read::<Vec<(String, Option<i16>)>>(&fits).map(drop), Err(Error::Length(13)), "8 bytes each: 12 fit");
}

#[test]
fn a_union_is_a_tag_and_a_value() {
    let words = [I32::new(1)];
    same(&OneOf::Words(&words), &[250, 250, 0, 1, 0, 0, 0, 1, 0, 0, 0]); // a wide tag, 250; one int
    let inner = OneOf::Nested(Box::new(OneOf::Words(&words)));
    same(&inner, &[250, 0xE8, 3, 250, 250, 0, 1, 0, 0, 0, 1, 0, 0, 0]); // 1000 = 0x3E8
    same(&None::<OneOf<'_>>, &[255]);
    assert_eq!(read::<OneOf<'_>>(&[255]), Err(Error::Null));
    assert_eq!(read::<OneOf<'_>>(&[1, 0]), Err(Error::Tag(1)));
    assert_eq!(read::<OneOf<'_>>(&[251, 0]), Err(Error::Reserved(251)));
}

#[test]
fn a_tolerant_object_leaves_out_what_is_gone() {
    let bytes = [
        5, // five members: two of them are gone
        4, 0, 0, 12, 1, // their lengths
        7, 0, 0, 0, // Number
        0xFB, 0xFF, 0xFF, 0xFF, 4, 0, 0, 0, b't', b'e', b'x', b't', // Text: ~4 bytes, four units
        255,  // Inner: null
    ];
    same(&Tolerant { number: 7, text: Some(Text::Utf8("text")), inner: None }, &bytes);
    // Older: one member. Newer: the gaps have something in them, and there is one more.
    let older = [1, 4, 7, 0, 0, 0];
    let newer = [6, 4, 2, 0, 4, 1, 3, 7, 0, 0, 0, 9, 9, 0xFF, 0xFF, 0xFF, 0xFF, 255, 8, 8, 8];
    for bytes in [&older[..], &newer] {
        assert_eq!(read(bytes), Ok(Tolerant { number: 7, text: None, inner: None }));
    }
    assert_eq!(read(&[0]), Ok(Tolerant { number: 0, text: None, inner: None }), "left out: 0");

    // Lengths beyond one byte: 128 is code -124 and a short, twice one inside the other.
    let text = "x".repeat(120);
    let value = |inner| Tolerant { number: 7, text: Some(Text::Utf8(&text)), inner };
    let text_bytes = [&(!120_i32).to_le_bytes()[..], &120_i32.to_le_bytes(), text.as_bytes()].concat();
    let inner = [&[5, 4, 0, 0, 0x84, 128, 0, 1, 7, 0, 0, 0][..], &text_bytes, &[255]].concat();
    assert_eq!(inner.len(), 141);
    let outer = [&[5, 4, 0, 0, 0x84, 128, 0, 0x84, 141, 0, 7, 0, 0, 0][..], &text_bytes, &inner].concat();
    same(&value(Some(Box::new(value(None)))), &outer);
}

#[test]
fn a_circular_object_has_an_id_that_references_name() {
    let bytes = [
        2, // two members
        4,
        12, // their lengths
        0,  // id 0
        0xFF,
        0xFF,
        0xFF,
        0xFF, // Name: null
        2,
        4,
        2, // Next: an object of two members, with lengths
        0x87 - 2,
        200,
        0, // id 200: code -123, ushort
        0,
        0,
        0,
        0, // Name: empty
        250,
        0, // Next: a reference to 0
    ];
    let node = |name, next| Node { name, next: Some(Box::new(next)) };
    let inner = Circular::Object(200, node(Some(Text::Utf16(&[])), Circular::Reference(0)));
    same(&Circular::Object(0, node(None, inner)), &bytes);
    same(&None::<Circular<Node<'_>>>, &[255]);
    assert_eq!(read::<Circular<Node<'_>>>(&[255]), Err(Error::Null));
}

/// Every level of these is bounded, also where nothing but tags is inside each other.
#[test]
fn nesting_is_bounded() {
    let deep = |level: &[u8], levels: usize, end: &[u8]| [level.repeat(levels), end.to_vec()].concat();
    let (most, words) = (usize::from(MAX_DEPTH), [250, 250, 0, 0, 0, 0, 0]);
    // The innermost is one more.
    assert!(read::<OneOf<'_>>(&deep(&[250, 0xE8, 3], most - 1, &words)).is_ok());
    assert_eq!(read::<OneOf<'_>>(&deep(&[250, 0xE8, 3], most, &words)), Err(Error::Depth));
    assert_eq!(read::<OneOf<'_>>(&deep(&[250, 0xE8, 3], 100_000, &words)), Err(Error::Depth));
    // A node of two members whose lengths do not count here: the innermost is a reference.
    let mut bytes = vec![250, 0];
    for _ in 0..most {
        let mut length = [0; 9];
        let mut writer = Writer::new(&mut length);
        writer.varint(bytes.len() as i64).unwrap();
        let len = writer.len();
        bytes = [&[2, 4][..], &length[..len], &[1, 0xFF, 0xFF, 0xFF, 0xFF], &bytes].concat();
    }
    let node: Circular<Node<'_>> = read(&bytes).unwrap();
    assert_eq!(written(&node), bytes);
    let one_more =
        [&[2, 4, 0x82][..], &(bytes.len() as u32).to_le_bytes(), &[1, 0xFF, 0xFF, 0xFF, 0xFF], &bytes].concat();
    assert_eq!(read::<Circular<Node<'_>>>(&one_more), Err(Error::Depth));
    // And fewer, where somebody has little stack.
    let levels = |levels| deep(&[250, 0xE8, 3], levels, &words);
    assert!(OneOf::read(&mut Reader::new(&levels(9)).with_depth(10)).is_ok());
    assert_eq!(OneOf::read(&mut Reader::new(&levels(10)).with_depth(10)), Err(Error::Depth));
}

#[derive(Debug, Clone, PartialEq, MemoryPack)]
struct Generic<T> {
    of: T,
    more: Vec<T>,
}

type Numbers = (u8, i16, u32, i64, f32, f64, bool);
type Maybe = (Option<u8>, Option<i16>, Option<i32>, Option<f64>);

#[derive(Debug, Clone, PartialEq, MemoryPack)]
struct Shared {
    numbers: Numbers,
    maybe: Maybe,
    text: String,
    words: Vec<i32>,
    inner: Option<Box<Shared>>,
}

proptest! {
    /// An object is its count and a tuple to the crate, too; null is 255.
    #[test]
    fn objects_are_those_of_the_peer(
        numbers: Numbers,
        maybe: Maybe,
        text in "\\PC{0,40}",
        words in prop::collection::vec(any::<i32>(), 0..20),
    ) {
        let theirs = MemoryPackSerializer::serialize(&(5_u8, numbers, maybe, text.clone(), words.clone(), 255_u8)).unwrap();
        let inner = Shared { numbers, maybe, text, words, inner: None };
        prop_assert_eq!(&written(&inner), &theirs);
        prop_assert_eq!(read::<Shared>(&theirs), Ok(inner.clone()));
        let outer = Shared { inner: Some(Box::new(inner.clone())), ..inner };
        let nested = [&theirs[..theirs.len() - 1], &theirs].concat();
        prop_assert_eq!(&written(&outer), &nested);
        prop_assert_eq!(read::<Shared>(&nested), Ok(outer));
    }

    #[test]
    fn everything_is_read_as_it_was_written(
        (whole, wide, floats) in any::<((u8, i8, u16, i16, u32, i32, u64), i64, (f32, f64))>(),
        small in any::<(Option<u8>, Option<bool>, Option<i16>)>(),
        large in any::<(Option<i32>, Option<f32>, Option<u64>, Option<f64>)>(),
        (unit, guid, blue) in any::<(u16, [u8; 16], bool)>(),
        text in prop::option::of("\\PC{1,200}"),
        bytes in prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
        points in prop::option::of(prop::collection::vec(any::<Option<(u8, i64, Option<i16>)>>(), 0..5)),
    ) {
        let colour = if blue { Colour::Blue } else { Colour::None };
        let map = written(&vec![(text.clone().unwrap_or_default(), text.clone())]);
        let words: Vec<_> = bytes.iter().flatten().map(|byte| I32::new(i32::from(*byte) - 128)).collect();
        let leaf = Everything {
            whole,
            other: (wide, floats.0, floats.1, blue, Char(unit), Guid(guid), colour),
            small: (small.0, small.1, small.2, blue.then_some(Char(unit))),
            large,
            others: (blue.then_some(Guid(guid)), blue.then_some(colour)),
            text: text.as_deref().map(Text::Utf8),
            owned: text.clone(),
            bytes: bytes.as_deref(),
            words: blue.then_some(&words),
            points: points.map(|points| points.into_iter().map(|point| point.map(|(x, y, z)| Point { x, y, z })).collect()),
            map: Some(read(&map).unwrap()),
            inner: None,
            one_of: Some(OneOf::Words(&words)),
            tolerant: Some(Tolerant { number: whole.5, text: text.as_deref().map(Text::Utf8), inner: None }),
            node: Some(Circular::Reference(whole.4)),
        };
        let node = Node { name: leaf.text, next: Some(Box::new(Circular::Reference(1))) };
        let tree = Everything {
            inner: Some(Box::new(leaf.clone())),
            one_of: Some(OneOf::Everything(Box::new(leaf.clone()))),
            tolerant: leaf.tolerant.clone().map(|one| Tolerant { inner: Some(Box::new(one.clone())), ..one }),
            node: Some(Circular::Object(1, node)),
            ..leaf
        };
        let bytes = written(&tree);
        let again = read::<Everything<'_>>(&bytes);
        prop_assert_eq!(again.as_ref(), Ok(&tree));
        for cut in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
            prop_assert!(read::<Everything<'_>>(&bytes[..cut]).is_err(), "{} of {}", cut, bytes.len());
        }
        let generic = Generic { of: tree.clone(), more: vec![tree.clone(), tree] };
        let bytes = written(&generic);
        prop_assert_eq!(read::<Generic<Everything<'_>>>(&bytes), Ok(generic));
    }
}
