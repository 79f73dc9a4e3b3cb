//! One port joined to one service.

use std::{num::NonZeroU32, os::fd::RawFd};

use berth_port::{Clock, DeviceCounters, Nanos, Now, Port, Service, Verdict};

use crate::{
    Recorder,
    pace::Pace,
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
    pace: Pace,
}

/// How often a lane that has its core for itself looks for frames between two readings of the clock.
const POLLS_A_READING: u64 = 16;

impl<P: Port, S: Service> Lane<P, S> {
    /// Joins a port to the service that answers it. The name appears in telemetry.
    pub fn new(name: impl Into<String>, port: P, service: S) -> Self {
        let (name, pace) = (name.into(), Pace::default());
        Self { name, histograms: Vec::new(), weight: NonZeroU32::MIN, port, service, stages: None, pace }
    }

    /// How much of the core's time this lane gets, relative to the others, while they all have work; 1 unless said.
    #[must_use]
    pub fn weight(mut self, weight: NonZeroU32) -> Self {
        self.weight = weight;
        self
    }

    /// Times the stages of one burst in [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY) with `clock`, which must be the one that
    /// [`Lcore::poll`](crate::Lcore::poll) gets its time from: `rx_time` from the poll until the first frame is
    /// dispatched, `handler_time` of that frame's service, `tx_time` of the transmit call. With a clock, a burst whose
    /// handlers take long is transmitted as it goes, every [`TRANSMIT_AFTER`](crate::TRANSMIT_AFTER).
    pub fn timed<C: Clock>(self, clock: C) -> Lane<P, S, C> {
        let Self { name, mut histograms, weight, port, service, stages: _, pace } = self;
        let stages = Stages::new(clock);
        histograms.extend(stages.histograms().map(|(name, recorder)| (name, recorder.clone())));
        Lane { name, histograms, weight, port, service, stages: Some(stages), pace }
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

/// What one turn of a lane did.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Frames.
    pub(crate) received: u64,
    /// Frames.
    pub(crate) replied: u64,
    /// How often it looked for frames; all but the last found none.
    pub(crate) polls: u64,
    /// When the last poll began, or dispatched its first frame where the clock was not read before it.
    pub(crate) began: Nanos,
}

impl Work {
    pub(crate) fn is_none(self) -> bool {
        self.received + self.replied == 0
    }
}

/// A lane of any port and service: what an lcore calls dynamically, once per burst and never per frame.
pub(crate) trait Turn {
    /// Receives at most one burst (none where `receive` is false), answers it, posts late answers and transmits. Where the
    /// lane has its core `alone`, it looks more than once.
    fn turn(&mut self, now: Now, receive: bool, alone: bool) -> Work;
    fn outstanding(&self) -> usize;
    fn wait_fd(&self) -> Option<RawFd>;
    fn port_counters(&self, visit: &mut dyn FnMut(&'static str, u64));
    fn service_counters(&self, visit: &mut dyn FnMut(&'static str, u64));
    fn device(&self) -> Option<Box<dyn DeviceCounters>>;
}

impl<P: Port, S: Service, C: Clock> Turn for Lane<P, S, C> {
    fn turn(&mut self, mut now: Now, receive: bool, alone: bool) -> Work {
        let Self { port, service, stages, pace, .. } = self;
        let mut work = Work { began: now.mono, ..Work::default() };
        let timer = stages.as_ref().filter(|stages| stages.is_due(now.mono));
        let clock = stages.as_ref().map(Stages::clock);
        // A port with a descriptor makes system calls, beside which a reading costs nothing. Samples are timed from the
        // poll, and late answers by it.
        let called = port.wait_fd().is_some();
        let lone = alone && clock.is_some() && timer.is_none() && !called && service.outstanding() == 0;
        let most = if lone { POLLS_A_READING } else { 1 };
        let mut first: Option<[Nanos; 2]> = None;
        loop {
            work.polls += 1;
            if receive {
                let mut begun = false;
                work.received = port.rx(|frame| {
                    let Some(clock) = clock else {
                        let verdict = service.handle(frame, now);
                        work.replied += u64::from(verdict == Verdict::Reply);
                        return verdict;
                    };
                    let mut timed = None;
                    if !begun {
                        begun = true;
                        if work.polls > 1 {
                            now = clock.now();
                            work.began = now.mono;
                        }
                        timed = timer.map(Stages::now);
                        let stale = called && timed.is_none();
                        pace.begin(timed.unwrap_or_else(|| if stale { clock.now().mono } else { now.mono }));
                    }
                    let verdict = service.handle(frame, now);
                    work.replied += u64::from(verdict == Verdict::Reply);
                    let handled = timed.map(|begun| [begun, clock.now().mono]);
                    first = first.or(handled);
                    if pace.handled(handled.map(|[_, at]| at), || clock.now().mono) {
                        frame.send_now();
                    }
                    verdict
                }) as u64;
            }
            work.replied += service.poll(port, now) as u64;
            let timed = timer.zip(first).map(|(timer, [begun, handled])| [begun, handled, timer.now()]);
            // Also after an empty burst: a device that was full a moment ago still owes a transmission.
            port.tx();
            if !work.is_none() || work.polls == most {
                if let Some(stages) = stages.as_mut().filter(|_| work.received > 0) {
                    stages.seen(now.mono, timed);
                }
                return work;
            }
        }
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

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        self.port.device()
    }
}
