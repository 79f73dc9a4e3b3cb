//! Ring kernels for which messages wait.
//!
//! A message waits on the core that received it, which knows its sender and remembers its answer; a worker runs it. Answers go out
//! as they become ready: the order of a queue is its kernel's.

use berth_kernels::{Kernel, Next, Refusal, Ticket};
use berth_port::{BURST, Frame, Nanos, Port};
use berth_wire::rpc::{HeaderForm, status};

use crate::{Failure, Handlers, Program, counts::Counts, forward, forward::Forward, gate::Request};

impl<H: Handlers> Program<H> {
    /// Takes a message; `None` if it waits. Its answer, where it is known already, is written behind the header.
    #[inline]
    pub(crate) fn arrive(
        &mut self,
        request: &Request,
        frame: &mut Frame<'_>,
        form: HeaderForm,
        now: Nanos,
    ) -> Option<Result<usize, i32>> {
        let Some(kernel) = self.handlers.kernel(request.function) else { return Some(Err(status::HANDLER_FAILED)) };
        let (request_id, ptp_timestamp) = (request.header.request_id, request.header.ptp_timestamp);
        let ticket = Ticket { to: frame.reply_to(), request_id, ptp_timestamp };
        let message = &frame.data()[form.len()..][..request.arg_len];
        Some(match kernel.arrive(ticket, message, now) {
            Ok(None) => return None,
            Ok(Some(answer)) => match frame.buf_mut()[form.len()..].get_mut(..answer.len()) {
                Some(results) => {
                    results.copy_from_slice(answer);
                    Ok(answer.len())
                }
                None => Err(status::RESULT_TOO_LARGE),
            },
            Err(Refusal::Malformed) => Err(status::SCHEMA_MISMATCH),
            Err(Refusal::Status(own)) => Err(Failure::Status(own).status()),
            Err(Refusal::Overloaded) => Err(status::OVERLOADED),
            Err(Refusal::Failed) => Err(status::HANDLER_FAILED),
        })
    }

    /// Answers messages that need no worker, and sends others to theirs. Returns the number of answers sent.
    pub(crate) fn serve_queues<P: Port>(
        &mut self,
        rings: &mut [Forward],
        port: &mut P,
        form: HeaderForm,
        counts: &mut Counts,
        now: Nanos,
    ) -> usize {
        let Self { table, handlers, queued, .. } = self;
        let mut posted = 0;
        for &(function, ring) in &*queued {
            let (Some(kernel), Some(ring)) = (handlers.kernel(function), rings.get_mut(ring.0)) else { continue };
            let id = table.functions()[function.0].id();
            let budget = table.rule(function).budget;
            for _ in 0..BURST {
                match kernel.next(now) {
                    None => break,
                    Some(Next::Tell(ticket, outcome)) => {
                        let echoed = (ticket.request_id, ticket.ptp_timestamp);
                        if !forward::post(port, form, ticket.to, echoed, outcome, counts) {
                            return posted;
                        }
                        posted += 1;
                        kernel.told();
                    }
                    Some(Next::Run(ticket, message)) => {
                        let Ok(slot) = ring.push_message(id, ticket, message, budget, now) else { break };
                        ring.wait_for(slot, id, kernel.sent());
                    }
                }
            }
        }
        posted
    }

    /// The kernel of this function, if messages wait for it.
    #[inline]
    pub(crate) fn queued_kernel(&mut self, id: u32) -> Option<&mut Kernel> {
        let function = self.table.find(id)?;
        self.handlers.kernel(function)
    }
}
