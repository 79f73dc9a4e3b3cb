//! MemoryPack: a value that has every part of the format in it, to any depth; what is read is written so that it is read as
//! the same. Messages of ring kernels: what is read in a format is written in it, and read as the same.
#![no_main]

#[path = "../../dataplane/wire/tests/memory_pack/tree.rs"]
mod tree;

use berth_kernels::{Choice, Format, Registry};
use berth_wire::memory_pack::{Reader, Writer};
use libfuzzer_sys::fuzz_target;
use tree::Tree;

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
