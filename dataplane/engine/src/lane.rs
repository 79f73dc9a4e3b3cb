//! One port joined to one service.

use std::{num::NonZeroU32, os::fd::RawFd};

use berth_port::{Clock, Nanos, Now, Port, Service, Verdict};

use crate::{
    Recorder,
    stages::{Stages, Untimed},
};

/// One port joined to one service: what a core polls.
///
/// A lane is `Send` where its port and service are, so it can be built on any thread and added to an
/// [`Lcore`](crate::Lcore) on the one that runs it.
#[derive(Debug)]
pub struct Lane<P, S, C = Untimed> {
    pub(crate) name: String,
    pub(crate) histograms: Vec<(&'static str, Recorder)>,
    pub(crate) weight: NonZeroU32,
    port: P,
    service: S,
    stages: Option<Stages<C>>,
}

impl<P: Port, S: Service> Lane<P, S> {
    /// Joins a port to the service that answers it. The name appears in telemetry.
    pub fn new(name: impl Into<String>, port: P, service: S) -> Self {
        Self { name: name.into(), histograms: Vec::new(), weight: NonZeroU32::MIN, port, service, stages: None }
    }

    /// How much of the core's time this lane gets, relative to the others, while they all have work; 1 unless said.
    #[must_use]
    pub fn weight(mut self, weight: NonZeroU32) -> Self {
        self.weight = weight;
        self
    }

    /// Times the stages of one burst in [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY) with `clock`, which must be the one that
    /// [`Lcore::poll`](crate::Lcore::poll) gets its time from: `rx_time` from the poll until the first frame is
    /// dispatched, `handler_time` of that frame's service, `tx_time` of the transmit call.
    pub fn timed<C: Clock>(self, clock: C) -> Lane<P, S, C> {
        let Self { name, mut histograms, weight, port, service, stages: _ } = self;
        let stages = Stages::new(clock);
        histograms.extend(stages.histograms().map(|(name, recorder)| (name, recorder.clone())));
        Lane { name, histograms, weight, port, service, stages: Some(stages) }
    }
}

impl<P, S, C> Lane<P, S, C> {
    /// Shows, under `name`, a histogram that the service or the port records into.
    #[must_use]
    pub fn histogram(mut self, name: &'static str, recorder: &Recorder) -> Self {
        self.histograms.push((name, recorder.clone()));
        self
    }
}

/// What one turn of a lane did, in frames.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) received: u64,
    pub(crate) replied: u64,
}

impl Work {
    pub(crate) fn is_none(self) -> bool {
        self.received + self.replied == 0
    }
}

/// A lane of any port and service: what an lcore calls dynamically, once per burst and never per frame.
pub(crate) trait Turn {
    /// Receives at most one burst (none where `receive` is false), answers it, posts late answers and transmits.
    fn turn(&mut self, now: Now, receive: bool) -> Work;
    fn outstanding(&self) -> usize;
    fn wait_fd(&self) -> Option<RawFd>;
    fn port_counters(&self, visit: &mut dyn FnMut(&'static str, u64));
    fn service_counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

impl<P: Port, S: Service, C: Clock> Turn for Lane<P, S, C> {
    fn turn(&mut self, now: Now, receive: bool) -> Work {
        let Self { port, service, stages, .. } = self;
        let mut work = Work::default();
        let timer = stages.as_ref().filter(|stages| stages.is_due(now.mono));
        let mut first: Option<[Nanos; 2]> = None;
        if receive {
            let received = port.rx(|frame| {
                let begun = timer.filter(|_| first.is_none()).map(|timer| (timer, timer.now()));
                let verdict = service.handle(frame, now);
                first = begun.map(|(timer, begun)| [begun, timer.now()]).or(first);
                work.replied += u64::from(verdict == Verdict::Reply);
                verdict
            });
            work.received = received as u64;
        }
        work.replied += service.poll(port, now) as u64;
        let timed = timer.zip(first).map(|(timer, [begun, handled])| [begun, handled, timer.now()]);
        // Also after an empty burst: a device that was full a moment ago still owes a transmission.
        port.tx();
        if let Some(stages) = stages.as_mut().filter(|_| work.received > 0) {
            stages.seen(now.mono, timed);
        }
        work
    }

    fn outstanding(&self) -> usize {
        self.service.outstanding()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.port.wait_fd()
    }

    fn port_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.port.counters(visit);
    }

    fn service_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.service.counters(visit);
    }
}
