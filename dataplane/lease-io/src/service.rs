//! A datagram protocol on a polled port.

use std::marker::PhantomData;

use berth_admission::Admission;
use berth_lease::{Regions, Table};
use berth_port::{Frame, Now, Port, Service, Verdict};

use crate::{
    Gate, Protocol,
    counts::Event,
    datagram::{Answer, answer, finish},
    flights::Flights,
};

/// Serves leased bytes to the peers of one port. Owned by the port's core.
///
/// Memory is served in place, within the call; blocks, and memory behind an engine, are answered later from
/// [`Service::poll`].
pub struct LeaseService<P: Protocol> {
    gate: Gate,
    flights: Flights<P::Echo>,
    admission: Option<Admission>,
    protocol: PhantomData<fn() -> P>,
}

impl<P: Protocol> LeaseService<P> {
    /// Serves the leases of `table`, whose bytes lie in `regions`, with at most `flights` block accesses at once.
    pub fn new(table: &Table, regions: &Regions, flights: usize) -> Self {
        let (gate, flights) = (Gate::new(table, regions), Flights::new(table, regions, flights));
        Self { gate, flights, admission: None, protocol: PhantomData }
    }

    /// Limits what is admitted. What is over a limit is dropped and counted: no protocol of leases has an answer that
    /// says so.
    #[must_use]
    pub fn limited(self, admission: Option<Admission>) -> Self {
        Self { admission, ..self }
    }
}

impl<P: Protocol> std::fmt::Debug for LeaseService<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LeaseService({} outstanding)", self.flights.outstanding())
    }
}

impl<P: Protocol> Service for LeaseService<P> {
    #[inline]
    fn handle(&mut self, frame: &mut Frame<'_>, now: Now) -> Verdict {
        if let Some(admission) = &mut self.admission
            && let Err(limit) = admission.admit(frame.peer(), now.mono)
        {
            self.gate.counts.add(Event::Received);
            self.gate.counts.add(limit.into());
            return Verdict::Drop;
        }
        let (len, whole, to) = (frame.len(), frame.wire_len() == frame.len(), frame.reply_to());
        let answered = match answer::<P>(&mut self.gate, frame.buf_mut(), len, whole, now.mono) {
            Answer::Now(len) => Some(len),
            Answer::Never => None,
            Answer::Later(later) => {
                let (ask, echo) = (later.ask, later.echo);
                match self.flights.start(&self.gate, to, later, frame.data(), now.mono) {
                    Ok(()) => None,
                    Err(failure) => finish::<P>(&mut self.gate, &ask, &echo, Err(failure), frame.buf_mut()),
                }
            }
        };
        let Some(len) = answered else { return Verdict::Drop };
        frame.set_len(len);
        Verdict::Reply
    }

    fn poll<Q: Port>(&mut self, port: &mut Q, _: Now) -> usize {
        self.flights.poll::<P, Q>(&mut self.gate, port)
    }

    fn outstanding(&self) -> usize {
        self.flights.outstanding()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.gate.counts.report(visit);
    }
}
