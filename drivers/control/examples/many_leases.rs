//! Writes the state of a node with many leases of a block region, to measure what they cost:
//! `cargo run --release -p berth-control --example many_leases -- STATE_DIR REGION COUNT`.

use std::{path::PathBuf, time::SystemTime};

use berth_fabric::{
    journal::{Grant, Record},
    resource_id,
};
use berth_journal::Journal;
use berth_port::Nanos;
use berth_tls::key_file;
use berth_wire::fabric::ResourceType;

/// Size of each lease in bytes.
const LEN: u64 = 4096;

/// Duration of the leases in nanoseconds: one day.
const DAY: u64 = 86_400_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [state, region, count] = &arguments[..] else { return Err("many_leases STATE_DIR REGION COUNT".into()) };
    let (state, count) = (PathBuf::from(state), count.parse::<u64>()?);
    let journal = Journal::open(&state, drop)?.journal;
    let node = key_file::read_or_create(&state.join("node.key"))?.id().0;
    let at = Nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64);
    let grant = |number: u64| {
        Record::Granted(Grant {
            // Ids are random; these are spread as those are, by an odd factor.
            lease: u128::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 << 63) << 64
                | u128::from((number + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93)),
            resource: resource_id(node, ResourceType::Block, region),
            base: number * LEN,
            len: LEN,
            first: 0,
            holder: 1 + u128::from(number % 1000),
            token: 1 + u128::from(number % 1000),
            rights: 3,
            generation: 1,
            at,
            expires: Nanos(at.0 + DAY),
            grace: Nanos(0),
            unit: Vec::new(),
        })
    };
    journal.commit(&[Record::Started { epoch: 1, at }]).wait()?;
    for first in (0..count).step_by(1000) {
        let grants: Vec<_> = (first..count.min(first + 1000)).map(grant).collect();
        journal.commit(&grants).wait()?;
    }
    Ok(())
}
