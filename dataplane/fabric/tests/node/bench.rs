//! A node with tasklets, whose runs end as a test says.
#![allow(clippy::doc_markdown)] // the names of ops
#![allow(clippy::needless_pass_by_value)] // what waited is resumed once
#![allow(unreachable_pub)] // its items are nobody else's

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_fabric::{
    Answer, BlockingWork, Carrier, Config, Ending, LeaseCall, Recovered, Request, SliceOver, Start, Step,
    TaskletConfig, Turn, answered,
};
use berth_lease_io::{Gate, TaskletLeases};
use berth_tasklet::{
    hostcall::{Hostcalls, Kind, Named},
    run::{Executor, Limits, Module, Outcome, Rejected, Status as RunStatus},
    schedule::RunId,
};
use berth_wire::fabric::{
    Bytes, CapEntry, CapRevoke, CapabilityToken, List, Op, Status, TaskletLimits, TaskletLogs, TaskletOutput,
    TaskletRef, TaskletRights, TaskletState, TaskletStatus, TaskletSubmit, TaskletSubmitted, Wire as _,
};
use sha2::{Digest as _, Sha256};

use crate::common::*;

/// Modules of 4 bytes take no input. Compiles everything but what begins with "bad" or "profile".
#[derive(Debug, Default)]
pub struct Script(AtomicU32);

impl Script {
    pub fn compiled(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug)]
struct Code(u64);

impl Executor for Script {
    fn compile(&self, wasm: &[u8]) -> Result<Arc<dyn Module>, Rejected> {
        self.0.fetch_add(1, Relaxed);
        match wasm {
            [b'b', b'a', b'd', ..] => Err(Rejected::Invalid("a bad one".into())),
            [b'p', b'r', b'o', b'f', ..] => Err(Rejected::UnsupportedProfile("fabricbios_fbmu_v1".into())),
            _ => Ok(Arc::new(Code(wasm.len() as u64))),
        }
    }
}

impl Module for Code {
    fn size(&self) -> u64 {
        self.0
    }
    fn takes_input(&self) -> bool {
        self.0 != 4
    }
    fn run(&self, _: &[u8], _: &Limits, _: &mut dyn Hostcalls) -> Outcome {
        unreachable!("tests say how a run ends")
    }
}

/// Ended well, with this output.
pub fn output(output: &[u8]) -> Outcome {
    Outcome { status: RunStatus::Ok, output: output.to_vec(), fuel: 10, hostcalls: 1, reason: None }
}

/// Ended otherwise.
pub fn failed(status: RunStatus, reason: &str) -> Outcome {
    Outcome { status, output: Vec::new(), fuel: 7, hostcalls: 2, reason: Some(reason.into()) }
}

pub const LIMITS: TaskletLimits =
    TaskletLimits { max_fuel: 1000, max_linear_memory: 1 << 20, max_output_bytes: 1024, max_hostcalls: 10 };

/// A submission, owned.
#[derive(Debug, Clone)]
pub struct Job {
    pub mem: u128,
    pub cpu: u128,
    pub hash: Option<[u8; 32]>,
    pub wasm: Vec<u8>,
    pub caps: Vec<(u128, u32)>,
    pub input: Vec<u8>,
    pub limits: TaskletLimits,
}

impl Job {
    pub fn new() -> Self {
        let (wasm, caps, input) = (b"\0asm".to_vec(), Vec::new(), Vec::new());
        Self { mem: 0, cpu: 0, hash: None, wasm, caps, input, limits: LIMITS }
    }

    /// The same module, without its bytes.
    pub fn by_hash(self) -> Self {
        Self { hash: Some(self.sha256()), wasm: Vec::new(), ..self }
    }

    fn sha256(&self) -> [u8; 32] {
        self.hash.unwrap_or_else(|| Sha256::digest(&self.wasm).into())
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let rights = |bits| TaskletRights::from_bits(bits).unwrap();
        let caps: Vec<CapEntry> =
            self.caps.iter().map(|&(cap_token, bits)| CapEntry { cap_token, rights: rights(bits) }).collect();
        TaskletSubmit {
            resource_id: self.mem,
            cpu_resource_id: self.cpu,
            module_sha256: self.sha256(),
            wasm: Bytes::of(&self.wasm).unwrap(),
            caps: List::of(&caps).unwrap(),
            input: Bytes::of(&self.input).unwrap(),
            limits: self.limits,
        }
        .to_vec()
    }
}

/// An operation that waits.
#[derive(Debug)]
pub struct Waits {
    pub ticket: u64,
    pub ending: Ending,
    pub patience: Option<Duration>,
}

/// Where an operation stands.
#[derive(Debug)]
pub enum At {
    Answered(Answer),
    Waits(Waits),
}

