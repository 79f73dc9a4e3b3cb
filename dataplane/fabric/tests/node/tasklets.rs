//! Tasklets: each status of T1's and T2's tables, results, cancelling, revocation, modules.

use std::time::Duration;

use berth_fabric::{Carrier, Request, SliceOver, Step, journal::Record};
use berth_tasklet::run::Status as RunStatus;
use berth_wire::fabric::{KeyRevoke, Op, Perms, ResourceType, Status, TaskletLimits, TaskletStatus, Wire as _};

use crate::{bench::*, common::*};

fn refused(bench: &mut Bench, job: &Job) -> Status {
    let answer = answer(bench.submit(job));
    assert_eq!(answer.result, []);
    answer.status
}

fn not_admitted(bench: &mut Bench, job: &Job) -> TaskletStatus {
    let (status, id, output, logs) = submitted(&answer(bench.submit(job)));
    assert_eq!((id, output, logs), (0, vec![], vec![]));
    status
}

/// A submission with every fault, of which one after the other is mended: each check comes before the next.
#[test]
fn checks_come_in_the_order_of_the_table() {
    let mut bench = Bench::with(|config| config.queue = 4);
    let (a, b) = (bench.composite(1, 1, 1 << 20), bench.composite(2, 1, 1 << 20));
    let lease = bench.world.alloc(1, ResourceType::Mem, 4096).0;
    // All of the cores are leased, and a presenter has a quarter of the queue: one.
    let full = |bench: &mut Bench| bench.admitted(&Job::new());
    let mut job = Job { wasm: b"bad".to_vec(), hash: Some([7; 32]), ..Job::new() };
    job.limits.max_fuel = u64::MAX;
    job.caps = vec![(lease, 16), (lease, 64)];
    (job.mem, job.cpu) = (99, b.cpu_resource_id);
    let exec = std::mem::replace(&mut bench.token, bench.world.token(1, Perms::ALLOC));
    let garbage = bench.ask(1, Op::TaskletSubmit, &[], &job.to_vec());
    assert_eq!(answer(garbage).status, Status::InvalidToken);
    assert_eq!(refused(&mut bench, &job), Status::InsufficientPerm);
    bench.token = exec;
    let long = bench.ask(1, Op::TaskletSubmit, &bench.token.clone(), &[job.to_vec(), vec![0]].concat());
    assert_eq!(answer(long).status, Status::InvalidParams);
    assert_eq!(refused(&mut bench, &job), Status::ResourceNotFound);
    job.mem = a.mem_resource_id;
    assert_eq!(refused(&mut bench, &job), Status::InvalidParams, "of two leases");
    job.mem = 0;
    assert_eq!(refused(&mut bench, &job), Status::InsufficientPerm, "another's");
    job.cpu = a.cpu_resource_id;
    assert_eq!(refused(&mut bench, &job), Status::CapacityExceeded, "fuel");
    job.cpu = 0;
    job.limits = LIMITS;
    assert_eq!(not_admitted(&mut bench, &job), TaskletStatus::Unsupported);
    job.caps.pop();
    assert_eq!(not_admitted(&mut bench, &job), TaskletStatus::Unauthorized);
    job.caps = vec![(lease, 8)];
    assert_eq!(not_admitted(&mut bench, &job.clone().by_hash()), TaskletStatus::ModuleNotFound);
    assert_eq!(not_admitted(&mut bench, &job), TaskletStatus::Invalid, "another hash");
    job.hash = None;
    assert_eq!(not_admitted(&mut bench, &job), TaskletStatus::Invalid, "the compiler says so");
    job.wasm = b"profile".to_vec();
    let under_way = full(&mut bench);
    assert_eq!(not_admitted(&mut bench, &job), TaskletStatus::UnsupportedProfile);
    job.wasm = Job::new().wasm;
    assert_eq!(refused(&mut bench, &job), Status::ResourceBusy);
    assert_eq!(refused(&mut bench, &job.clone().by_hash()), Status::ResourceBusy);
    answer(bench.cancel(1, under_way.0));
    bench.admitted(&job);
    let counts = ["invalid", "unauthorized", "profile", "no_module", "unsupported", "busy"]
        .map(|name| bench.counter(&format!("tasklets_refused_{name}")));
    assert_eq!(counts, [2, 1, 1, 1, 1, 2]);
}

