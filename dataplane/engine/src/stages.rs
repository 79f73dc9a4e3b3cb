//! The stages of a burst, timed for a few of them.

use berth_port::{Clock, Nanos, Now, Recorder, Sampler};

/// Stands for the clock of a lane whose stages are not timed.
#[derive(Debug, Clone, Copy)]
pub enum Untimed {}

impl Clock for Untimed {
    fn now(&self) -> Now {
        match *self {}
    }
}

/// Timing of a lane's stages.
#[derive(Debug)]
pub(crate) struct Stages<C> {
    clock: C,
    sampler: Sampler,
    rx: Recorder,
    handler: Recorder,
    tx: Recorder,
}

impl<C: Clock> Stages<C> {
    pub(crate) fn new(clock: C) -> Self {
        let [rx, handler, tx] = [(); 3].map(|()| Recorder::default());
        Self { clock, sampler: Sampler::default(), rx, handler, tx }
    }

    /// The histograms with their names.
    pub(crate) fn histograms(&self) -> [(&'static str, &Recorder); 3] {
        [("rx_time", &self.rx), ("handler_time", &self.handler), ("tx_time", &self.tx)]
    }

    /// Whether the next burst is to be timed.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        !cfg!(feature = "no-telemetry") && self.sampler.is_due(now)
    }

    #[inline]
    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now().mono
    }

    /// Call when a burst has just been transmitted. If it was a sample, `timed` has the times at which its first frame
    /// was dispatched and handled, and at which its transmission began.
    #[inline]
    pub(crate) fn seen(&mut self, begun: Nanos, timed: Option<[Nanos; 3]>) {
        self.sampler.seen(timed.is_some(), begun);
        if let Some([dispatched, handled, transmits]) = timed {
            let sent = self.now();
            for (recorder, from, to) in
                [(&self.rx, begun, dispatched), (&self.handler, dispatched, handled), (&self.tx, transmits, sent)]
            {
                recorder.record(to.0.saturating_sub(from.0));
            }
        }
    }
}
