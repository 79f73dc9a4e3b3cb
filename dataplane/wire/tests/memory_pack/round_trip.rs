use berth_wire::memory_pack::{Error, Reader, Writer};
use proptest::prelude::*;

use super::tree::{Tree, Values};

fn values() -> impl Strategy<Value = Values> {
    (any::<[u64; 4]>(), any::<[u8; 16]>(), any::<[bool; 9]>()).prop_map(|([a, b, c, d], guid, some)| Values {
        whole: (a as u8, b as i8, c as u16, d as i16, a as u32, b as i32, c, d as i64),
        other: (some[0], a as u16, b as u32, c, guid),
        small: (
            some[1].then_some(a as u8),
            some[2].then_some(some[3]),
            some[3].then_some(b as i16),
            some[4].then_some(c as u16),
        ),
        large: (some[4].then_some(a as i32), some[5].then_some(b as u32), some[6].then_some(c), some[7].then_some(d)),
        guid: some[8].then_some(guid),
    })
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        Just(Tree::Null),
        values().prop_map(|values| Tree::Values(Box::new(values))),
        // The empty string has one form, which is read as that of UTF-16.
        "\\PC{1,20}".prop_map(Tree::Utf8),
        prop::collection::vec(any::<u16>(), 0..20).prop_map(Tree::Utf16),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Tree::Bytes),
        prop::option::of(prop::collection::vec(any::<i32>(), 0..9)).prop_map(Tree::Words),
        any::<u32>().prop_map(Tree::Reference),
        (any::<i64>(), 0..64).prop_map(|(value, shift)| Tree::Varint(value >> shift)),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        let list = || prop::collection::vec(inner.clone(), 0..6);
        prop_oneof![
            list().prop_map(Tree::List),
            prop::collection::vec((any::<u16>(), inner.clone()), 0..6).prop_map(Tree::Map),
            list().prop_map(Tree::Tolerant),
            (any::<u32>(), list()).prop_map(|(id, list)| Tree::Circular(id, list)),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_every_cut_of_it_is_refused(tree in tree()) {
        let mut buffer = vec![0xEE; 1 << 17];
        let mut writer = Writer::new(&mut buffer);
        tree.write(&mut writer).unwrap();
        let len = writer.len();
        let mut reader = Reader::new(&buffer[..len]);
        prop_assert_eq!(Tree::read(&mut reader), Ok(tree.clone()));
        prop_assert_eq!(reader.finish(), Ok(()));
        for cut in (0..len).step_by(1 + len / 64) {
            prop_assert!(Tree::read(&mut Reader::new(&buffer[..cut])).is_err(), "{} of {}", cut, len);
            let mut short = vec![0; cut];
            prop_assert_eq!(tree.write(&mut Writer::new(&mut short)), Err(Error::NoRoom));
        }
        // A buffer of exactly its length is enough.
        let mut exact = vec![0; len];
        prop_assert_eq!(tree.write(&mut Writer::new(&mut exact)), Ok(()));
        prop_assert_eq!(&exact, &buffer[..len]);
    }

    #[test]
    fn other_bytes_are_read_as_they_would_be_written_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        tag in 0_usize..11,
    ) {
        let tags: [&[u8]; 11] = [
            &[0], &[1], &[2], &[249], &[250, 250, 0], &[250, 251, 0], &[250, 255, 0], &[250, 0, 1], &[250, 44, 1],
            &[250, 254, 255], &[],
        ];
        let bytes = [tags[tag], &bytes].concat();
        if let Ok(tree) = Tree::read(&mut Reader::new(&bytes)) {
            let mut buffer = vec![0; 1 << 16];
            let mut writer = Writer::new(&mut buffer);
            tree.write(&mut writer).unwrap();
            let len = writer.len();
            prop_assert_eq!(Tree::read(&mut Reader::new(&buffer[..len])), Ok(tree));
        }
    }
}