#[test]
fn a_token_for_the_cpu_is_enough_and_one_for_another_resource_is_not() {
    let mut bench = Bench::new();
    let resources = bench.world.node.resources();
    let id = |kind: ResourceType| resources.iter().find(|one| one.resource_type == kind.code()).unwrap().resource_id;
    let asked = |bench: &mut Bench, resource| {
        let params = berth_wire::fabric::CapRequest {
            perms: Perms::EXEC.bits(),
            ttl_secs: 60,
            audience: identity(1).id().0,
            epoch: None,
        };
        bench.world.ok(1, Op::CapRequest, resource, &[], &params.to_vec())
    };
    bench.token = asked(&mut bench, id(ResourceType::Mem));
    assert_eq!(refused(&mut bench, &Job::new()), Status::InsufficientPerm);
    bench.token = asked(&mut bench, id(ResourceType::Cpu));
    let job = Job { mem: id(ResourceType::Mem), cpu: id(ResourceType::Cpu), ..Job::new() };
    assert_eq!(bench.run(&job, output(b"x")).0, TaskletStatus::Ok);
    let crossed = Job { mem: id(ResourceType::Cpu), ..job.clone() };
    assert_eq!(refused(&mut bench, &crossed), Status::ResourceNotFound);
    let crossed = Job { cpu: id(ResourceType::Mem), ..job };
    assert_eq!(refused(&mut bench, &crossed), Status::ResourceNotFound);
}

#[test]
fn each_limit_is_held_to_the_nodes_maximum() {
    let mut bench = Bench::with(|config| config.memory = 32 << 20);
    let most = TaskletLimits {
        max_fuel: 10_000_000_000,
        max_linear_memory: 32 << 20,
        max_output_bytes: 512 << 10,
        max_hostcalls: 1_000_000,
    };
    let with = |change: fn(&mut TaskletLimits)| {
        let mut limits = most;
        change(&mut limits);
        Job { limits, ..Job::new() }
    };
    for more in [
        with(|limits| limits.max_fuel += 1),
        with(|limits| limits.max_linear_memory += 1),
        with(|limits| limits.max_output_bytes += 1),
        with(|limits| limits.max_hostcalls += 1),
    ] {
        assert_eq!(refused(&mut bench, &more), Status::CapacityExceeded, "{:?}", more.limits);
    }
    let (most, _) = bench.admitted(&with(|_| ()));
    bench.end(most, output(&[]));
    let none = TaskletLimits { max_fuel: 0, max_linear_memory: 0, max_output_bytes: 0, max_hostcalls: 0 };
    let (run, _) = bench.admitted(&Job { limits: none, ..Job::new() });
    assert_eq!(bench.begun[&run].limits.fuel, 0, "0 means none");
    let mut small = Bench::with(|config| config.max.memory = 1 << 20);
    let job = with(|limits| limits.max_linear_memory = (1 << 20) + 1);
    assert_eq!(refused(&mut small, &job), Status::CapacityExceeded);
}

#[test]
fn too_many_capabilities_and_unknown_rights_are_invalid() {
    let mut bench = Bench::new();
    let lease = bench.world.alloc(1, ResourceType::Mem, 4096).0;
    bench.admitted(&Job { caps: vec![(lease, 8); 256], ..Job::new() });
    let mut params = Job { caps: vec![(lease, 8)], ..Job::new() }.to_vec();
    let rights = params.len() - LIMITS.to_vec().len() - 4 - 1;
    assert_eq!(params[rights], 8);
    params[rights - 1] = 1;
    let token = bench.token.clone();
    assert_eq!(answer(bench.ask(1, Op::TaskletSubmit, &token, &params)).status, Status::InvalidParams);
}

