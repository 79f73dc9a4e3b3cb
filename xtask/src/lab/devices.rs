//! Devices that a suite can ask for, as arguments of QEMU.

use anyhow::{Result, bail};

/// The names, and what each is.
const KINDS: &str = "iommu (VT-d), nvme (an empty disk), igb (an SR-IOV NIC), virtio-net-pair, vmxnet3-pair, \
                     e1000e-pair (two NICs on one wire)";

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
            "virtio-net-pair" => {
                pair(&mut arguments, index, "virtio-net-pci,iommu_platform=on,disable-legacy=on");
            }
            "vmxnet3-pair" => pair(&mut arguments, index, "vmxnet3"),
            "e1000e-pair" => pair(&mut arguments, index, "e1000e"),
            unknown => bail!("there is no device {unknown:?}; there are {KINDS}"),
        }
    }
    Ok(arguments)
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