/// Status, id, output and logs of a TASKLET_SUBMIT.
pub type Submitted = (TaskletStatus, RunId, Vec<u8>, Vec<(u8, String)>);

pub struct Bench {
    pub world: World,
    pub script: Arc<Script>,
    pub token: Vec<u8>,
    /// Runs that have begun.
    pub begun: BTreeMap<RunId, Start>,
    /// Those of them that nobody has looked at, and what was said to others since.
    pub started: Vec<RunId>,
    pub said: Vec<(RunId, bool)>,
}

pub fn tasklets(script: &Arc<Script>) -> TaskletConfig {
    TaskletConfig { memory: 8 << 20, ..TaskletConfig::new(script.clone(), 2) }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut TaskletConfig)) -> Self {
        let script = Arc::<Script>::default();
        let mut tasklets = tasklets(&script);
        change(&mut tasklets);
        Self::of(World::with(Config { tasklets: Some(tasklets), ..config() }), script)
    }

    pub fn of(mut world: World, script: Arc<Script>) -> Self {
        let token = world.token(1, ALL);
        Self { world, script, token, begun: BTreeMap::new(), started: Vec::new(), said: Vec::new() }
    }

    /// The same node after a crash, with what its journal says.
    pub fn restarted(self) -> Self {
        let config = self.world.node.config().clone();
        let recovered: Recovered = self.world.journal.into_iter().collect();
        let (now, seed) = (self.world.now, self.world.node.epoch() << 32);
        let mut world = World::start(config, regions(), recovered.clone(), now, seed);
        let records: Vec<_> = recovered.records().collect();
        world.journal.splice(..0, records);
        Self::of(world, self.script)
    }

    pub fn submit(&mut self, job: &Job) -> At {
        let token = self.token.clone();
        self.ask(1, Op::TaskletSubmit, &token, &job.to_vec())
    }

    /// A tasklet that is admitted: its id.
    pub fn admitted(&mut self, job: &Job) -> (RunId, Waits) {
        let before: Vec<RunId> = self.ids();
        match self.submit(job) {
            At::Waits(waits) => {
                let id = self.ids().into_iter().find(|id| !before.contains(id));
                (id.expect("it was admitted"), waits)
            }
            At::Answered(answer) => panic!("{answer:?}"),
        }
    }

    fn ids(&self) -> Vec<RunId> {
        self.world.node.runs().collect()
    }

    pub fn ask(&mut self, n: u8, op: Op, token: &[u8], params: &[u8]) -> At {
        let request = Request {
            carrier: Carrier::Quic,
            presenter: identity(n).id().0,
            source: ([10, 0, 0, n], 5000).into(),
            op: op.code(),
            resource: 0,
            token,
            params,
        };
        let step = self.world.node.request(&request, self.world.now);
        self.go_on(step)
    }

    /// Does everything up to the next wait for an ending.
    pub fn go_on(&mut self, mut step: Step) -> At {
        loop {
            match step {
                Step::Work(work) => {
                    self.world.journal.extend(work.journal.into_iter().flatten());
                    assert!(work.jobs.iter().all(|job| job.in_memory(&self.world.regions)));
                    if let Some(ending) = work.ending.filter(|ending| !ending.is_over()) {
                        self.turns();
                        return At::Waits(Waits { ticket: work.ticket, ending, patience: work.patience });
                    }
                    work.prepare.into_iter().for_each(BlockingWork::run);
                    step = self.world.node.resume(work.ticket, Ok(()), self.world.now);
                }
                step => {
                    let mut outcome = self.world.finish(step).expect("an answer");
                    self.turns();
                    let ending = outcome.endings.pop().filter(|ending| !ending.is_over());
                    return match ending {
                        Some(ending) => At::Waits(Waits { ticket: 0, ending, patience: None }),
                        None => At::Answered(outcome.answer),
                    };
                }
            }
        }
    }

    /// The answer of what waited, whose ending is over or patience at its end.
    pub fn resume(&mut self, waits: Waits) -> Answer {
        let step = self.world.node.resume(waits.ticket, Ok(()), self.world.now);
        answer(self.go_on(step))
    }

    pub fn turns(&mut self) {
        for turn in self.world.node.take_turns(self.world.now) {
            match turn {
                Turn::Start(start) => {
                    self.started.push(start.run);
                    assert!(self.begun.insert(start.run, *start).is_none(), "a run begins once");
                }
                Turn::Resume(run) => self.said.push((run, true)),
                Turn::Stop(run) => self.said.push((run, false)),
            }
        }
    }

    pub fn slice_over(&mut self, run: RunId) -> SliceOver {
        let said = self.world.node.slice_over(run, self.world.now);
        self.turns();
        said
    }

    pub fn end(&mut self, run: RunId, outcome: Outcome) {
        assert!(self.begun.remove(&run).is_some(), "it has begun");
        self.world.node.run_ended(run, outcome, self.world.now);
        self.turns();
    }

    /// The answer to a tasklet that ends as the test says.
    pub fn run(&mut self, job: &Job, outcome: Outcome) -> Submitted {
        let (run, waits) = self.admitted(job);
        self.end(run, outcome);
        submitted(&self.resume(waits))
    }

    pub fn tick(&mut self) {
        self.world.tick();
        self.turns();
    }

    pub fn status(&mut self, n: u8, run: RunId) -> TaskletStatus {
        let result = self.world.ok(n, Op::TaskletStatus, 0, &[], &of(run));
        TaskletState::parse(&result).unwrap().status
    }

    pub fn fetch(&mut self, n: u8, run: RunId) -> (TaskletStatus, Vec<u8>) {
        let result = self.world.ok(n, Op::TaskletFetchResult, 0, &[], &of(run));
        let fetched = TaskletOutput::parse(&result).unwrap();
        (fetched.status, fetched.output[..].to_vec())
    }

    pub fn logs(&mut self, n: u8, run: RunId) -> (TaskletStatus, Vec<(u8, String)>) {
        let result = self.world.ok(n, Op::TaskletFetchLogs, 0, &[], &of(run));
        let fetched = TaskletLogs::parse(&result).unwrap();
        (fetched.status, fetched.logs.iter().map(|one| (one.level, text(&one.message))).collect())
    }

    pub fn cancel(&mut self, n: u8, run: RunId) -> At {
        self.ask(n, Op::TaskletCancel, &[], &of(run))
    }

    /// CAP_REVOKE of presenter 1's token.
    pub fn revoke(&mut self, token: &[u8]) -> At {
        let token_id = CapabilityToken::parse(token).unwrap().token_id;
        let own = self.world.token(2, ALL);
        self.ask(2, Op::CapRevoke, &own, &CapRevoke { token_id, ttl_secs: 1 }.to_vec())
    }

    /// A call of a run that goes to the node: its code, and what it writes.
    pub fn lease_call(&mut self, run: RunId, call: LeaseCall) -> (i64, Vec<u8>) {
        let step = self.world.node.lease_call(run, call, self.world.now);
        let answer = answer(self.go_on(step));
        let (code, out) = answered(&answer);
        (code, out.to_vec())
    }

    /// The leases that a run may touch.
    pub fn leases(&self, run: RunId) -> TaskletLeases {
        let gate = Gate::new(self.world.node.table(), self.world.node.regions());
        TaskletLeases::new(self.begun[&run].capabilities.clone(), gate)
    }

    pub fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.world.node.counters(&mut |counter, value| {
            if counter == name {
                found = Some(value);
            }
        });
        found.expect("a counter")
    }
}