#[test]
fn every_way_to_end_has_its_status() {
    let mut bench = Bench::new();
    assert_eq!(bench.run(&Job::new(), output(b"out")), (TaskletStatus::Ok, 1 << 40 | 1, b"out".to_vec(), vec![]));
    for (how, status) in [
        (RunStatus::FuelExhausted, TaskletStatus::FuelExhausted),
        (RunStatus::OutOfMemory, TaskletStatus::Oom),
        (RunStatus::ExecFailed, TaskletStatus::ExecFailed),
        (RunStatus::HostcallLimit, TaskletStatus::HostcallLimit),
    ] {
        let (found, id, output, logs) = bench.run(&Job::new().by_hash(), failed(how, "why"));
        assert_eq!((found, output, logs), (status, vec![], vec![(255, "why".to_owned())]));
        assert_eq!((bench.status(1, id), bench.fetch(1, id)), (status, (status, vec![])));
        assert_eq!(bench.logs(1, id), (status, vec![(255, "why".to_owned())]));
        assert_eq!(state(&answer(bench.cancel(1, id))), TaskletStatus::Finished);
    }
    // T5: its own failure comes with its code.
    let own = berth_tasklet::run::Outcome { output: vec![0, 0, 0, 9], ..failed(RunStatus::ExecFailed, "its own") };
    assert_eq!(bench.run(&Job::new().by_hash(), own).2, [0, 0, 0, 9]);
    let counts =
        ["ok", "fuel", "oom", "failed", "hostcalls"].map(|name| bench.counter(&format!("tasklet_runs_{name}")));
    assert_eq!(counts, [1, 1, 1, 2, 1]);
    assert_eq!((bench.counter("tasklet_fuel"), bench.counter("tasklet_hostcalls")), (45, 11));
}

#[test]
fn a_run_that_takes_longer_is_told_by_status_and_result() {
    let mut bench = Bench::new();
    let (run, waits) = bench.admitted(&Job { input: b"in".to_vec(), wasm: b"takes".to_vec(), ..Job::new() });
    assert_eq!(bench.begun[&run].input, b"in");
    assert_eq!(waits.patience, Some(Duration::from_secs(1)));
    bench.begun[&run].log.with(|log| log.write(2, b"half"));
    assert_eq!(submitted(&bench.resume(waits)), (TaskletStatus::Unknown, run, vec![], vec![]));
    assert_eq!(bench.status(1, run), TaskletStatus::Unknown);
    assert_eq!(bench.fetch(1, run), (TaskletStatus::Unknown, vec![]));
    assert_eq!(bench.logs(1, run), (TaskletStatus::Unknown, vec![(2, "half".to_owned())]), "those so far");
    for other in [2, 3] {
        assert_eq!(bench.status(other, run), TaskletStatus::NotFound);
        assert_eq!(bench.fetch(other, run), (TaskletStatus::NotFound, vec![]));
        assert_eq!(bench.logs(other, run), (TaskletStatus::NotFound, vec![]));
        assert_eq!(state(&answer(bench.cancel(other, run))), TaskletStatus::NotFound);
    }
    bench.world.pass(Duration::from_secs(2));
    bench.end(run, output(b"late"));
    for _ in 0..2 {
        assert_eq!(bench.fetch(1, run), (TaskletStatus::Ok, b"late".to_vec()), "fetching consumes nothing");
    }
    assert_eq!(bench.logs(1, run), (TaskletStatus::Ok, vec![(2, "half".to_owned())]));
    assert_eq!(bench.fetch(2, run), (TaskletStatus::NotFound, vec![]));
    bench.world.pass(Duration::from_millis(299_999));
    bench.tick();
    assert_eq!(bench.status(1, run), TaskletStatus::Ok);
    bench.world.pass(Duration::from_millis(1));
    assert_eq!(bench.status(1, run), TaskletStatus::NotFound);
    bench.tick();
    assert_eq!(bench.counter("tasklet_result_bytes"), 0);
    assert_eq!(bench.world.refused(1, Op::TaskletStatus, 0, &[], &[0; 7]), Status::InvalidParams);
}

#[test]
fn input_for_a_module_that_takes_none_is_invalid() {
    let mut bench = Bench::new();
    let job = Job { input: b"in".to_vec(), ..Job::new() };
    assert_eq!(not_admitted(&mut bench, &job), TaskletStatus::Invalid);
    assert_eq!(not_admitted(&mut bench, &job.by_hash()), TaskletStatus::Invalid);
}

