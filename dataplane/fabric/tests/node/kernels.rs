//! GPU_SUBMIT: who may, which lease, whose turn, and what ends kernels. A test says when kernels end.
#![allow(clippy::doc_markdown)] // the names of ops

mod places;

use std::{
    net::SocketAddr,
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::common::*;
use berth_fabric::{
    Carrier, Config, Ending, GpuDone, GpuExecutor, GpuWorker, Kernel, Outcome, Policy, Ran, Recovered, Request, Rule,
    Step, journal::Record, resource_id,
};
use berth_lease::{LeaseId, Region, RegionId, RegionKind, Regions, Storage};
use berth_wire::fabric::{
    Bytes, CapRequest, Caveat, GpuExclusivity, GpuStatus, GpuSubmit, GpuSubmitted, IntentTlv, LeaseAlloc, LeaseGrant,
    LeaseRef, LeaseRenew, List, Op, Perms, ResourceType, ShortText, Status, Tlvs, Wire as _,
};

/// What was asked of a GPU.
#[derive(Debug, Clone, Default)]
struct Gpu(Arc<Mutex<Vec<Asked>>>);

/// Of which lease is told by where it begins.
enum Asked {
    Launched(u64, Range<u64>, Kernel, Option<GpuDone>),
    Stopped(u64),
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Asked")
    }
}

#[derive(Debug)]
struct Lease(Gpu, u64, Range<u64>);

impl GpuExecutor for Gpu {
    fn base(&self) -> u64 {
        1 << 40
    }
    fn takes(&self, binary: &[u8]) -> bool {
        binary != b"cubin"
    }
    fn open(&self, base: u64, reach: Range<u64>) -> Arc<dyn GpuWorker> {
        Arc::new(Lease(self.clone(), base, reach))
    }
}

impl GpuWorker for Lease {
    fn launch(&self, kernel: &Kernel, done: GpuDone) {
        self.0.0.lock().unwrap().push(Asked::Launched(self.1, self.2.clone(), kernel.clone(), Some(done)));
    }
    fn stop(&self) {
        let mut asked = self.0.0.lock().unwrap();
        asked.push(Asked::Stopped(self.1));
        for one in asked.iter_mut() {
            if let Asked::Launched(base, _, _, done) = one
                && *base == self.1
            {
                drop(done.take());
            }
        }
    }
}

impl Gpu {
    /// Names of the kernels that run.
    fn running(&self) -> Vec<String> {
        let asked = self.0.lock().unwrap();
        let running = asked.iter().filter_map(|one| match one {
            Asked::Launched(_, _, kernel, Some(_)) => Some(kernel.name.clone()),
            _ => None,
        });
        running.collect()
    }

    fn end(&self, name: &str) {
        let mut asked = self.0.lock().unwrap();
        let done = asked.iter_mut().find_map(|one| match one {
            Asked::Launched(_, _, kernel, done) if kernel.name == name => done.take(),
            _ => None,
        });
        done.unwrap()(Ran { status: GpuStatus::Ok, exit_code: 0, output: name.into() });
    }

    /// Where leases begin whose workers were stopped.
    fn stopped(&self) -> Vec<u64> {
        let asked = self.0.lock().unwrap();
        let stopped = asked.iter().filter_map(|one| if let Asked::Stopped(base) = one { Some(*base) } else { None });
        stopped.collect()
    }
}

/// A kernel on its way.
struct Waiting {
    ticket: u64,
    ending: Option<Ending>,
}

/// Presenters that may do everything.
const HOLDERS: u8 = 9;

struct Bench {
    world: World,
    gpu: Gpu,
    resource: u128,
}

