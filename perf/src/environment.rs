//! Where a result was measured: what a reader needs to know to believe or repeat it.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use berth_host::{TscClock, pin_current_thread};
use berth_port::Clock as _;
use serde::{Deserialize, Serialize};

use crate::{
    bounce::{Bounce, bounce},
    hiccup::Hiccups,
    tally::histogram,
};

/// The host and the command. Files the kernel does not have here are `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of Berth.
    pub berth: String,
    /// The command line, the program first.
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
    /// Huge pages of the default size that are reserved, and that size in kB.
    pub hugepages: Option<(u64, u64)>,
    /// Load averages over 1, 5 and 15 minutes when the run began.
    pub load: Option<String>,
    /// What this program was built with: `dpdk`, `ofi`, `verbs`.
    #[serde(default)]
    pub features: Vec<String>,
    /// The kernel's command line.
    #[serde(default)]
    pub kernel_cmdline: Option<String>,
    /// The state of each vulnerability, by its file's name in `/sys/devices/system/cpu/vulnerabilities`.
    #[serde(default)]
    pub mitigations: BTreeMap<String, String>,
    /// Version of the CPU's microcode.
    #[serde(default)]
    pub microcode: Option<String>,
    /// Whether cores run two threads: `on`, `off`, `notsupported` ..
    #[serde(default)]
    pub smt: Option<String>,
    /// Whether the CPU may clock higher than it says: `on` or `off`.
    #[serde(default)]
    pub turbo: Option<String>,
    /// The kernel's clock source, such as `tsc`.
    #[serde(default)]
    pub clocksource: Option<String>,
    /// NUMA nodes online, as ranges.
    #[serde(default)]
    pub numa_nodes: Option<String>,
    /// The host's memory (`MemTotal`), in kB.
    #[serde(default)]
    pub memory_kb: Option<u64>,
    /// Huge pages of 1 GiB that are reserved.
    #[serde(default)]
    pub hugepages_1g: Option<u64>,
    /// When the kernel makes huge pages by itself: `always`, `madvise` or `never`.
    #[serde(default)]
    pub transparent_hugepages: Option<String>,
    /// Microseconds of each second that real-time tasks may have; -1 is all.
    #[serde(default)]
    pub rt_runtime_us: Option<String>,
    /// The control group's share of the CPUs: `max`, or a quota and its period in microseconds.
    #[serde(default)]
    pub cpu_quota: Option<String>,
    /// Who made the machine, and its model.
    #[serde(default)]
    pub machine: Option<String>,
    /// Network interfaces with a driver of their own.
    #[serde(default)]
    pub nics: Vec<Nic>,
    /// RDMA devices, as `/sys/class/infiniband` names them.
    #[serde(default)]
    pub rdma_devices: Vec<String>,
    /// Suites: the round trip of a cache line between the client's CPU and the server's, before anything else ran.
    #[serde(default)]
    pub bounce: Option<Bounce>,
    /// Suites: gaps that a thread saw that did nothing but read the clock, on each of these CPUs at the same time.
    #[serde(default)]
    pub idle_hiccups: BTreeMap<usize, Hiccups>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// As the kernel calls it, such as `eth0`.
    pub name: String,
    /// The kernel's driver; a card that DPDK has is no interface.
    pub driver: String,
    /// Its address on its bus, such as `0000:03:00.0`.
    pub bus: Option<String>,
    /// Mbit/s, where the link is up.
    pub speed_mbps: Option<i64>,
    /// The longest packet in bytes.
    pub mtu: Option<u64>,
    /// Receive queues.
    pub rx_queues: usize,
}

/// How long idle CPUs are watched.
const WATCH: Duration = Duration::from_millis(300);

