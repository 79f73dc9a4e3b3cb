//! What a poll loop does while there is no work.

use std::time::Duration;

use berth_port::Nanos;

use crate::Step;

/// How long a loop keeps polling after its last frame before it first sleeps. [`Idle::Adaptive`] does so always,
/// [`Idle::Wait`] only while answers are outstanding.
///
/// 1 ms is about twenty times the cost of a sleep and its wake-up. At more than 1,000 frames/s the loop never sleeps.
pub const SPIN_AFTER_WORK: Duration = Duration::from_millis(1);

/// The shortest sleep, and the only one if a task has no descriptor to wake by or has answers outstanding. It bounds
/// the added latency of the first frame, together with the kernel's timer slack (50 us unless configured). It costs
/// about a thousand wake-ups a second, one or two percent of a core.
pub const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// The longest sleep. Descriptors wake the loop for frames; this bounds how late it sees anything else: a request to
/// drain, or a device that has room again for frames it refused.
pub const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// What a loop does while there is no work. If the tasks of a core are configured differently, the most eager (the
/// greatest in this order) decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Idle {
    /// Sleep at once until a descriptor or a timer wakes the loop: least power, but each wake-up adds latency.
    Wait,
    /// Poll for [`SPIN_AFTER_WORK`] after the last frame, then behave as [`Idle::Wait`].
    Adaptive,
    /// Never sleep: the loop has the core for itself.
    Spin,
}

/// The policy and its progress: each sleep in a row without work is twice as long as the one before.
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

    /// Whether the policy is [`Idle::Spin`].
    #[inline]
    pub(crate) fn spins(&self) -> bool {
        self.policy == Idle::Spin
    }

    /// Call after a turn that did something.
    pub(crate) fn worked(&mut self, now: Nanos) {
        self.last_work = Some(now);
        self.next_sleep = SHORTEST_SLEEP;
    }

    /// Call after a whole round that did nothing. `expecting`: some task owes answers, or gets requests that no
    /// descriptor announces. `wakeable`: every task has a descriptor that announces its work. Neither is called while
    /// the policy spins.
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
