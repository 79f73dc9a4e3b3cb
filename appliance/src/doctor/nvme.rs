//! NVMe over Fabrics: the kernel's initiator and target, and what the bindings of a configuration need.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener},
};

use berth_ports::KernelNvme;

use super::Findings;
use crate::{config::Binding, sys::Root};

const TARGET: &str = "/sys/kernel/config/nvmet";

/// Capabilities by their bits: writing to root's files, loop devices.
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SYS_ADMIN: u32 = 21;

/// How a kernel module stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Module {
    Loaded,
    /// It can be.
    There,
    Absent,
}

/// `name` as its file is called.
fn module(root: &Root, name: &str) -> Module {
    if root.exists(&format!("/sys/module/{}", name.replace('-', "_"))) {
        return Module::Loaded;
    }
    let release = root.read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let lists = |list: &str| {
        let list = root.read(&format!("/lib/modules/{release}/{list}")).unwrap_or_default();
        list.contains(&format!("/{name}.ko"))
    };
    match (lists("modules.builtin"), lists("modules.dep")) {
        (true, _) => Module::Loaded,
        (false, true) => Module::There,
        (false, false) => Module::Absent,
    }
}

pub(super) fn examine(root: &Root, f: &mut Findings) {
    match module(root, "nvme-tcp") {
        Module::Loaded => f.ok("nvme host", "nvme-tcp is loaded: leases can be connected here"),
        Module::There => {
            f.warn("nvme host", "nvme-tcp is not loaded: no lease can be connected here", "modprobe nvme-tcp");
        }
        Module::Absent => f.warn(
            "nvme host",
            "the kernel has no nvme-tcp: no lease can be connected here",
            "boot a kernel with CONFIG_NVME_TCP; other hosts can connect",
        ),
    }
    match module(root, "nvmet") {
        Module::Loaded if root.exists(TARGET) => f.ok("nvme target", ports(root)),
        Module::Loaded => f.warn(
            "nvme target",
            "nvmet is loaded, and cannot be configured",
            "mount -t configfs none /sys/kernel/config",
        ),
        Module::There => f.warn(
            "nvme target",
            "nvmet is not loaded: no binding can have provider = \"kernel\"",
            "modprobe -a nvmet nvmet-rdma nvme-loop loop",
        ),
        Module::Absent => f.warn(
            "nvme target",
            "the kernel has no nvmet: no binding can have provider = \"kernel\"",
            "boot a kernel with CONFIG_NVME_TARGET; provider = \"berth\" does without",
        ),
    }
}

/// What the kernel's target listens on.
fn ports(root: &Root) -> String {
    let ports = root.names(&format!("{TARGET}/ports"));
    let port = |port: &String| {
        let of = |name: &str| root.read(&format!("{TARGET}/ports/{port}/{name}")).unwrap_or_default();
        let subsystems = root.names(&format!("{TARGET}/ports/{port}/subsystems")).len();
        let transport = of("addr_trtype");
        let address = if transport == "loop" {
            String::new()
        } else {
            format!(" {}", address(&of("addr_traddr"), &of("addr_trsvcid")))
        };
        format!("{transport}{address} with {subsystems} subsystems")
    };
    let ports: Vec<_> = ports.iter().map(port).collect();
    if ports.is_empty() { "loaded, no ports".to_string() } else { ports.join(", ") }
}

fn address(ip: &str, port: &str) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// What the bindings of a configuration need.
pub(super) fn examine_bindings(root: &Root, bindings: &[Binding], f: &mut Findings) {
    for binding in bindings {
        match binding {
            Binding::Nvme(nvme) => nvme.listen.iter().for_each(|address| listen(*address, f)),
            Binding::KernelNvme(kernel) => examine_kernel(root, kernel, f),
            Binding::Rdma(_) | Binding::Sriov(_) => {}
        }
    }
    if bindings.iter().any(|binding| matches!(binding, Binding::KernelNvme(_))) {
        examine_provider(root, f);
    }
}

