//! The clock of the poll loops: the time-stamp counter, scaled to nanoseconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_port::{Clock, Nanos, Now};

/// Reads the time-stamp counter (one instruction, no system call) and scales it to nanoseconds.
///
/// Both times start from the kernel's clocks. [`TscClock::discipline`], which a housekeeping thread calls now and then,
/// follows `CLOCK_TAI`, so that stamps of a PTP-synchronised sender can be compared.
#[derive(Debug, Clone)]
pub struct TscClock {
    base: u64,
    /// Nanoseconds per tick, a fixed-point number with [`SHIFT`] fractional bits.
    mult: u64,
    wall_offset: Arc<Offset>,
}

/// `CLOCK_TAI` minus monotonic time, in nanoseconds. Each poll of each core reads it, so it shares no line with
/// anything that others write. Two lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Offset(AtomicU64);

const SHIFT: u32 = 32;

impl TscClock {
    /// Calibrates the counter against the kernel's monotonic clock. Blocks for `window`; 50 ms gives about 10 ppm.
    pub fn calibrate(window: Duration) -> Self {
        let (start, t0) = (Instant::now(), ticks());
        std::thread::sleep(window);
        let (elapsed, t1) = (start.elapsed(), ticks());
        let mult = (elapsed.as_nanos() << SHIFT) / u128::from((t1 - t0).max(1));
        let clock = Self { base: t0, mult: mult as u64, wall_offset: Arc::default() };
        clock.discipline();
        clock
    }

    /// Sets the wall time to the kernel's `CLOCK_TAI`, for every clone of this clock.
    pub fn discipline(&self) {
        let wall = tai_nanos();
        self.wall_offset.0.store(wall.wrapping_sub(self.mono().0), Relaxed);
    }

    #[inline]
    fn mono(&self) -> Nanos {
        let ticks = ticks().wrapping_sub(self.base);
        Nanos(((u128::from(ticks) * u128::from(self.mult)) >> SHIFT) as u64)
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Now {
        let mono = self.mono();
        Now { mono, wall: Nanos(mono.0.wrapping_add(self.wall_offset.0.load(Relaxed))) }
    }
}

/// Time-stamp counter of this processor.
#[inline]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC is part of every x86-64 processor and touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: the virtual counter is readable from user space on Linux and the read touches no memory.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
}

/// `CLOCK_TAI` in nanoseconds. It equals UTC on a host where no PTP or NTP daemon has set the offset.
fn tai_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec to write to; CLOCK_TAI exists since Linux 3.10.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_shares_the_lines_of_the_offset() {
        let clocks = [(); 8].map(|()| TscClock::calibrate(Duration::from_millis(1)));
        let places = clocks.each_ref().map(|clock| Arc::as_ptr(&clock.wall_offset) as usize);
        assert!(size_of::<Offset>() == 128 && places.iter().all(|place| place % 128 == 0), "{places:?}");
    }

    #[test]
    fn follows_the_kernels_clocks() {
        let clock = TscClock::calibrate(Duration::from_millis(50));
        let (start, from) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(200));
        let (to, elapsed) = (clock.now(), start.elapsed());
        let drift = (to.mono - from.mono).as_secs_f64() / elapsed.as_secs_f64();
        assert!((0.99..1.01).contains(&drift), "{drift}");
        assert!(to.wall.0.abs_diff(tai_nanos()) < 50_000_000);
    }
}
