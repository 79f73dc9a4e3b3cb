//! What a poll loop does when nothing is there.

use std::time::Duration;

use berth_port::Nanos;

use crate::Step;

/// How long a loop keeps polling after its last frame before it first sleeps: [`Idle::Adaptive`] always,
/// [`Idle::Wait`] only while answers are outstanding.
///
/// 1 ms is some twenty times what a sleep and its wake-up cost, and lets a stream of more than 1,000 frames/s never sleep.
pub const SPIN_AFTER_WORK: Duration = Duration::from_millis(1);

/// The shortest sleep, and the only one where a task has no descriptor to wake by or has answers outstanding: the
/// added latency of the first frame is then at most this and the kernel's timer slack (50 us unless configured),
/// for some thousand wake-ups a second, one or two percent of a core.
pub const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The longest sleep. Descriptors wake the loop for frames; this bounds how late it sees anything else: a request
/// to drain, or a device that has room again for frames it refused.
pub const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// What a loop does when nothing is there. Where the tasks of a core are configured differently, the eagerest
/// (the greatest in this order) counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Idle {
    /// Sleep at once until a descriptor or a timer wakes the loop: least power, latency of a wake-up.
    Wait,
    /// Poll for [`SPIN_AFTER_WORK`] after the last frame, then behave as [`Idle::Wait`].
    Adaptive,
    /// Never sleep: the core is the loop's alone.
    Spin,
}

/// The policy and where it stands: each sleep without work in between is twice as long as the one before.
#[derive(Debug)]
pub(crate) struct IdleState {
    policy: Idle,
    next_sleep: Duration,
    last_work: Option<Nanos>,
}

impl IdleState {
    pub(crate) fn new(policy: Idle) -> Self {
        Self { policy, next_sleep: SHORTEST_SLEEP, last_work: None }
    }

    /// Whether the core is the loop's alone.
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.policy == Idle::Spin
    }

    /// A turn did something.
    pub(crate) fn worked(&mut self, now: Nanos) {
        self.last_work = Some(now);
        self.next_sleep = SHORTEST_SLEEP;
    }

    /// A whole round did nothing. `expecting`: some task owes answers or is fed, which no descriptor announces.
    /// `wakeable`: every task has a descriptor that announces its work. Neither is asked while the policy spins.
    pub(crate) fn step(
        &mut self,
        now: Nanos,
        expecting: impl FnOnce() -> bool,
        wakeable: impl FnOnce() -> bool,
    ) -> Step {
        let worked_lately = now < *self.last_work.get_or_insert(now) + SPIN_AFTER_WORK;
        if self.policy == Idle::Spin || (self.policy == Idle::Adaptive && worked_lately) {
            return Step::Spin;
        }
        match expecting() {
            true if worked_lately => Step::Spin,
            false if wakeable() => {
                let sleep = self.next_sleep;
                self.next_sleep = (sleep * 2).min(LONGEST_SLEEP);
                Step::Sleep(sleep)
            }
            _ => Step::Sleep(SHORTEST_SLEEP),
        }
    }
}