/// A read of `len` bytes.
pub fn read(leases: &mut TaskletLeases, kind: Kind, named: Named, at: u64, len: usize, now: berth_port::Nanos) -> i64 {
    leases.read(kind, named, at, &mut vec![0; len], now).map_or_else(|code| code, |_| 0)
}

/// A write of `len` bytes.
pub fn write(leases: &mut TaskletLeases, kind: Kind, named: Named, at: u64, len: usize, now: berth_port::Nanos) -> i64 {
    leases.write(kind, named, at, &vec![7; len], now).map_or_else(|code| code, |_| 0)
}

pub fn of(run: RunId) -> Vec<u8> {
    TaskletRef { tasklet_id: run }.to_vec()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub fn answer(at: At) -> Answer {
    match at {
        At::Answered(answer) => answer,
        At::Waits(waits) => panic!("{waits:?}"),
    }
}

pub fn waits(at: At) -> Waits {
    match at {
        At::Waits(waits) => waits,
        At::Answered(answer) => panic!("{answer:?}"),
    }
}

pub fn submitted(answer: &Answer) -> Submitted {
    assert_eq!(answer.status, Status::Ok);
    let answer = TaskletSubmitted::parse(&answer.result).unwrap();
    assert_eq!(answer.negotiated_profile_version, 0);
    let logs = answer.logs.iter().map(|one| (one.level, text(&one.message))).collect();
    (answer.status, answer.tasklet_id, answer.output[..].to_vec(), logs)
}

/// Status of a TASKLET_CANCEL or TASKLET_STATUS.
pub fn state(answer: &Answer) -> TaskletStatus {
    assert_eq!(answer.status, Status::Ok);
    TaskletState::parse(&answer.result).unwrap().status
}
