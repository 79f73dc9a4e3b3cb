//! Where a result was measured: what a reader needs to know to believe or repeat it.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// The host and the command. Files the kernel does not have here are `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of Berth.
    pub berth: String,
    /// The command line.
    pub command: Vec<String>,
    /// Seconds since 1970 (UTC) at which the run began.
    pub started: u64,
    /// Host name.
    pub host: Option<String>,
    /// Model name of the first CPU.
    pub cpu_model: Option<String>,
    /// CPUs online, as ranges.
    pub cpus_online: Option<String>,
    /// CPUs kept from the scheduler, as ranges; empty where none are.
    pub cpus_isolated: Option<String>,
    /// CPUs without a timer tick, as ranges; empty where none are.
    pub cpus_nohz_full: Option<String>,
    /// Frequency governor of the first CPU.
    pub governor: Option<String>,
    /// Whether the CPU says that it is a virtual one.
    pub virtual_machine: bool,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Huge pages reserved, and their size in kB.
    pub hugepages: Option<(u64, u64)>,
    /// Load averages over 1, 5 and 15 minutes when the run began.
    pub load: Option<String>,
}

impl Environment {
    /// Reads it now.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let number = |key| field(&meminfo, key)?.split_whitespace().next()?.parse().ok();
        Self {
            berth: env!("CARGO_PKG_VERSION").into(),
            command: std::env::args().collect(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            host: line("/proc/sys/kernel/hostname"),
            cpu_model: field(&cpuinfo, "model name").map(Into::into),
            cpus_online: line("/sys/devices/system/cpu/online"),
            cpus_isolated: line("/sys/devices/system/cpu/isolated"),
            cpus_nohz_full: line("/sys/devices/system/cpu/nohz_full").filter(|cpus| cpus != "(null)"),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            kernel: line("/proc/sys/kernel/osrelease"),
            hugepages: number("HugePages_Total").zip(number("Hugepagesize")),
            load: line("/proc/loadavg").map(|load| load.split(' ').take(3).collect::<Vec<_>>().join(" ")),
        }
    }
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The value of the first `key : value` line.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (found, value) = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == key)?;
    debug_assert_eq!(found.trim(), key);
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "HugePages_Total:    1024\nHugepagesize:       2048 kB\nmodel name\t: Some CPU: fast\n";
        assert_eq!(field(text, "Hugepagesize"), Some("2048 kB"));
        assert_eq!(field(text, "model name"), Some("Some CPU: fast"));
        assert_eq!(field(text, "HugePages"), None);
    }

    #[test]
    fn this_host_has_a_kernel_and_cpus() {
        let here = Environment::read();
        assert!(here.kernel.is_some_and(|kernel| kernel.contains('.')));
        assert!(here.cpus_online.is_some_and(|cpus| cpus.starts_with('0')));
        assert!(!here.command.is_empty());
    }
}
