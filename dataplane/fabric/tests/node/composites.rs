//! Composite leases: T11, and what T1 and T10 say of them.
#![allow(unreachable_pub)] // its items are nobody else's

use std::time::Duration;

use berth_fabric::SliceOver;
use berth_lease::LeaseId;
use berth_tasklet::run::Status as RunStatus;
use berth_wire::fabric::{
    LeaseList, LeaseRef, LeaseRenew, LeaseRenewed, LeaseState, LeaseStatus, Op, Perms, ResourceType, Status,
    TaskletAffinity, TaskletLeaseAlloc, TaskletLeaseFree, TaskletLeaseGrant, TaskletLimits, TaskletStatus, Wire as _,
};

use crate::{bench::*, common::*};

pub const ALLOC: TaskletLeaseAlloc = TaskletLeaseAlloc {
    duration_secs: 60,
    grace_secs: 10,
    num_cores: 1,
    mem_bytes: 100_000,
    affinity: TaskletAffinity::SameNode,
    max_threads: 9,
};

impl Bench {
    pub fn composite(&mut self, n: u8, num_cores: u16, mem_bytes: u64) -> TaskletLeaseGrant {
        let token = self.world.token(n, Perms::EXEC | Perms::ALLOC);
        let params = TaskletLeaseAlloc { num_cores, mem_bytes, ..ALLOC };
        let result = self.world.ok(n, Op::TaskletLeaseAlloc, 0, &token, &params.to_vec());
        TaskletLeaseGrant::parse(&result).unwrap()
    }

    fn refuses(&mut self, params: &[u8]) -> Status {
        let token = self.token.clone();
        self.world.refused(1, Op::TaskletLeaseAlloc, 0, &token, params)
    }

    fn free(&mut self, n: u8, lease: u128) -> At {
        self.ask(n, Op::TaskletLeaseFree, &[], &TaskletLeaseFree { lease_id: lease }.to_vec())
    }

    /// Cores of the inventory: all, and free ones.
    fn cores(&self) -> (u64, u64) {
        let resources = self.world.node.resources();
        let mut cpus = resources.iter().filter(|one| one.resource_type == ResourceType::Cpu.code());
        let cpu = cpus.next().unwrap();
        assert!(cpus.next().is_none());
        (cpu.capacity, cpu.available)
    }
}

fn within(lease: &TaskletLeaseGrant) -> Job {
    Job {
        mem: lease.mem_resource_id,
        cpu: lease.cpu_resource_id,
        limits: TaskletLimits { max_linear_memory: 1 << 16, ..LIMITS },
        ..Job::new()
    }
}

fn status_of(bench: &mut Bench, job: &Job) -> Status {
    answer(bench.submit(job)).status
}

#[test]
fn cores_and_an_arena_are_granted_and_come_back() {
    let mut bench = Bench::new();
    assert_eq!(bench.cores(), (2, 2));
    let lease = bench.composite(1, 2, 100_000);
    assert_eq!((lease.arena_size, lease.num_cores, lease.expires_at), (131_072, 2, START_SECS + 60));
    assert!(lease.mem_resource_id != lease.cpu_resource_id && lease.mem_resource_id != 0);
    assert_eq!(bench.cores(), (2, 0));
    assert_eq!(bench.refuses(&ALLOC.to_vec()), Status::CapacityExceeded, "no core is left");
    let list = bench.world.ok(1, Op::LeaseListActive, 0, &[], &[]);
    let listed = LeaseList::parse(&list).unwrap().iter().next().unwrap();
    let cpu = bench.world.node.resources().into_iter().find(|one| one.resource_type == 1).unwrap().resource_id;
    assert_eq!((listed.lease_id, listed.resource_id, listed.alloc_bytes), (lease.lease_id, cpu, 131_072));
    answer(bench.free(1, lease.lease_id));
    assert_eq!(bench.cores(), (2, 2));
    let most = bench.composite(1, 1, 8 << 20);
    assert_eq!(bench.refuses(&ALLOC.to_vec()), Status::CapacityExceeded, "no memory is left");
    assert_ne!(most.mem_resource_id, lease.mem_resource_id);
}

