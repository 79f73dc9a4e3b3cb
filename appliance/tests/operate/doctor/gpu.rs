//! Rows of GPUs.

use std::{fs, os::unix::fs::symlink, path::Path};

use berth::{
    config::{self, Config, Host},
    doctor::{Finding, Status, examine, examine_gpus},
};

use super::{bind, find, tuned, write};

const GPU: &str = "0000:3d:00.0";

/// A host of two sockets with a GPU and a network card below one switch, and another card at the other socket.
fn switched() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let switch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    for (at, address, vendor, class, node) in [
        ("pci0000:80/0000:80:01.0", "0000:81:00.0", "0x15b3", "0x020000", 1),
        (&format!("{switch}/0000:3c:00.0"), GPU, "0x10de", "0x030200", 0),
        (&format!("{switch}/0000:3c:01.0"), "0000:3e:00.0", "0x15b3", "0x020000", 0),
    ] {
        let path = format!("/sys/devices/{at}/{address}");
        for (name, text) in
            [("vendor", vendor.to_owned()), ("class", class.to_owned()), ("numa_node", node.to_string())]
        {
            write(root, &format!("{path}/{name}"), &text);
        }
        add(root, &path);
    }
    for (path, bridge) in [
        ("pci0000:3a", "0000:3a:00.0"),
        ("pci0000:3a/0000:3a:00.0", "0000:3b:00.0"),
        (switch, "0000:3c:00.0"),
        (switch, "0000:3c:01.0"),
    ] {
        add(root, &format!("/sys/devices/{path}/{bridge}"));
        acs(root, bridge, 0);
    }
    write(root, "/sys/class/net/eth0/flags", "0x1003\n");
    write(root, &format!("/sys/devices/{switch}/0000:3c:01.0/0000:3e:00.0/net/eth0/x"), "");
    write(root, "/sys/devices/system/node/node0/cpulist", "0-3\n");
    write(root, "/sys/devices/system/node/node1/cpulist", "4-7\n");
    folder
}

/// Has the bus name a device.
fn add(root: &Path, path: &str) {
    let (path, devices) = (root.join(&path[1..]), root.join("sys/bus/pci/devices"));
    fs::create_dir_all(&devices).unwrap();
    symlink(&path, devices.join(path.file_name().unwrap())).unwrap();
}

