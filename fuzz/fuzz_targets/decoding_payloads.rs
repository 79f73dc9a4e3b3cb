//! The decoding server's requests: whatever parses is written back as it was.
#![no_main]

use berth_wire::rpc::decoding::{EnqueueSyndromes, GetCorrections, ResetDecoder};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut again = vec![0; bytes.len()];
    if let Some(request) = EnqueueSyndromes::parse(bytes) {
        let len = request.write(&mut again).expect("a request fits where it came from");
        assert_eq!(again[..len], bytes[..len]);
    }
    if let Some(request) = GetCorrections::parse(bytes) {
        let len = request.write(&mut again).expect("a request fits where it came from");
        assert_eq!(GetCorrections::parse(&again[..len]), Some(request));
    }
    if let Some(request) = ResetDecoder::parse(bytes) {
        let len = request.write(&mut again).expect("a request fits where it came from");
        assert_eq!(again[..len], bytes[..len]);
    }
});
