//! MemoryPack: a value that has every part of the format in it, to any depth; what is read is written so that it is read as
//! the same. Derived types: what is read of one and written is read and written as the same bytes again. Messages of ring kernels: what is read in a format is written in it, and read as the same.
#![no_main]

#[path = "../../dataplane/wire/tests/memory_pack/everything.rs"]
mod everything;
#[path = "../../dataplane/wire/tests/memory_pack/tree.rs"]
mod tree;

use berth_kernels::{Choice, Format, Registry, Schema, VectorAddRequest};
use berth_wire::memory_pack::{Circular, MemoryPack, Message as _, Reader, Writer};
use everything::{Everything, Node, OneOf, Tolerant};
use libfuzzer_sys::fuzz_target;
use tree::Tree;

/// Levels inside each other; types here are large for the stack of a target that is hardly optimized.
const DEPTH: u16 = 100;

/// Writes a value, and returns its bytes.
fn write<'a>(value: &impl MemoryPack<'a>, room: usize) -> Vec<u8> {
    let mut buffer = vec![0; room];
    let mut writer = Writer::new(&mut buffer);
    value.write(&mut writer).unwrap();
    let len = writer.len();
    buffer.truncate(len);
    buffer
}

/// NaN is not equal to itself, so bytes are compared.
macro_rules! derived {
    ($bytes:expr, $($of:ty),*) => { $(
        if let Ok(value) = <$of>::read(&mut Reader::new($bytes).with_depth(DEPTH)) {
            // Members that were left out are written: a byte of an object may become all of them.
            let room = 256 * $bytes.len() + 256;
            let written = write(&value, room);
            let again = <$of>::read(&mut Reader::new(&written).with_depth(DEPTH)).unwrap();
            assert_eq!(write(&again, room), written);
        }
    )* };
}

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new(bytes);
    if let Ok(tree) = Tree::read(&mut reader) {
        // Members that were left out are written with their defaults.
        let mut buffer = vec![0; 128 * bytes.len() + 256];
        let mut writer = Writer::new(&mut buffer);
        tree.write(&mut writer).unwrap();
        let len = writer.len();
        assert_eq!(Tree::read(&mut Reader::new(&buffer[..len])), Ok(tree));
    }
    derived!(bytes, Everything<'_>, OneOf<'_>, Tolerant<'_>, Circular<Node<'_>>);
    if let Ok(request) = VectorAddRequest::read_in(Format::DotCompute, bytes) {
        let mut out = [0; 43];
        assert_eq!(request.write_in(Format::DotCompute, &mut out), Ok(43));
        let schema = Schema::of::<VectorAddRequest>().unwrap();
        assert!(schema.read(Choice::Auto, &out, &mut [0; 42]).is_some());
    }
    for message in Registry::default().messages() {
        let schema = &message.schema;
        let (mut raw, mut again, mut out) = ([0; 42], [0; 42], [0; 46]);
        let len = schema.len(Format::Raw);
        if let Some(format) = schema.read(Choice::Auto, bytes, &mut raw[..len]) {
            let written = schema.write(format, &raw[..len], &mut out).unwrap();
            assert_eq!(schema.read(Choice::Auto, &out[..written], &mut again[..len]), Some(format));
            assert_eq!(raw, again);
        }
    }
});
