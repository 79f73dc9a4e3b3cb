//! What the `[[gpu]]` of a configuration have to do with its ports and CPUs: whether all are on one NUMA node.

use berth_gpu::Choice;
use berth_ports::{Driver, sriov::Address};

use super::{DEVICES, Findings, Root, nvidias, path};
use crate::{
    config::{Config, Memory, Port},
    sys::cpu_list,
};

const NODES: &str = "/sys/devices/system/node";

/// Who uses a GPU, with the card that its frames come from and the CPUs that wait for the GPU.
struct User<'c> {
    name: String,
    nic: Option<String>,
    cpus: &'c [usize],
}

pub(in super::super) fn examine(root: &Root, config: &Config, f: &mut Findings) {
    let mut rows = Vec::new();
    for (index, gpu) in config.gpus.iter().enumerate() {
        let serves = |port: &&Port| {
            port.rpc()
                .is_some_and(|rpc| rpc.rings().any(|ring| matches!(ring.memory, Memory::Gpu(gpu, _) if gpu == index)))
        };
        for port in config.ports.iter().filter(serves) {
            let user = User { name: format!("port {}", port.name), nic: nic(root, &port.driver), cpus: &port.cpus };
            rows.push((&gpu.name, &gpu.device, user));
        }
    }
    if let Some(hip) = &config.hip {
        for (gpu, _, device) in &hip.devices {
            rows.push((gpu, device, User { name: "[hip]".into(), nic: None, cpus: &hip.cpus }));
        }
    }
    for (gpu, device, user) in rows {
        let what = format!("gpu {gpu} of {}", user.name);
        match device {
            Choice::Soft | Choice::Hip(_) => {}
            _ => match address(root, device) {
                Ok(address) => beside(root, what, &address, &user, f),
                Err(why) => f.warn(what, why, "lspci -Dd 10de: lists addresses; write one as its device"),
            },
        }
    }
}

/// The PCI address of the GPU that is meant; else why it is not known.
fn address(root: &Root, device: &Choice) -> Result<String, String> {
    let mut all = nvidias(root);
    let uuid = |address: &str| root.field(&format!("/proc/driver/nvidia/gpus/{address}/information"), "GPU UUID");
    match device {
        Choice::Auto if all.len() > 1 => return Err(format!("{device} is any of {}", all.join(", "))),
        Choice::Address(address) => all.retain(|one| *one == address.to_string()),
        Choice::Uuid(wanted) => all.retain(|one| uuid(one).is_some_and(|uuid| uuid.eq_ignore_ascii_case(wanted))),
        _ => {}
    }
    all.pop().ok_or_else(|| format!("no GPU of NVIDIA's is {device}"))
}

/// Whether all are on the GPU's node.
fn beside(root: &Root, what: String, gpu: &str, user: &User<'_>, f: &mut Findings) {
    let on = |node: Option<i64>| node.map_or("of a node that is not told".into(), |node| format!("on node {node}"));
    let near = path::node(root, gpu);
    let cpus: Vec<_> = user.cpus.iter().map(|cpu| (cpu, node_of(root, *cpu))).collect();
    let is_far = |(_, node): &&(_, Option<i64>)| node.is_some() && *node != near;
    let mut mend = near.filter(|_| cpus.iter().any(|cpu| is_far(&cpu))).map(|near| {
        let its = root.read(&format!("{NODES}/node{near}/cpulist")).unwrap_or_default();
        format!("give it CPUs of node {near}, which are {its}")
    });
    let mut found = vec![format!("{gpu} {}", on(near))];
    found.extend(cpus.iter().map(|(cpu, node)| format!("CPU {cpu} {}", on(*node))));
    if let Some(path) = user.nic.as_ref().and_then(|nic| path::between(root, gpu, nic)) {
        found.push(path.found);
        mend = path.mend.or(mend);
    }
    let found = found.join("; ");
    match mend {
        None => f.ok(what, found),
        Some(mend) => f.warn(what, found, mend),
    }
}

/// The NUMA node of a CPU.
fn node_of(root: &Root, cpu: usize) -> Option<i64> {
    let number = |name: &String| name.strip_prefix("node")?.parse().ok();
    let has =
        |node: &i64| cpu_list(&root.read(&format!("{NODES}/node{node}/cpulist")).unwrap_or_default()).contains(&cpu);
    root.names(NODES).iter().filter_map(number).find(has)
}

/// The address of the card behind a port, where its driver names one.
fn nic(root: &Root, driver: &Driver) -> Option<String> {
    let behind = |link: String| root.link_name(&link);
    match driver {
        Driver::Dpdk(dpdk) => {
            let (device, arguments) = dpdk.device.split_once(',').unwrap_or((&dpdk.device, ""));
            let iface = arguments.split(',').find_map(|argument| argument.strip_prefix("iface="));
            match (device.parse::<Address>(), iface) {
                (Ok(address), _) => Some(address.to_string()),
                (_, Some(iface)) => behind(format!("/sys/class/net/{iface}/device")),
                _ => None,
            }
        }
        Driver::Verbs(verbs) => behind(format!("/sys/class/infiniband/{}/device", verbs.device)),
        _ => None,
    }
    .filter(|address| root.exists(&format!("{DEVICES}/{address}")))
}
