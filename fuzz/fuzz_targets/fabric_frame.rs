//! Frames of both carriers: whatever parses is written back as it was, and is inside its limits.
#![no_main]

use berth_wire::fabric::{Frame, MAX_DATAGRAM_PAYLOAD, MAX_MESSAGE};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for limit in [MAX_DATAGRAM_PAYLOAD, MAX_MESSAGE] {
        let Ok(frame) = Frame::parse(bytes, limit) else { continue };
        assert!(frame.payload.len() <= limit);
        let mut again = Vec::new();
        frame.write(&mut again);
        assert_eq!(again, bytes);
        assert!(frame.header.signed_bytes(frame.payload).ends_with(frame.payload));
    }
});
