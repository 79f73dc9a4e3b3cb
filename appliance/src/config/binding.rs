//! `[[binding]]`: transports of their own that leases can be connected to.

use std::net::SocketAddr;

use berth_keys::{At, Binds, Table, address, claim, default_address};
use berth_ports::{KernelNvme, Nvme, Rdma, Sriov, Windows, nvme::Auth};

use super::{Host, Runtime, port};

/// A transport that `LEASE_BIND` connects leases to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Binding {
    /// One-sided reads and writes by RDMA.
    Rdma(Rdma),
    /// NVMe/TCP by this program, which checks each command.
    Nvme(Nvme),
    /// NVMe over RDMA, or to this very host, by the kernel's target.
    KernelNvme(KernelNvme),
    /// Virtual functions, of all pools: there is one such binding at most.
    Sriov(Sriov),
}

#[derive(Clone, Copy)]
enum Kind {
    Rdma,
    Nvme,
    Sriov,
}

#[derive(Clone, Copy)]
enum Provider {
    Berth,
    Kernel,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Rdma,
    Loop,
}

pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    runtime: &Runtime,
    host: &Host,
    leases: bool,
    binds: &mut Binds,
) -> Vec<Binding> {
    let mut bindings = Vec::new();
    for mut t in root.tables("binding").unwrap_or_default() {
        if !leases {
            t.sink().mistake(t.span(), t.path(), "connects leases, and nothing grants any; add [control]");
        }
        let kind = t.choice("kind", &[("rdma", Kind::Rdma), ("nvme", Kind::Nvme), ("sriov", Kind::Sriov)]);
        let kind = t.require("kind", kind, "kind = \"rdma\"");
        if let Some(at) = kind.as_ref().filter(|at| matches!(at.value, Kind::Rdma) && !(host.has_feature)("verbs")) {
            t.sink().wrong(at, berth_ports::not_built("RDMA", "verbs"));
        }
        let max_leases = t.number("max_leases") as u32;
        match kind.map(|at| at.value) {
            Some(Kind::Rdma) => bindings.extend(rdma(&mut t, max_leases, &bindings).map(Binding::Rdma)),
            Some(Kind::Nvme) => {
                let provider = t.chosen("provider", &[("berth", Provider::Berth), ("kernel", Provider::Kernel)]);
                bindings.extend(match provider {
                    Provider::Berth => Some(Binding::Nvme(nvme(&mut t, max_leases, runtime, host, binds))),
                    Provider::Kernel => kernel(&mut t, max_leases, &bindings).map(Binding::KernelNvme),
                });
            }
            Some(Kind::Sriov) => bindings.extend(sriov(&mut t, &bindings).map(Binding::Sriov)),
            None => {}
        }
        t.finish();
    }
    bindings
}

fn rdma(t: &mut Table<'_, '_>, max_leases: u32, others: &[Binding]) -> Option<Rdma> {
    let device = t.text("device");
    let device = t.require("device", device, "device = \"mlx5_0\", a name that `rdma link` prints");
    let (port, gid_index) = (t.number("port") as u8, t.number("gid_index") as u8);
    let words = [("auto", Windows::Auto), ("always", Windows::Always), ("never", Windows::Never)];
    let windows = t.chosen("windows", &words);
    let device = device?;
    let is_same = |other: &Binding| matches!(other, Binding::Rdma(other) if other.device == device.value);
    if others.iter().any(is_same) {
        t.sink().wrong(&device, "there is a binding of this device already");
    }
    Some(Rdma { device: device.value.to_string(), port, gid_index, max_leases, windows })
}

fn sriov(t: &mut Table<'_, '_>, others: &[Binding]) -> Option<Sriov> {
    t.refuse(&["max_leases"], "as many are connected as there are functions");
    let kill = t.chosen("on_revoke", &[("fence", false), ("kill", true)]);
    if others.iter().any(|other| matches!(other, Binding::Sriov(_))) {
        t.sink().mistake(t.place("kind"), t.path(), "there is a binding of this kind already, and it is of all pools");
        return None;
    }
    Some(Sriov { kill })
}

/// The transport that is said, if it is one of the provider's; `other` serves the rest.
fn transport(t: &mut Table<'_, '_>, of_provider: &[Transport], other: &str) -> Option<At<Transport>> {
    let words = [("tcp", Transport::Tcp), ("rdma", Transport::Rdma), ("loop", Transport::Loop)];
    let said = t.choice("transport", &words)?;
    if !of_provider.contains(&said.value) {
        t.sink().wrong(&said, format_args!("is what provider = \"{other}\" serves"));
    }
    Some(said)
}

