//! Functions with their handlers: what a service or a worker runs, and how that is replaced at run time.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use berth_admission::Admission;
use berth_port::{Clock, Mailbox, Nanos, Peer, Sender, mailbox};
use berth_wire::rpc::{HeaderForm, status};

use crate::{
    Call, Dispatch, FunctionIndex, FunctionTable, Handlers, RingIndex, SetupError,
    counts::{Counts, Event},
    gate::Request,
    guard::Guard,
    service::check_fit,
};

/// The functions of one core, their handlers, and their records. It never changes; it is replaced as a whole through
/// [`Updates`].
#[derive(Debug)]
pub struct Program<H> {
    pub(crate) table: Arc<FunctionTable>,
    pub(crate) handlers: H,
    records: Vec<Record>,
    /// The kernels for which messages wait, and their rings.
    pub(crate) queued: Vec<(FunctionIndex, RingIndex)>,
    /// Limits on what a service admits; a worker serves what was admitted.
    pub(crate) admission: Option<Admission>,
}

/// Brings programs to the service or worker that is to run them, and returns those that they replace.
///
/// A program is replaced between two bursts: a request is checked and run by one program. A request that waits for a
/// worker is checked again by the worker's program of that time; if its function is gone, it is answered as unknown.
/// To replace both, therefore, replace the worker's first, so that no request of a new function finds an old worker.
pub type Updates<H> = Mailbox<Program<H>, Program<H>>;

/// Both ends of a mailbox for one program at a time.
pub fn updates<H>() -> (Sender<Program<H>, Program<H>>, Updates<H>) {
    // Two come back where one was taken, and not collected yet, when the next was sent.
    mailbox(1, 2)
}

/// What a core keeps per function: one cache line.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Record {
    calls: u64,
    guard: Guard,
}

impl<H: Handlers> Program<H> {
    /// Combines a table with the handlers that run its functions.
    pub fn new(table: Arc<FunctionTable>, handlers: H) -> Self {
        let n = table.functions().len();
        let queued = table.functions().iter().enumerate().filter_map(|(at, function)| match function.mode {
            Dispatch::Queue(ring) => Some((FunctionIndex(at), ring)),
            Dispatch::Inline | Dispatch::Ring(_) => None,
        });
        let queued = queued.collect();
        Self { table, handlers, records: vec![Record::default(); n], queued, admission: None }
    }

    /// Limits what a service admits. Requests over a limit are answered with [`status::OVERLOADED`], or as
    /// [`Config::on_undispatchable`](crate::Config::on_undispatchable) says. What is not a request takes no token.
    #[must_use]
    pub fn limited(self, admission: Option<Admission>) -> Self {
        Self { admission, ..self }
    }

    /// Checks that slots of `slot_size` bytes hold the messages of every function, and that every function's ring is
    /// one of the `rings`.
    pub fn check(&self, form: HeaderForm, slot_size: usize, rings: usize) -> Result<(), SetupError> {
        check_fit(&self.table, form, slot_size)?;
        let is_orphan = |mode: Dispatch| mode.ring().is_some_and(|ring| ring.0 >= rings);
        match self.table.functions().iter().find(|function| is_orphan(function.mode)) {
            Some(orphan) => Err(SetupError::NoRing(orphan.name.clone())),
            None => Ok(()),
        }
    }

    /// Switches to a new program if one was sent. If none was, this costs one load. Returns the old one where messages still
    /// wait in it; without any it goes back at once.
    #[inline]
    pub(crate) fn update(&mut self, updates: &mut Updates<H>) -> Option<Self> {
        if updates.is_empty() { None } else { self.replace(updates) }
    }

    #[cold]
    fn replace(&mut self, updates: &mut Updates<H>) -> Option<Self> {
        let mut new = updates.take()?;
        new.succeed(self);
        let old = mem::replace(self, new);
        if old.handlers.waiting() > 0 {
            return Some(old);
        }
        updates.give_back(old);
        None
    }

    /// Takes over from `old` what outlives it: the counts of calls, the state of the handlers, and the fill of buckets
    /// whose limits did not change.
    fn succeed(&mut self, old: &mut Self) {
        for (function, record) in self.table.functions().iter().zip(&mut self.records) {
            if let Some(before) = old.table.find(function.id()) {
                record.calls = old.records[before.0].calls;
            }
        }
        self.handlers.adopt(&mut old.handlers);
        if self.admission.as_ref().map(Admission::limits) == old.admission.as_ref().map(Admission::limits) {
            mem::swap(&mut self.admission, &mut old.admission);
        }
    }

    /// Runs the function on the request of `peer` in `slot`. Returns the length of results, which fit slot and schema, or a
    /// status.
    #[inline]
    pub(crate) fn run<C: Clock>(
        &mut self,
        clock: &C,
        request: &Request,
        form: HeaderForm,
        (slot, peer): (&mut [u8], Option<Peer>),
        now: Nanos,
        counts: &mut Counts,
    ) -> Result<usize, i32> {
        let Self { table, handlers, records, .. } = self;
        let (index, rule) = (request.function, table.rule(request.function));
        let Record { calls, guard } = &mut records[index.0];
        if !guard.admits(now) {
            counts.add(Event::Resting);
            return Err(status::OVERLOADED);
        }
        *calls += 1;
        let room = slot.len() - form.len();
        let mut call =
            Call { slot, form, arg_len: request.arg_len, claimed_len: request.header.arg_len as usize, peer };
        let start = rule.budget.map(|budget| (budget, clock.now().mono));
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| handlers.call(index, &mut call))) else {
            counts.add(Event::Panicked);
            guard.strike(now);
            return Err(status::HANDLER_FAILED);
        };
        if start.is_some_and(|(budget, start)| clock.now().mono - start > budget) {
            counts.add(Event::OverBudget);
            guard.strike(now);
        } else {
            guard.pass();
        }
        match outcome {
            Ok(len) if len > room => Err(status::RESULT_TOO_LARGE),
            Ok(len) if !rule.results.accept(len) => {
                counts.add(Event::BadResult);
                Err(status::HANDLER_FAILED)
            }
            Ok(len) => {
                if let Some(kernel) = handlers.kernel(index) {
                    kernel.ran(now, || clock.now().mono);
                }
                Ok(len)
            }
            Err(failure) => Err(failure.status()),
        }
    }

    /// Reports the calls of each function, and what its handlers count.
    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, record) in self.table.counter_names().iter().zip(&self.records) {
            visit(name, record.calls);
        }
        self.handlers.counters(visit);
    }
}