#[test]
fn results_go_when_there_is_no_room_and_the_answer_under_way_has_its_own() {
    let mut bench = Bench::with(|config| config.results = 300);
    let (run, waits) = bench.admitted(&Job::new());
    bench.end(run, output(&[1; 500]));
    assert_eq!(bench.status(1, run), TaskletStatus::NotFound, "it does not fit");
    assert_eq!(submitted(&bench.resume(waits)).2, [1; 500]);
}

#[test]
fn ids_are_never_used_again() {
    let mut bench = Bench::new();
    let (first, waits) = bench.admitted(&Job::new());
    bench.resume(waits);
    let mut bench = bench.restarted();
    assert_eq!(bench.status(1, first), TaskletStatus::NotFound, "runs do not outlive the process");
    let (second, _) = bench.admitted(&Job::new());
    assert!(first != 0 && second != 0 && first != second, "{first:#x} {second:#x}");
}

/// A copy of the datagram that comes after a restart must not run again.
#[test]
fn the_nonce_is_durable_before_anything_runs() {
    let mut bench = Bench::new();
    bench.run(&Job::new(), output(&[]));
    let (token, params) = (bench.token.clone(), Job::new().by_hash().to_vec());
    let request = Request {
        carrier: Carrier::Udp { nonce: 77 },
        presenter: identity(1).id().0,
        source: ([10, 0, 0, 1], 5000).into(),
        op: Op::TaskletSubmit.code(),
        resource: 0,
        token: &token,
        params: &params,
    };
    let Step::Work(work) = bench.world.node.request(&request, bench.world.now) else { panic!("it is journaled first") };
    assert_eq!(work.journal, Some(vec![Record::Seen { sender: identity(1).id().0, nonce: 77 }]));
    bench.turns();
    assert!(bench.begun.is_empty());
    let step = bench.world.node.resume(work.ticket, Ok(()), bench.world.now);
    waits(bench.go_on(step));
    assert_eq!(bench.begun.len(), 1);
}

#[test]
fn cancel_stops_what_waits_at_once_and_what_runs_at_its_slice() {
    let mut bench = Bench::with(|config| config.cores = 1);
    let (first, _) = bench.admitted(&Job::new());
    let (second, late) = bench.admitted(&Job::new().by_hash());
    assert_eq!(bench.begun.len(), 1);
    assert_eq!(state(&answer(bench.cancel(1, second))), TaskletStatus::Ok, "it had not begun");
    assert_eq!(bench.status(1, second), TaskletStatus::ExecFailed);
    assert_eq!(submitted(&bench.resume(late)).3, [(255, "cancelled".to_owned())]);
    let waits = waits(bench.cancel(1, first));
    assert_eq!(bench.status(1, first), TaskletStatus::Unknown, "it goes on");
    assert_eq!(bench.slice_over(first), SliceOver::Stop);
    // Whatever it came to meanwhile: it was cancelled.
    bench.end(first, output(b"done"));
    assert!(waits.ending.is_over());
    assert_eq!(state(&bench.resume(waits)), TaskletStatus::Ok);
    assert_eq!(bench.fetch(1, first), (TaskletStatus::ExecFailed, vec![]));
    assert_eq!(bench.logs(1, first).1, [(255, "cancelled".to_owned())]);
    assert_eq!(state(&answer(bench.cancel(1, first))), TaskletStatus::Finished);
    assert_eq!(state(&answer(bench.cancel(1, 99))), TaskletStatus::NotFound);
    let (third, _) = bench.admitted(&Job::new().by_hash());
    assert!(bench.begun.contains_key(&third), "the core is free");
}

#[test]
fn a_run_that_waits_for_its_turn_is_woken_to_stop() {
    let mut bench = Bench::with(|config| config.cores = 1);
    let (mine, _) = bench.admitted(&Job::new());
    let token = bench.world.token(2, ALL);
    let at = bench.ask(2, Op::TaskletSubmit, &token, &Job::new().to_vec());
    waits(at);
    assert_eq!(bench.slice_over(mine), SliceOver::Wait, "the other's turn");
    let waits = waits(bench.cancel(1, mine));
    assert_eq!(bench.said, [(mine, false)]);
    bench.end(mine, failed(RunStatus::ExecFailed, "stopped"));
    assert!(waits.ending.is_over());
}