/// Where hosts connect.
fn listen(t: &mut Table<'_, '_>, mut claim: impl FnMut(&Table<'_, '_>, &At<&str>, SocketAddr)) -> Vec<SocketAddr> {
    let mut listen = Vec::new();
    for at in t.texts("listen").map_or_else(Vec::new, |at| at.value) {
        let Some(bind) = address(t, &at) else { continue };
        if bind.ip().is_unspecified() {
            t.sink().wrong(&at, "is no address that a host can connect to; name one of this host");
        }
        claim(t, &at, bind);
        listen.push(bind);
    }
    listen
}

/// By the kernel's target.
fn kernel(t: &mut Table<'_, '_>, max_leases: u32, others: &[Binding]) -> Option<KernelNvme> {
    let said = transport(t, &[Transport::Rdma, Transport::Loop], "berth");
    let said = t.require("transport", said, "transport = \"rdma\", or \"loop\"")?;
    let others: Vec<_> = others
        .iter()
        .filter_map(|other| match other {
            Binding::KernelNvme(other) => Some(other),
            _ => None,
        })
        .collect();
    match said.value {
        Transport::Tcp => return None,
        Transport::Loop => {
            if others.iter().any(|other| other.rdma.is_empty()) {
                t.sink().wrong(&said, "there is a binding of it already");
            }
            return Some(KernelNvme { rdma: Vec::new(), max_leases });
        }
        Transport::Rdma => {}
    }
    let rdma = listen(t, |t, at, bind| {
        if bind.port() == 0 {
            t.sink().wrong(at, "names no port, and the kernel does not choose one");
        }
        if others.iter().any(|other| other.rdma.contains(&bind)) {
            t.sink().wrong(at, "another binding has that address");
        }
    });
    let example = "listen = [\"10.0.0.2:4420\"], an address of an RDMA device";
    t.require("listen", rdma.first(), example)?;
    Some(KernelNvme { rdma, max_leases })
}

/// By this program.
fn nvme(t: &mut Table<'_, '_>, max_leases: u32, runtime: &Runtime, host: &Host, binds: &mut Binds) -> Nvme {
    transport(t, &[Transport::Tcp], "kernel");
    let auth = t.choice("auth", &[("none", Some(Auth::None)), ("dhchap", Some(Auth::DhChap)), ("tls", None)]);
    if let Some(at) = auth.as_ref().filter(|at| at.value.is_none()) {
        t.sink().wrong(at, "\"tls\" is not built; write \"dhchap\", which proves who a host is and encrypts nothing");
    }
    let auth = auth.and_then(|at| at.value).unwrap_or(Auth::None);
    let mut listen = listen(t, |t, at, bind| claim(t, binds, at, bind, t.path().to_owned()));
    if listen.is_empty() {
        listen.push(default_address(t, "listen"));
    }
    let cpus = port::cpu_list(t, "cpus", host);
    let cpus = cpus.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| port::default_cpu(runtime, host));
    let idle = port::idle(t);
    let (max_hosts, io_queues) = (t.number("max_hosts") as u32, t.number("io_queues") as u16);
    let queue_depth = t.number("queue_depth") as u16;
    let in_capsule = t.size("in_capsule");
    if let Some(at) = in_capsule.as_ref()
        && !(Nvme::IN_CAPSULE.contains(&at.value) && at.value.is_multiple_of(16))
    {
        let (least, most) = (Nvme::IN_CAPSULE.start(), Nvme::IN_CAPSULE.end());
        t.sink().wrong(at, format_args!("is not a multiple of 16 from {least} to {most} bytes"));
    }
    let in_capsule = in_capsule.map_or(16 << 10, |at| at.value as u32);
    let buffers = t.size("buffers");
    if let Some(at) = buffers.as_ref().filter(|at| at.value < Nvme::BUFFERS_MIN) {
        t.sink().wrong(at, format_args!("is less than {} bytes", Nvme::BUFFERS_MIN));
    }
    let buffers = buffers.map_or(64 << 20, |at| at.value);
    Nvme { listen, cpus, idle, max_leases, max_hosts, io_queues, queue_depth, in_capsule, buffers, auth }
}