/// A bridge's configuration space with this ACS control register, behind another capability.
fn acs(root: &Path, bridge: &str, control: u16) {
    let mut space = [0; 4096];
    // Advanced error reporting, version 2, and the next one at 0x148: ACS, version 1.
    space[0x100..0x104].copy_from_slice(&(0x148 << 20 | 2 << 16 | 1_u32).to_le_bytes());
    space[0x148..0x14c].copy_from_slice(&(1 << 16 | 0xD_u32).to_le_bytes());
    space[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
    fs::write(root.join("sys/bus/pci/devices").join(bridge).join("config"), space).unwrap();
}

/// Puts a device into an IOMMU group of this mode.
fn translate(root: &Path, address: &str, mode: &str) {
    write(root, &format!("/sys/kernel/iommu_groups/{address}/type"), mode);
    let link = root.join("sys/bus/pci/devices").join(address).join("iommu_group");
    let _ = fs::remove_file(&link);
    symlink(root.join("sys/kernel/iommu_groups").join(address), link).unwrap();
}

fn told(findings: &[Finding], what: &str) -> (String, Option<String>) {
    let Finding { found, mend, .. } = find(findings, what).clone();
    (found, mend)
}

#[test]
fn the_way_from_a_gpu_to_the_nearest_card() {
    let folder = switched();
    let root = folder.path();
    let path = || told(&examine(root, &[]), "gpu 0000:3d:00.0 path");
    let switch = "to 0000:3e:00.0 (eth0): one switch, below 0000:3b:00.0, ";
    assert_eq!(path(), (format!("{switch}which ACS does not keep apart; no IOMMU"), None));

    translate(root, GPU, "identity\n");
    assert_eq!(path(), (format!("{switch}which ACS does not keep apart; the IOMMU passes through"), None));
    translate(root, "0000:3e:00.0", "DMA-FQ\n");
    let (found, mend) = path();
    assert!(found.ends_with("; the IOMMU's mode is DMA-FQ for 0000:3e:00.0"), "{found}");
    assert_eq!(mend.as_deref(), Some("boot with iommu=pt"));
    // What vfio-pci has is mapped as its user says.
    symlink(root.join("sys/bus/pci/drivers/vfio-pci"), root.join("sys/bus/pci/devices/0000:3e:00.0/driver")).unwrap();
    assert_eq!(path().1, None);
    assert!(path().0.ends_with("; the IOMMU's mode is vfio-pci's for 0000:3e:00.0"), "{:?}", path());
    translate(root, GPU, "DMA\n");
    assert_eq!(path().1.as_deref(), Some("boot with iommu=pt"));
    translate(root, GPU, "identity\n");

    // Source validation and upstream forwarding redirect nothing; requests and completions are bits 2 and 3.
    acs(root, "0000:3c:00.0", 0b1_0001);
    assert_eq!(path().1, None);
    acs(root, "0000:3c:01.0", 0b1000);
    acs(root, "0000:3c:00.0", 0b0100);
    // That of the switch itself is not on the way.
    acs(root, "0000:3a:00.0", 0b1100);
    let (found, mend) = path();
    assert!(found.contains("ACS of 0000:3c:00.0 and 0000:3c:01.0 sends packets up to the processor first"), "{found}");
    assert!(mend.unwrap().starts_with("boot with pci=disable_acs_redir=0000:3c:00.0;0000:3c:01.0, "));
    // Others than root read 64 bytes; a bridge without extended capabilities has no ACS; a list that has no end ends.
    let config =
        |bridge: &str, bytes: &[u8]| fs::write(root.join("sys/bus/pci/devices").join(bridge).join("config"), bytes);
    config("0000:3c:01.0", &[0; 256]).unwrap();
    config("0000:3c:00.0", &[0; 64]).unwrap();
    let told = (
        format!("{switch}ACS is told to root alone; the IOMMU's mode is vfio-pci's for 0000:3e:00.0"),
        Some("run berth doctor as root".into()),
    );
    assert_eq!(path(), told);
    let mut endless = [0; 4096];
    endless[0x100..0x104].copy_from_slice(&(0x100 << 20 | 1_u32).to_le_bytes());
    config("0000:3c:00.0", &endless).unwrap();
    assert_eq!(path().1, None);

    // The card of the other socket is left.
    fs::remove_file(root.join("sys/bus/pci/devices/0000:3e:00.0")).unwrap();
    let mend = "move the GPU or the card to a slot of the other one's socket";
    let far = "to 0000:81:00.0: from node 0 to node 1, between sockets; the IOMMU passes through";
    assert_eq!(path(), (far.to_owned(), Some(mend.to_owned())));
    write(root, "/sys/bus/pci/devices/0000:81:00.0/numa_node", "-1\n");
    assert_eq!(path(), (far.replace("from node 0 to node 1, between sockets", "through two root complexes"), None));
    symlink("..", root.join("sys/bus/pci/devices/0000:81:00.0/physfn")).unwrap();
    assert_eq!(path(), ("no network card; the IOMMU passes through".to_owned(), None));
}

/// A configuration of a port whose functions run on a GPU.
fn served(device: &str, nic: &str, cpus: &str) -> Config {
    parse(&format!(
        "[[gpu]]\nname = \"g\"\ndevice = \"{device}\"\n\
         [[port]]\nname = \"a\"\n{nic}\ncpus = {cpus}\n\
         [port.rpc]\ndispatch = \"gpu\"\ngpu = \"g\"\n\
         [[function]]\nname = \"f\"\nhandler = \"builtin:rpc_increment\"\n"
    ))
}

fn parse(text: &str) -> Config {
    let host = Host {
        cpus: (0..8).collect(),
        has_feature: |_| true,
        is_file: Path::is_file,
        is_public: |_| false,
        read: |path| fs::read_to_string(path),
    };
    config::parse(text, Path::new("berth.toml"), &host).unwrap_or_else(|e| panic!("{e:?}")).config
}

#[test]
fn a_gpu_is_compared_with_the_ports_and_cpus_that_use_it() {
    let folder = switched();
    let root = folder.path();
    let dpdk =
        |device: &str| format!("driver = \"dpdk\"\ndevice = \"{device}\"\naddress = \"10.0.0.1/24\"\nudp_port = 5000");
    let row = |device: &str, nic: &str, cpus: &str| {
        let findings = examine_gpus(root, &served(device, nic, cpus));
        let Finding { status, found, mend, .. } = find(&findings, "gpu g of port a").clone();
        (status == Status::Ok, found, mend.unwrap_or_default())
    };
    let near = "to 0000:3e:00.0 (eth0): one switch, below 0000:3b:00.0, which ACS does not keep apart; no IOMMU";
    let found = format!("{GPU} on node 0; CPU 2 on node 0; CPU 3 on node 0; {near}");
    for device in [GPU, "auto"] {
        assert_eq!(row(device, &dpdk("0000:3e:00.0"), "[2, 3]"), (true, found.clone(), String::new()));
    }
    let (_, found, mend) = row(GPU, &dpdk("0000:3e:00.0,txq_inline_max=0"), "[2, 5]");
    assert!(found.contains("; CPU 2 on node 0; CPU 5 on node 1; to 0000:3e:00.0 "), "{found}");
    assert_eq!(mend, "give it CPUs of node 0, which are 0-3");
    let (ok, found, mend) = row(GPU, &dpdk("0000:81:00.0"), "[2]");
    assert!(!ok && found.contains("to 0000:81:00.0: from node 0 to node 1, between sockets"), "{found}");
    assert_eq!(mend, "move the GPU or the card to a slot of the other one's socket");
    // By its interface, by its RDMA device; a socket names no card.
    symlink(root.join("sys/bus/pci/devices/0000:3e:00.0"), root.join("sys/class/net/eth0/device")).unwrap();
    assert!(row(GPU, &dpdk("net_af_xdp0,iface=eth0"), "[2]").1.ends_with(near));
    write(root, "/sys/class/infiniband/mlx5_0/x", "");
    symlink(root.join("sys/bus/pci/devices/0000:3e:00.0"), root.join("sys/class/infiniband/mlx5_0/device")).unwrap();
    let verbs = "driver = \"verbs\"\ndevice = \"mlx5_0\"\nrendezvous = \"127.0.0.1:0\"";
    assert!(row(GPU, verbs, "[2]").1.ends_with(near));
    let udp = "driver = \"udp\"\nbind = \"127.0.0.1:0\"";
    assert_eq!(row(GPU, udp, "[2]").1, format!("{GPU} on node 0; CPU 2 on node 0"));

    // By its UUID, which the driver tells.
    let uuid = "GPU-11000000-0000-0000-0000-000000000000";
    assert_eq!(row(uuid, udp, "[2]").1, format!("no GPU of NVIDIA's is {uuid}"));
    write(root, &format!("/proc/driver/nvidia/gpus/{GPU}/information"), &format!("Model: A\nGPU UUID: \t {uuid}\n"));
    assert!(row(uuid, udp, "[2]").0);
    assert_eq!(row("0000:99:00.0", udp, "[2]").1, "no GPU of NVIDIA's is 0000:99:00.0");
    for (name, text) in [("vendor", "0x10de"), ("class", "0x030200")] {
        write(root, &format!("/sys/bus/pci/devices/0000:99:00.0/{name}"), text);
    }
    let (_, found, mend) = row("auto", udp, "[2]");
    assert_eq!(found, "auto is any of 0000:3d:00.0, 0000:99:00.0");
    assert_eq!(mend, "lspci -Dd 10de: lists addresses; write one as its device");
    assert_eq!(examine_gpus(root, &served("soft", udp, "[2]")), []);

    // Sessions of HIP Remote wait on CPUs of their own.
    let sessions = parse(&format!(
        "[node]\nstate_dir = \"state\"\n[control]\nudp = \"127.0.0.1:0\"\n\
         [[gpu]]\nname = \"h\"\ndevice = \"{GPU}\"\nuse = \"hip\"\n\
         [hip]\nlisten = \"127.0.0.1:0\"\ncpus = [7]\n[[hip.device]]\ngpu = \"h\"\n"
    ));
    let row = told(&examine_gpus(root, &sessions), "gpu h of [hip]");
    let mend = "give it CPUs of node 0, which are 0-3".to_owned();
    assert_eq!(row, (format!("{GPU} on node 0; CPU 7 on node 1"), Some(mend)));
}

#[test]
fn xids_are_read_from_the_kernels_log() {
    let folder = switched();
    let root = folder.path();
    let xids = || told(&examine(root, &[]), "gpu 0000:3d:00.0 xids");
    write(root, "/dev/kmsg", "5,0,0,-;Linux version 6.12\n SUBSYSTEM=pci\n");
    assert_eq!(xids(), ("none in the kernel's log".to_owned(), None));
    let log = |lines: &[&str]| write(root, "/dev/kmsg", &lines.join("\n"));
    let lost =
        "3,1042,5999999,-;NVRM: Xid (PCI:0000:3D:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";
    let fault = "4,1041,4000000,-;NVRM: Xid (PCI:0000:3d:00): 31, pid=41, name=worker, Ch 00000008";
    log(&[fault, lost]);
    let found = "79: the card is gone from the bus; 5 s after the start, the last of 2";
    assert_eq!(xids(), (found.to_owned(), Some("restart the host; see to slot, power and cooling".to_owned())));
    log(&["3,1043,7000000,-;NVRM: Xid (PCI:0000:3d:00 GPU-I:05): 94, pid=7, name=worker, Contained"]);
    assert!(xids().0.starts_with("94: a memory error that one process had; 7 s "), "an instance's: {:?}", xids());
    log(&[lost, fault, ""]);
    assert!(
        xids().0.starts_with("31: a kernel's access to memory that is not mapped; 4 s "),
        "{xids:?}",
        xids = xids()
    );
    for (number, mend) in [
        (13, "a mistake of the kernel; on several kernels: dcgmi diag -r 3"),
        (48, "nvidia-smi --gpu-reset; again: replace the card"),
        (63, "nvidia-smi --gpu-reset, which replaces it"),
        (64, "nvidia-smi --gpu-reset; again: replace the card"),
        (94, "nvidia-smi --gpu-reset when the GPU is idle"),
        (95, "nvidia-smi --gpu-reset"),
        (119, "nvidia-smi --gpu-reset, else a restart; update the driver"),
        (4711, "nvidia-smi -q; dcgmi diag -r 3"),
    ] {
        log(&[&lost.replace("79", &number.to_string())]);
        assert_eq!(xids().1.as_deref(), Some(mend), "{number}");
    }
    // What a program wrote, another card's, and what is none.
    let long = "x".repeat(100_000);
    let others = [
        &lost.replace("3,1042", "11,1042"),
        &lost.replace("3D", "3E"),
        "3,1,1,-;NVRM: Xid (PCI:): 79, ",
        "3,1,1,-;NVRM: Xid (PCI:0000:3d:00): 99999999999, ",
        "3,1,;NVRM: Xid (PCI:0000:3d:00): 79, ",
        ";",
        &long,
    ];
    log(&others);
    assert_eq!(xids().1, None);
    // This host's own log, which ends, too, and gives one record at a time.
    fs::remove_file(root.join("dev/kmsg")).unwrap();
    symlink("/dev/kmsg", root.join("dev/kmsg")).unwrap();
    let findings = examine(root, &[]);
    let found = &findings.iter().find(|finding| finding.what.ends_with(" xids")).unwrap().found;
    assert!(!found.contains("Invalid argument") && !found.contains("unavailable"), "{found}");
}

#[test]
fn the_unit_lets_device_nodes_in_or_not() {
    const WHAT: &str = "gpu device nodes of the unit";
    let folder = switched();
    let root = folder.path();
    let row = || told(&examine(root, &[]), WHAT);
    assert!(examine(root, &[]).iter().all(|finding| finding.what != WHAT), "nothing is installed");
    write(root, "/usr/lib/systemd/system/berth.service", include_str!("../../../../systemd/berth.service"));
    let fine = ("berth.service lets them in".to_owned(), None);
    assert_eq!(row(), fine, "a unit without DeviceAllow= closes nothing");
    let sandbox = "/usr/lib/systemd/system/berth.service.d/10-sandbox.conf";
    write(root, sandbox, include_str!("../../../../systemd/10-sandbox.conf"));
    for node in ["nvidia0", "nvidia7", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-caps/nvidia-cap1"] {
        write(root, &format!("/dev/{node}"), "");
    }
    assert_eq!(row(), fine);
    let mend = Some("systemctl edit berth: [Service] DeviceAllow=char-nvidia* rw".to_owned());
    let all = "berth.service lets in no /dev/nvidia-caps/nvidia-cap1, /dev/nvidia-uvm, /dev/nvidia-uvm-tools, /dev/nvidia0, \
               /dev/nvidia7, /dev/nvidiactl";
    let drop_in = |name: &str, text: &str| write(root, &format!("/etc/systemd/system/berth.service.d/{name}"), text);
    drop_in("20-gpu.conf", "[Service]\nDeviceAllow=\n");
    assert_eq!(row(), (all.to_owned(), mend.clone()));
    drop_in("20-gpu.conf", "[Service]\nDeviceAllow=\nDeviceAllow=char-nvidia rw\nDeviceAllow=char-nvidia-uvm\n");
    assert_eq!(row(), ("berth.service lets in no /dev/nvidia-caps/nvidia-cap1".to_owned(), mend.clone()));
    // What the groups are called depends on the driver's version.
    for (groups, found) in [
        ("195 nvidia\n195 nvidiactl\n", "/dev/nvidia-caps/nvidia-cap1, /dev/nvidiactl"),
        ("195 nvidia-frontend\n", "/dev/nvidia-caps/nvidia-cap1, /dev/nvidia0, /dev/nvidia7, /dev/nvidiactl"),
    ] {
        write(root, "/proc/devices", groups);
        assert_eq!(row().0, format!("berth.service lets in no {found}"));
    }
    write(root, "/proc/devices", "");
    drop_in(
        "20-gpu.conf",
        "DeviceAllow=\nDeviceAllow = /dev/nvidia0 rw\nDeviceAllow=char-nvidia-* r\nDeviceAllow=char-nv?dia rw\n",
    );
    assert!(row().0.contains("no /dev/nvidia-caps/nvidia-cap1, /dev/nvidia-uvm, /dev/nvidia-uvm-tools"), "{:?}", row());
    drop_in("20-gpu.conf", "PrivateDevices=yes\n");
    let private = Some("systemctl edit berth: [Service] PrivateDevices=no".to_owned());
    assert_eq!(row(), (format!("{all}: PrivateDevices="), private));
    drop_in("20-gpu.conf", "");
    // A drop-in of the operator's stands for the one of this name that is installed.
    drop_in("10-sandbox.conf", "DevicePolicy=closed\n");
    assert_eq!(row(), (all.to_owned(), mend));
}

#[test]
fn the_kernels_module_and_mps() {
    let folder = switched();
    let root = folder.path();
    let row = |what: &str| told(&examine(root, &[]), what);
    write(root, "/sys/module/nvidia/version", "550.54.15\n");
    assert_eq!(row("nvidia driver").0, "module nvidia 550.54.15");
    let version = "/proc/driver/nvidia/version";
    write(root, version, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n");
    assert_eq!(row("nvidia driver").0, "module nvidia 550.54.15, the proprietary one");
    assert!(row("nvidia-peermem").1.is_some());
    write(root, version, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n");
    assert_eq!(row("nvidia driver").0, "module nvidia 550.54.15, the open one");
    assert_eq!(row("nvidia-peermem"), ("not loaded: the open module gives verbs devices dma-bufs".to_owned(), None));

    assert_eq!(row("mps"), ("does not run".to_owned(), None));
    let mend = Some("echo quit | nvidia-cuda-mps-control".to_owned());
    write(root, "/tmp/nvidia-mps/control", "");
    let hidden = "there is its pipe /tmp/nvidia-mps/control, and no process that can be seen";
    assert_eq!(row("mps"), (hidden.to_owned(), mend.clone()));
    write(root, "/proc/41/comm", "nvidia-cuda-mps\n");
    write(root, "/proc/42/comm", "nvidia-persiste\n");
    let runs = "runs, as 41: workers do not reach it, and wait while its clients run";
    assert_eq!(row("mps"), (runs.to_owned(), mend));
}

#[test]
fn gpus_and_what_their_driver_lacks() {
    let folder = tuned();
    let root = folder.path();
    assert_eq!(find(&examine(root, &[]), "gpu soft").status, Status::Ok);
    assert!(examine(root, &[]).iter().all(|finding| !finding.what.contains("nvidia")), "no card, no driver is missed");
    let pci = root.join("sys/devices/pci0");
    for (path, text) in [
        ("vendor", "0x10de\n"),
        ("class", "0x030200\n"),
        ("device", "0x2330\n"),
        ("numa_node", "1\n"),
        ("current_link_width", "8\n"),
        ("current_link_speed", "32.0 GT/s PCIe\n"),
        ("max_link_width", "16\n"),
        ("max_link_speed", "32.0 GT/s PCIe\n"),
        (
            "resource",
            "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n\
             0x0000020000000000 0x0000021fffffffff 0x000000000014220c\n",
        ),
    ] {
        write(root, &format!("/sys/devices/pci0/0000:41:00.0/{path}"), text);
    }
    symlink(pci.join("0000:41:00.0"), root.join("sys/bus/pci/devices/0000:41:00.0")).unwrap();
    let findings = examine(root, &[]);
    let card = find(&findings, "gpu 0000:41:00.0");
    assert_eq!(card.found, "10de:2330, no driver, node 1, BAR1 131072 MiB, PCIe x8 at 32.0 GT/s PCIe");
    assert_eq!(card.mend.as_deref(), Some("modprobe nvidia"));
    assert!(find(&findings, "gpu xids").found.starts_with("/dev/kmsg: No such file"));
    for (what, mend) in [
        ("nvidia driver", "apt-get install nvidia-driver && modprobe nvidia"),
        ("libcuda", "apt-get install libcuda1"),
        ("gpu device nodes", "nvidia-modprobe -c 0 -u"),
        ("nvidia-peermem", "modprobe nvidia-peermem, or a driver and a card with dma-buf"),
    ] {
        assert_eq!(find(&findings, what).mend.as_deref(), Some(mend));
    }

    for (path, text) in [
        ("/sys/drivers/nvidia/x", ""),
        ("/sys/module/nvidia/version", "550.54.15\n"),
        ("/sys/module/nvidia_peermem/refcnt", "0\n"),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", ""),
        ("/dev/nvidiactl", ""),
        ("/dev/nvidia0", ""),
        ("/dev/kmsg", ""),
        ("/sys/module/gdrdrv/refcnt", "0\n"),
        ("/proc/driver/nvidia/gpus/0000:41:00.0/information", "Model: \t\t NVIDIA H100 PCIe\nIRQ: 1\n"),
    ] {
        write(root, path, text);
    }
    bind(root, "0000:41:00.0", "nvidia");
    let findings = examine(root, &[]);
    let card = find(&findings, "gpu 0000:41:00.0");
    assert!(
        card.found.starts_with("NVIDIA H100 PCIe, bound to nvidia, ") && card.found.ends_with(", of x16"),
        "{card:?}"
    );
    assert_eq!(find(&findings, "gpu device nodes").found, "missing: /dev/nvidia-uvm");
    assert_eq!(find(&findings, "nvidia driver").found, "module nvidia 550.54.15");
    write(root, "/dev/nvidia-uvm", "");
    write(root, "/sys/devices/pci0/0000:41:00.0/current_link_width", "16\n");
    let findings = examine(root, &[]);
    let gdrdrv = "loaded, and not used: memory = \"vram\" has the CPU map dma-bufs";
    assert_eq!(find(&findings, "gdrdrv").found, gdrdrv);
    let names = ["gpu", "nvidia", "gdrdrv", "mps"];
    let open = findings.iter().filter(|finding| names.iter().any(|name| finding.what.contains(name)));
    assert!(open.clone().count() == 9 && open.clone().all(|finding| finding.mend.is_none()), "{findings:#?}");
    // Of several, each has the node of its number.
    let information = "Model: \t\t NVIDIA H100 PCIe\nDevice Minor: \t 3\n";
    write(root, "/proc/driver/nvidia/gpus/0000:41:00.0/information", information);
    for (name, text) in [("vendor", "0x10de"), ("class", "0x030200")] {
        write(root, &format!("/sys/bus/pci/devices/0000:44:00.0/{name}"), text);
    }
    let missing = told(&examine(root, &[]), "gpu device nodes");
    assert_eq!(missing, ("missing: /dev/nvidia3".to_owned(), Some("nvidia-modprobe -c 0 -c 3 -u".to_owned())));
}

#[test]
fn amd_gpus_and_what_hip_lacks() {
    let folder = tuned();
    let root = folder.path();
    assert!(examine(root, &[]).iter().all(|finding| !finding.what.contains("amd")), "no card, nothing is missed");
    for (path, text) in [("vendor", "0x1002\n"), ("class", "0x120000\n"), ("device", "0x74a1\n"), ("numa_node", "1\n")]
    {
        write(root, &format!("/sys/devices/pci0/0000:43:00.0/{path}"), text);
    }
    let pci = root.join("sys/devices/pci0");
    symlink(pci.join("0000:43:00.0"), root.join("sys/bus/pci/devices/0000:43:00.0")).unwrap();
    let findings = examine(root, &[]);
    let card = find(&findings, "gpu 0000:43:00.0");
    assert_eq!((&*card.found, card.mend.as_deref()), ("1002:74a1, no driver, node 1", Some("modprobe amdgpu")));
    assert_eq!(find(&findings, "libamdhip64").mend.as_deref(), Some("apt-get install libamdhip64-5"));
    assert_eq!(find(&findings, "amd device nodes").status, Status::Warn);
    write(root, "/opt/rocm/lib/libamdhip64.so.6", "");
    write(root, "/dev/kfd", "");
    let findings = examine(root, &[]);
    assert_eq!(find(&findings, "libamdhip64").found, "/opt/rocm/lib/libamdhip64.so.6");
    assert_eq!(find(&findings, "amd device nodes").status, Status::Ok);
}
