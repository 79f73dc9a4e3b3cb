//! Random histories of tasklets in virtual time: submissions, slices, ends, cancels, revocations, freed and expired leases,
//! and crashes at any point between.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_fabric::{LeaseCall, SliceOver};
use berth_tasklet::{hostcall::Kind, run::Status as RunStatus, schedule::RunId};
use berth_wire::fabric::{
    CapabilityToken, Op, Status, TaskletLeaseFree, TaskletLeaseGrant, TaskletLimits, TaskletStatus, Wire as _,
};
use fastrand::Rng;

use crate::{bench::*, common::*};

/// One history, and what must hold in it.
struct History {
    bench: Bench,
    rng: Rng,
    /// Runs of this start of the node that were admitted and have not ended, and those that are on a core.
    live: BTreeSet<RunId>,
    on_core: BTreeSet<RunId>,
    /// Every id there ever was: never used again.
    ids: BTreeSet<RunId>,
    /// How each run ended, once.
    ended: BTreeMap<RunId, TaskletStatus>,
    /// Submissions, cancels and revocations that wait for runs: the runs that must be over when they are.
    submits: Vec<(RunId, Waits)>,
    stops: Vec<(BTreeSet<RunId>, Waits)>,
    composites: Vec<TaskletLeaseGrant>,
    tokens: Vec<Vec<u8>>,
}

impl History {
    fn new(seed: u64) -> Self {
        let bench = Bench::with(|config| config.memory = 16 << 20);
        let tokens = vec![bench.token.clone()];
        let (live, on_core, ids, ended) = Default::default();
        let (submits, stops, composites) = Default::default();
        Self { bench, rng: Rng::with_seed(seed), live, on_core, ids, ended, submits, stops, composites, tokens }
    }

    fn any<T: Clone>(&mut self, of: impl IntoIterator<Item = T>) -> Option<T> {
        let all: Vec<T> = of.into_iter().collect();
        (!all.is_empty()).then(|| all[self.rng.usize(..all.len())].clone())
    }

    fn step(&mut self) {
        match self.rng.u32(..100) {
            0..30 => self.submit(),
            30..60 => self.slice(),
            60..75 => self.end(),
            75..80 => self.cancel(),
            80..83 => self.revoke(),
            83..88 => self.alloc(),
            88..90 => self.free(),
            90..94 => self.call(),
            94..99 => {
                let seconds = [0, 1, 5, 30][self.rng.usize(..4)];
                self.bench.world.pass(Duration::from_millis(seconds * 1000 + self.rng.u64(..50)));
                self.bench.tick();
            }
            _ => self.crash(),
        }
        self.settle();
    }

    fn submit(&mut self) {
        let lease = self.any(self.composites.clone()).filter(|_| self.rng.bool());
        let memory = [0, 1 << 16, 4 << 20, 9 << 20][self.rng.usize(..4)];
        let limits = TaskletLimits { max_linear_memory: memory, ..LIMITS };
        let (mem, cpu) = lease.map_or((0, 0), |lease| (lease.mem_resource_id, lease.cpu_resource_id));
        let wasm = vec![self.rng.u8(..4); 8];
        let job = Job { mem, cpu, wasm, limits, ..Job::new() };
        let before: BTreeSet<RunId> = self.bench.world.node.runs().collect();
        self.bench.token = self.any(self.tokens.clone()).unwrap();
        let at = self.bench.submit(&job);
        let new: Vec<RunId> = self.bench.world.node.runs().filter(|run| !before.contains(run)).collect();
        match (at, &new[..]) {
            (At::Waits(waits), &[run]) => {
                assert!(run != 0 && self.ids.insert(run), "no id twice");
                self.live.insert(run);
                self.submits.push((run, waits));
            }
            (At::Answered(answer), []) => assert_ne!(answer.status, Status::Ok),
            (at, new) => panic!("{at:?} {new:?}"),
        }
    }

    fn slice(&mut self) {
        let Some(run) = self.any(self.on_core.clone()) else { return };
        match self.bench.world.node.slice_over(run, self.bench.world.now) {
            SliceOver::GoOn => {}
            SliceOver::Wait => {
                self.on_core.remove(&run);
            }
            SliceOver::Stop => self.finish(run),
        }
    }

    fn end(&mut self) {
        if let Some(run) = self.any(self.on_core.clone()) {
            self.finish(run);
        }
    }

    /// The run ends, one way or another.
    fn finish(&mut self, run: RunId) {
        let outcome = match self.rng.u32(..3) {
            0 => failed(RunStatus::FuelExhausted, "fuel"),
            _ => output(b"out"),
        };
        self.on_core.remove(&run);
        self.bench.begun.remove(&run);
        self.bench.world.node.run_ended(run, outcome, self.bench.world.now);
    }

    fn cancel(&mut self) {
        let Some(run) = self.any(self.ids.clone()) else { return };
        match self.bench.cancel(1, run) {
            At::Waits(waits) => self.stops.push((BTreeSet::from([run]), waits)),
            At::Answered(answer) => match state(&answer) {
                TaskletStatus::Ok => assert!(!self.on_core.contains(&run), "it had not begun"),
                TaskletStatus::Finished | TaskletStatus::NotFound => assert!(!self.live.contains(&run)),
                status => panic!("{status}"),
            },
        }
    }

