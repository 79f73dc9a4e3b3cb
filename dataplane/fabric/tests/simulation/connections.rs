//! A transport beside the lease table and outside the process: a target in the kernel, whose connections outlive the
//! node's process, and end slowly or not at all.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use berth_fabric::{
    Binding, BlockingWork, BoundLease, Effects, Ending, Reach, Step, Teardown, TeardownFailed, Work, WorkFailed,
};
use berth_lease::{LeaseId, Span};
use berth_wire::fabric::{BindKind, Op, Response, Status, Tlvs, Wire as _};
use fastrand::Rng;

use super::{
    oracle::Note,
    work::Working,
    world::{DataOp, Event, Leaving, SLOT, World},
};

/// The target's connections, and what the kernel does with them.
#[derive(Debug)]
pub struct Target {
    connected: BTreeMap<LeaseId, Connection>,
    random: Rng,
    /// Whether clients carry on after a restart without asking.
    resumes: bool,
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    span: Span,
    first: u64,
    /// Whether its client can access anything yet.
    open: bool,
}

/// How a connection's end goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    AtOnce,
    Slow,
    Fails,
    FailsSlowly,
}

impl Target {
    pub fn new(random: &mut Rng) -> Arc<Mutex<Self>> {
        let resumes = random.bool();
        Arc::new(Mutex::new(Self { connected: BTreeMap::new(), random: Rng::with_seed(random.u64(..)), resumes }))
    }

    fn fate(&mut self) -> Fate {
        match self.random.u8(..) {
            0..60 => Fate::AtOnce,
            60..244 => Fate::Slow,
            244..250 => Fate::Fails,
            250.. => Fate::FailsSlowly,
        }
    }

    /// The process dies, and perhaps the machine. Connections to its memory are lost.
    pub fn crash(&mut self, outage: bool) {
        self.connected.retain(|_, connection| connection.span.region.0 != 0 && !outage);
    }

    fn end(&mut self, lease: LeaseId) {
        self.connected.remove(&lease);
    }
}

/// The binding as the node sees it.
#[derive(Debug)]
pub struct TargetBinding(pub Arc<Mutex<Target>>);

impl TargetBinding {
    fn target(&self) -> MutexGuard<'_, Target> {
        self.0.lock().unwrap()
    }
}

impl Binding for TargetBinding {
    fn kind(&self) -> BindKind {
        BindKind::NvmeOf
    }
    fn name(&self) -> &'static str {
        "target"
    }
    fn resumes(&self) -> bool {
        self.target().resumes
    }
    fn prepare(&mut self, lease: &BoundLease, _: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let Reach::Bytes { span, first } = lease.reach else { return Err(Status::InvalidParams) };
        let (target, id) = (self.0.clone(), lease.id);
        Ok(Some(BlockingWork::new(move || {
            let before = target.lock().unwrap().connected.insert(id, Connection { span, first, open: false });
            assert!(before.is_none(), "{id} was connected already");
        })))
    }
    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        let mut target = self.target();
        if target.random.u8(..) < 16 {
            return Err(Status::ResourceBusy);
        }
        target.connected.get_mut(&lease.id).expect("it was prepared").open = true;
        Ok(())
    }
    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let fate = self.target().fate();
        let slow = matches!(fate, Fate::Slow | Fate::FailsSlowly);
        let fails = matches!(fate, Fate::Fails | Fate::FailsSlowly);
        let target = self.0.clone();
        match (slow, fails) {
            (true, true) => Ok(Some(BlockingWork::new(|| ()))),
            (true, false) => Ok(Some(BlockingWork::new(move || target.lock().unwrap().end(lease)))),
            (false, true) if self.target().connected.contains_key(&lease) => Err(TeardownFailed),
            (false, _) => {
                self.target().end(lease);
                Ok(None)
            }
        }
    }
    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        if self.target().connected.contains_key(&lease) { Err(TeardownFailed) } else { Ok(()) }
    }
}

impl World {
    /// Lets the client of a connection read or write.
    pub(super) fn remote(&mut self) {
        let open: Vec<(LeaseId, Connection)> = {
            let target = self.target.lock().unwrap();
            target.connected.iter().filter(|(_, it)| it.open).map(|(id, it)| (*id, *it)).collect()
        };
        let delay = self.random.u64(0..50 * super::world::MILLI);
        self.after(delay, Event::Remote);
        if open.is_empty() {
            return;
        }
        let (id, Connection { span, first, .. }) = open[self.random.usize(0..open.len())];
        let slot = self.random.u64(0..span.len.div_ceil(SLOT));
        let write = self.random.bool().then(|| self.random.u64(1..));
        let access = DataOp { key: id.key().0, generation: 0, slot: slot + first / SLOT, write };
        self.summary.remote += 1;
        self.touch(Span { at: span.at + slot * SLOT, len: SLOT, ..span }, id.0, access);
    }

    /// Carries out what the node asks for besides answers. Returns the batch of its journal records, 0 for none.
    pub(super) fn apply(&mut self, effects: Effects) -> u64 {
        for teardown in effects.teardowns {
            self.summary.slow_teardowns += 1;
            let delay = self.slow(50 * super::world::MILLI);
            self.after(delay, Event::TornDown(self.run, teardown.ticket));
            self.process.teardowns.insert(teardown.ticket, teardown);
        }
        if effects.journal.is_empty() { 0 } else { self.journal.stage(&effects.journal) }
    }

    pub(super) fn torn_down(&mut self, ticket: u64) {
        let Teardown { work, .. } = self.process.teardowns.remove(&ticket).expect("it is under way");
        work.run();
        let now = self.time();
        let effects = self.process.node.torn_down(ticket, now);
        self.apply(effects);
    }

    /// Takes over works that the node begins on its own when it starts.
    pub(super) fn begin_own(&mut self, works: Vec<Work>) {
        for work in works {
            self.takes(work, None);
        }
    }

    /// Continues or ends an operation.
    pub(super) fn go_on(&mut self, ticket: u64, working: Working, result: Result<(), WorkFailed>) {
        let now = self.time();
        match (self.process.node.resume(ticket, result, now), working.asked) {
            (Step::Work(work), asked) => self.takes(work, asked),
            (Step::Done(outcome), Some(asked)) => {
                assert!(matches!(asked.op, Op::LeaseAlloc | Op::LeaseRelocate | Op::LeaseBind));
                // How long bytes take is their owner's affair.
                self.conclude(&asked, outcome, u64::MAX);
            }
            (Step::Done(outcome), None) => {
                self.journal.stage(&outcome.journal);
                self.apply(outcome.effects);
            }
            (step, _) => unreachable!("work leads to no {step:?}"),
        }
    }
}

impl Leaving {
    /// Checks whether what it waits for has ended. What was journaled then must become durable, too.
    pub(super) fn look(&mut self, staged_to: u64) {
        if self.endings.is_empty() || !self.endings.iter().all(Ending::is_over) {
            return;
        }
        if self.endings.iter().any(Ending::has_failed) {
            let op = Response::parse(&self.payload).expect("it was made here").op;
            let result = berth_wire::fabric::Bytes::default();
            self.payload = Response { status: Status::ResourceFenced.code(), op, result }.to_vec();
            self.note = Note::Nothing;
        }
        self.endings.clear();
        self.batch = self.batch.max(staged_to);
    }
}
