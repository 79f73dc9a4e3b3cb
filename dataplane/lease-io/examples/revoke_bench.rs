//! How soon a revocation is felt on a busy port, as JSON lines:
//! `cargo run --release -p berth-lease-io --example revoke_bench`.
//!
//! One thread serves two-sided writes as fast as it can, in bursts, as a poll loop does. Another revokes the lease and
//! waits until no access from before goes on, which is when a node may answer. Each line is one revocation:
//! nanoseconds from its publication to the first refusal and to that quiet, and whether a write was served after it.
//!
//! Argument: how many revocations (1000).

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use berth_lease::{
    Bytes as _, Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table,
};
use berth_lease_io::{LeaseService, TwoSided};
use berth_memory::Heap;
use berth_port::{BURST, Loopback, Nanos, Now, Port as _, Service as _, Verdict};
use berth_wire::fabric::data::two_sided::{Opcode, Request, Status};
use zerocopy::IntoBytes as _;

/// Bytes of each write.
const LEN: usize = 64;

/// What the node writes once the bytes are its own again; the peer writes something else.
const OURS: [u8; LEN] = [0xFF; LEN];

fn main() {
    let revocations = std::env::args().nth(1).map_or(1000, |text| text.parse().expect("a number of revocations"));
    let memory = Arc::new(Heap::new(1 << 20));
    let storage = Storage::Bytes(memory.clone());
    let region = Region { name: "m".into(), kind: RegionKind::Memory, numa: None, storage };
    let (table, mut writer) = Table::new(1);
    let entry = Entry {
        id: LeaseId(7),
        generation: Generation::FIRST,
        rights: Rights::ALL,
        region: RegionId(0),
        base: 0,
        len: 1 << 20,
        first: 0,
        max_io: 1 << 20,
        expires: Nanos(u64::MAX),
        state: State::Active,
    };
    writer.insert(&entry).expect("an empty table");
    let mut service = LeaseService::<TwoSided>::new(&table, &Regions::new(vec![region]), 0);
    let epoch = Instant::now();
    let nanos = move || epoch.elapsed().as_nanos() as u64;
    // When it first refused; 0 while it serves.
    let (stop, refused_at) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let [client, server] = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], 1)));
            let (mut ours, mut theirs) = Loopback::pair([client, server], BURST, 2048);
            let mut was = Status::Ok;
            while !stop.load(SeqCst) {
                for _ in 0..BURST {
                    let _ = ours.post(server.into(), |buf| {
                        let header = Request::new(Opcode::Write, 7, 1, 0, LEN as u64);
                        buf[..Request::LEN].copy_from_slice(header.as_bytes());
                        buf[Request::LEN..][..LEN].fill(0);
                        Request::LEN + LEN
                    });
                }
                ours.tx();
                theirs.rx(|frame| {
                    let verdict = service.handle(frame, Now::default());
                    let is = Status::from_code(frame.data()[0]).expect("a status");
                    match (was, is) {
                        (Status::Ok, Status::Ok) => {}
                        (_, Status::Ok) => refused_at.store(0, SeqCst),
                        (Status::Ok, _) => refused_at.store(nanos(), SeqCst),
                        _ => {}
                    }
                    was = is;
                    verdict
                });
                theirs.tx();
                ours.rx(|_| Verdict::Drop);
            }
        });
        for round in 0..revocations {
            while refused_at.load(SeqCst) != 0 {
                std::hint::spin_loop();
            }
            let published = nanos();
            writer.update(&Entry { state: State::Revoked, ..entry });
            writer.quiesce();
            let quiet = nanos();
            // The bytes are the node's own again: whatever is served from now on would overwrite this.
            memory.write(0, &OURS);
            while refused_at.load(SeqCst) == 0 {
                std::hint::spin_loop();
            }
            let mut found = [0; LEN];
            memory.read(0, &mut found);
            println!(
                "{{\"round\": {round}, \"refused_ns\": {}, \"quiet_ns\": {}, \"served_after_quiet\": {}}}",
                refused_at.load(SeqCst).saturating_sub(published),
                quiet - published,
                u8::from(found != OURS),
            );
            writer.update(&entry);
            thread::sleep(Duration::from_micros(200));
        }
        stop.store(true, SeqCst);
    });
}
