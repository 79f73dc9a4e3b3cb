//! Clocks: the time-stamp counter, the kernel's clock source, TAI and PTP.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use berth_host::TscClock;
use berth_port::Clock;

use super::Findings;
use crate::sys::Root;

pub(super) fn examine(root: &Root, live: bool, f: &mut Findings) {
    let cpuinfo = root.read("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or("");
    let has = |flag| flags.split_whitespace().any(|word| word == flag);
    match (has("constant_tsc"), has("nonstop_tsc")) {
        (true, true) => f.ok("tsc", "constant, nonstop"),
        // Other architectures have a constant counter by definition.
        _ if flags.is_empty() => f.ok("tsc", "generic counter"),
        _ => f.missing(
            "tsc",
            "stops or changes its rate: times would be wrong",
            "run on a processor with constant_tsc and nonstop_tsc",
        ),
    }

    match root.read("/sys/devices/system/clocksource/clocksource0/current_clocksource").as_deref() {
        Some(source @ ("tsc" | "arch_sys_counter")) => f.ok("clocksource", source),
        source => f.warn(
            "clocksource",
            source.unwrap_or("unknown"),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    }

    if live {
        let wall = TscClock::calibrate(Duration::from_millis(1)).now().wall.0;
        let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        match (wall.saturating_sub(utc) + 500_000_000) / 1_000_000_000 {
            0 => f.warn(
                "tai",
                "offset is 0: TAI equals UTC here",
                "run ptp4l with phc2sys -a -r, or chrony with leapsectz right/UTC",
            ),
            seconds => f.ok("tai", format!("{seconds} s ahead of UTC")),
        }
    }

    let clocks = root.names("/sys/class/ptp");
    if clocks.is_empty() {
        f.warn("ptp", "no hardware clock", "use a NIC with PTP support where one-way times matter");
    }
    for clock in clocks {
        let name = root.read(&format!("/sys/class/ptp/{clock}/clock_name")).unwrap_or_default();
        f.ok("ptp", format!("/dev/{clock} {name}"));
    }
}
