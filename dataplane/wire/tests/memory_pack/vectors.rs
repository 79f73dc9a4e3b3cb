//! Worked out by hand from the format's description. Writers have to write these bytes, and readers to read them.

use std::fmt::Debug;

use berth_wire::memory_pack::{Char, Circular, Error, Guid, Reader, Text, Unmanaged, Writer};
use zerocopy::little_endian::{I32, U16};

fn written(write: impl FnOnce(&mut Writer<'_>) -> Result<(), Error>) -> Vec<u8> {
    let mut buffer = [0xEE; 256];
    let mut writer = Writer::new(&mut buffer);
    write(&mut writer).unwrap();
    let len = writer.len();
    buffer[..len].to_vec()
}

fn same<T: Unmanaged + PartialEq + Debug>(value: T, bytes: &[u8]) {
    assert_eq!(written(|writer| writer.value(value)), bytes, "{value:?}");
    assert_eq!(Reader::new(bytes).value(), Ok(value));
}

#[test]
fn values_are_their_bytes_in_memory() {
    same(0xA5_u8, &[0xA5]);
    same(-2_i8, &[0xFE]); // two's complement
    same(true, &[1]);
    same(false, &[0]);
    same(Char(0x20AC), &[0xAC, 0x20]); // the euro sign, one UTF-16 unit, low byte first
    same(0x0102_u16, &[2, 1]);
    same(-2_i16, &[0xFE, 0xFF]);
    same(0x0102_0304_u32, &[4, 3, 2, 1]);
    same(-2_i32, &[0xFE, 0xFF, 0xFF, 0xFF]);
    same(0x0102_0304_0506_0708_u64, &[8, 7, 6, 5, 4, 3, 2, 1]);
    same(-2_i64, &[0xFE, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF]);
    same(10.0_f32, &[0, 0, 0x20, 0x41]); // 0x41200000: exponent 130 - 127 = 3, 1.25 * 8
    same(-2.0_f64, &[0, 0, 0, 0, 0, 0, 0, 0xC0]); // 0xC000000000000000: sign, exponent 1024 - 1023
    assert_eq!(Reader::new(&[2]).value(), Ok(true), "all but 0 are true");
    // An enum on int: the integer under it.
    same(3_i32, &[3, 0, 0, 0]);
}

#[test]
fn a_guid_has_its_first_groups_reversed() {
    let text = [0x12, 0x34, 0x56, 0x78, 0x90, 0xAB, 0xCD, 0xEF, 0x12, 0x34, 0x56, 0x78, 0x90, 0xAB, 0xCD, 0xEF];
    let bytes = [
        0x78, 0x56, 0x34, 0x12, // 12345678, an int
        0xAB, 0x90, // 90AB, a short
        0xEF, 0xCD, // CDEF, a short
        0x12, 0x34, 0x56, 0x78, 0x90, 0xAB, 0xCD, 0xEF, // 1234-567890ABCDEF, eight bytes
    ];
    assert_eq!(Guid(text).swapped(), Guid(bytes));
    same(Guid(bytes), &bytes);
}

/// `bytes` is the value's nullable: `pad` bytes behind the flag are padding.
fn nullable<T: Unmanaged + PartialEq + Debug>(value: T, pad: usize, bytes: &[u8]) {
    assert_eq!(<Option<T> as Unmanaged>::SIZE, bytes.len());
    assert_eq!(written(|writer| writer.nullable(Some(value))), bytes);
    assert_eq!(written(|writer| writer.nullable::<T>(None)), vec![0; bytes.len()], "all zero, of the same size");
    let mut dirty = bytes.to_vec();
    dirty[0] = 0x80; // any flag but 0
    dirty[1..=pad].fill(0xEE);
    assert_eq!(Reader::new(&dirty).nullable(), Ok(Some(value)), "{dirty:x?}");
    dirty[0] = 0;
    assert_eq!(Reader::new(&dirty).nullable::<T>(), Ok(None));
    assert_eq!(Reader::new(&dirty[1..]).nullable::<T>(), Err(Error::Truncated));
}

#[test]
fn a_nullable_has_its_value_at_the_values_alignment() {
    nullable(7_u8, 0, &[1, 7]);
    nullable(true, 0, &[1, 1]);
    nullable(7_i16, 1, &[1, 0, 7, 0]); // aligned to 2
    nullable(Char(0x41), 1, &[1, 0, 0x41, 0]);
    nullable(7_i32, 3, &[1, 0, 0, 0, 7, 0, 0, 0]); // to 4
    nullable(10.0_f32, 3, &[1, 0, 0, 0, 0, 0, 0x20, 0x41]);
    nullable(7_u64, 7, &[1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]); // to 8
    nullable(-2.0_f64, 7, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xC0]);
    let guid = [0x11; 16]; // to 4, as its first field is an int
    nullable(Guid(guid), 3, &[&[1, 0, 0, 0][..], &guid].concat());
}

