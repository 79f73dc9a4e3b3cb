//! `[[port]]`: where frames come from, on which core, and what answers them.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    path::{Path, PathBuf},
};

use berth_engine::Idle;
use berth_keys::{At, Binds, Table};
use berth_ports::{Driver, Reading, Traits};

use super::{
    Gpu, Host, Limits, Runtime,
    limits::limits,
    name,
    rpc::{Names, Rpc, rpc},
    unique,
};

/// One port: one queue for each of its CPUs, all reached at one address.
#[derive(Debug, Clone, PartialEq)]
pub struct Port {
    /// Unique name: 1 to 64 printable ASCII characters, no spaces.
    pub name: String,
    /// Where its frames come from.
    pub driver: Driver,
    /// The CPUs that poll it, one queue each.
    pub cpus: Vec<usize>,
    /// What those CPUs do while nothing arrives; the same for all ports of one CPU.
    pub idle: Idle,
    /// What answers its frames.
    pub service: Service,
    /// How much of its CPUs' time it gets, relative to other ports of the same ones: 1 to 1000.
    pub weight: NonZeroU32,
    /// What it takes, and what waits for it.
    pub limits: Limits,
    /// Faults to inject, for tests; `None` of drivers without frames.
    pub fault: Option<Fault>,
    /// A capture of all frames; `None` of drivers without frames.
    pub pcap: Option<Pcap>,
}

impl Port {
    /// The RPC service; `None` where the port serves leases.
    pub fn rpc(&self) -> Option<&Rpc> {
        match &self.service {
            Service::Rpc(rpc) => Some(rpc),
            Service::LeaseIo => None,
        }
    }

    /// What each of its queues admits; nothing where nothing is limited.
    pub fn admission(&self) -> Vec<berth_admission::Admission> {
        self.limits.admission(self.cpus.len())
    }

    /// The longest frame in either direction, in bytes: `slot_size` of RPC, 65507 of leases.
    pub fn max_frame(&self) -> usize {
        self.rpc().map_or(MAX_TWO_SIDED, |rpc| rpc.slot_size)
    }
}

/// `port.service` with the keys that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Service {
    /// Calls of functions.
    Rpc(Rpc),
    /// Two-sided access to leases; needs `[control]`.
    LeaseIo,
}

/// `[port.fault]`: probabilities per frame, in both directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    /// Equal seeds give equal faults.
    pub seed: u64,
    /// The frame is lost.
    pub drop: f64,
    /// The frame comes twice.
    pub duplicate: f64,
    /// The frame comes after the next one.
    pub reorder: f64,
    /// One bit of the frame is flipped.
    pub corrupt: f64,
    /// Every frame comes this much later, in microseconds; at most a second.
    pub delay_us: u32,
}

/// `[port.pcap]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pcap {
    /// The file to write; a relative path starts at the folder of the configuration.
    pub file: PathBuf,
    /// Where the capture ends, in bytes of the file.
    pub max_bytes: u64,
}

/// The longest UDP datagram: two-sided messages are as long as the port can carry.
const MAX_TWO_SIDED: usize = 65507;

/// Reads the ports, and what their rings are called. `leases` says whether there is a control plane that grants any,
/// `needed` whether nothing else is served, so that at least one port is wanted.
pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    folder: &Path,
    runtime: &Runtime,
    host: &Host,
    (leases, needed): (bool, bool),
    binds: &mut Binds,
    gpus: &[Gpu],
) -> (Vec<Port>, Vec<At<String>>) {
    let mut names = Vec::new();
    let mut rings = Names::default();
    let mut ports = Vec::new();
    let mut idles: BTreeMap<usize, (Idle, String)> = BTreeMap::new();
    let tables = root.tables("port");
    let tables = if needed { root.require("port", tables, "[[port]] with a name and a driver") } else { tables };
    for mut t in tables.into_iter().flatten() {
        let name = name(&mut t, "fpga0");
        let label = name.as_ref().map_or_else(|| t.path().to_string(), |name| name.value.clone());
        let mut reading = Reading { label: &label, binds, has_feature: host.has_feature };
        let driver = Driver::read(&mut t, &mut reading);
        let traits = driver.as_ref().map_or_else(Traits::default, Driver::traits);
        let cpus = cpus(&mut t, runtime, host);
        if let Some(why) = traits.one_cpu.filter(|_| cpus.len() > 1) {
            t.refuse(&["cpus"], why);
        }
        let at = t.place("idle");
        let idle = idle(&mut t);
        for cpu in &cpus {
            let (first, owner) = idles.entry(*cpu).or_insert_with(|| (idle, label.clone()));
            if *first != idle {
                let message =
                    format_args!("CPU {cpu} idles as port \"{owner}\" says; give ports of one CPU the same idle");
                t.sink().mistake(at.clone(), &format!("{}.idle", t.path()), message);
            }
        }
        let service = service(&mut t, leases, traits.has_slots, host, &mut rings, gpus);
        if !traits.has_frames {
            t.refuse(&["limits", "fault", "pcap"], "it is about frames, and this driver has none");
            if service != Service::LeaseIo {
                let message = "byte streams serve leases; set service = \"lease-io\"";
                t.sink().mistake(t.place("service"), &format!("{}.service", t.path()), message);
            }
        }
        let weight = NonZeroU32::new(t.number("weight") as u32).unwrap_or(NonZeroU32::MIN);
        let limits = t.table("limits").map_or_else(Limits::default, |t| limits(t, traits.has_slots));
        let fault = t.table("fault").map(fault);
        let pcap = t.table("pcap").and_then(|t| pcap(t, folder));
        t.finish();
        names.extend(name.clone());
        if let (Some(name), Some(driver)) = (name, driver) {
            ports.push(Port { name: name.value, driver, cpus, idle, service, weight, limits, fault, pcap });
        }
    }
    unique(root.sink(), names.iter());
    unique(root.sink(), rings.shared.iter());
    (ports, rings.rings)
}