/// Whether hosts can be listened to over TCP.
fn listen(address: SocketAddr, f: &mut Findings) {
    let what = format!("nvme-tcp {address}");
    match TcpListener::bind(address).map_err(|error| (error.kind(), error)) {
        Ok(_) => f.ok(what, "can be listened on"),
        Err((ErrorKind::AddrInUse, _)) => {
            let mend = format!("ss -ltnp 'sport = :{}' names it", address.port());
            f.warn(what, "is in use, by this appliance or by another program", mend);
        }
        Err((ErrorKind::AddrNotAvailable, _)) => {
            let (ip, bits) = (address.ip(), if address.is_ipv4() { 24 } else { 64 });
            f.missing(what, "no interface has this address", format!("ip addr add {ip}/{bits} dev eth0"));
        }
        Err((ErrorKind::PermissionDenied, _)) => f.missing(
            what,
            "ports below 1024 are not this user's",
            "setcap cap_net_bind_service+ep $(command -v berth)",
        ),
        Err((_, error)) => f.missing(what, error.to_string(), "change binding.listen"),
    }
}

fn examine_kernel(root: &Root, kernel: &KernelNvme, f: &mut Findings) {
    if kernel.rdma.is_empty() {
        needs(root, f, "nvme-loop", "transport = \"loop\"", "CONFIG_NVME_TARGET_LOOP");
        return;
    }
    needs(root, f, "nvmet-rdma", "transport = \"rdma\"", "CONFIG_NVME_TARGET_RDMA");
    for address in &kernel.rdma {
        let what = format!("nvme-rdma {address}");
        match device_of(root, address.ip()) {
            Some(device) => f.ok(what, format!("an address of {device}")),
            None => f.missing(
                what,
                "no RDMA device has this address",
                format!("ip addr add {}/24 dev eth0 && rdma link add rxe0 type rxe netdev eth0", address.ip()),
            ),
        }
    }
}

fn needs(root: &Root, f: &mut Findings, name: &str, whose: &str, option: &str) {
    match module(root, name) {
        Module::Loaded => f.ok(name, "loaded"),
        Module::There => f.missing(name, format!("not loaded, and {whose} needs it"), format!("modprobe {name}")),
        Module::Absent => {
            f.missing(
                name,
                format!("the kernel has none, and {whose} needs it"),
                format!("boot a kernel with {option}"),
            );
        }
    }
}

/// The RDMA device that has an address.
fn device_of(root: &Root, ip: IpAddr) -> Option<String> {
    const DEVICES: &str = "/sys/class/infiniband";
    let wanted = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    root.names(DEVICES).into_iter().find(|device| {
        let ports = format!("{DEVICES}/{device}/ports");
        root.names(&ports).iter().any(|port| {
            let gids = format!("{ports}/{port}/gids");
            let gid = |place: &String| root.read(&format!("{gids}/{place}"))?.parse::<Ipv6Addr>().ok();
            root.names(&gids).iter().filter_map(gid).any(|gid| gid == wanted)
        })
    })
}

/// What every binding by the kernel needs.
fn examine_provider(root: &Root, f: &mut Findings) {
    if !root.exists("/dev/loop-control") {
        f.missing("loop devices", "a lease is a range, and the kernel's target serves devices alone", "modprobe loop");
    }
    let bits = root.field("/proc/self/status", "CapEff").and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    let lacks = |bit: u32| bits.unwrap_or(0) >> bit & 1 == 0;
    if lacks(CAP_DAC_OVERRIDE) || lacks(CAP_SYS_ADMIN) {
        f.missing(
            "nvme provider",
            format!("{TARGET} and loop devices are root's"),
            "run as root; under systemd: install -D -m 644 /usr/share/doc/berth-common/examples/nvmet.conf -t \
             /etc/systemd/system/berth.service.d && systemctl daemon-reload",
        );
    } else {
        f.ok("nvme provider", "may configure the kernel's target");
    }
}
