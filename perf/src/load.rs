//! When requests are due: closed loop (so many outstanding) or open loop (so many per second, whatever the answers do).

use std::time::Duration;

use berth_port::Nanos;

/// How the requests of a case are paced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pacing {
    /// A request is due as soon as fewer than `window` are outstanding.
    Closed {
        /// Requests outstanding at most.
        window: usize,
    },
    /// `burst` requests are due back to back at each tick of a fixed schedule.
    Open {
        /// Requests per second.
        rate: f64,
        /// Requests per tick.
        burst: u32,
    },
}

/// When a case ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After so many requests were sent.
    Count(u64),
    /// After so much time.
    Duration(Duration),
}

/// The schedule of one case.
///
/// An open loop never slips: a request that could not be sent when its time came keeps that time, and its latency is
/// counted from it, so a stall of the server shows in every request that it delayed (no coordinated omission).
#[derive(Debug)]
pub struct Load {
    pacing: Pacing,
    /// Open loop: when the next request is due, in nanoseconds with [`FRACTION`] fractional bits.
    due: u128,
    /// Open loop: time between two ticks, in the same unit.
    tick: u128,
    /// Requests of the current tick that were sent.
    in_burst: u32,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Never,
    Remaining(u64),
    At(Nanos),
}

const FRACTION: u32 = 32;

impl Load {
    /// A schedule that starts at `now` and goes on until [`Load::limit`] is called.
    pub fn new(pacing: Pacing, now: Nanos) -> Self {
        let tick = match pacing {
            Pacing::Closed { .. } => 0.0,
            Pacing::Open { rate, burst } => f64::from(burst) / rate * 1e9 * (1_u64 << FRACTION) as f64,
        };
        Self { pacing, due: u128::from(now.0) << FRACTION, tick: tick.ceil() as u128, in_burst: 0, end: End::Never }
    }

    /// Ends the schedule after `limit`, counted from `now`. What was due before and is not sent yet is dropped: it is
    /// the warm-up's.
    pub fn limit(&mut self, limit: Limit, now: Nanos) {
        if self.next_tick() < now {
            self.due = u128::from(now.0) << FRACTION;
            self.in_burst = 0;
        }
        self.end = match limit {
            Limit::Count(count) => End::Remaining(count),
            Limit::Duration(duration) => End::At(now + duration),
        };
    }

