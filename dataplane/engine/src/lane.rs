//! A port joined to a service.

use std::os::fd::RawFd;

use berth_port::{Clock, DeviceCounters, Nanos, Now, Part, Port, Recorder, Service, Task, Verdict, Work};

use crate::{
    Polled,
    pace::Pace,
    polled::Shown,
    stages::{Stages, Untimed},
};

/// A port joined to the service that answers its frames.
#[derive(Debug)]
pub struct Lane<P, S, C = Untimed> {
    port: P,
    service: S,
    stages: Option<Stages<C>>,
    pace: Pace,
}

/// Number of polls between two readings of the clock, for a lane that has its core for itself.
const POLLS_A_READING: u64 = 16;

impl<P: Port, S: Service> Lane<P, S> {
    /// Joins a port to a service. `name` appears in telemetry.
    pub fn new(name: impl Into<String>, port: P, service: S) -> Polled<Self> {
        Polled::new(Shown::Lane(name.into()), Self { port, service, stages: None, pace: Pace::default() })
    }
}

impl<P: Port, S: Service> Polled<Lane<P, S>> {
    /// Times the stages of one burst in [`SAMPLE_EVERY`](berth_port::SAMPLE_EVERY) by `clock`, which must be the clock
    /// that [`Lcore::poll`](crate::Lcore::poll) gets its time from. `rx_time` runs from the poll until the first frame
    /// is dispatched, `handler_time` covers that frame's service, `tx_time` the transmit call. With a clock, a burst
    /// whose handlers take long is transmitted in parts, every [`TRANSMIT_AFTER`](crate::TRANSMIT_AFTER).
    pub fn timed<C: Clock>(self, clock: C) -> Polled<Lane<P, S, C>> {
        let Self { task: Lane { port, service, stages: _, pace }, shown, weight, mut histograms } = self;
        let stages = Stages::new(clock);
        histograms.extend(stages.histograms().map(|(name, recorder)| (name, recorder.clone())));
        Polled { task: Lane { port, service, stages: Some(stages), pace }, shown, weight, histograms }
    }
}

impl<P: Port, S: Service, C: Clock> Task for Lane<P, S, C> {
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

    fn counters(&self, part: Part, visit: &mut dyn FnMut(&'static str, u64)) {
        match part {
            Part::Port => self.port.counters(visit),
            Part::Service => self.service.counters(visit),
        }
    }

    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        self.service.histograms(visit);
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        self.port.device()
    }
}