#[test]
fn presenters_take_turns_in_slices() {
    let mut bench = Bench::with(|config| config.cores = 1);
    let (mine, _) = bench.admitted(&Job::new());
    assert_eq!(bench.slice_over(mine), SliceOver::GoOn, "nobody else waits");
    let token = bench.world.token(2, ALL);
    waits(bench.ask(2, Op::TaskletSubmit, &token, &Job::new().to_vec()));
    let other = bench.world.node.runs().find(|run| *run != mine).unwrap();
    assert!(!bench.begun.contains_key(&other));
    assert_eq!(bench.slice_over(mine), SliceOver::Wait);
    assert!(bench.begun.contains_key(&other));
    assert_eq!(bench.slice_over(other), SliceOver::Wait);
    assert_eq!(bench.said, [(mine, true)]);
}

#[test]
fn wall_time_ends_a_run() {
    let mut bench = Bench::new();
    let (run, waits) = bench.admitted(&Job::new());
    bench.world.pass(Duration::from_millis(9_999));
    assert_eq!(bench.slice_over(run), SliceOver::GoOn);
    bench.world.pass(Duration::from_millis(1));
    assert_eq!(bench.slice_over(run), SliceOver::Stop);
    bench.end(run, failed(RunStatus::ExecFailed, "stopped"));
    let (status, _, _, logs) = submitted(&bench.resume(waits));
    assert_eq!((status, logs), (TaskletStatus::ExecFailed, vec![(255, "wall time: more than 10000 ms".to_owned())]));
}

#[test]
fn a_revoked_token_stops_its_runs_before_it_is_answered() {
    let mut bench = Bench::with(|config| config.cores = 1);
    let (run, _) = bench.admitted(&Job::new());
    let (queued, _) = bench.admitted(&Job::new().by_hash());
    let token = bench.token.clone();
    let revocation = waits(bench.revoke(&token));
    assert!(!revocation.ending.is_over());
    assert_eq!(bench.status(1, queued), TaskletStatus::ExecFailed);
    assert_eq!(bench.slice_over(run), SliceOver::Stop);
    bench.end(run, output(b"done"));
    assert!(revocation.ending.is_over());
    for run in [run, queued] {
        assert_eq!(bench.fetch(1, run), (TaskletStatus::ExecFailed, vec![]));
        assert_eq!(bench.logs(1, run).1, [(255, "its token was revoked".to_owned())]);
    }
    assert_eq!(refused(&mut bench, &Job::new()), Status::InvalidToken);
}

#[test]
fn a_revoked_key_stops_its_runs_and_another_token_none() {
    let mut bench = Bench::new();
    let (run, _) = bench.admitted(&Job::new());
    let other = bench.world.token(1, ALL);
    answer(bench.revoke(&other));
    assert_eq!(bench.slice_over(run), SliceOver::GoOn);
    let admin = bench.world.token(2, ALL);
    let params = KeyRevoke { key_id: identity(1).id().0, remove: false }.to_vec();
    let revocation = waits(bench.ask(2, Op::KeyRevoke, &admin, &params));
    assert_eq!(bench.slice_over(run), SliceOver::Stop);
    bench.end(run, output(&[]));
    assert!(revocation.ending.is_over());
}

#[test]
fn the_end_of_a_token_and_a_fence_stop_nothing_that_was_admitted() {
    let mut bench = Bench::with(|config| config.max_wall = Duration::from_secs(1000));
    let (run, waits) = bench.admitted(&Job::new());
    bench.world.pass(Duration::from_secs(400));
    bench.tick();
    assert_eq!(bench.slice_over(run), SliceOver::GoOn);
    bench.end(run, output(b"x"));
    assert_eq!(submitted(&bench.resume(waits)).0, TaskletStatus::Ok);
    assert_eq!(refused(&mut bench, &Job::new()), Status::InvalidToken);
}

