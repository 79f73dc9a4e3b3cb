//! `[hip]`: sessions of HIP Remote, and the GPUs that they use.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use berth_engine::Idle;
use berth_keys::{At, Binds, Table, address, claim, default_address};
use berth_ports::Runtime;

use super::{Backing, Host, Region, port};

/// Whether sessions lease their device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HipLease {
    /// Devices are not leased.
    Off,
    /// Sessions may present a lease.
    Optional,
    /// Nothing is served without.
    Required,
}

/// `[hip]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hip {
    /// Where clients connect.
    pub listen: SocketAddr,
    /// CPUs that poll sessions.
    pub cpus: Vec<usize>,
    /// What those CPUs do while there is no work.
    pub idle: Idle,
    /// Longest payload in bytes.
    pub max_payload: u64,
    /// Sessions at once.
    pub max_sessions: usize,
    /// Sessions of one address at once.
    pub per_peer: usize,
    /// Whether sessions lease their device.
    pub lease: HipLease,
    /// Bytes of memory of a session.
    pub memory: u64,
    /// Handles of a session.
    pub handles: usize,
    /// How long a kernel may run.
    pub kernel_timeout: Duration,
    /// How long a session may be silent; `None` is for ever.
    pub idle_timeout: Option<Duration>,
    /// The devices, in the order of their ids: the software GPUs' names, and bytes that sessions may use.
    pub devices: Vec<(String, u64)>,
}

/// Reads `[hip]`, whose devices are among `gpus`.
pub(super) fn read(
    root: &mut Table<'_, '_>,
    gpus: &[At<String>],
    runtime: &Runtime,
    host: &Host,
    binds: &mut Binds,
    node: Option<&[Region]>,
) -> Option<Hip> {
    root.table("hip").and_then(|table| hip(table, gpus, runtime, host, binds, node))
}

/// `node` are the regions that the node leases, where there is a node.
fn hip(
    mut t: Table<'_, '_>,
    gpus: &[At<String>],
    runtime: &Runtime,
    host: &Host,
    binds: &mut Binds,
    node: Option<&[Region]>,
) -> Option<Hip> {
    let listen = t.text("listen");
    let at = listen.as_ref().map_or(Some(default_address(&t, "listen")), |at| address(&t, at));
    let insecure = t.is_on("insecure");
    if let (Some(said), Some(address)) = (&listen, at) {
        claim(&t, binds, said, address, "HIP Remote".into());
        if !address.ip().is_loopback() && !insecure {
            t.sink().wrong(
                said,
                format_args!(
                    "{address} is reached from other hosts, and nothing is encrypted; listen on 127.0.0.1, or write \
                     insecure = true to let anybody use the GPUs"
                ),
            );
        }
    }
    let cpus = port::cpu_list(&mut t, "cpus", host).filter(|cpus| !cpus.is_empty());
    let idle = port::idle(&mut t);
    let max_payload = t.size("max_payload").map_or(1 << 30, |at| at.value);
    let (max_sessions, per_peer) = (t.number("max_sessions") as usize, t.number("per_peer") as usize);
    let lease = t
        .chosen("lease", &[("off", HipLease::Off), ("optional", HipLease::Optional), ("required", HipLease::Required)]);
    let mut s = t.table_or_empty("session");
    let memory = s.size("memory").map_or(1 << 30, |at| at.value);
    let handles = s.number("handles") as usize;
    let kernel_timeout = Duration::from_millis(s.number("kernel_timeout_ms"));
    let silent = s.number("idle_timeout_s");
    s.finish();
    let tables = t.tables("device");
    let tables = t.require("device", tables, "[[hip.device]] with a gpu");
    let devices = tables.into_iter().flatten().filter_map(|table| device(table, gpus)).collect::<Vec<_>>();
    let mut taken = BTreeSet::new();
    if let Some((gpu, _)) = devices.iter().find(|(gpu, _)| !taken.insert(gpu)) {
        t.sink().mistake(t.place("device"), "hip.device", format_args!("has \"{gpu}\" twice; name each GPU once"));
    }
    if lease != HipLease::Off {
        let place = t.place("lease");
        let is_taken = |gpu: &String| {
            let is_its = |region: &Region| matches!(region.backing, Backing::Gpu(_)) && region.name == *gpu;
            node.into_iter().flatten().any(is_its)
        };
        if node.is_none() {
            t.sink().mistake(place, "hip.lease", "needs [control], which grants the leases; add it, or write \"off\"");
        } else if let Some((gpu, _)) = devices.iter().find(|(gpu, _)| is_taken(gpu)) {
            let message = format_args!("device \"{gpu}\" and a [[region]] have one name; give the region another");
            t.sink().mistake(place, "hip.lease", message);
        }
    }
    t.finish();
    Some(Hip {
        listen: at?,
        cpus: cpus.unwrap_or_else(|| runtime.housekeeping_cpus.clone()),
        idle,
        max_payload,
        max_sessions,
        per_peer,
        lease,
        memory,
        handles,
        kernel_timeout,
        idle_timeout: (silent > 0).then(|| Duration::from_secs(silent)),
        devices,
    })
}

fn device(mut t: Table<'_, '_>, gpus: &[At<String>]) -> Option<(String, u64)> {
    let gpu = t.text("gpu");
    let gpu = t.require("gpu", gpu, "gpu = \"gpu0\", the name of a [[gpu]]");
    if let Some(at) = gpu.as_ref().filter(|at| !gpus.iter().any(|known| known.value == at.value)) {
        t.sink().wrong(at, format_args!("there is no [[gpu]] \"{}\"; add one with use = \"hip\"", at.value));
    }
    let memory = t.size("memory").map_or(4 << 30, |at| at.value);
    t.finish();
    Some((gpu?.value.to_owned(), memory))
}
