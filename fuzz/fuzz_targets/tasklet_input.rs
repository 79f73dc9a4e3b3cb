//! `TaskletInputV0`: the node's codec and the one of the SDK, which runs inside tasklets, read the same of the same bytes.
#![no_main]

#[allow(dead_code, unreachable_pub, clippy::doc_markdown, reason = "it is the library of another workspace")]
#[path = "../../drivers/wasm/sdk/src/input.rs"]
mod input;

use berth_wire::fabric::{MAX_CAPS, TaskletInput, Wire as _};
use input::Input;
use libfuzzer_sys::fuzz_target;

/// In place of the SDK's.
pub(crate) struct Error;

impl Error {
    const BAD_INPUT: Self = Self;
}

/// Rights that have a name.
const RIGHTS: u32 = 0xFF;

fuzz_target!(|bytes: &[u8]| {
    match (TaskletInput::parse(bytes), Input::new(bytes)) {
        (Ok(node), Ok(guest)) => {
            assert_eq!(node.payload.get(), guest.payload);
            let caps = node.caps.iter().map(|cap| (cap.cap_token, cap.rights.bits()));
            assert!(guest.caps().map(|cap| (cap.token, cap.rights)).eq(caps));
        }
        // The node passes any input on.
        (Ok(node), Err(_)) => assert_ne!(node.version, 0),
        // No input at all, and what the node lets nobody submit.
        (Err(_), Ok(guest)) => assert!(
            bytes.is_empty() || guest.caps().count() > MAX_CAPS || guest.caps().any(|cap| cap.rights & !RIGHTS != 0)
        ),
        (Err(_), Err(_)) => {}
    }
});
