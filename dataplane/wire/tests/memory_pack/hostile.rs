use berth_wire::memory_pack::{Circular, Error, MAX_DEPTH, Reader, Text};
use zerocopy::little_endian::{U16, U64};

#[test]
fn reserved_headers_and_too_many_members_are_refused() {
    for reserved in 250..=254 {
        let bytes = [reserved, 0, 0];
        assert_eq!(Reader::new(&bytes).object(249, |_| Ok(())), Err(Error::Reserved(reserved)));
        assert_eq!(Reader::new(&bytes).tolerant(|_| Ok(())), Err(Error::Reserved(reserved)));
        let union = Reader::new(&bytes).union();
        let circular = Reader::new(&bytes).circular(|_, _| Ok(()));
        if reserved == 250 {
            assert_eq!((union, circular), (Ok(Some(0)), Ok(Some(Circular::Reference(0)))));
        } else {
            assert_eq!((union, circular), (Err(Error::Reserved(reserved)), Err(Error::Reserved(reserved))));
        }
    }
    assert_eq!(Reader::new(&[5]).object(4, |_| Ok(())), Err(Error::Members(5)));
    assert_eq!(Reader::new(&[2, 1, 1]).object(2, |_| Ok(())), Err(Error::Members(2)), "members that were not read");
}

#[test]
fn a_count_is_held_against_the_bytes_that_follow() {
    let message = |count: i32, behind: usize| [&count.to_le_bytes()[..], &vec![0; behind]].concat();
    for count in [-2, i32::MIN, i32::MAX, 3] {
        let bytes = message(count, 23);
        let wrong = Error::Length(count.into());
        assert_eq!(Reader::new(&bytes).array::<U64>(), Err(wrong), "{count} of 8 bytes in 23");
        let mut called = 0;
        let each = |_: &mut Reader<'_>| {
            called += 1;
            Ok(())
        };
        assert_eq!(Reader::new(&bytes).list(8, each), Err(wrong));
        assert_eq!(called, 0);
    }
    assert_eq!(Reader::new(&message(3, 24)).array::<U64>().unwrap().unwrap().len(), 3);
    // Elements without bytes count as one each.
    assert_eq!(Reader::new(&message(24, 23)).list(0, |_| Ok(())), Err(Error::Length(24)));
    assert_eq!(Reader::new(&message(24, 24)).list(0, |_| Ok(())), Ok(Some(24)));
}

#[test]
fn strings_have_the_lengths_that_they_say() {
    let utf8 = |bytes: i32, units: i32, text: &[u8]| [&(!bytes).to_le_bytes(), &units.to_le_bytes(), text].concat();
    let read = |bytes: &[u8]| {
        let text = Reader::new(bytes).string()?;
        Ok(text.map(|text| text.chars().map(|c| c.unwrap_or('?')).collect::<String>()))
    };
    assert_eq!(read(&utf8(3, 1, "€".as_bytes())), Ok(Some("€".to_owned())));
    assert_eq!(read(&utf8(3, -1, "€".as_bytes())), Ok(Some("€".to_owned())), "unknown");
    assert_eq!(read(&utf8(3, 3, "€".as_bytes())), Err(Error::Length(3)));
    assert_eq!(read(&utf8(4, 1, "€".as_bytes())), Err(Error::Length(!4)));
    assert_eq!(read(&utf8(2, -1, &[0xC3, 0x28])), Err(Error::Text));
    assert_eq!(read(&i32::MAX.to_le_bytes()), Err(Error::Length(i32::MAX.into())));
    assert_eq!(read(&[2, 0, 0, 0, 0x41, 0, 0x00]), Err(Error::Length(2)));
    let lone = [1, 0, 0, 0, 0x00, 0xD8];
    assert_eq!(Reader::new(&lone).string(), Ok(Some(Text::Utf16(&[U16::new(0xD800)]))));
    assert_eq!(read(&lone), Ok(Some("?".to_owned())));
}

fn nest(reader: &mut Reader<'_>) -> Result<u32, Error> {
    Ok(reader.object(1, |members| members.next(nest))?.flatten().map_or(0, |below| below + 1))
}

#[test]
fn nesting_ends_where_dot_net_ends_it() {
    let deep = |levels: usize| [vec![1; levels], vec![255]].concat();
    assert_eq!(nest(&mut Reader::new(&deep(MAX_DEPTH.into()))), Ok(u32::from(MAX_DEPTH)));
    assert_eq!(nest(&mut Reader::new(&deep(usize::from(MAX_DEPTH) + 1))), Err(Error::Depth));
    // Siblings are not inside each other.
    let flat = [&3000_i32.to_le_bytes()[..], &[0; 3000]].concat();
    let each = |reader: &mut Reader<'_>| reader.object(1, |_| Ok(())).map(drop);
    assert_eq!(Reader::new(&flat).list(1, each), Ok(Some(3000)));
}

#[test]
fn lengths_of_members_are_held_to() {
    let two = |bytes: &[u8]| {
        let mut reader = Reader::new(bytes);
        let members =
            reader.tolerant(|members| Ok((members.next(Reader::value::<u16>)?, members.next(Reader::value::<u8>)?)));
        members.and_then(|members| reader.finish().map(|()| members))
    };
    assert_eq!(two(&[2, 2, 1, 7, 0, 9]), Ok(Some((Some(7), Some(9)))));
    assert_eq!(two(&[2, 0, 1, 9]), Ok(Some((None, Some(9)))), "left out");
    assert_eq!(two(&[1, 2, 7, 0]), Ok(Some((Some(7), None))), "an older writer");
    assert_eq!(two(&[3, 2, 1, 2, 7, 0, 9, 8, 8]), Ok(Some((Some(7), Some(9)))), "a newer writer");
    assert_eq!(two(&[2, 3, 1, 7, 0, 0, 9]), Err(Error::Trailing(1)), "longer than its type");
    assert_eq!(two(&[2, 1, 1, 7, 9]), Err(Error::Truncated), "shorter than its type");
    assert_eq!(two(&[2, 0xFF, 1, 7, 0, 9]), Err(Error::Length(-1)));
    assert_eq!(two(&[2, 2, 100, 7, 0, 9]), Err(Error::Length(100)));
    assert_eq!(two(&[3, 2, 1, 3, 7, 0, 9, 8, 8]), Err(Error::Truncated), "behind the end");
}

#[test]
fn integers_of_variable_length_that_nothing_can_be_are_refused() {
    let beyond = [&[0x81], &[0xFF; 8][..]].concat();
    assert_eq!(Reader::new(&beyond).varint(), Err(Error::Length(i64::MAX)));
    for code in 0x80..=0x87 {
        assert_eq!(Reader::new(&[code]).varint(), Err(Error::Truncated), "{code:#x}");
    }
    // An id has 32 bits.
    let id = [250, 0x80, 0, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(Reader::new(&id).circular(|_, _| Ok(())), Err(Error::Length(1 << 32)));
}
