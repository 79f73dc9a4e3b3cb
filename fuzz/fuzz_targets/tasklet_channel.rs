//! What an executor process says over its slot: a head is refused, or is written as it was read, with lengths within the slot.
#![no_main]

use berth_tasklet::channel::{Asked, Command, DATA, HEAD};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for head in bytes.as_chunks::<HEAD>().0 {
        if let Ok(asked) = Asked::parse(head) {
            assert_eq!(asked.head(), *head);
            let len = match asked {
                Asked::Read { len, .. } | Asked::Write { len, .. } | Asked::Log { len, .. } => len,
                Asked::Ended { output, reason, .. } => output + reason,
                Asked::Refused { reason } => reason,
                _ => 0,
            };
            assert!(len as usize <= DATA);
        }
        if let Ok(command) = Command::parse(head) {
            assert_eq!(command.head(), *head);
        }
    }
});