#[test]
fn params_are_checked_after_the_token() {
    let mut bench = Bench::new();
    let bad = TaskletLeaseAlloc { duration_secs: 0, ..ALLOC }.to_vec();
    let alloc = bench.world.token(1, Perms::ALLOC);
    let asked = |bench: &mut Bench, token: &[u8]| bench.world.refused(1, Op::TaskletLeaseAlloc, 0, token, &bad);
    assert_eq!(asked(&mut bench, &[]), Status::InvalidToken);
    assert_eq!(asked(&mut bench, &alloc), Status::InsufficientPerm);
    for params in [
        bad.clone(),
        TaskletLeaseAlloc { num_cores: 0, ..ALLOC }.to_vec(),
        TaskletLeaseAlloc { mem_bytes: 0, ..ALLOC }.to_vec(),
        [&ALLOC.to_vec()[..18], &[3, 0]].concat(),
        ALLOC.to_vec()[..19].to_vec(),
    ] {
        assert_eq!(bench.refuses(&params), Status::InvalidParams);
    }
    for params in [
        TaskletLeaseAlloc { affinity: TaskletAffinity::SameRack, ..ALLOC },
        TaskletLeaseAlloc { num_cores: 3, ..ALLOC },
        TaskletLeaseAlloc { mem_bytes: (8 << 20) + 1, ..ALLOC },
        TaskletLeaseAlloc { mem_bytes: u64::MAX, ..ALLOC },
    ] {
        assert_eq!(bench.refuses(&params.to_vec()), Status::CapacityExceeded);
    }
    let token = bench.token.clone();
    let any = TaskletLeaseAlloc { affinity: TaskletAffinity::Any, ..ALLOC };
    bench.world.ok(1, Op::TaskletLeaseAlloc, 0, &token, &any.to_vec());
}

#[test]
fn each_kind_of_lease_is_freed_by_its_own_op_and_its_holder() {
    let mut bench = Bench::new();
    let composite = bench.composite(1, 1, 1).lease_id;
    let plain = bench.world.alloc(1, ResourceType::Mem, 4096).0;
    let plainly =
        |bench: &mut Bench, id: u128| bench.world.ask(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: id }.to_vec());
    assert_eq!(plainly(&mut bench, composite).status, Status::ResourceNotFound);
    assert_eq!(answer(bench.free(1, plain)).status, Status::ResourceNotFound);
    assert_eq!(answer(bench.free(1, 99)).status, Status::ResourceNotFound);
    assert_eq!(answer(bench.free(2, composite)).status, Status::InsufficientPerm);
    assert_eq!(answer(bench.free(1, composite)).status, Status::Ok);
    assert_eq!(answer(bench.free(1, composite)).status, Status::ResourceNotFound);
    assert_eq!(plainly(&mut bench, plain).status, Status::Ok);
}

#[test]
fn runs_stay_within_the_arena_and_the_cores() {
    let mut bench = Bench::new();
    let lease = bench.composite(1, 1, 1 << 20);
    let mut job = within(&lease);
    job.limits.max_linear_memory = (1 << 20) + 1;
    assert_eq!(status_of(&mut bench, &job), Status::CapacityExceeded);
    job.limits.max_linear_memory = 1 << 20;
    let (first, _) = bench.admitted(&job);
    let (second, _) = bench.admitted(&Job { mem: 0, ..job.clone() });
    let (other, _) = bench.admitted(&Job::new());
    assert_eq!(bench.begun.keys().collect::<Vec<_>>(), [&first, &other], "one core, and one for the others");
    bench.end(first, output(&[]));
    assert!(bench.begun.contains_key(&second));
    job.limits.max_linear_memory = 7 << 20;
    let shared = Job { mem: 0, cpu: 0, ..job.clone() };
    bench.admitted(&shared);
    job.limits.max_linear_memory = (7 << 20) + 1;
    assert_eq!(status_of(&mut bench, &Job { mem: 0, cpu: 0, ..job }), Status::CapacityExceeded, "what is left");
}

#[test]
fn the_end_of_the_lease_stops_its_runs_before_it_is_answered() {
    let mut bench = Bench::new();
    let lease = bench.composite(1, 2, 1 << 20);
    let (run, _) = bench.admitted(&within(&lease));
    let freed = waits(bench.free(1, lease.lease_id));
    assert_eq!(bench.cores(), (2, 0), "a run is still on them");
    assert_eq!(status_of(&mut bench, &within(&lease)), Status::ResourceNotFound);
    assert_eq!(bench.slice_over(run), SliceOver::Stop);
    bench.end(run, output(b"x"));
    assert!(freed.ending.is_over());
    assert_eq!((bench.cores(), bench.status(1, run)), ((2, 2), TaskletStatus::ExecFailed));
    assert_eq!(bench.logs(1, run).1, [(255, "its composite lease ended".to_owned())]);
}

