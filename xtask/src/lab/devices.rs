//! Devices that a suite can ask for, as arguments of QEMU.

use anyhow::{Result, bail};

/// The names, and what each is.
const KINDS: &str = "iommu (VT-d), nvme (an empty disk), nvme-sriov (an SR-IOV NVMe controller), igb (an SR-IOV NIC), \
                     virtio-net-pair, virtio-net-mq-pair, vmxnet3-pair, e1000e-pair (two NICs on one wire)";

/// Queues of a NIC that has several.
const QUEUES: usize = 2;
/// The two NICs of such a pair are on a bridge of the host, as QEMU's own wires have one queue.
const MULTI_QUEUE: &str = "virtio-net-mq-pair";

/// QEMU's arguments for these devices. NICs have the MAC addresses 02:00:00:00:PAIR:NIC in the order of their names.
pub(super) fn arguments(names: &[String]) -> Result<Vec<String>> {
    let mut arguments = Vec::new();
    // Devices stand behind the IOMMU only when it is there first.
    if names.iter().any(|name| name == "iommu") {
        arguments.extend(["-device", "intel-iommu"].map(str::to_owned));
    }
    for (index, name) in names.iter().enumerate() {
        match name.as_str() {
            "iommu" => {}
            "igb" => {
                let (port, wire) = (format!("port{index}"), format!("wire{index}"));
                arguments.extend([
                    "-device".into(),
                    format!("pcie-root-port,id={port},slot={}", index + 1),
                    "-netdev".into(),
                    format!("user,id={wire},restrict=on"),
                    "-device".into(),
                    format!("igb,bus={port},netdev={wire},romfile=,{}", mac(index, 0)),
                ]);
            }
            "nvme" => {
                arguments.extend([
                    "-blockdev".into(),
                    format!("node-name=disk{index},driver=null-co,size=67108864,read-zeroes=on"),
                    "-device".into(),
                    format!("nvme,serial=lab{index},drive=disk{index}"),
                ]);
            }
            "nvme-sriov" => nvme_sriov(&mut arguments, index),
            "virtio-net-pair" => {
                pair(&mut arguments, index, "virtio-net-pci,iommu_platform=on,disable-legacy=on");
            }
            MULTI_QUEUE => {
                for nic in 0..2 {
                    arguments.extend([
                        "-netdev".into(),
                        format!("tap,id=wire{index}.{nic},ifname=lab{nic},queues={QUEUES},script=no,downscript=no"),
                        "-device".into(),
                        format!(
                            "virtio-net-pci,mq=on,vectors={},iommu_platform=on,disable-legacy=on,netdev=wire{index}.{nic},\
                             romfile=,{}",
                            2 * QUEUES + 2,
                            mac(index, nic)
                        ),
                    ]);
                }
            }
            "vmxnet3-pair" => pair(&mut arguments, index, "vmxnet3"),
            "e1000e-pair" => pair(&mut arguments, index, "e1000e"),
            unknown => bail!("there is no device {unknown:?}; there are {KINDS}"),
        }
    }
    Ok(arguments)
}

/// A controller with four functions, which share eight queues and four interrupts, and a subsystem of three namespaces: the
/// controller has the first, nobody the others.
fn nvme_sriov(arguments: &mut Vec<String>, index: usize) {
    let device = |what: String| ["-device".to_owned(), what];
    arguments.extend(device(format!("pcie-root-port,id=port{index},slot={}", index + 1)));
    arguments.extend(device(format!("nvme-subsys,id=subsys{index},nqn=lab{index}")));
    arguments.extend(device(format!(
        "nvme,id=nvme{index},serial=lab{index},bus=port{index},subsys=subsys{index},sriov_max_vfs=4,\
         sriov_vq_flexible=8,sriov_vi_flexible=4,max_ioqpairs=10,msix_qsize=9"
    )));
    for namespace in 1..=3 {
        // What is written is kept in a temporary file, which is gone with QEMU.
        let disk = format!("disk{index}.{namespace}");
        arguments.extend([
            "-drive".to_owned(),
            format!(
                "if=none,id={disk},driver=raw,file.driver=null-co,file.size=16777216,file.read-zeroes=on,snapshot=on"
            ),
        ]);
        // One that is shared and not detached would be every controller's as soon as that is enabled.
        let has = if namespace == 1 { "shared=off" } else { "detached=on" };
        arguments.extend(device(format!("nvme-ns,bus=nvme{index},drive={disk},nsid={namespace},{has}")));
    }
}

/// What sets up on the host the bridge and the NICs' ends of it, in a network namespace that ends with QEMU.
const BRIDGE: &str = "ip link add wire type bridge forward_delay 0 mcast_snooping 0 && ip link set wire up && \
                      for nic in lab0 lab1; do ip tuntap add $nic mode tap multi_queue && \
                      ip link set $nic master wire up || exit; done && exec \"$@\"";

/// The head of a command line, which sets up what the devices need of the host before it goes on with the rest.
pub(super) fn prefix(names: &[String]) -> &'static [&'static str] {
    let bridged = names.iter().any(|name| name == MULTI_QUEUE);
    if bridged { &["unshare", "--net", "sh", "-c", BRIDGE, "sh"] } else { &[] }
}

/// Two NICs of one model on a hub of their own.
fn pair(arguments: &mut Vec<String>, index: usize, model: &str) {
    for nic in 0..2 {
        arguments.extend([
            "-netdev".into(),
            format!("hubport,id=wire{index}.{nic},hubid={index}"),
            "-device".into(),
            format!("{model},netdev=wire{index}.{nic},romfile=,{}", mac(index, nic)),
        ]);
    }
}

fn mac(index: usize, nic: usize) -> String {
    format!("mac=02:00:00:00:{index:02x}:{nic:02x}")
}
