//! `[hip]`: sessions of HIP Remote, and the GPUs that they use.

use std::{collections::BTreeSet, fmt, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use berth_engine::Idle;
use berth_gpu::Choice;
use berth_keys::{At, Binds, Table, address, claim, default_address};
use berth_ports::Runtime;
use berth_tls::stream::{self, ServerConfig};

use super::{Backing, Host, Region, contents, fabric::public_key, port, resolve};

/// Whether sessions lease their device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HipLease {
    /// Devices are not leased, and `[control]` is not needed.
    Off,
    /// A session may present a lease, and then has its device and its bytes for itself.
    Optional,
    /// Nothing is served before a session has presented a lease.
    Required,
}

/// `[hip.tls]`: what connections are encrypted with, and the texts of the files that it was made of.
#[derive(Clone)]
pub struct Tls(pub Arc<ServerConfig>, Vec<String>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Eq for Tls {}

/// `[hip]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hip {
    /// TCP address where clients connect; beyond loopback only with `tls` or `insecure = true`.
    pub listen: SocketAddr,
    /// CPUs that poll sessions; by default those for housekeeping.
    pub cpus: Vec<usize>,
    /// What those CPUs do while there is no work.
    pub idle: Idle,
    /// Longest request or answer, in bytes of payload.
    pub max_payload: u64,
    /// Sessions at once, 1 to 3500.
    pub max_sessions: usize,
    /// Sessions of one address at once, 1 to 3500.
    pub per_peer: usize,
    /// TLS of every connection; `None`: nothing is encrypted.
    pub tls: Option<Tls>,
    /// Whether sessions lease their device.
    pub lease: HipLease,
    /// Bytes of memory of a session, on all devices together.
    pub memory: u64,
    /// Streams, events, modules, functions and graphs of a session, together.
    pub handles: usize,
    /// How long a kernel may run: 1 ms to 1 h.
    pub kernel_timeout: Duration,
    /// How long a session may be silent; `None` is for ever.
    pub idle_timeout: Option<Duration>,
    /// The devices, in the order of their ids: the GPUs' names, bytes that sessions may use, and what they are.
    pub devices: Vec<(String, u64, Choice)>,
}

/// Reads `[hip]`, whose devices are among `gpus`.
pub(super) fn read(
    root: &mut Table<'_, '_>,
    gpus: &[(At<String>, Choice)],
    runtime: &Runtime,
    files: (&Path, &Host),
    binds: &mut Binds,
    node: Option<&[Region]>,
) -> Option<Hip> {
    root.table("hip").and_then(|table| hip(table, gpus, runtime, files, binds, node))
}

/// `node` are the regions that the node leases, where there is a node.
fn hip(
    mut t: Table<'_, '_>,
    gpus: &[(At<String>, Choice)],
    runtime: &Runtime,
    (folder, host): (&Path, &Host),
    binds: &mut Binds,
    node: Option<&[Region]>,
) -> Option<Hip> {
    let listen = t.text("listen");
    let at = listen.as_ref().map_or(Some(default_address(&t, "listen")), |at| address(&t, at));
    let insecure = t.is_on("insecure");
    let table = t.table("tls");
    let is_secure = table.is_some();
    let tls = table.and_then(|table| tls(table, folder, host));
    if let (Some(said), Some(address)) = (&listen, at) {
        claim(&t, binds, said, address, "HIP Remote".into());
        if !address.ip().is_loopback() && !insecure && !is_secure {
            t.sink().wrong(
                said,
                format_args!(
                    "{address} is reached from other hosts, and nothing is encrypted; listen on 127.0.0.1, add [hip.tls], \
                     or write insecure = true to let anybody use the GPUs"
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
    if let Some((gpu, ..)) = devices.iter().find(|(gpu, ..)| !taken.insert(gpu)) {
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
        } else if let Some((gpu, ..)) = devices.iter().find(|(gpu, ..)| is_taken(gpu)) {
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
        tls,
        lease,
        memory,
        handles,
        kernel_timeout,
        idle_timeout: (silent > 0).then(|| Duration::from_secs(silent)),
        devices,
    })
}

fn tls(mut t: Table<'_, '_>, folder: &Path, host: &Host) -> Option<Tls> {
    let read = tls_files(&mut t, folder, host);
    t.finish();
    read
}

fn tls_files(t: &mut Table<'_, '_>, folder: &Path, host: &Host) -> Option<Tls> {
    let mut file = |key: &'static str, wanted| {
        let named = t.text(key);
        let named = t.require(key, named, wanted)?;
        resolve(t, named, folder, host.is_file)
    };
    let cert = file("cert", "cert = \"hip.crt\", a PEM file");
    let key = file("key", "key = \"hip.key\", a PEM file");
    let clients = t.texts("clients").map_or_else(Vec::new, |at| at.value);
    let named = clients.len();
    let clients: Vec<_> = clients.iter().filter_map(|at| public_key(t, at)).collect();
    let (cert, key) = (cert?, key?);
    if (host.is_public)(&key.value) {
        let path = key.value.display();
        t.sink().wrong(&key, format_args!("{path} is open to everybody on this host: run `chmod o= {path}`"));
        return None;
    }
    let mut texts = vec![contents(t, &cert, host)?, contents(t, &key, host)?];
    // Nobody is let in for the lack of a key that was meant.
    if clients.len() < named {
        return None;
    }
    texts.extend(clients.iter().map(ToString::to_string));
    match stream::server(texts[0].as_bytes(), texts[1].as_bytes(), clients) {
        Ok(config) => Some(Tls(config, texts)),
        Err(e) => {
            t.sink().wrong(&cert, format_args!("no certificate and key of TLS: {e}"));
            None
        }
    }
}

fn device(mut t: Table<'_, '_>, gpus: &[(At<String>, Choice)]) -> Option<(String, u64, Choice)> {
    let gpu = t.text("gpu");
    let gpu = t.require("gpu", gpu, "gpu = \"gpu0\", the name of a [[gpu]]");
    let known = gpu.as_ref().and_then(|at| gpus.iter().find(|(known, _)| known.value == at.value));
    if let Some(at) = gpu.as_ref().filter(|_| known.is_none()) {
        t.sink().wrong(at, format_args!("there is no [[gpu]] \"{}\"; add one with use = \"hip\"", at.value));
    }
    let memory = t.size("memory").map_or(4 << 30, |at| at.value);
    t.finish();
    Some((gpu?.value.to_owned(), memory, known?.1.clone()))
}
