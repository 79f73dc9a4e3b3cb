//! The other end of a ring: a task that only runs handlers.

use std::sync::Arc;

use berth_port::{BURST, Clock, Now, Part, Task, Work};
use berth_ring::{Dispatcher, ErrorCode};
use berth_wire::rpc::{HeaderForm, RequestHeader};

use crate::{
    FunctionTable, Handlers, Program, SetupError, Updates,
    counts::{Counts, Event},
    gate,
    service::{check_fit, write_answer},
};

/// Serves the requests of a ring, whoever fills it. Owned by the worker's core.
///
/// Every request is checked like a frame. Every slot is answered: by a response, or by an error flag if the slot holds
/// no request.
pub struct Worker<H, C> {
    form: HeaderForm,
    program: Program<H>,
    updates: Option<Updates<H>>,
    clock: C,
    ring: Dispatcher,
    counts: Counts,
}

impl<H: Handlers, C: Clock> Worker<H, C> {
    /// Error code of a slot that holds no request.
    pub const NO_REQUEST: ErrorCode = ErrorCode::FIRST_FREE;

    /// Makes a worker that serves every function of the program, even those that run inline elsewhere.
    pub fn new(
        form: HeaderForm,
        table: Arc<FunctionTable>,
        handlers: H,
        ring: Dispatcher,
        clock: C,
    ) -> Result<Self, SetupError> {
        check_fit(&table, form, ring.slot_size())?;
        let program = Program::new(table, handlers);
        Ok(Self { form, program, updates: None, clock, ring, counts: Counts::default() })
    }

    /// Lets its program be replaced. Send only programs that [`Program::check`] accepts for this worker.
    #[must_use]
    pub fn updated_by(self, updates: Updates<H>) -> Self {
        Self { updates: Some(updates), ..self }
    }

    /// Serves requests that are ready, at most [`BURST`]; returns their number. Never blocks.
    pub fn poll(&mut self, now: Now) -> usize {
        let Self { form, program, updates, clock, ring, counts } = self;
        if let Some(updates) = updates {
            // Nothing waits in a worker's.
            let _ = program.update(updates);
        }
        let form = *form;
        ring.poll(BURST, |rx, tx| {
            counts.add(Event::Received);
            let header = RequestHeader::parse(form, rx).map_err(|error| {
                counts.add(error.into());
                Self::NO_REQUEST
            })?;
            let outcome = gate::check(&program.table, form, tx.len(), header, rx, rx.len()).and_then(|request| {
                let message = form.len() + request.arg_len;
                tx[..message].copy_from_slice(&rx[..message]);
                program.run(clock, &request, form, (tx, None), now.mono, counts)
            });
            counts.add_status(outcome.err().unwrap_or(0));
            Ok(write_answer(form, tx, header.request_id, header.ptp_timestamp, outcome))
        })
    }
}

impl<H: Handlers, C: Clock> Task for Worker<H, C> {
    #[inline]
    fn turn(&mut self, now: Now, receive: bool, _: bool) -> Work {
        let served = if receive { self.poll(now) as u64 } else { 0 };
        Work { received: served, replied: served, polls: 1, began: now.mono }
    }

    fn is_fed(&self) -> bool {
        self.ring.is_fed()
    }

    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        if part == Part::Service {
            self.counts.report(visit);
            self.program.report(visit);
            self.ring.counters(visit);
        }
    }
}
