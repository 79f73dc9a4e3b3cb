//! Calls handlers, and contains what they do wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use berth_port::{Clock, Nanos};
use berth_wire::rpc::{HeaderForm, status};

use crate::{
    Call, FunctionTable, Handlers, Outcome,
    counts::{Counts, Event},
    gate::Request,
    guard::Guard,
};

/// The handlers of one core.
#[derive(Debug)]
pub(crate) struct Executor<H, C> {
    handlers: H,
    clock: C,
    guards: Vec<Guard>,
    calls: Vec<u64>,
}

impl<H: Handlers, C: Clock> Executor<H, C> {
    pub(crate) fn new(table: &FunctionTable, handlers: H, clock: C) -> Self {
        let n = table.functions().len();
        Self { handlers, clock, guards: vec![Guard::default(); n], calls: vec![0; n] }
    }

    /// Calls a function on the request in `slot`. The outcome is one that can be sent: results fit the slot and the
    /// schema, a status is a known one.
    #[inline]
    pub(crate) fn run(
        &mut self,
        table: &FunctionTable,
        request: &Request,
        form: HeaderForm,
        slot: &mut [u8],
        now: Nanos,
        counts: &mut Counts,
    ) -> Outcome {
        let (index, function) = (request.function, table.get(request.function));
        let guard = &mut self.guards[index.0];
        if !guard.admits(now) {
            counts.add(Event::Resting);
            return Err(status::OVERLOADED);
        }
        self.calls[index.0] += 1;
        let room = slot.len() - form.len();
        let mut call = Call { slot, form, arg_len: request.arg_len, claimed_len: request.header.arg_len as usize };
        let start = function.budget.map(|budget| (budget, self.clock.now().mono));
        let handlers = &mut self.handlers;
        let Ok(outcome) = catch_unwind(AssertUnwindSafe(|| handlers.call(index, &mut call))) else {
            counts.add(Event::Panicked);
            guard.strike(now);
            return Err(status::HANDLER_FAILED);
        };
        if start.is_some_and(|(budget, start)| self.clock.now().mono - start > budget) {
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

    pub(crate) fn report_calls(&self, table: &FunctionTable, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, &calls) in table.counter_names().iter().zip(&self.calls) {
            visit(name, calls);
        }
    }
}

/// The status of a failed call, or what stands for one that means nothing.
#[inline]
pub(crate) fn sendable(status: i32) -> i32 {
    if status > 0 || status::name(status).is_some() { status } else { status::HANDLER_FAILED }
}
