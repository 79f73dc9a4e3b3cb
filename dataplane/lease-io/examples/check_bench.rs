//! What the checks of an access against its lease cost, as JSON lines:
//! `cargo run --release -p berth-lease-io --example check_bench`.
//!
//! Each line is a round of reads of 4 KiB at random offsets of one lease, as a queue of NVMe/TCP has them checked: once when a
//! command is accepted, and once, under a guard, as when its bytes are copied. A check is probing the table
//! and looking at generation, expiry, rights, range and the association. Nanoseconds of both checks.

use std::{
    hint::black_box,
    sync::{Arc, atomic::AtomicBool},
    time::Instant,
};

use berth_lease::{
    Access, Entry, Generation, LeaseId, Op, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table,
};
use berth_lease_io::{AccessRequest, Gate, Served};
use berth_memory::Heap;
use berth_port::Nanos;

const ROUNDS: usize = 9;
const CHECKS: u64 = 1 << 20;
const READ: u64 = 4096;
/// Bytes of the lease.
const LEN: u64 = 1 << 20;

fn main() {
    let storage = Storage::Bytes(Arc::new(Heap::new(LEN as usize)));
    let region = Region { name: "m".into(), kind: RegionKind::Block, numa: None, storage };
    let (table, mut writer) = Table::new(1);
    let (id, generation) = (LeaseId(7), Generation::FIRST);
    let entry = Entry {
        id,
        generation,
        rights: Rights::ALL,
        region: RegionId(0),
        base: 0,
        len: LEN,
        first: 0,
        max_io: READ as u32,
        expires: Nanos(u64::MAX),
        state: State::Active,
    };
    writer.insert(&entry).expect("an empty table");
    let mut gate = Gate::new(&table, &Regions::new(vec![region])).until(Arc::new(AtomicBool::new(false)));
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for n in 0..CHECKS {
            let offset = n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (LEN / READ) * READ;
            let access = Access {
                key: id.key(),
                generation: Some(generation),
                op: Op::Read,
                offset,
                len: READ,
                well_formed: true,
            };
            let ask = black_box(AccessRequest { id: Some(id), access });
            assert_eq!(gate.check(&ask, Nanos(n)), Ok(Served::Done));
            assert!(black_box(gate.look(&black_box(ask), Nanos(n))).is_ok());
        }
        println!("{{\"checks_ns\":{:.2}}}", begun.elapsed().as_nanos() as f64 / CHECKS as f64);
    }
}
