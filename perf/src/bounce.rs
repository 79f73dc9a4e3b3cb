//! The two-core bounce: how long a cache line takes to another core and back.
//!
//! Every two-core figure follows it, and on virtual machines it changes within seconds as the host moves the virtual
//! CPUs. It is measured before and after each case, so that like is compared with like.

use std::{
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
    time::{Duration, Instant},
};

use berth_host::{PinError, TscClock, pin_current_thread};
use berth_port::Clock;
use serde::{Deserialize, Serialize};

/// Duration of one calibration.
pub const WINDOW: Duration = Duration::from_millis(20);

/// Round trips below this are of cores that share a cache.
const NEAR_NS: f64 = 250.0;

/// Round trips per batch; a batch is timed as a whole, so that reading the clock does not count.
const BATCH: u64 = 64;

/// Batches that tell something: 20 ms make hundreds of them where nothing else runs on either CPU.
const MIN_BATCHES: usize = 32;

/// A calibration.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bounce {
    /// Numbers of the two CPUs: the asking one, the answering one.
    pub cpus: [usize; 2],
    /// Median round trip over all batches, in nanoseconds.
    pub median_ns: f64,
    /// The fastest batch's mean round trip, in nanoseconds.
    pub min_ns: f64,
    /// How far apart the CPUs are, by the median.
    pub state: State,
}

/// How far apart two CPUs are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Below 0.25 us: they share a cache.
    Near,
    /// 0.25 us or more: they do not.
    Far,
}

impl State {
    /// `near` or `far`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// Why the bounce could not be measured.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BounceError {
    /// The two CPUs are one.
    #[error("the bounce needs two CPUs, both are {0}; name another with --bounce-cpu")]
    SameCpu(usize),
    /// A thread could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Fewer than 32 batches of 64 round trips finished within [`WINDOW`].
    #[error("too few round trips between CPUs {0} and {1} within {WINDOW:?}; another program keeps one of them busy")]
    Starved(usize, usize),
}

/// The line that travels: odd values go out, even values come back.
#[repr(align(128))]
struct Line(AtomicU64);

/// Spins between two looks at the clock.
const PATIENCE: u32 = 1 << 12;

/// Measures the round trip between two CPUs for [`WINDOW`].
pub fn bounce(cpus: [usize; 2], clock: &TscClock) -> Result<Bounce, BounceError> {
    if cpus[0] == cpus[1] {
        return Err(BounceError::SameCpu(cpus[0]));
    }
    let line = Line(AtomicU64::new(0));
    let deadline = Instant::now() + WINDOW;
    let batches = thread::scope(|scope| {
        let pong = scope.spawn(|| -> Result<(), PinError> {
            pin_current_thread(cpus[1])?;
            answer(&line.0, deadline);
            Ok(())
        });
        let ping = scope.spawn(|| -> Result<Vec<f64>, PinError> {
            pin_current_thread(cpus[0])?;
            Ok(ask(&line.0, deadline, clock))
        });
        pong.join().expect("does not panic")?;
        ping.join().expect("does not panic")
    })?;
    let (min_ns, median_ns) = summary(batches).ok_or(BounceError::Starved(cpus[0], cpus[1]))?;
    let state = if median_ns < NEAR_NS { State::Near } else { State::Far };
    Ok(Bounce { cpus, median_ns, min_ns, state })
}

/// The smallest and the median, of enough batches.
fn summary(mut batches: Vec<f64>) -> Option<(f64, f64)> {
    batches.sort_by(f64::total_cmp);
    (batches.len() >= MIN_BATCHES).then(|| (batches[0], batches[batches.len() / 2]))
}

/// Sends odd values and waits for the even ones; mean nanoseconds per round trip, batch by batch.
fn ask(line: &AtomicU64, deadline: Instant, clock: &TscClock) -> Vec<f64> {
    let mut batches = Vec::new();
    let mut value = 0;
    while Instant::now() < deadline {
        let start = clock.now().mono;
        for _ in 0..BATCH {
            line.store(value + 1, Release);
            value += 2;
            if !await_value(line, deadline, |seen| seen == value) {
                return batches;
            }
        }
        batches.push((clock.now().mono - start).as_nanos() as f64 / BATCH as f64);
    }
    batches
}

/// Answers each odd value with the next even one until the deadline.
fn answer(line: &AtomicU64, deadline: Instant) {
    while await_value(line, deadline, |seen| seen % 2 == 1) {
        line.store(line.load(Relaxed) + 1, Release);
    }
}

/// Spins until `wanted`; `false` once the deadline has passed.
fn await_value(line: &AtomicU64, deadline: Instant, wanted: impl Fn(u64) -> bool) -> bool {
    loop {
        for _ in 0..PATIENCE {
            if wanted(line.load(Acquire)) {
                return true;
            }
        }
        if Instant::now() >= deadline {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cpu_is_refused() {
        let clock = TscClock::calibrate(Duration::from_millis(1));
        assert!(matches!(bounce([0, 0], &clock), Err(BounceError::SameCpu(0))));
        assert!(matches!(bounce([0, 4095], &clock), Err(BounceError::Pin(_))));
    }

    #[test]
    fn two_cpus_bounce() {
        let cpus = core_affinity::get_core_ids().unwrap();
        let [first, second, ..] = cpus[..] else { return };
        let clock = TscClock::calibrate(Duration::from_millis(10));
        // A loaded machine may not run both threads at once within one window.
        let measured = (0..20).find_map(|_| bounce([first.id, second.id], &clock).ok()).expect("one window in twenty");
        assert!(measured.min_ns > 5.0 && measured.min_ns <= measured.median_ns, "{measured:?}");
        assert_eq!(measured.state == State::Near, measured.median_ns < 250.0);
    }
}