impl Bench {
    fn new() -> Self {
        let gpu = Gpu::default();
        let storage = Storage::Bytes(Heap::of(512 << 10));
        let vram = Region { name: "vram0".into(), kind: RegionKind::Vram, numa: None, storage };
        let gpus = vec![(RegionId(0), Arc::new(gpu.clone()) as Arc<dyn GpuExecutor>)];
        let holders = 1..=HOLDERS;
        let rule = |n| Rule { presenter: Some(identity(n).id().0), perms: ALL, resources: None };
        let config = Config {
            gpus,
            gpus_in_use: vec!["gpu0".into()],
            policy: Policy::new(holders.clone().map(rule).collect()),
            enrolled: holders.map(|n| *identity(n).public_key()).collect(),
            ..Config::default()
        };
        let world = World::start(config, Regions::new(vec![vram]), Recovered::default(), START, 7);
        let resource = resource_id(world.node.id(), ResourceType::Gpu, "vram0");
        Self { world, gpu, resource }
    }

    fn lease(&mut self, n: u8, class: GpuExclusivity) -> LeaseId {
        let mut intents = Vec::new();
        IntentTlv::GpuExclusivity(class).write(&mut intents);
        let params = LeaseAlloc {
            duration_secs: 60,
            grace_secs: 10,
            resource_type: Some(ResourceType::Gpu),
            requested_bytes: Some(4096),
            intents: Tlvs::parse(&intents).unwrap(),
        };
        let token = self.world.token(n, ALL);
        let result = self.world.ok(n, Op::LeaseAlloc, 0, &token, &params.to_vec());
        LeaseId(LeaseGrant::parse(&result).unwrap().lease_id)
    }

    fn params(&self, name: &str) -> Vec<u8> {
        let submit = GpuSubmit {
            resource_id: self.resource,
            binary: Bytes::of(b"ptx").unwrap(),
            kernel_name: ShortText::of(name).unwrap(),
            grid_dim: [1; 3],
            block_dim: [2; 3],
            args: Bytes::of(&[1, 2, 3]).unwrap(),
            arg_sizes: List::of(&[1, 2]).unwrap(),
            output_offset: 0,
            output_size: 4,
        };
        submit.to_vec()
    }

    fn ask(&mut self, n: u8, carrier: Carrier, token: &[u8], params: &[u8]) -> Step {
        let request = Request {
            carrier,
            presenter: identity(n).id().0,
            source: SocketAddr::from(([10, 0, 0, n], 5000)),
            op: Op::GpuSubmit.code(),
            resource: 0,
            token,
            params,
        };
        self.world.node.request(&request, self.world.now)
    }

    /// Submits over QUIC; the kernel goes as far as it can without an end.
    fn submit(&mut self, n: u8, name: &str) -> Result<Waiting, Box<Outcome>> {
        let (token, params) = (self.world.token(n, ALL), self.params(name));
        let step = self.ask(n, Carrier::Quic, &token, &params);
        self.go_on(step)
    }

    /// A kernel of this lease of several, run to its end; else why not.
    fn run(&mut self, n: u8, lease: LeaseId) -> Result<GpuStatus, Status> {
        let waiting = self.submit_to(n, lease, "k").map_err(|refused| answer(&refused).unwrap_err())?;
        self.gpu.end("k");
        self.answer(waiting).map(|(status, ..)| status)
    }

    fn submit_to(&mut self, n: u8, lease: LeaseId, name: &str) -> Result<Waiting, Box<Outcome>> {
        let audience = identity(n).id().0;
        let wanted = CapRequest { perms: Perms::EXEC.bits(), ttl_secs: 300, audience, epoch: None };
        let token = self.world.ok(n, Op::CapRequest, lease.0, &[], &wanted.to_vec());
        let params = self.params(name);
        let step = self.ask(n, Carrier::Quic, &token, &params);
        self.go_on(step)
    }

    fn base(&self, lease: LeaseId) -> u64 {
        self.world.node.leases().get(lease).unwrap().base
    }