    /// Whether requests are due on a schedule.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self.pacing, Pacing::Open { .. })
    }

    /// The intended send time of the next request, where it has come.
    #[inline]
    pub fn due(&self, now: Nanos, outstanding: usize) -> Option<Nanos> {
        let due = match self.pacing {
            Pacing::Closed { window } => (outstanding < window).then_some(now),
            Pacing::Open { .. } => Some(self.next_tick()).filter(|due| *due <= now),
        }?;
        (!self.ended(due)).then_some(due)
    }

    /// Takes note that the request that was due is sent.
    #[inline]
    pub fn sent(&mut self) {
        if let End::Remaining(count) = &mut self.end {
            *count -= 1;
        }
        if let Pacing::Open { burst, .. } = self.pacing {
            self.in_burst += 1;
            if self.in_burst == burst {
                self.in_burst = 0;
                self.due += self.tick;
            }
        }
    }

    /// Whether no request will be due any more. An open loop goes on sending what became due before its end.
    #[inline]
    pub fn exhausted(&self, now: Nanos) -> bool {
        match self.pacing {
            Pacing::Closed { .. } => self.ended(now),
            Pacing::Open { .. } => self.ended(self.next_tick()),
        }
    }

    /// Ends the schedule. Returns how many requests were not sent: the rest of a count, or what an open loop had
    /// due before its end.
    pub fn give_up(&mut self, now: Nanos) -> u64 {
        let mut unsent = 0;
        let until = match self.end {
            End::Never => now,
            End::Remaining(count) => {
                self.end = End::Remaining(0);
                return count;
            }
            End::At(end) => end.min(now),
        };
        if let Pacing::Open { burst, .. } = self.pacing {
            let behind = (u128::from(until.0) << FRACTION).saturating_sub(self.due).div_ceil(self.tick.max(1));
            unsent = (behind as u64 * u64::from(burst)).saturating_sub(u64::from(self.in_burst));
        }
        self.end = End::Remaining(0);
        unsent
    }

    /// When the schedule ends, where a time was set.
    #[inline]
    pub fn end(&self) -> Option<Nanos> {
        match self.end {
            End::At(end) => Some(end),
            End::Never | End::Remaining(_) => None,
        }
    }

    fn next_tick(&self) -> Nanos {
        Nanos((self.due >> FRACTION) as u64)
    }

    fn ended(&self, due: Nanos) -> bool {
        match self.end {
            End::Never => false,
            End::Remaining(count) => count == 0,
            End::At(end) => due >= end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_loop_keeps_its_schedule_over_a_stall() {
        let mut load = Load::new(Pacing::Open { rate: 3e6, burst: 1 }, Nanos(1000));
        load.limit(Limit::Duration(Duration::from_micros(2)), Nanos(1000));
        let mut due = Vec::new();
        while let Some(at) = load.due(Nanos(1_000_000), usize::MAX) {
            due.push(at.0);
            load.sent();
        }
        assert_eq!(due, [1000, 1333, 1666, 2000, 2333, 2666]);
        assert!(load.exhausted(Nanos(0)));
    }

    #[test]
    fn the_warm_ups_backlog_is_dropped() {
        let mut load = Load::new(Pacing::Open { rate: 1e6, burst: 2 }, Nanos(0));
        load.sent();
        load.limit(Limit::Duration(Duration::from_micros(2)), Nanos(10_000));
        let mut due = Vec::new();
        while let Some(at) = load.due(Nanos(20_000), 0) {
            due.push(at.0);
            load.sent();
        }
        assert_eq!(due, [10_000, 10_000]);
    }

    #[test]
    fn a_tick_does_not_drift() {
        let mut load = Load::new(Pacing::Open { rate: 7e5, burst: 1 }, Nanos(0));
        for _ in 0..700_000 {
            load.sent();
        }
        assert!(load.next_tick().0.abs_diff(1_000_000_000) <= 1, "{:?}", load.next_tick());
    }

    #[test]
    fn bursts_share_their_tick() {
        let mut load = Load::new(Pacing::Open { rate: 4e6, burst: 4 }, Nanos(0));
        load.limit(Limit::Count(6), Nanos(0));
        let mut due = Vec::new();
        while let Some(at) = load.due(Nanos(5000), 0) {
            due.push(at.0);
            load.sent();
        }
        assert_eq!(due, [0, 0, 0, 0, 1000, 1000]);
        assert_eq!(load.due(Nanos(5000), 0), None);
    }

    #[test]
    fn what_a_stalled_open_loop_did_not_send_is_counted() {
        // The second is stopped before its end: what was to come later was never due.
        for (at, unsent) in [(50_000, 7), (4_000, 1)] {
            let mut load = Load::new(Pacing::Open { rate: 1e6, burst: 2 }, Nanos(0));
            load.limit(Limit::Duration(Duration::from_micros(10)), Nanos(0));
            for _ in 0..3 {
                load.sent();
            }
            assert_eq!(load.give_up(Nanos(at)), unsent);
            assert!(load.exhausted(Nanos(0)));
        }
    }

    #[test]
    fn a_closed_loop_keeps_its_window() {
        let mut load = Load::new(Pacing::Closed { window: 2 }, Nanos(0));
        assert_eq!(load.due(Nanos(5), 1), Some(Nanos(5)));
        assert_eq!(load.due(Nanos(5), 2), None);
        load.limit(Limit::Count(1), Nanos(5));
        load.sent();
        assert!(load.exhausted(Nanos(5)));
        assert_eq!(load.due(Nanos(6), 0), None);
    }
}