/// `class VectorAddRequest : IRingKernelMessage` with all that MemoryPack takes of it, get-only properties included.
#[test]
fn an_object_has_its_members_in_the_order_of_their_declaration() {
    let bytes = [
        &[7][..],                  // seven members
        &[0xA0; 16],               // Guid MessageId
        &[0xEF, 0xFF, 0xFF, 0xFF], // string MessageType: ~16 bytes of UTF-8 ..
        &[16, 0, 0, 0],            // .. which are 16 units of UTF-16
        b"VectorAddRequest",       // the bytes
        &[128],                    // byte Priority
        &[1, 0, 0, 0],             // Guid? CorrelationId: there is one; padding to 4
        &[0xC0; 16],               // its value
        &[0, 0, 0x20, 0x41],       // float A = 10
        &[0, 0, 0xA0, 0x41],       // float B = 20: 0x41A00000
        &[42, 0, 0, 0],            // int PayloadSize
    ]
    .concat();
    assert_eq!(bytes.len(), 74);
    let writer = written(|w| {
        w.object(7)?;
        w.value(Guid([0xA0; 16]))?;
        w.utf8(Some("VectorAddRequest"))?;
        w.value(128_u8)?;
        w.nullable(Some(Guid([0xC0; 16])))?;
        w.value(10.0_f32)?;
        w.value(20.0_f32)?;
        w.value(42_i32)
    });
    assert_eq!(writer, bytes);
    let read = Reader::new(&bytes).object(7, |members| {
        let id: Option<Guid> = members.next(Reader::value)?;
        let kind = members.next(Reader::string)?.flatten();
        let priority: Option<u8> = members.next(Reader::value)?;
        let correlation: Option<Guid> = members.next(Reader::nullable)?.flatten();
        let a: Option<f32> = members.next(Reader::value)?;
        let b: Option<f32> = members.next(Reader::value)?;
        let size: Option<i32> = members.next(Reader::value)?;
        assert_eq!(members.next(Reader::value::<u8>)?, None);
        Ok((id, kind, priority, correlation, a, b, size))
    });
    let kind = Some(Text::Utf8("VectorAddRequest"));
    let ids = (Some(Guid([0xA0; 16])), Some(Guid([0xC0; 16])));
    assert_eq!(read, Ok(Some((ids.0, kind, Some(128), ids.1, Some(10.0), Some(20.0), Some(42)))));
}

#[test]
fn objects_inside_objects_and_objects_of_an_older_type() {
    let bytes = [
        2, // two members
        1, 9,   // an object of one member, a byte
        255, // an object that is null
    ];
    let inner = |reader: &mut Reader<'_>| reader.object(1, |members| members.next(Reader::value::<u8>));
    let outer = |bytes: &[u8]| {
        Reader::new(bytes).object(3, |members| Ok([members.next(inner)?, members.next(inner)?, members.next(inner)?]))
    };
    assert_eq!(outer(&bytes), Ok(Some([Some(Some(Some(9))), Some(None), None])), "the third is from a later version");
    assert_eq!(outer(&[0]), Ok(Some([None; 3])));
    assert_eq!(outer(&[255]), Ok(None));
    let writer = written(|w| {
        w.object(2)?;
        w.object(1)?;
        w.value(9_u8)?;
        w.null()
    });
    assert_eq!(writer, bytes);
    assert_eq!(Writer::new(&mut [0; 9]).object(250), Err(Error::Reserved(250)));
}

