//! Functions with their handlers: what a service or a worker runs, and what replaces it while it runs.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use berth_admission::{Admission, Limits};
use berth_port::{Clock, Nanos};
use berth_wire::rpc::{HeaderForm, status};

use crate::{
    Call, Dispatch, FunctionTable, Handlers, Outcome, SetupError,
    counts::{Counts, Event},
    gate::Request,
    guard::Guard,
    service::check_fit,
};

/// The functions of one core, their handlers, and their records. Never changes, but for being replaced as one: see
/// [`Switch`](crate::Switch).
#[derive(Debug)]
pub struct Program<H> {
    pub(crate) table: Arc<FunctionTable>,
    handlers: H,
    guards: Vec<Guard>,
    calls: Vec<u64>,
    /// What a service admits; a worker serves what was admitted.
    pub(crate) admission: Option<Box<Admission>>,
}

impl<H: Handlers> Program<H> {
    /// The functions of `table`, which `handlers` run.
    pub fn new(table: Arc<FunctionTable>, handlers: H) -> Self {
        let n = table.functions().len();
        Self { table, handlers, guards: vec![Guard::default(); n], calls: vec![0; n], admission: None }
    }

    /// Limits what a service admits. Requests over a limit are answered with [`status::OVERLOADED`], or as
    /// [`Config::on_undispatchable`](crate::Config::on_undispatchable) says; what is no request takes no token.
    #[must_use]
    pub fn limited(self, limits: Option<Limits>) -> Self {
        Self { admission: limits.map(|limits| Box::new(Admission::new(limits))), ..self }
    }

    /// Whether slots of `slot_size` bytes hold every function's messages; and, where there is no `ring` to a worker,
    /// whether no function needs one.
    pub fn check(&self, form: HeaderForm, slot_size: usize, ring: bool) -> Result<(), SetupError> {
        check_fit(&self.table, form, slot_size)?;
        match self.table.functions().iter().find(|function| function.mode == Dispatch::Ring && !ring) {
            Some(orphan) => Err(SetupError::NoRing(orphan.name.clone())),
            None => Ok(()),
        }
    }

    /// Takes over from `old` what outlives it: how often each function was called, what the handlers keep, and how full
    /// buckets are whose limits stay.
    pub(crate) fn succeed(&mut self, old: &mut Self) {
        for (function, calls) in self.table.functions().iter().zip(&mut self.calls) {
            if let Some(before) = old.table.find(function.id()) {
                *calls = old.calls[before.0];
            }
        }
        self.handlers.adopt(&mut old.handlers);
        if self.admission.as_ref().map(|new| new.limits()) == old.admission.as_ref().map(|old| old.limits()) {
            mem::swap(&mut self.admission, &mut old.admission);
        }
    }

    /// Calls a function on the request in `slot`. The outcome is one that can be sent: results fit the slot and the
    /// schema, a status is a known one.
    #[inline]
    pub(crate) fn run<C: Clock>(
        &mut self,
        clock: &C,
        request: &Request,
        form: HeaderForm,
        slot: &mut [u8],
        now: Nanos,
        counts: &mut Counts,
    ) -> Outcome {
        let Self { table, handlers, guards, calls, .. } = self;
        let (index, function) = (request.function, table.get(request.function));
        let guard = &mut guards[index.0];
        if !guard.admits(now) {
            counts.add(Event::Resting);
            return Err(status::OVERLOADED);
        }
        calls[index.0] += 1;
        let room = slot.len() - form.len();
        let mut call = Call { slot, form, arg_len: request.arg_len, claimed_len: request.header.arg_len as usize };
        let start = function.budget.map(|budget| (budget, clock.now().mono));
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
            Ok(len) if !function.schema.accepts_results(len) => {
                counts.add(Event::BadResult);
                Err(status::HANDLER_FAILED)
            }
            Ok(len) => Ok(len),
            Err(status) => Err(sendable(status)),
        }
    }

    pub(crate) fn report_calls(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, &calls) in self.table.counter_names().iter().zip(&self.calls) {
            visit(name, calls);
        }
    }
}

/// The status of a failed call, or what stands for one that means nothing.
#[inline]
pub(crate) fn sendable(status: i32) -> i32 {
    if status > 0 || status::name(status).is_some() { status } else { status::HANDLER_FAILED }
}