#[test]
fn by_hash_a_presenter_finds_what_it_has_submitted() {
    let mut bench = Bench::new();
    assert_eq!(not_admitted(&mut bench, &Job::new().by_hash()), TaskletStatus::ModuleNotFound);
    bench.run(&Job::new(), output(&[]));
    bench.run(&Job::new().by_hash(), output(&[]));
    let token = bench.world.token(2, ALL);
    let by_hash = Job::new().by_hash().to_vec();
    let other = |bench: &mut Bench, params: &[u8]| bench.ask(2, Op::TaskletSubmit, &token, params);
    let status = submitted(&answer(other(&mut bench, &by_hash))).0;
    assert_eq!(status, TaskletStatus::ModuleNotFound, "nobody learns what others run");
    waits(other(&mut bench, &Job::new().to_vec()));
    waits(other(&mut bench, &by_hash));
    assert_eq!(bench.script.compiled(), 1, "for all of them");
}

#[test]
fn modules_go_at_the_limit() {
    let mut bench = Bench::with(|config| config.modules = 2000);
    let job = |n| Job { wasm: vec![n; 500], ..Job::new() };
    bench.run(&job(1), output(&[]));
    bench.run(&job(2), output(&[]));
    assert_eq!(not_admitted(&mut bench, &job(1).by_hash()), TaskletStatus::ModuleNotFound);
    bench.run(&job(2).by_hash(), output(&[]));
    assert!(bench.counter("tasklet_module_bytes") <= 2000);
}

/// The steps of one submission by bytes, until its module is to be compiled.
fn hashed(bench: &mut Bench, job: &Job) -> berth_fabric::Work {
    let (token, params) = (bench.token.clone(), job.to_vec());
    let request = Request {
        carrier: Carrier::Quic,
        presenter: identity(1).id().0,
        source: ([10, 0, 0, 1], 5000).into(),
        op: Op::TaskletSubmit.code(),
        resource: 0,
        token: &token,
        params: &params,
    };
    let Step::Work(work) = bench.world.node.request(&request, bench.world.now) else { panic!("it is hashed") };
    work.prepare.expect("off the node's lock").run();
    match bench.world.node.resume(work.ticket, Ok(()), bench.world.now) {
        Step::Work(work) => work,
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_module_is_compiled_once_however_many_ask() {
    let mut bench = Bench::new();
    let first = hashed(&mut bench, &Job::new());
    let second = hashed(&mut bench, &Job::new());
    let ending = second.ending.clone().expect("it waits for the first");
    assert!(second.prepare.is_none() && !ending.is_over());
    first.prepare.unwrap().run();
    let step = bench.world.node.resume(first.ticket, Ok(()), bench.world.now);
    waits(bench.go_on(step));
    assert!(ending.is_over());
    let step = bench.world.node.resume(second.ticket, Ok(()), bench.world.now);
    waits(bench.go_on(step));
    assert_eq!((bench.script.compiled(), bench.begun.len()), (1, 2));
}

#[test]
fn a_compiler_that_dies_is_an_error_and_the_next_one_asks_again() {
    let mut bench = Bench::new();
    let first = hashed(&mut bench, &Job::new());
    let second = hashed(&mut bench, &Job::new());
    let step = bench.world.node.resume(first.ticket, Ok(()), bench.world.now);
    assert_eq!(answer(bench.go_on(step)).status, Status::InternalError);
    let step = bench.world.node.resume(second.ticket, Ok(()), bench.world.now);
    waits(bench.go_on(step));
    assert_eq!(bench.script.compiled(), 1);
}

#[test]
fn what_is_revoked_while_it_is_compiled_does_not_run() {
    let mut bench = Bench::new();
    let work = hashed(&mut bench, &Job::new());
    let token = bench.token.clone();
    answer(bench.revoke(&token));
    work.prepare.unwrap().run();
    let step = bench.world.node.resume(work.ticket, Ok(()), bench.world.now);
    assert_eq!(answer(bench.go_on(step)).status, Status::InvalidToken);
    assert!(bench.begun.is_empty());
}