impl Environment {
    /// Reads it now, without `bounce` and `idle_hiccups`.
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
            features: features(),
            kernel_cmdline: line("/proc/cmdline"),
            mitigations: lines_of(Path::new("/sys/devices/system/cpu/vulnerabilities")),
            microcode: field(&cpuinfo, "microcode").map(Into::into),
            smt: line("/sys/devices/system/cpu/smt/control"),
            turbo: turbo(),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            numa_nodes: line("/sys/devices/system/node/online"),
            memory_kb: number("MemTotal"),
            hugepages_1g: line("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages")
                .and_then(|n| n.parse().ok()),
            transparent_hugepages: line("/sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
            rt_runtime_us: line("/proc/sys/kernel/sched_rt_runtime_us"),
            cpu_quota: line("/sys/fs/cgroup/cpu.max"),
            machine: machine(),
            nics: nics(Path::new("/sys/class/net")),
            rdma_devices: names(Path::new("/sys/class/infiniband")),
            bounce: None,
            idle_hiccups: BTreeMap::new(),
        }
    }

    /// Reads it, after a bounce between these CPUs and 300 ms of watching them. Nothing of ours may run meanwhile.
    pub fn read_whole(cpus: [Option<usize>; 2]) -> Self {
        let clock = TscClock::calibrate(WATCH / 10);
        let bounce = match cpus {
            [Some(first), Some(second)] => bounce([first, second], &clock).ok(),
            _ => None,
        };
        let watch = |cpu: usize| {
            pin_current_thread(cpu).ok()?;
            let mut gaps = histogram();
            let mut last = clock.now().mono;
            let end = last + WATCH;
            while last < end {
                let now = clock.now().mono;
                gaps.saturating_record(now.0.saturating_sub(last.0));
                last = now;
            }
            Some((cpu, Hiccups::of(&gaps)))
        };
        let idle_hiccups = thread::scope(|scope| {
            let threads: Vec<_> = cpus.into_iter().flatten().map(|cpu| scope.spawn(move || watch(cpu))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
        });
        Self { bounce, idle_hiccups, ..Self::read() }
    }

    /// Every fact as a name and a value for people, in the order in which they matter.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let known =
            |text: &Option<String>| text.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "none".into());
        let list = |all: &[String]| if all.is_empty() { "none".into() } else { all.join(", ") };
        let nics: Vec<String> = self.nics.iter().map(Nic::line).collect();
        let mitigations: Vec<String> =
            self.mitigations.iter().map(|(name, state)| format!("{name}: {state}")).collect();
        let hiccups: Vec<String> = self
            .idle_hiccups
            .iter()
            .map(|(cpu, seen)| {
                format!("CPU {cpu}: {:.0} us, {} over 100 us", seen.max_ns as f64 / 1e3, seen.over_100_us)
            })
            .collect();
        let bounce =
            self.bounce.map_or("not measured".into(), |b| format!("{:.2} us ({})", b.median_ns / 1e3, b.state.name()));
        vec![
            ("command", self.command.join(" ")),
            ("berth", self.berth.clone()),
            ("built with", list(&self.features)),
            ("host", known(&self.host)),
            ("machine", known(&self.machine)),
            ("CPU", format!("{}{}", known(&self.cpu_model), if self.virtual_machine { ", virtual" } else { "" })),
            ("microcode", known(&self.microcode)),
            ("CPUs online", known(&self.cpus_online)),
            ("CPUs isolated", known(&self.cpus_isolated)),
            ("CPUs without a tick", known(&self.cpus_nohz_full)),
            ("CPU quota", known(&self.cpu_quota)),
            ("governor", known(&self.governor)),
            ("turbo", known(&self.turbo)),
            ("SMT", known(&self.smt)),
            ("NUMA nodes", known(&self.numa_nodes)),
            ("memory", self.memory_kb.map_or("unknown".into(), |kb| format!("{:.1} GiB", kb as f64 / 1_048_576.0))),
            ("huge pages", self.hugepages.map_or("none".into(), |(count, kb)| format!("{count} of {kb} kB"))),
            ("huge pages of 1 GiB", self.hugepages_1g.map_or("none".into(), |count| count.to_string())),
            ("transparent huge pages", known(&self.transparent_hugepages)),
            ("kernel", known(&self.kernel)),
            ("kernel command line", known(&self.kernel_cmdline)),
            ("clock", known(&self.clocksource)),
            ("real-time share", known(&self.rt_runtime_us)),
            ("mitigations", list(&mitigations)),
            ("NICs", list(&nics)),
            ("RDMA devices", list(&self.rdma_devices)),
            ("bounce before", bounce),
            ("idle hiccups", list(&hiccups)),
            ("load before", known(&self.load)),
            ("began", format!("{} s after 1970-01-01 UTC", self.started)),
        ]
    }
}

