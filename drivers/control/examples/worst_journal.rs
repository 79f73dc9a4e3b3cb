//! Writes the journal of a node whose tenant exports, imports and ends leases for as long as it can, or a journal of
//! the same length of leases without handles:
//! `cargo run --release -p berth-control --example worst_journal -- STATE_DIR REGION handles|none`.

use std::{path::PathBuf, time::SystemTime};

use berth_fabric::{
    journal::{Grant, Handle, Record, encode},
    resource_id,
};
use berth_journal::Journal;
use berth_lease::{Item, Quota};
use berth_port::Nanos;
use berth_tls::key_file;
use berth_wire::fabric::ResourceType;

/// Size of each lease in bytes.
const LEN: u64 = 4096;

/// Limit on the handles of a lease.
const PER_LEASE: u64 = 64;

/// Length at which a journal is compacted, in bytes.
const LONG: usize = 64 << 20;

/// Duration of leases and handles in nanoseconds: one day.
const DAY: u64 = 86_400_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [state, region, kind] = &arguments[..] else {
        return Err("worst_journal STATE_DIR REGION handles|none".into());
    };
    let (state, handles) = (PathBuf::from(state), kind == "handles");
    let journal = Journal::open(&state, drop)?.journal;
    let node = key_file::read_or_create(&state.join("node.key"))?.id().0;
    let at = Nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64);
    let expires = Nanos(at.0 + DAY);
    // Ids are random; these are spread as those are, by an odd factor.
    let id = |number: u64| u128::from(number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_D6E8_FEB8_6659_FD93);
    let resource = resource_id(node, ResourceType::Block, region);
    let grant = |number: u64, place: u64| {
        let (lease, base, grace) = (id(number), place * LEN, Nanos(0));
        let (holder, token, generation, rights, unit) = (1, 1, 1, 3, Vec::new());
        Record::Granted(Grant {
            lease,
            resource,
            base,
            len: LEN,
            first: 0,
            holder,
            token,
            rights,
            generation,
            at,
            expires,
            grace,
            unit,
        })
    };
    let export = |handle: u64, lease: u64| {
        let (handle, lease) = (id(handle), id(lease));
        let exported = Handle { handle, lease, target: 0, kind: 1, rights: 1, expires };
        [Record::Exported(exported), Record::Imported { handle, importer: 2, key: handle as u64 }]
    };
    // As many handles as a tenant may have stand from the start.
    let standing = Quota::default()[Item::Handles] / PER_LEASE;
    let mut records = vec![Record::Started { epoch: 1, at }];
    records.extend((0..standing).map(|lease| grant(lease, lease)));
    if handles {
        let all = 0..(standing - 1) * PER_LEASE;
        records.extend(all.flat_map(|handle| export(1 << 40 | handle, handle / PER_LEASE)));
    }
    let mut len = 0;
    for number in standing.. {
        records.push(grant(number, standing));
        if handles {
            records.extend((0..PER_LEASE).flat_map(|handle| export(1 << 41 | number << 6 | handle, number)));
        }
        records.push(Record::Ended { lease: id(number) });
        if records.len() > 10_000 {
            let mut bytes = Vec::new();
            for record in &records {
                encode(record, &mut bytes);
            }
            len += bytes.len();
            journal.commit(&std::mem::take(&mut records)).wait()?;
            if len > LONG {
                return Ok(());
            }
        }
    }
    Ok(())
}
