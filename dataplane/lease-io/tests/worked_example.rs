//! The worked FBMU example of docs/fabricbios-profile.md, which was computed without this code.

use berth_wire::fabric::data::shim::{Fields, Header, Kind, Op};
use zerocopy::IntoBytes;

#[test]
fn the_example_is_what_the_code_makes() {
    let page = include_str!("../../../docs/fabricbios-profile.md");
    let (_, block) = page.rsplit_once("```text\n").expect("the block is there");
    let digits: Vec<u8> = block.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let example: Vec<u8> = digits.chunks(2).map(byte).collect();
    let header = Header::new(&Fields {
        kind: Kind::Memory,
        op: Op::Write,
        status: 0,
        request_id: 7,
        lease_id: 0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10,
        generation: 3,
        offset: 64,
        length: 4,
    });
    let data = b"abcd";
    let sum = crc32c::crc32c_append(crc32c::crc32c(header.as_bytes()), data);
    assert_eq!([header.with_crc(sum).as_bytes(), data].concat(), example);
}