#[test]
fn a_revoked_lease_admits_nothing_and_is_told_apart() {
    let mut bench = Bench::new();
    let token = bench.world.token(1, Perms::EXEC);
    let granted = bench.world.ok(1, Op::TaskletLeaseAlloc, 0, &token, &ALLOC.to_vec());
    let lease = TaskletLeaseGrant::parse(&granted).unwrap();
    // Admitted under another token: the lease's end stops it.
    let (run, _) = bench.admitted(&within(&lease));
    let revocation = waits(bench.revoke(&token));
    assert_eq!(bench.slice_over(run), SliceOver::Stop);
    bench.end(run, output(&[]));
    assert!(revocation.ending.is_over());
    assert_eq!(bench.cores(), (2, 2));
    assert_eq!(status_of(&mut bench, &within(&lease)), Status::LeaseExpired);
    let mut bench = bench.restarted();
    assert_eq!(status_of(&mut bench, &within(&lease)), Status::LeaseExpired, "after a restart, too");
    bench.world.pass(Duration::from_mins(5));
    bench.tick();
    bench.token = bench.world.token(1, ALL);
    assert_eq!(status_of(&mut bench, &within(&lease)), Status::ResourceNotFound);
}

#[test]
fn an_expired_lease_stops_its_runs_and_can_be_renewed() {
    let mut bench = Bench::with(|config| config.max_wall = Duration::from_secs(1000));
    let lease = bench.composite(1, 1, 1 << 20);
    let (run, _) = bench.admitted(&within(&lease));
    let (queued, _) = bench.admitted(&within(&lease));
    bench.world.pass(Duration::from_mins(1));
    assert_eq!(status_of(&mut bench, &within(&lease)), Status::LeaseExpired, "before any tick");
    bench.tick();
    assert_eq!(bench.slice_over(run), SliceOver::Stop);
    bench.end(run, failed(RunStatus::ExecFailed, "stopped"));
    for run in [run, queued] {
        assert_eq!(
            bench.logs(1, run),
            (TaskletStatus::ExecFailed, vec![(255, "its composite lease expired".to_owned())])
        );
    }
    assert_eq!(bench.cores(), (2, 1), "in grace");
    let renew = LeaseRenew { lease_id: lease.lease_id, duration_secs: 60 }.to_vec();
    let token = bench.token.clone();
    let renewed = LeaseRenewed::parse(&bench.world.ok(1, Op::LeaseRenew, 0, &token, &renew)).unwrap();
    assert_eq!(renewed.expires_at, START_SECS + 120);
    bench.admitted(&within(&lease));
    bench.world.pass(Duration::from_secs(70));
    bench.tick();
    let late = bench.begun.keys().copied().next().unwrap();
    bench.end(late, output(&[]));
    assert_eq!(bench.cores(), (2, 2), "its grace is over");
    assert_eq!(bench.world.node.leases().get(LeaseId(lease.lease_id)), None);
}

#[test]
fn a_restart_finds_the_same_lease_and_ids() {
    let mut bench = Bench::new();
    let lease = bench.composite(1, 1, 1 << 20);
    bench.admitted(&within(&lease));
    let mut bench = bench.restarted();
    assert_eq!(bench.cores(), (2, 1));
    let query = LeaseRef { lease_id: lease.lease_id }.to_vec();
    let state = LeaseState::parse(&bench.world.ok(1, Op::LeaseQuery, 0, &[], &query)).unwrap();
    assert_eq!((state.status, state.expires_at), (LeaseStatus::Active, lease.expires_at));
    bench.admitted(&within(&lease));
    let another = bench.composite(1, 1, 7 << 20);
    assert_eq!(bench.refuses(&ALLOC.to_vec()), Status::CapacityExceeded);
    assert_ne!(another.cpu_resource_id, lease.cpu_resource_id);
}

/// The config has fewer cores than leases hold: they stand, and run nothing.
#[test]
fn a_lease_that_finds_too_few_cores_runs_nothing() {
    let mut bench = Bench::new();
    let lease = bench.composite(1, 2, 1 << 20);
    let config = bench.world.node.config().clone();
    let tasklets = config.tasklets.clone().map(|of| berth_fabric::TaskletConfig { cores: 1, ..of });
    let config = berth_fabric::Config { tasklets, ..config };
    let recovered = bench.world.journal.into_iter().collect();
    let mut bench = Bench::of(World::start(config, regions(), recovered, bench.world.now, 9), bench.script);
    assert_eq!(status_of(&mut bench, &within(&lease)), Status::CapacityExceeded);
    answer(bench.free(1, lease.lease_id));
    assert_eq!(bench.cores(), (1, 1));
}
