//! One port joined to one service.

use std::{num::NonZeroU32, os::fd::RawFd};

use berth_port::{Now, Port, Service, Verdict};

use crate::Recorder;

/// One port joined to one service: what a core polls.
///
/// A lane is `Send` where its port and service are, so it can be built on any thread and added to an
/// [`Lcore`](crate::Lcore) on the one that runs it.
#[derive(Debug)]
pub struct Lane<P, S> {
    pub(crate) name: String,
    pub(crate) histograms: Vec<(&'static str, Recorder)>,
    pub(crate) weight: NonZeroU32,
    port: P,
    service: S,
}

impl<P: Port, S: Service> Lane<P, S> {
    /// Joins a port to the service that answers it. The name appears in telemetry.
    pub fn new(name: impl Into<String>, port: P, service: S) -> Self {
        Self { name: name.into(), histograms: Vec::new(), weight: NonZeroU32::MIN, port, service }
    }

    /// How much of the core's time this lane gets, relative to the others, while they all have work; 1 unless said.
    #[must_use]
    pub fn weight(mut self, weight: NonZeroU32) -> Self {
        self.weight = weight;
        self
    }

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

impl<P: Port, S: Service> Turn for Lane<P, S> {
    fn turn(&mut self, now: Now, receive: bool) -> Work {
        let Self { port, service, .. } = self;
        let mut work = Work::default();
        if receive {
            let received = port.rx(|frame| {
                let verdict = service.handle(frame, now);
                work.replied += u64::from(verdict == Verdict::Reply);
                verdict
            });
            work.received = received as u64;
        }
        work.replied += service.poll(port, now) as u64;
        // Also after an empty burst: a device that was full a moment ago still owes a transmission.
        port.tx();
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
