//! Announcements, withdrawals, solicitations and relays' answers: whatever parses is written back as it was, and any
//! solicitation can be put to any announcement.
#![no_main]

use berth_wire::fabric::{Announce, Relayed, Solicit, Wire, Withdraw};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(announce) = Announce::parse(bytes) {
        assert_eq!(announce.to_vec(), bytes);
    }
    if let Ok(withdraw) = Withdraw::parse(bytes) {
        assert_eq!(withdraw.to_vec(), bytes);
    }
    if let Ok(relayed) = Relayed::parse(bytes) {
        assert_eq!(relayed.to_vec(), bytes);
        assert_eq!(relayed.iter().count(), relayed.len());
    }
    // A solicitation of one filter, then an announcement.
    let Some((filters, node)) = bytes.split_at_checked(37) else { return };
    if let (Ok(solicit), Ok(node)) = (Solicit::parse(filters), Announce::parse(node)) {
        assert_eq!(solicit.to_vec(), filters);
        let _ = solicit.matches(&node);
    }
});
