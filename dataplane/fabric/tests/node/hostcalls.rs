//! What a run may do to leases (T6, T7): entry, right, and the checks of every access; leases that it makes itself.

use std::time::Duration;

use berth_fabric::LeaseCall;
use berth_lease::{LeaseId, Standing};
use berth_lease_io::TaskletLeases;
use berth_tasklet::{
    hostcall::{Kind, code},
    schedule::RunId,
};
use berth_wire::fabric::{
    CapRequest, CapabilityToken, LeaseExport, LeaseExported, LeaseRef, Op, Perms, ResourceType, Rights, Status,
    TargetRuntime, TaskletRights, TaskletStatus, Wire as _,
};

use crate::{bench::*, common::*};

const QUERY: u32 = 1;
const REVOKE: u32 = 2;
const ALLOC: u32 = 4;
const IO: u32 = 8;
const BLOCK_ALLOC: u32 = 16;
const BLOCK_IO: u32 = 32;

impl Bench {
    fn with_caps(&mut self, caps: Vec<(u128, u32)>) -> (RunId, TaskletLeases) {
        let (run, _) = self.admitted(&Job { caps, ..Job::new() });
        let leases = self.leases(run);
        (run, leases)
    }

    fn permits(&mut self, cap: u128, rights: u32) -> bool {
        match self.submit(&Job { caps: vec![(cap, rights)], ..Job::new() }) {
            At::Answered(answer) => {
                assert_eq!(submitted(&answer).0, TaskletStatus::Unauthorized);
                false
            }
            At::Waits(_) => {
                let run = *self.begun.keys().next().unwrap();
                self.end(run, output(&[]));
                true
            }
        }
    }

    fn handle(&mut self, lease: LeaseId, runtime: TargetRuntime, target: u128, rights: Rights) -> u128 {
        let params = LeaseExport {
            lease_id: lease.key().0,
            target_runtime_kind: runtime,
            target_identity: target,
            rights,
            ttl_secs: 30,
        };
        let result = self.world.ok(2, Op::LeaseExportHandle, 0, &[], &params.to_vec());
        LeaseExported::parse(&result).unwrap().export_handle
    }