    fn revoke(&mut self) {
        let Some(token) = self.any(self.tokens.clone()) else { return };
        let all = self.bench.world.node.runs().collect();
        if let At::Waits(waits) = self.bench.revoke(&token) {
            self.stops.push((all, waits));
        }
        self.tokens.retain(|other| CapabilityToken::parse(other) != CapabilityToken::parse(&token));
        self.tokens.push(self.bench.world.token(1, ALL));
    }

    fn alloc(&mut self) {
        self.bench.token = self.bench.world.token(1, ALL);
        self.tokens.push(self.bench.token.clone());
        let params = berth_wire::fabric::TaskletLeaseAlloc {
            duration_secs: self.rng.u32(1..40),
            num_cores: self.rng.u16(1..3),
            mem_bytes: self.rng.u64(1..8 << 20),
            grace_secs: self.rng.u32(..10),
            ..crate::composites::ALLOC
        };
        let token = self.bench.token.clone();
        let answer = self.bench.world.ask(1, Op::TaskletLeaseAlloc, 0, &token, &params.to_vec());
        match answer.status {
            Status::Ok => self.composites.push(TaskletLeaseGrant::parse(&answer.result).unwrap()),
            status => assert_eq!(status, Status::CapacityExceeded),
        }
    }

    fn free(&mut self) {
        let Some(lease) = self.any(self.composites.clone()) else { return };
        let params = TaskletLeaseFree { lease_id: lease.lease_id }.to_vec();
        let all = self.bench.world.node.runs().collect();
        if let At::Waits(waits) = self.bench.ask(1, Op::TaskletLeaseFree, &[], &params) {
            self.stops.push((all, waits));
        }
        self.composites.retain(|other| other.lease_id != lease.lease_id);
    }

    fn call(&mut self) {
        let Some(run) = self.any(self.on_core.clone()) else { return };
        let call = LeaseCall::Alloc { kind: Kind::Memory, min: 1, secs: 1 };
        self.bench.lease_call(run, call);
    }

    /// The process dies: its runs are gone, and nobody answers for them.
    fn crash(&mut self) {
        let bench = std::mem::replace(&mut self.bench, Bench::new());
        self.bench = bench.restarted();
        self.tokens = vec![self.bench.token.clone()];
        for all in [&mut self.live, &mut self.on_core] {
            all.clear();
        }
        self.ended.clear();
        self.submits.clear();
        self.stops.clear();
    }

    /// Hands on what the node decides, and checks it.
    fn settle(&mut self) {
        loop {
            self.bench.turns();
            let (started, said) = (std::mem::take(&mut self.bench.started), std::mem::take(&mut self.bench.said));
            if started.is_empty() && said.is_empty() {
                break;
            }
            for run in started {
                assert!(self.on_core.insert(run));
            }
            for (run, on) in said {
                if on {
                    assert!(self.on_core.insert(run));
                } else {
                    assert!(!self.on_core.contains(&run));
                    self.finish(run);
                }
            }
        }
        let standing: BTreeSet<RunId> = self.bench.world.node.runs().collect();
        for run in self.live.difference(&standing).copied().collect::<Vec<_>>() {
            let status = self.bench.status(1, run);
            assert!(!matches!(status, TaskletStatus::Unknown | TaskletStatus::NotFound), "{status}");
            assert_eq!(self.ended.insert(run, status), None, "it ends once");
        }
        self.live = standing;
        for (run, waits) in std::mem::take(&mut self.submits) {
            if waits.ending.is_over() || self.rng.u32(..20) == 0 {
                let over = waits.ending.is_over();
                let (status, id, ..) = submitted(&self.bench.resume(waits));
                assert_eq!((id, over), (run, status != TaskletStatus::Unknown));
            } else {
                self.submits.push((run, waits));
            }
        }
        let over = self.stops.extract_if(.., |(_, waits)| waits.ending.is_over()).collect::<Vec<_>>();
        for (_, waits) in over.into_iter().filter(|(_, waits)| waits.ticket != 0) {
            assert_eq!(state(&self.bench.resume(waits)), TaskletStatus::Ok);
        }
        assert!(self.on_core.len() <= 4, "for a slice, those of a lease beside those that had its cores");
    }

    /// Lets everything end, and looks whether all is free.
    fn wind_up(mut self) {
        for _ in 0..10_000 {
            self.end();
            self.settle();
            if self.live.is_empty() {
                break;
            }
            self.bench.world.pass(Duration::from_secs(1));
            self.bench.tick();
        }
        assert_eq!((self.live.len(), self.on_core.len(), self.stops.len()), (0, 0, 0));
        self.bench.world.pass(Duration::from_secs(1000));
        self.bench.tick();
        self.bench.tick();
        self.settle();
        let gauges = ["tasklets_waiting", "tasklets_under_way", "tasklet_cores_leased", "tasklet_results"];
        assert_eq!(gauges.map(|name| self.bench.counter(name)), [0; 4]);
    }
}

#[test]
fn histories_balance() {
    let seeds = std::env::var("BERTH_SIM_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(30) {
        let mut history = History::new(seed);
        for _ in 0..150 {
            history.step();
        }
        history.wind_up();
    }
}