#[test]
fn strings() {
    let null = [0xFF; 4]; // -1
    assert_eq!((written(|w| w.utf8(None)), Reader::new(&null).string()), (null.to_vec(), Ok(None)));
    let empty = [0; 4]; // no unit, and nothing else
    assert_eq!(written(|w| w.utf8(Some(""))), empty);
    assert_eq!(Reader::new(&empty).string(), Ok(Some(Text::Utf16(&[]))));
    let utf8 = [
        0xF8, 0xFF, 0xFF, 0xFF, // ~7: seven bytes
        3, 0, 0, 0, // three units of UTF-16
        0xE2, 0x82, 0xAC, // the euro sign
        0xF0, 0x9F, 0x9A, 0xA2, // a ship, two units
    ];
    assert_eq!(written(|w| w.utf8(Some("€🚢"))), utf8);
    assert_eq!(Reader::new(&utf8).string(), Ok(Some(Text::Utf8("€🚢"))));
    let utf16 = [
        3, 0, 0, 0, // three units
        0xAC, 0x20, // the euro sign
        0x3D, 0xD8, 0xA2, 0xDE, // the ship: D83D DEA2
    ];
    let units = [0x20AC, 0xD83D, 0xDEA2].map(U16::new);
    assert_eq!(written(|w| w.utf16(Some(&units))), utf16);
    let text = Reader::new(&utf16).string().unwrap().unwrap();
    assert_eq!(text, Text::Utf16(&units));
    assert_eq!(text.chars().collect::<Result<String, _>>().unwrap(), "€🚢");
}

#[test]
fn collections_and_maps() {
    let array = [2, 0, 0, 0, 1, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF]; // two ints: 1, -2
    let words = [1, -2].map(I32::new);
    assert_eq!(written(|w| w.array(Some(&words))), array);
    assert_eq!(Reader::new(&array).array::<I32>(), Ok(Some(&words[..])));
    assert_eq!(written(|w| w.list(None)), [0xFF; 4]);
    assert_eq!(Reader::new(&[0xFF; 4]).array::<I32>(), Ok(None));
    assert_eq!(Reader::new(&[0xFF; 4]).list(1, |_| unreachable!()), Ok(None));
    assert_eq!(Reader::new(&[0; 4]).array::<I32>(), Ok(Some(&[][..])));

    // Dictionary<string, byte?> of one: a pair is a tuple, key and value without a header.
    let map = [
        1, 0, 0, 0, // one pair
        0xFE, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0, b'k', // key: ~1 byte, one unit
        1, 7, // value: there is one, 7
    ];
    let writer = written(|w| {
        w.list(Some(1))?;
        w.utf8(Some("k"))?;
        w.nullable(Some(7_u8))
    });
    assert_eq!(writer, map);
    let mut pairs = Vec::new();
    let mut reader = Reader::new(&map);
    let read = reader.list(6, |reader| {
        pairs.push((reader.string()?, reader.nullable::<u8>()?));
        Ok(())
    });
    assert_eq!((read, reader.finish()), (Ok(Some(1)), Ok(())));
    assert_eq!(pairs, [(Some(Text::Utf8("k")), Some(7))]);
}

#[test]
fn unions() {
    for (tag, bytes) in [(0, &[0][..]), (249, &[249]), (250, &[250, 250, 0]), (0x1234, &[250, 0x34, 0x12])] {
        assert_eq!(written(|w| w.union(tag)), bytes);
        assert_eq!(Reader::new(bytes).union(), Ok(Some(tag)));
    }
    assert_eq!(Reader::new(&[255]).union(), Ok(None));
}