impl Nic {
    fn line(&self) -> String {
        let Self { name, driver, bus, speed_mbps, mtu, rx_queues } = self;
        let speed = speed_mbps.map_or(String::new(), |speed| format!(", {speed} Mbit/s"));
        let mtu = mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
        let bus = bus.as_ref().map_or(String::new(), |bus| format!(" at {bus}"));
        format!("{name} ({driver}{bus}{speed}{mtu}, {rx_queues} rx queues)")
    }
}

fn features() -> Vec<String> {
    berth_ports::features().map(str::to_owned).collect()
}

/// What a folder holds, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Each file of a folder with its line.
fn lines_of(folder: &Path) -> BTreeMap<String, String> {
    let known = names(folder).into_iter().filter_map(|name| Some((name.clone(), line(folder.join(&name).to_str()?)?)));
    known.collect()
}

/// The word in brackets: `always [madvise] never`.
fn chosen(line: &str) -> Option<String> {
    Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn turbo() -> Option<String> {
    let off = line("/sys/devices/system/cpu/intel_pstate/no_turbo").map(|off| off == "1");
    let off = off.or_else(|| line("/sys/devices/system/cpu/cpufreq/boost").map(|on| on == "0"));
    off.map(|off| if off { "off" } else { "on" }.to_owned())
}

fn machine() -> Option<String> {
    let parts = ["sys_vendor", "product_name"].map(|name| line(&format!("/sys/class/dmi/id/{name}")));
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Interfaces that a device's driver stands behind; bridges and cables of the kernel's own have none.
fn nics(net: &Path) -> Vec<Nic> {
    let target = |path: &Path| Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned());
    let nic = |name: String| {
        let folder = net.join(&name);
        let number = |file: &str| line(folder.join(file).to_str()?);
        Some(Nic {
            driver: target(&folder.join("device/driver"))?,
            bus: target(&folder.join("device")),
            speed_mbps: number("speed").and_then(|speed| speed.parse().ok()).filter(|speed| *speed > 0),
            mtu: number("mtu").and_then(|mtu| mtu.parse().ok()),
            rx_queues: names(&folder.join("queues")).iter().filter(|queue| queue.starts_with("rx-")).count(),
            name,
        })
    };
    names(net).into_iter().filter_map(nic).collect()
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
    fn interfaces_with_a_driver_are_nics() {
        let net = tempfile::tempdir().unwrap();
        let eth0 = net.path().join("eth0");
        for folder in [
            "eth0/queues/rx-0",
            "eth0/queues/rx-1",
            "eth0/queues/tx-0",
            "veth1/queues/rx-0",
            "drivers/mlx5_core",
            "devices/0000:3b:00.0",
        ] {
            fs::create_dir_all(net.path().join(folder)).unwrap();
        }
        std::os::unix::fs::symlink("../devices/0000:3b:00.0", eth0.join("device")).unwrap();
        std::os::unix::fs::symlink("../../drivers/mlx5_core", net.path().join("devices/0000:3b:00.0/driver")).unwrap();
        fs::write(eth0.join("speed"), "100000\n").unwrap();
        fs::write(eth0.join("mtu"), "9000\n").unwrap();
        let found: Vec<_> = nics(net.path()).iter().map(Nic::line).collect();
        assert_eq!(found, ["eth0 (mlx5_core at 0000:3b:00.0, 100000 Mbit/s, MTU 9000, 2 rx queues)"]);
        assert_eq!(chosen("always [madvise] never").as_deref(), Some("madvise"));
    }

    #[test]
    fn idle_cpus_are_watched() {
        let cpus = core_affinity::get_core_ids().unwrap();
        let here = Environment::read_whole([cpus.first().map(|core| core.id), None]);
        assert_eq!((here.idle_hiccups.len(), here.bounce), (1, None));
        assert!(here.idle_hiccups.values().all(|seen| seen.polls > 1000));
        assert!(here.facts().iter().any(|(name, value)| *name == "kernel command line" && value != "none"));
    }

    #[test]
    fn this_host_has_a_kernel_and_cpus() {
        let here = Environment::read();
        assert!(here.kernel.is_some_and(|kernel| kernel.contains('.')));
        assert!(here.cpus_online.is_some_and(|cpus| cpus.starts_with('0')));
        assert!(!here.command.is_empty());
    }
}