    fn go_on(&mut self, mut step: Step) -> Result<Waiting, Box<Outcome>> {
        loop {
            match step {
                Step::Work(work) => {
                    self.world.apply(work.effects);
                    let waits = work.ending.as_ref().is_some_and(|ending| !ending.is_over());
                    if waits {
                        return Ok(Waiting { ticket: work.ticket, ending: work.ending });
                    }
                    work.prepare.into_iter().for_each(berth_fabric::BlockingWork::run);
                    step = self.world.node.resume(work.ticket, Ok(()), self.world.now);
                }
                Step::Done(outcome) => return Err(Box::new(outcome)),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Goes on with what waited, if its wait is over.
    fn resume(&mut self, waiting: Waiting) -> Result<Waiting, Box<Outcome>> {
        if waiting.ending.as_ref().is_some_and(|ending| !ending.is_over()) {
            return Ok(waiting);
        }
        let step = self.world.node.resume(waiting.ticket, Ok(()), self.world.now);
        self.go_on(step)
    }

    /// The answer to what waited.
    fn answer(&mut self, waiting: Waiting) -> Result<(GpuStatus, u64, i32, Vec<u8>), Status> {
        let Err(outcome) = self.resume(waiting) else { panic!("it still waits") };
        answer(&outcome)
    }

    fn refused(&mut self, n: u8, token: &[u8], params: &[u8]) -> Result<GpuStatus, Status> {
        let step = self.ask(n, Carrier::Quic, token, params);
        let Err(outcome) = self.go_on(step) else { panic!("it runs") };
        answer(&outcome).map(|(status, id, code, _)| {
            assert_eq!((id, code), (0, i32::from(status == GpuStatus::Invalid)));
            status
        })
    }
}

fn answer(outcome: &Outcome) -> Result<(GpuStatus, u64, i32, Vec<u8>), Status> {
    if outcome.answer.status != Status::Ok {
        return Err(outcome.answer.status);
    }
    let ran = GpuSubmitted::parse(&outcome.answer.result).unwrap();
    Ok((ran.status, ran.submit_id, ran.exit_code, ran.output.get().to_vec()))
}

fn is_waiting(waiting: &Result<Waiting, Box<Outcome>>) -> bool {
    waiting.is_ok()
}

#[test]
fn a_kernel_is_handed_over_and_answered() {
    let mut bench = Bench::new();
    bench.lease(1, GpuExclusivity::Shared);
    let waiting = bench.submit(1, "one").ok().unwrap();
    {
        let asked = bench.gpu.0.lock().unwrap();
        let Asked::Launched(_, reach, kernel, _) = &asked[0] else { panic!("nothing runs") };
        assert_eq!(*reach, 0..4096);
        assert_eq!((&kernel.binary[..], kernel.grid, kernel.block), (&b"ptx"[..], [1; 3], [2; 3]));
        assert_eq!((&kernel.args[..], kernel.output), (&[vec![1], vec![2, 3]][..], (0, 4)));
    }
    bench.gpu.end("one");
    let first = bench.answer(waiting).unwrap();
    assert_eq!((first.0, first.2, &first.3[..]), (GpuStatus::Ok, 0, &b"one"[..]));
    // Numbers rise, also over a restart.
    let waiting = bench.submit(1, "two").ok().unwrap();
    bench.gpu.end("two");
    assert!(bench.answer(waiting).unwrap().1 > first.1);
    let recovered: Recovered = bench.world.journal.iter().cloned().collect();
    let (config, regions) = (bench.world.node.config().clone(), bench.world.regions.clone());
    bench.world = World::start(config, regions, recovered, bench.world.now, 8);
    let waiting = bench.submit(1, "three").ok().unwrap();
    bench.gpu.end("three");
    assert!(bench.answer(waiting).unwrap().1 > first.1 + 1);
}

#[test]
fn over_udp_nothing_runs_before_its_nonce_is_durable() {
    let mut bench = Bench::new();
    bench.lease(1, GpuExclusivity::Shared);
    let (token, params) = (bench.world.token(1, ALL), bench.params("one"));
    let Step::Work(work) = bench.ask(1, Carrier::Udp { nonce: 77 }, &token, &params) else { panic!("it is done") };
    let sender = identity(1).id().0;
    assert_eq!(work.journal, Some(vec![Record::Seen { sender, nonce: 77 }]));
    assert!(bench.gpu.running().is_empty());
    let step = bench.world.node.resume(work.ticket, Ok(()), bench.world.now);
    let waiting = bench.go_on(step).ok().unwrap();
    assert_eq!(bench.gpu.running(), ["one"]);
    bench.gpu.end("one");
    assert_eq!(bench.answer(waiting).unwrap().0, GpuStatus::Ok);
    // Where it is not, nothing runs, and the next one has its turn.
    let Step::Work(work) = bench.ask(1, Carrier::Udp { nonce: 78 }, &token, &params) else { panic!("it is done") };
    let Step::Done(outcome) = bench.world.node.resume(work.ticket, Err(berth_fabric::WorkFailed), bench.world.now)
    else {
        panic!("it goes on")
    };
    assert_eq!(outcome.answer.status, Status::InternalError);
    assert!(is_waiting(&bench.submit(1, "two")) && bench.gpu.running() == ["two"]);
}

#[test]
fn who_has_no_lease_or_too_little_of_one_runs_nothing() {
    let mut bench = Bench::new();
    let (all, params) = (bench.world.token(1, ALL), bench.params("one"));
    assert_eq!(bench.refused(1, &all, &params), Ok(GpuStatus::Unauthorized));
    let theirs = bench.lease(2, GpuExclusivity::Shared);
    assert_eq!(bench.refused(1, &all, &params), Ok(GpuStatus::Unauthorized), "another's");
    let request = |world: &mut World, n: u8, perms: Perms, resource| {
        let audience = identity(n).id().0;
        let params = CapRequest { perms: perms.bits(), ttl_secs: 300, audience, epoch: None };
        world.ask(n, Op::CapRequest, resource, &[], &params.to_vec())
    };
    assert_eq!(request(&mut bench.world, 1, Perms::EXEC, theirs.0).status, Status::ResourceNotFound);
    // The rights of the lease, and the span that a token has.
    let exec = bench.world.token(1, Perms::ALLOC | Perms::EXEC);
    bench.world.alloc_under(1, ResourceType::Gpu, 4096, &exec);
    assert_eq!(bench.refused(1, &all, &params), Ok(GpuStatus::Unauthorized), "it may not even read");
    let mut bench = Bench::new();
    let lease = bench.lease(1, GpuExclusivity::Shared);
    let weak = bench.world.token(1, Perms::READ | Perms::WRITE);
    assert_eq!(bench.refused(1, &weak, &params), Err(Status::InsufficientPerm));
    let all = bench.world.token(1, ALL);
    let part = narrowed(&all, 0, 4095);
    assert_eq!(bench.refused(1, &part, &params), Ok(GpuStatus::Unauthorized), "a part of the lease");
    let whole = narrowed(&all, 0, 4096);
    let step = bench.ask(1, Carrier::Quic, &whole, &params);
    assert!(is_waiting(&bench.go_on(step)));
    bench.gpu.end("one");
    // Of two leases, the token says which.
    bench.lease(1, GpuExclusivity::Shared);
    assert_eq!(bench.refused(1, &all, &params), Ok(GpuStatus::Unauthorized));
    let named = request(&mut bench.world, 1, Perms::EXEC, lease.0).result;
    let step = bench.ask(1, Carrier::Quic, &named, &params);
    assert!(is_waiting(&bench.go_on(step)));
    // What is no such resource.
    let other = |id: u128| [&id.to_be_bytes()[..], &params[16..]].concat();
    assert_eq!(bench.refused(1, &all, &other(5)), Err(Status::ResourceNotFound));
    let in_use = resource_id(bench.world.node.id(), ResourceType::Gpu, "gpu0");
    assert_eq!(bench.refused(1, &all, &other(in_use)), Err(Status::ResourceFenced));
    assert_eq!(bench.refused(1, &all, &params[..params.len() - 1]), Err(Status::InvalidParams));
    assert_eq!(bench.refused(3, &[], &params), Err(Status::InvalidToken));
}

/// Where it is the only one as where there is one whose memory is leased.
#[test]
fn a_gpu_that_serves_something_else_is_fenced() {
    let with = |gpus_in_use| World::with(Config { gpus_in_use, ..config() });
    let mut world = with(vec!["gpu0".into()]);
    let gpu = resource_id(world.node.id(), ResourceType::Gpu, "gpu0");
    let submit = Bench::new().params("one");
    let params = |resource_id| GpuSubmit { resource_id, ..GpuSubmit::parse(&submit).unwrap() }.to_vec();
    let token = world.token(1, ALL);
    assert_eq!(world.refused(1, Op::GpuSubmit, 0, &token, &params(gpu)), Status::ResourceFenced);
    assert_eq!(world.refused(1, Op::GpuSubmit, 0, &token, &params(5)), Status::ResourceNotFound);
    assert_eq!(world.refused(1, Op::GpuSubmit, 0, &[], &params(gpu)), Status::InvalidToken);
    let mut without = with(Vec::new());
    let token = without.token(1, ALL);
    assert_eq!(without.refused(1, Op::GpuSubmit, 0, &token, &params(gpu)), Status::UnsupportedOp);
}

/// A token with a RANGE caveat, passed on to oneself.
fn narrowed(token: &[u8], offset: u64, len: u64) -> Vec<u8> {
    let (me, range) = (identity(1), Caveat::Range { offset, len });
    berth_identity::token::delegate(token, &me, me.id(), &[range]).unwrap()
}

#[test]
fn what_is_not_run_is_said_at_once() {
    let mut bench = Bench::new();
    bench.lease(1, GpuExclusivity::Shared);
    let (token, params) = (bench.world.token(1, ALL), bench.params("k"));
    let end = params.len();
    let mut with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut params = params.clone();
        change(&mut params);
        bench.refused(1, &token, &params)
    };
    // Sizes of 1 and 3 bytes, of 3.
    assert_eq!(with(&|params| params[end - 13] = 3), Ok(GpuStatus::Invalid));
    // 4093 + 4 bytes, the very end apart; more than an answer has room for.
    assert_eq!(
        with(&|params| params[end - 6..end - 4].copy_from_slice(&4093_u16.to_be_bytes())),
        Ok(GpuStatus::ReadFailed)
    );
    assert_eq!(with(&|params| params[end - 12] = 0xFF), Ok(GpuStatus::ReadFailed));
    assert_eq!(with(&|params| params[end - 4] = 0xFF), Ok(GpuStatus::ReadFailed));
    assert!(bench.gpu.running().is_empty());
    let mut last = params.clone();
    last[end - 6..end - 4].copy_from_slice(&4092_u16.to_be_bytes());
    let step = bench.ask(1, Carrier::Quic, &token, &last);
    assert!(is_waiting(&bench.go_on(step)));
}

#[test]
fn kernels_of_a_lease_run_one_after_the_other_and_those_of_others_beside_them() {
    let mut bench = Bench::new();
    bench.lease(1, GpuExclusivity::Shared);
    bench.lease(2, GpuExclusivity::Shared);
    let first = bench.submit(1, "first").ok().unwrap();
    let second = bench.submit(1, "second").ok().unwrap();
    let theirs = bench.submit(2, "theirs").ok().unwrap();
    assert_eq!(bench.gpu.running(), ["first", "theirs"]);
    let second = bench.resume(second).ok().unwrap();
    bench.gpu.end("first");
    assert_eq!(bench.answer(first).unwrap().3, b"first");
    let second = bench.resume(second).ok().unwrap();
    assert_eq!(bench.gpu.running(), ["theirs", "second"]);
    bench.gpu.end("second");
    bench.gpu.end("theirs");
    assert_eq!(bench.answer(second).unwrap().3, b"second");
    assert_eq!(bench.answer(theirs).unwrap().3, b"theirs");
    // So many wait, and no more.
    let waiting: Vec<_> = (0..16).map(|_| bench.submit(1, "k").ok().unwrap()).collect();
    let Err(busy) = bench.submit(1, "k") else { panic!("it waits") };
    assert_eq!((busy.answer.status, waiting.len()), (Status::ResourceBusy, 16));
    assert!(is_waiting(&bench.submit(2, "theirs")), "others may");
}

#[test]
fn a_session_has_the_gpu_alone_while_its_kernel_runs() {
    let mut bench = Bench::new();
    bench.lease(1, GpuExclusivity::Shared);
    bench.lease(2, GpuExclusivity::SessionExclusive);
    let before = bench.submit(1, "before").ok().unwrap();
    let alone = bench.submit(2, "alone").ok().unwrap();
    let after = bench.submit(1, "after").ok().unwrap();
    assert_eq!(bench.gpu.running(), ["before"]);
    bench.gpu.end("before");
    assert!(bench.answer(before).is_ok());
    let alone = bench.resume(alone).ok().unwrap();
    let after = bench.resume(after).ok().unwrap();
    assert_eq!(bench.gpu.running(), ["alone"], "who came later does not overtake it");
    bench.gpu.end("alone");
    assert!(bench.answer(alone).is_ok());
    bench.resume(after).ok().unwrap();
    assert_eq!(bench.gpu.running(), ["after"]);
}

#[test]
fn the_end_of_a_lease_stops_its_kernels_before_its_bytes_are_anybodys() {
    let mut bench = Bench::new();
    let lease = bench.lease(1, GpuExclusivity::DeviceExclusive);
    let waiting = bench.submit(1, "k").ok().unwrap();
    let behind = bench.submit(1, "behind").ok().unwrap();
    bench.world.held = Some(Vec::new());
    let free = LeaseRef { lease_id: lease.0 }.to_vec();
    let outcome = bench.world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &free);
    assert!(!outcome.endings[0].is_over(), "the answer waits");
    let [stop] = <[_; 1]>::try_from(bench.world.held.take().unwrap()).unwrap();
    bench.world.tear_down(stop);
    assert!(bench.gpu.running().is_empty() && bench.gpu.stopped() == [0]);
    assert!(outcome.endings[0].is_over() && !outcome.endings[0].has_failed());
    assert_eq!(bench.answer(waiting).map(|(status, _, code, _)| (status, code)), Ok((GpuStatus::LaunchFailed, 999)));
    assert_eq!(bench.answer(behind), Err(Status::LeaseExpired));
    assert!(bench.gpu.running().is_empty());
    // The whole device is free again.
    bench.lease(2, GpuExclusivity::DeviceExclusive);
    assert!(is_waiting(&bench.submit(2, "next")));
}

#[test]
fn an_expiry_stops_kernels_and_a_renewal_admits_others() {
    let mut bench = Bench::new();
    let lease = bench.lease(1, GpuExclusivity::Shared);
    let waiting = bench.submit(1, "k").ok().unwrap();
    bench.world.pass(Duration::from_secs(61));
    bench.world.tick();
    assert!(bench.gpu.running().is_empty());
    assert_eq!(bench.answer(waiting).unwrap().2, 999);
    let Err(late) = bench.submit(1, "late") else { panic!("it runs") };
    assert_eq!(late.answer.status, Status::LeaseExpired);
    let token = bench.world.token(1, ALL);
    let renew = LeaseRenew { lease_id: lease.0, duration_secs: 60 }.to_vec();
    bench.world.ok(1, Op::LeaseRenew, 0, &token, &renew);
    assert!(is_waiting(&bench.submit(1, "again")) && bench.gpu.running() == ["again"]);
}

#[test]
fn a_worker_that_cannot_be_stopped_fences_the_gpu() {
    let mut bench = Bench::new();
    let lease = bench.lease(1, GpuExclusivity::Shared);
    let _waiting = bench.submit(1, "k").ok().unwrap();
    bench.world.held = Some(Vec::new());
    let outcome = bench.world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    for teardown in bench.world.held.take().unwrap() {
        // The work has panicked.
        let effects = bench.world.node.torn_down(teardown.ticket, bench.world.now);
        bench.world.apply(effects);
    }
    assert!(outcome.endings[0].has_failed());
    let gpu = *bench.world.node.resources().iter().find(|of| of.resource_id == bench.resource).unwrap();
    assert!(gpu.flags.contains(berth_wire::fabric::ResourceFlags::FENCED));
}