#[test]
fn integers_of_variable_length() {
    // As .NET writes a signed one.
    for (value, bytes) in [
        (0, &[0][..]),
        (127, &[127]),
        (-1, &[0xFF]),
        (-120, &[0x88]),
        (-121, &[0x86, 0x87]),  // code -122, sbyte
        (128, &[0x84, 128, 0]), // code -124, short
        (-129, &[0x84, 0x7F, 0xFF]),
        (32_768, &[0x82, 0, 0x80, 0, 0]),              // code -126, int
        (1 << 31, &[0x80, 0, 0, 0, 0x80, 0, 0, 0, 0]), // code -128, long
        (i64::MIN, &[0x80, 0, 0, 0, 0, 0, 0, 0, 0x80]),
    ] {
        assert_eq!(written(|w| w.varint(value)), bytes, "{value}");
        assert_eq!(Reader::new(bytes).varint(), Ok(value));
    }
    // The unsigned codes, which it writes for other types.
    for (value, bytes) in [
        (200, &[0x87, 200][..]),                            // code -121, byte
        (65_535, &[0x85, 0xFF, 0xFF]),                      // code -123, ushort
        (u32::MAX.into(), &[0x83, 0xFF, 0xFF, 0xFF, 0xFF]), // code -125, uint
        (1, &[0x81, 1, 0, 0, 0, 0, 0, 0, 0]),               // code -127, ulong
    ] {
        assert_eq!(Reader::new(bytes).varint(), Ok(value));
    }
}

#[test]
fn version_tolerant_objects() {
    let bytes = [
        &[3][..],        // three members
        &[4],            // the first has four bytes
        &[0],            // the second is left out
        &[0x84, 200, 0], // the third has 200: code -124, short
        &[7, 0, 0, 0],   // int 7
        &[196, 0, 0, 0], // a byte[] of 196
        &[9; 196],
    ]
    .concat();
    let writer = written(|w| {
        w.tolerant(3, |w, member| match member {
            0 => w.value(7_i32),
            1 => Ok(()),
            _ => w.array(Some(&[9_u8; 196])),
        })
    });
    assert_eq!(writer, bytes);
    let read = Reader::new(&bytes).tolerant(|members| {
        Ok((
            members.next(Reader::value::<i32>)?,
            members.next(Reader::value::<i32>)?,
            members.next(Reader::array::<u8>)?.flatten(),
        ))
    });
    assert_eq!(read, Ok(Some((Some(7), None, Some(&[9; 196][..])))));
    assert_eq!(Reader::new(&[255]).tolerant(|_| Ok(())), Ok(None));
}

#[test]
fn circular_objects() {
    let own = [1, 2, 0, 250, 0]; // one member of two bytes, id 0: a reference to 0, itself
    let node =
        |reader: &mut Reader<'_>| reader.circular(|_, members| members.next(|reader| reader.circular(|_, _| Ok(()))));
    let itself = Some(Some(Circular::Reference(0)));
    assert_eq!(node(&mut Reader::new(&own)), Ok(Some(Circular::Object(0, itself))));
    assert_eq!(written(|w| w.circular(1, 0, |w, _| w.reference(0))), own);
    let wide = [0, 0x85, 200, 0]; // no member, id 200: code -123, ushort
    assert_eq!(written(|w| w.circular(0, 200, |_, _| Ok(()))), wide);
    assert_eq!(Reader::new(&wide).circular(|_, _| Ok(())), Ok(Some(Circular::Object(200, ()))));
    let reference = [250, 0x83, 0, 0, 1, 0]; // id 65536: code -125, uint
    assert_eq!(written(|w| w.reference(65_536)), reference);
    assert_eq!(Reader::new(&reference).circular(|_, _| Ok(())), Ok(Some(Circular::Reference(65_536))));
    assert_eq!(Reader::new(&[255]).circular(|_, _| Ok(())), Ok(None));
}