fn service(
    t: &mut Table<'_, '_>,
    leases: bool,
    has_slots: bool,
    host: &Host,
    rings: &mut Names,
    gpus: &[Gpu],
) -> Service {
    let at = t.place("service");
    if !t.chosen("service", &[("rpc", false), ("lease-io", true)]) {
        return Service::Rpc(rpc(t.table_or_empty("rpc"), has_slots, host, rings, gpus));
    }
    if !leases {
        let message = "\"lease-io\" serves leases, and nothing grants any; add [control]";
        t.sink().mistake(at, &format!("{}.service", t.path()), message);
    }
    Service::LeaseIo
}

/// `cpu` or `cpus`; without either the first CPU that is not for housekeeping.
fn cpus(t: &mut Table<'_, '_>, runtime: &Runtime, host: &Host) -> Vec<usize> {
    let one = t.integer("cpu");
    let several = cpu_list(t, "cpus", host);
    if one.is_some() && several.is_some() {
        t.refuse(&["cpu"], "`cpus` is given too, keep one of them");
    }
    match (one, several) {
        (_, Some(cpus)) => cpus,
        (Some(at), None) => cpu(t, &at, host).into_iter().collect(),
        (None, None) => default_cpu(runtime, host),
    }
}

/// The first CPU that is not for housekeeping, if there is any.
pub(super) fn default_cpu(runtime: &Runtime, host: &Host) -> Vec<usize> {
    let free = host.cpus.iter().find(|cpu| !runtime.housekeeping_cpus.contains(cpu));
    free.or(host.cpus.last()).copied().into_iter().collect()
}

/// `idle`
pub(super) fn idle(t: &mut Table<'_, '_>) -> Idle {
    t.chosen("idle", &[("spin", Idle::Spin), ("adaptive", Idle::Adaptive), ("wait", Idle::Wait)])
}

/// A list of distinct CPUs that this process may use, at least one; `None` if the key is absent.
pub(super) fn cpu_list(t: &mut Table<'_, '_>, key: &'static str, host: &Host) -> Option<Vec<usize>> {
    let list = t.cpus(key)?;
    if list.value.is_empty() {
        t.sink().wrong(&list, "is empty; name at least one CPU");
    }
    let mut cpus = Vec::new();
    for at in &list.value {
        if let Some(cpu) = cpu(t, at, host) {
            if cpus.contains(&cpu) {
                t.sink().wrong(at, format_args!("CPU {cpu} is listed twice; name each CPU once"));
            }
            cpus.push(cpu);
        }
    }
    Some(cpus)
}

fn cpu(t: &Table<'_, '_>, at: &At<u64>, host: &Host) -> Option<usize> {
    let cpu = at.value as usize;
    if !host.cpus.contains(&cpu) {
        let all: Vec<_> = host.cpus.iter().map(ToString::to_string).collect();
        t.sink().wrong(
            at,
            format_args!("CPU {cpu} does not exist or is not allowed; this process may use: {}", all.join(", ")),
        );
        return None;
    }
    Some(cpu)
}

fn fault(mut t: Table<'_, '_>) -> Fault {
    let fault = Fault {
        seed: t.number("seed"),
        drop: t.probability("drop"),
        duplicate: t.probability("duplicate"),
        reorder: t.probability("reorder"),
        corrupt: t.probability("corrupt"),
        delay_us: t.number("delay_us") as u32,
    };
    t.finish();
    fault
}

fn pcap(mut t: Table<'_, '_>, folder: &Path) -> Option<Pcap> {
    let file = t.text("file");
    let file = t.require("file", file, "file = \"fpga0.pcap\"");
    let max_bytes = t.number("max_bytes");
    t.finish();
    Some(Pcap { file: folder.join(file?.value), max_bytes })
}