    fn give_back(&mut self, n: u8, lease: LeaseId) {
        self.world.ok(n, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    }

    fn token_id(&self) -> u128 {
        CapabilityToken::parse(&self.token).unwrap().token_id
    }
}

/// Every object of T6 with every right alone.
#[test]
fn each_object_permits_its_rights_and_no_other() {
    let mut bench = Bench::new();
    let (mem, disk) = (bench.world.alloc(1, ResourceType::Mem, 4096), bench.world.alloc(1, ResourceType::Block, 4096));
    let theirs = bench.world.alloc(2, ResourceType::Mem, 4096);
    let me = identity(1).id().0;
    let handle = bench.handle(theirs, TargetRuntime::Tasklet, me, Rights::READ);
    let for_all = bench.handle(theirs, TargetRuntime::Tasklet, 0, Rights::READ);
    let for_another = bench.handle(theirs, TargetRuntime::Tasklet, identity(3).id().0, Rights::READ);
    let native = bench.handle(theirs, TargetRuntime::NativeService, me, Rights::READ);
    let token = bench.token_id();
    let other_token = CapabilityToken::parse(&bench.world.token(1, ALL)).unwrap().token_id;
    let composite = bench.composite(1, 1, 1).lease_id;
    for (cap, may) in [
        (mem.0, QUERY | REVOKE | ALLOC | IO),
        (disk.0, QUERY | REVOKE | BLOCK_ALLOC | BLOCK_IO),
        (handle, QUERY | IO),
        (for_all, QUERY | IO),
        (token, ALLOC | BLOCK_ALLOC),
        (theirs.0, 0),
        (for_another, 0),
        (native, 0),
        (other_token, 0),
        (composite, 0),
        (u128::from(mem.key().0), 0),
        (99, 0),
    ] {
        for bit in 0..6 {
            assert_eq!(bench.permits(cap, 1 << bit), may & 1 << bit != 0, "{cap:x}, bit {bit}");
        }
    }
    assert!(bench.permits(mem.0, 0) && !bench.permits(99, 0));
    bench.token = bench.world.token(1, Perms::EXEC);
    assert!(!bench.permits(bench.token_id(), ALLOC), "it has no ALLOC");
    bench.world.pass(Duration::from_secs(30));
    assert!(!bench.permits(handle, IO), "the handle has expired");
    bench.world.pass(Duration::from_secs(30));
    assert!(!bench.permits(mem.0, IO), "the lease has expired");
}

#[test]
fn accesses_are_checked_as_everywhere() {
    let mut bench = Bench::new();
    let (mem, disk) = (bench.world.alloc(1, ResourceType::Mem, 4096), bench.world.alloc(1, ResourceType::Block, 4096));
    let (_, mut leases) = bench.with_caps(vec![(mem.0, IO), (disk.0, BLOCK_IO)]);
    let now = bench.world.now.mono;
    let leases = &mut leases;
    let memory = Kind::Memory;
    assert_eq!([Kind::Memory, Kind::Block].map(|kind| leases.size(kind, now)), [Ok(4096), Ok(8)]);
    for (at, len, expected) in [
        (0, 1, 0),
        (4095, 1, 0),
        (0, 4096, 0),
        (4096, 1, code::OUT_OF_RANGE),
        (1, 4096, code::OUT_OF_RANGE),
        (u64::MAX, 2, code::OUT_OF_RANGE),
        (0, 0, code::BAD_LENGTH),
        (0, (1 << 20) + 1, code::BAD_LENGTH),
        (4096, 0, code::BAD_LENGTH),
    ] {
        assert_eq!(read(leases, memory, None, at, len, now), expected, "{at} {len}");
        assert_eq!(write(leases, memory, Some(mem.0), at, len, now), expected, "{at} {len}");
    }
    for (lba, expected) in
        [(0, 0), (7, 0), (8, code::OUT_OF_RANGE), (u64::MAX, code::OUT_OF_RANGE), (1 << 55, code::OUT_OF_RANGE)]
    {
        assert_eq!(read(leases, Kind::Block, None, lba, 512, now), expected, "{lba}");
        assert_eq!(write(leases, Kind::Block, Some(disk.0), lba, 512, now), expected, "{lba}");
    }
    assert_eq!(read(leases, Kind::Block, Some(mem.0), 0, 512, now), code::INVALID_LEASE, "of the other kind");
    assert_eq!(read(leases, memory, Some(99), 0, 1, now), code::INVALID_LEASE);
    // What was written is what is read.
    leases.write(memory, None, 10, b"hello", now).unwrap();
    let mut found = [0; 7];
    leases.read(memory, Some(mem.0), 9, &mut found, now).unwrap();
    assert_eq!(&found, b"\x07hello\x07");
}

#[test]
fn a_right_comes_before_the_lease_and_its_end_before_the_range() {
    let mut bench = Bench::new();
    let lease = bench.world.alloc(1, ResourceType::Mem, 4096);
    let (_, mut leases) = bench.with_caps(vec![(lease.0, QUERY)]);
    let now = bench.world.now.mono;
    assert_eq!(read(&mut leases, Kind::Memory, Some(lease.0), 9999, 1, now), code::DENIED);
    assert_eq!(read(&mut leases, Kind::Memory, None, 9999, 1, now), code::INVALID_LEASE);
    let (_, mut leases) = bench.with_caps(vec![(lease.0, IO)]);
    assert_eq!(read(&mut leases, Kind::Memory, None, 9999, 1, now), code::OUT_OF_RANGE);
    let late = now + Duration::from_mins(1);
    assert_eq!(read(&mut leases, Kind::Memory, None, 9999, 1, late), code::EXPIRED);
    assert_eq!(leases.size(Kind::Memory, late), Err(code::EXPIRED));
    bench.give_back(1, lease);
    assert_eq!(read(&mut leases, Kind::Memory, None, 0, 1, now), code::INVALID_LEASE);
    assert_eq!(leases.size(Kind::Memory, now), Err(code::INVALID_LEASE));
}

#[test]
fn a_revoked_lease_serves_nothing_and_the_run_goes_on() {
    let mut bench = Bench::new();
    let token = bench.world.token(1, ALL);
    let lease = bench.world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let (run, mut leases) = bench.with_caps(vec![(lease.0, IO)]);
    let now = bench.world.now.mono;
    answer(bench.revoke(&token));
    assert_eq!(read(&mut leases, Kind::Memory, None, 0, 1, now), code::FENCED);
    assert_eq!(write(&mut leases, Kind::Memory, None, 9999, 1, now), code::FENCED);
    assert_eq!(bench.status(1, run), TaskletStatus::Unknown);
}

#[test]
fn read_and_write_are_the_leases_tokens_own() {
    let mut bench = Bench::new();
    let reader = bench.world.token(1, Perms::ALLOC | Perms::READ);
    let lease = bench.world.alloc_under(1, ResourceType::Mem, 4096, &reader);
    let (_, mut leases) = bench.with_caps(vec![(lease.0, IO)]);
    let now = bench.world.now.mono;
    assert_eq!(read(&mut leases, Kind::Memory, None, 0, 1, now), 0);
    assert_eq!(write(&mut leases, Kind::Memory, None, 0, 1, now), code::DENIED);
    assert_eq!(write(&mut leases, Kind::Memory, None, 4096, 1, now), code::OUT_OF_RANGE, "the range comes first");
}

#[test]
fn a_handle_gives_its_own_rights_for_its_own_time() {
    let mut bench = Bench::new();
    let lease = bench.world.alloc(2, ResourceType::Mem, 4096);
    let handle = bench.handle(lease, TargetRuntime::Tasklet, 0, Rights::READ);
    let (run, mut leases) = bench.with_caps(vec![(handle, IO | QUERY)]);
    let (now, memory) = (bench.world.now.mono, Kind::Memory);
    assert_eq!(read(&mut leases, memory, None, 0, 1, now), 0);
    assert_eq!(read(&mut leases, memory, Some(lease.0), 0, 1, now), code::INVALID_LEASE, "it is named by the handle");
    assert_eq!(write(&mut leases, memory, Some(handle), 0, 1, now), code::DENIED);
    assert_eq!(write(&mut leases, memory, Some(handle), 4096, 1, now), code::OUT_OF_RANGE);
    let named = leases.lease(memory, Some(handle), TaskletRights::QUERY, now);
    assert_eq!(bench.lease_call(run, LeaseCall::Query(named.unwrap())).0, 0);
    let late = now + Duration::from_secs(30);
    assert_eq!(read(&mut leases, memory, None, 4096, 1, late), code::EXPIRED, "before the range");
    assert_eq!(leases.size(memory, late), Err(code::EXPIRED));
    assert_eq!(leases.lease(memory, Some(handle), TaskletRights::QUERY, late), Err(code::EXPIRED));
    bench.give_back(2, lease);
    assert_eq!(read(&mut leases, memory, None, 0, 1, late), code::INVALID_LEASE);
}

fn words(out: &[u8]) -> Vec<u64> {
    out.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[test]
fn an_alloc_is_a_lease_of_the_presenter_under_the_runs_token() {
    let mut bench = Bench::new();
    bench.token = bench.world.token(1, Perms::EXEC | Perms::ALLOC | Perms::READ);
    let (run, _) = bench.with_caps(vec![(bench.token_id(), ALLOC | BLOCK_ALLOC)]);
    let before = bench.world.journal.len();
    let (found, out) = bench.lease_call(run, LeaseCall::Alloc { kind: Kind::Memory, min: 5000, secs: 40 });
    let [hi, lo, expires, size] = words(&out)[..] else { panic!("{out:?}") };
    assert_eq!((found, expires, size), (0, START_SECS + 40, 5000));
    let id = LeaseId(u128::from(hi) << 64 | u128::from(lo));
    let lease = bench.world.node.leases().get(id).unwrap();
    let expected = (identity(1).id().0, bench.token_id(), berth_lease::Rights::READ, Duration::ZERO);
    assert_eq!((lease.holder, lease.token, lease.rights, lease.grace), expected);
    assert_eq!(bench.world.journal.len(), before + 1, "it is journaled before the call returns");
    let (found, out) = bench.lease_call(run, LeaseCall::Alloc { kind: Kind::Block, min: 3, secs: 40 });
    assert_eq!((found, out.len(), words(&out)[3], words(&out)[4]), (0, 40, 3, 512));
    for (min, secs) in [(0, 1), (1, 0)] {
        let call = LeaseCall::Alloc { kind: Kind::Memory, min, secs };
        assert_eq!(bench.lease_call(run, call), (code::BAD_PARAM, vec![]));
    }
    for (kind, min) in [(Kind::Memory, 1 << 20), (Kind::Memory, u64::MAX), (Kind::Block, u64::MAX)] {
        assert_eq!(bench.lease_call(run, LeaseCall::Alloc { kind, min, secs: 1 }).0, code::NO_CAPACITY);
    }
    bench.end(run, output(&[]));
    assert_eq!(bench.world.node.leases().get(id).unwrap().standing, Standing::Live, "it is kept after the run");
}

#[test]
fn the_17th_alloc_of_a_run_is_refused() {
    let mut bench = Bench::new();
    let (run, _) = bench.with_caps(vec![(bench.token_id(), ALLOC)]);
    let call = LeaseCall::Alloc { kind: Kind::Memory, min: 1, secs: 1 };
    let codes: Vec<i64> = (0..17).map(|_| bench.lease_call(run, call).0).collect();
    assert_eq!((&codes[..16], codes[16]), (&[0; 16][..], code::NO_CAPACITY));
    let (other, _) = bench.with_caps(vec![(bench.token_id(), ALLOC)]);
    assert_eq!(bench.lease_call(other, call).0, 0);
}

#[test]
fn an_alloc_stays_within_the_tokens_resource() {
    let mut bench = Bench::new();
    let cpu = bench.world.node.resources().iter().find(|one| one.resource_type == 1).unwrap().resource_id;
    let perms = (Perms::EXEC | Perms::ALLOC).bits();
    let params = CapRequest { perms, ttl_secs: 60, audience: identity(1).id().0, epoch: None }.to_vec();
    bench.token = bench.world.ok(1, Op::CapRequest, cpu, &[], &params);
    let (run, _) = bench.with_caps(vec![(bench.token_id(), ALLOC)]);
    assert_eq!(bench.lease_call(run, LeaseCall::Alloc { kind: Kind::Memory, min: 1, secs: 1 }).0, code::DENIED);
}

#[test]
fn leases_are_asked_for_renewed_and_freed() {
    let mut bench = Bench::new();
    let (mem, disk) = (bench.world.alloc(1, ResourceType::Mem, 5000), bench.world.alloc(1, ResourceType::Block, 1024));
    let (run, _) = bench.with_caps(vec![(mem.0, QUERY | REVOKE | ALLOC), (disk.0, QUERY)]);
    let expires = START_SECS + 60;
    assert_eq!(
        bench.lease_call(run, LeaseCall::Query(mem)),
        (0, [words_of(0, expires), 5000_u64.to_le_bytes().to_vec()].concat())
    );
    let block_size = 512 << 32;
    assert_eq!(
        bench.lease_call(run, LeaseCall::Query(disk)),
        (0, [words_of(block_size, expires), 2_u64.to_le_bytes().to_vec()].concat())
    );
    let (found, out) = bench.lease_call(run, LeaseCall::Renew { lease: mem, secs: 100 });
    assert_eq!((found, words(&out)), (0, vec![START_SECS + 100]));
    assert_eq!(bench.lease_call(run, LeaseCall::Renew { lease: mem, secs: 0 }).0, code::BAD_PARAM);
    bench.world.pass(Duration::from_mins(1));
    let status = words(&bench.lease_call(run, LeaseCall::Query(disk)).1)[0];
    assert_eq!(status, block_size | 1, "it has expired, and is in its grace");
    assert_eq!(bench.lease_call(run, LeaseCall::Free(mem)), (0, vec![]));
    for call in [LeaseCall::Query(mem), LeaseCall::Renew { lease: mem, secs: 1 }, LeaseCall::Free(mem)] {
        assert_eq!(bench.lease_call(run, call).0, code::INVALID_LEASE);
    }
}

fn words_of(first: u64, second: u64) -> Vec<u8> {
    [first, second].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn what_is_told_to_stop_makes_no_lease_under_a_revoked_token() {
    let mut bench = Bench::new();
    let (run, _) = bench.with_caps(vec![(bench.token_id(), ALLOC)]);
    let token = bench.token.clone();
    waits(bench.revoke(&token));
    let call = LeaseCall::Alloc { kind: Kind::Memory, min: 1, secs: 1 };
    assert_eq!(bench.lease_call(run, call), (code::FENCED, vec![]));
    assert_eq!(bench.world.node.leases().live().0, 0);
    let revoked = bench.world.alloc(1, ResourceType::Mem, 1);
    assert_eq!(
        bench.world.refused(2, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: revoked.0 }.to_vec()),
        Status::InsufficientPerm
    );
}
