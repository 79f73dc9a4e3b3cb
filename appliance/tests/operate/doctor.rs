//! `berth doctor` against a host made of files.

mod gpu;

use std::{fs, net::TcpListener, os::unix::fs::symlink, path::Path, process::Command};

use berth::{
    config::{Backing, Binding, Kind, Region},
    doctor::{Finding, Status, examine, examine_bindings, table},
};
use berth_engine::Idle;
use berth_ports::{
    KernelNvme, Nvme,
    nvme::Auth,
    sriov::{Card, PoolConfig},
};

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A server tuned for polling, with one NIC taken by DPDK and one left to the kernel.
fn tuned() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (path, text) in [
        ("/sys/devices/system/cpu/online", "0-7\n"),
        ("/sys/devices/system/cpu/isolated", "2-7\n"),
        ("/sys/devices/system/cpu/nohz_full", "2-7\n"),
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
        ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
        ("/sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0\n"),
        ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6\n"),
        ("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "133\n"),
        ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n"),
        ("/sys/devices/system/cpu/smt/active", "0\n"),
        ("/proc/sys/kernel/sched_rt_runtime_us", "-1\n"),
        ("/dev/cpu_dma_latency", ""),
        ("/sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages", "500\n"),
        ("/sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages", "12\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1024\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512\n"),
        ("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "4\n"),
        ("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "4\n"),
        ("/proc/self/limits", "Limit  Soft Hard Units\nMax locked memory         unlimited  unlimited  bytes\n"),
        ("/proc/self/status", "Name:\tberth\nCapEff:\t000001ffffffffff\nCpus_allowed_list:\t0-7\n"),
        ("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n"),
        ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
        ("/sys/class/ptp/ptp0/clock_name", "mlx5_ptp\n"),
        ("/proc/sys/kernel/io_uring_disabled", "0\n"),
        ("/sys/kernel/iommu_groups/0/type", "DMA\n"),
        ("/sys/bus/pci/drivers/vfio-pci/bind", ""),
        ("/usr/lib/x86_64-linux-gnu/librte_eal.so.23", ""),
        ("/sys/devices/pci0/0000:3b:00.0/class", "0x020000\n"),
        ("/sys/devices/pci0/0000:3b:00.0/numa_node", "1\n"),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/operstate", "up\n"),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/speed", "100000\n"),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/queues/rx-0/x", ""),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/queues/rx-1/x", ""),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/queues/tx-0/x", ""),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/flags", "0x1003\n"),
        ("/sys/devices/pci0/0000:3b:00.0/vendor", "0x15b3\n"),
        ("/sys/devices/pci0/0000:3b:00.0/device", "0x1017\n"),
        ("/sys/devices/pci0/0000:3b:00.1/class", "0x020000\n"),
        ("/sys/devices/pci0/0000:3b:00.1/vendor", "0x8086\n"),
        ("/sys/devices/pci0/0000:3b:00.1/device", "0x1533\n"),
        ("/sys/drivers/mlx5_core/x", ""),
        ("/sys/drivers/igb/x", ""),
        ("/sys/drivers/vfio-pci/x", ""),
        ("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0102\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gids/4", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3", "RoCE v2\n"),
        ("/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n"),
        ("/dev/infiniband/uverbs0", ""),
        ("/sys/module/nvme_tcp/refcnt", "0\n"),
        ("/sys/module/nvmet/refcnt", "2\n"),
        ("/sys/module/nvmet_rdma/refcnt", "1\n"),
        ("/sys/kernel/config/nvmet/ports/48640/addr_trtype", "rdma\n"),
        ("/sys/kernel/config/nvmet/ports/48640/addr_traddr", "10.0.1.2\n"),
        ("/sys/kernel/config/nvmet/ports/48640/addr_trsvcid", "4420\n"),
        ("/sys/kernel/config/nvmet/ports/48640/subsystems/nqn.a/x", ""),
        ("/sys/kernel/config/nvmet/ports/48641/addr_trtype", "loop\n"),
        ("/dev/loop-control", ""),
        ("/sys/class/net/lo/operstate", "unknown\n"),
        ("/sys/bus/pci/devices/.keep", ""),
    ] {
        write(root, path, text);
    }
    let pci = root.join("sys/devices/pci0");
    symlink(pci.join("0000:3b:00.0"), pci.join("0000:3b:00.0/net/eth0/device")).unwrap();
    symlink(root.join("sys/drivers/mlx5_core"), pci.join("0000:3b:00.0/driver")).unwrap();
    symlink(root.join("sys/drivers/vfio-pci"), pci.join("0000:3b:00.1/driver")).unwrap();
    symlink(pci.join("0000:3b:00.0/net/eth0"), root.join("sys/class/net/eth0")).unwrap();
    for address in ["0000:3b:00.0", "0000:3b:00.1"] {
        symlink(pci.join(address), root.join("sys/bus/pci/devices").join(address)).unwrap();
    }
    join_group(root, "0000:3b:00.1", "7");
    folder
}

/// Puts a PCI device into an IOMMU group.
fn join_group(root: &Path, address: &str, group: &str) {
    let devices = root.join("sys/kernel/iommu_groups").join(group).join("devices");
    fs::create_dir_all(&devices).unwrap();
    symlink(root.join("sys/devices/pci0").join(address), devices.join(address)).unwrap();
    let link = root.join("sys/devices/pci0").join(address).join("iommu_group");
    let _ = fs::remove_file(&link);
    symlink(devices.parent().unwrap(), link).unwrap();
}

/// Gives a PCI device this driver.
fn bind(root: &Path, address: &str, driver: &str) {
    let link = root.join("sys/devices/pci0").join(address).join("driver");
    let _ = fs::remove_file(&link);
    symlink(root.join("sys/drivers").join(driver), link).unwrap();
}

fn find<'f>(findings: &'f [Finding], what: &str) -> &'f Finding {
    findings.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {findings:#?}"))
}

#[test]
fn a_tuned_host_has_nothing_to_mend() {
    let findings = examine(tuned().path(), &[]);
    let open: Vec<_> =
        findings.iter().filter(|finding| finding.mend.is_some() && finding.what != "dpdk driver").collect();
    assert!(open.is_empty(), "{open:#?}");
    assert_eq!(find(&findings, "cpus").found, "8 online, this process may use 8");
    assert_eq!(find(&findings, "c-states").found, "deepest is POLL, 0 us to leave");
    assert_eq!(find(&findings, "hugepages 2M").found, "512 free of 1024 (node0 500, node1 12)");
    assert_eq!(find(&findings, "ptp").found, "/dev/ptp0 mlx5_ptp");
    assert_eq!(
        find(&findings, "nic eth0").found,
        "driver mlx5_core, 0000:3b:00.0, 2 rx queues, 100000 Mb/s, node 1, native XDP likely, link up"
    );
    assert_eq!(
        find(&findings, "dpdk 0000:3b:00.0").found,
        "15b3:1017, bound to mlx5_core, which shares it with DPDK: a port with device = \"0000:3b:00.0\" can have it"
    );
    assert_eq!(
        find(&findings, "dpdk 0000:3b:00.1").found,
        "8086:1533, bound to vfio-pci, IOMMU group 7: a port with device = \"0000:3b:00.1\" can have it"
    );
    assert!(findings.iter().all(|finding| finding.what != "nic lo"));
    assert_eq!(
        find(&findings, "rdma mlx5_0 port 1").found,
        "Ethernet, ACTIVE, 100 Gb/sec (4X EDR), gid 0 fe80::ff:fe00:1 (RoCE v2), gid 3 ::ffff:10.0.1.2 (RoCE v2)"
    );
}

#[test]
fn nvme_targets_and_modules_are_reported() {
    let folder = tuned();
    let root = folder.path();
    let target = || find(&examine(root, &[]), "nvme target").clone();
    assert_eq!(target().found, "rdma 10.0.1.2:4420 with 1 subsystems, loop with 0 subsystems");
    fs::remove_dir_all(root.join("sys/kernel/config/nvmet")).unwrap();
    assert_eq!(target().mend.as_deref(), Some("mount -t configfs none /sys/kernel/config"));
    fs::remove_dir_all(root.join("sys/module")).unwrap();
    let mend = target().mend.unwrap();
    assert_eq!(mend, "boot a kernel with CONFIG_NVME_TARGET; provider = \"berth\" does without");
    write(root, "/proc/sys/kernel/osrelease", "6.12.0\n");
    write(
        root,
        "/lib/modules/6.12.0/modules.dep",
        "kernel/drivers/nvme/target/nvmet.ko:\nkernel/drivers/nvme/host/nvme-tcp.ko:\n",
    );
    assert_eq!(target().mend.as_deref(), Some("modprobe -a nvmet nvmet-rdma nvme-loop loop"));
    let findings = examine(root, &[]);
    let host = find(&findings, "nvme host");
    assert_eq!((host.status, host.mend.as_deref()), (Status::Warn, Some("modprobe nvme-tcp")));
}

#[test]
fn what_bindings_of_nvme_need_is_looked_for() {
    let folder = tuned();
    let root = folder.path();
    let kernel = |addresses: &[&str]| {
        let rdma = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Binding::KernelNvme(KernelNvme { rdma, max_leases: 1 })
    };
    let bindings = [kernel(&["10.0.1.2:4420", "10.0.9.9:4420"]), kernel(&[])];
    let status = |findings: &[Finding], what: &str| find(findings, what).status;
    let findings = examine_bindings(root, &bindings);
    assert_eq!(find(&findings, "nvme-rdma 10.0.1.2:4420").found, "an address of mlx5_0");
    let mend = "ip addr add 10.0.9.9/24 dev eth0 && rdma link add rxe0 type rxe netdev eth0";
    assert_eq!(find(&findings, "nvme-rdma 10.0.9.9:4420").mend.as_deref(), Some(mend));
    assert_eq!(status(&findings, "nvmet-rdma"), Status::Ok);
    assert_eq!(find(&findings, "nvme-loop").mend.as_deref(), Some("boot a kernel with CONFIG_NVME_TARGET_LOOP"));
    assert_eq!(status(&findings, "nvme provider"), Status::Ok);
    write(root, "/proc/self/status", "CapEff:\t0000000000003000\n");
    fs::remove_file(root.join("dev/loop-control")).unwrap();
    let findings = examine_bindings(root, &bindings);
    assert_eq!(status(&findings, "nvme provider"), Status::Missing);
    assert_eq!(find(&findings, "loop devices").mend.as_deref(), Some("modprobe loop"));
    // Berth's own target needs none of it, but its addresses.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let listen = vec!["127.0.0.1:0".parse().unwrap(), taken, "192.0.2.1:4420".parse().unwrap()];
    let berth = Binding::Nvme(Nvme {
        listen,
        cpus: vec![0],
        idle: Idle::Wait,
        max_leases: 1,
        max_hosts: 1,
        io_queues: 1,
        queue_depth: 2,
        in_capsule: 16 << 10,
        buffers: 1 << 20,
        auth: Auth::None,
    });
    let findings = examine_bindings(root, &[berth]);
    assert_eq!(findings.len(), 3, "{findings:#?}");
    assert_eq!(status(&findings, "nvme-tcp 127.0.0.1:0"), Status::Ok);
    assert_eq!(status(&findings, &format!("nvme-tcp {taken}")), Status::Warn);
    let mend = find(&findings, "nvme-tcp 192.0.2.1:4420").mend.as_deref();
    assert_eq!(mend, Some("ip addr add 192.0.2.1/24 dev eth0"));
}

#[test]
fn each_shortcoming_comes_with_its_remedy() {
    let cases = [
        (
            "/sys/devices/system/cpu/isolated",
            "",
            "isolcpus",
            "add isolcpus=1-7 to GRUB_CMDLINE_LINUX in /etc/default/grub, then: update-grub && reboot",
        ),
        (
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
            "powersave",
            "governor",
            "cpupower frequency-set -g performance",
        ),
        (
            "/sys/devices/system/cpu/cpu0/cpuidle/state1/disable",
            "0",
            "c-states",
            "cpupower idle-set -D 10 (idle = \"spin\" never enters one)",
        ),
        ("/sys/devices/system/cpu/smt/active", "1", "smt", "echo off > /sys/devices/system/cpu/smt/control"),
        ("/proc/sys/kernel/sched_rt_runtime_us", "950000", "rt throttling", "sysctl -w kernel.sched_rt_runtime_us=-1"),
        (
            "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages",
            "0",
            "hugepages 2M",
            "echo 256 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
        ),
        (
            "/proc/self/limits",
            "Max locked memory  8388608  8388608  bytes",
            "memlock",
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
        ),
        ("/proc/cpuinfo", "flags : tsc constant_tsc", "tsc", "run on a processor with constant_tsc and nonstop_tsc"),
        (
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet",
            "clocksource",
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        ("/proc/sys/kernel/io_uring_disabled", "2", "io_uring sysctl", "sysctl -w kernel.io_uring_disabled=0"),
        (
            "/proc/self/status",
            "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-7",
            "capabilities",
            "setcap cap_net_admin,cap_net_raw,cap_ipc_lock,cap_sys_admin,cap_sys_nice+ep $(command -v berth)",
        ),
        (
            "/proc/self/status",
            "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t3",
            "cpus",
            "give the process at least two CPUs: one to poll, one for housekeeping",
        ),
        ("/sys/devices/pci0/0000:3b:00.0/net/eth0/operstate", "down", "nic eth0", "ip link set eth0 up"),
        ("/sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN", "rdma mlx5_0 port 1", "ip link set eth0 up"),
        (
            "/sys/class/infiniband/mlx5_0/ports/1/gids/3",
            "0000:0000:0000:0000:0000:0000:0000:0000",
            "rdma mlx5_0 port 1",
            "ip addr add 10.0.0.1/24 dev eth0",
        ),
    ];
    for (path, text, what, mend) in cases {
        let host = tuned();
        write(host.path(), path, text);
        let findings = examine(host.path(), &[]);
        let finding = find(&findings, what);
        assert_ne!(finding.status, Status::Ok, "{path}");
        assert_eq!(finding.mend.as_deref(), Some(mend), "{path}");
    }
}

#[test]
fn a_card_comes_to_dpdk_by_the_commands_given() {
    const CARD: &str = "0000:3b:00.1";
    let host = tuned();
    let root = host.path();
    let told = || {
        let findings = examine(root, &[]);
        let Finding { status, found, mend, .. } = find(&findings, "dpdk 0000:3b:00.1").clone();
        (status, found, mend.unwrap_or_default())
    };
    let device = root.join("sys/devices/pci0").join(CARD);
    let override_and = "echo vfio-pci > /sys/bus/pci/devices/0000:3b:00.1/driver_override && ";
    let probe = "echo 0000:3b:00.1 > /sys/bus/pci/drivers_probe";

    fs::remove_file(device.join("driver")).unwrap();
    let free = (
        Status::Warn,
        "8086:1533, no driver, IOMMU group 7, free for DPDK".to_string(),
        format!("{override_and}{probe}"),
    );
    assert_eq!(told(), free);

    bind(root, CARD, "igb");
    let unbind = "echo 0000:3b:00.1 > /sys/bus/pci/devices/0000:3b:00.1/driver/unbind && ";
    assert_eq!(told().2, format!("{override_and}{unbind}{probe}"));

    // What the kernel uses is not for taking.
    for (path, text) in [("sys/class/net/eth1/flags", "0x1003"), ("sys/devices/pci0/0000:3b:00.1/net/eth1/x", "")] {
        write(root, path, text);
    }
    let (status, found, mend) = told();
    assert_eq!((status, &*mend), (Status::Ok, ""));
    assert!(found.ends_with("the kernel uses it as eth1; to see how DPDK gets it: ip link set eth1 down"), "{found}");
    write(root, "sys/class/net/eth1/flags", "0x1002");
    assert_eq!(told().2, format!("{override_and}{unbind}{probe}"));

    // A group is taken whole or not at all; one whose other members nobody has may be.
    write(root, "sys/devices/pci0/0000:3b:00.2/class", "0x010802");
    join_group(root, "0000:3b:00.2", "7");
    symlink(root.join("sys/devices/pci0/0000:3b:00.2"), root.join("sys/bus/pci/devices/0000:3b:00.2")).unwrap();
    assert_eq!(told().2, format!("{override_and}{unbind}{probe}"));
    bind(root, "0000:3b:00.2", "nvme");
    let (status, _, mend) = told();
    assert_eq!(status, Status::Warn);
    assert_eq!(mend, "unbind 0000:3b:00.2 (nvme), or put the card into a slot with a group of its own");

    fs::remove_file(device.join("iommu_group")).unwrap();
    let (status, found, mend) = told();
    assert_eq!(status, Status::Warn);
    assert_eq!(found, "8086:1533, bound to igb; vfio-pci cannot take it without an IOMMU");
    assert_eq!(mend, "see iommu; without, device = \"net_af_xdp0,iface=eth1\" goes through the kernel");
}

#[test]
fn a_card_with_functions_says_what_keeps_them_from_a_pool() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let (pf, vf) = ("0000:3b:00.0", "0000:3b:10.0");
    let device = |name: &str| format!("/sys/bus/pci/devices/{name}");
    let look = || {
        let findings = examine(root, &[]);
        let Finding { status, found, mend, .. } = find(&findings, "sriov 0000:3b:00.0");
        (*status, found.clone(), mend.clone().unwrap_or_default())
    };
    write(root, &format!("{}/sriov_totalvfs", device(pf)), "7\n");
    write(root, &format!("{}/sriov_numvfs", device(pf)), "1\n");
    write(root, &format!("{}/net/eth0/x", device(pf)), "");
    write(root, "/sys/class/net/eth0/flags", "0x1002\n");
    write(root, "/sys/class/net/eth0/ifindex", "2\n");
    write(root, &format!("{}/reset_method", device(vf)), "bus\n");
    symlink(root.join(&device(vf)[1..]), root.join(&device(pf)[1..]).join("virtfn0")).unwrap();
    assert_eq!(look().2, "see iommu");
    let group = |name: &str, group: &str| {
        write(root, &format!("/sys/kernel/iommu_groups/{group}/devices/{name}"), "");
        let link = root.join(&device(name)[1..]).join("iommu_group");
        symlink(root.join(format!("sys/kernel/iommu_groups/{group}")), link).unwrap();
    };
    group(pf, "4");
    group(vf, "5");
    let other = "/sys/kernel/iommu_groups/5/devices/0000:3b:10.2";
    write(root, other, "");
    assert!(look().1.contains("1 of them in IOMMU groups with others"), "{:?}", look());
    fs::remove_file(root.join(&other[1..])).unwrap();
    assert!(look().2.starts_with("echo flr > /sys/bus/pci/devices/0000:3b:10.0/reset_method"), "{:?}", look());
    write(root, &format!("{}/reset_method", device(vf)), "flr bus\n");
    assert_eq!(look().2, "ip link set eth0 up");
    write(root, "/sys/class/net/eth0/flags", "0x1003\n");
    let found = "1 of 7 virtual functions; a region with kind = \"vf\" and pf = \"0000:3b:00.0\" can lease them";
    assert_eq!(look(), (Status::Ok, found.to_owned(), String::new()));
    // An NVMe controller's.
    fs::remove_dir_all(root.join(&device(pf)[1..]).join("net")).unwrap();
    write(root, &format!("{}/class", device(pf)), "0x010802\n");
    assert_eq!(look().2, "modprobe nvme");
    write(root, &format!("{}/nvme/nvme0/state", device(pf)), "live\n");
    let found = "1 of 7 virtual functions; a region with kind = \"vf\" and pf = \"0000:3b:00.0\", and the namespace of its \
                 first function, can lease them";
    assert_eq!(look(), (Status::Ok, found.to_owned(), String::new()));
}

#[test]
fn functions_of_a_pool_are_not_offered_to_dpdk() {
    let host = tuned();
    let root = host.path();
    fs::remove_file(root.join("sys/devices/pci0/0000:3b:00.1/driver")).unwrap();
    symlink("../0000:3b:00.0", root.join("sys/devices/pci0/0000:3b:00.1/physfn")).unwrap();
    let told = |pf: &str| {
        let (pf, card) = (pf.parse().unwrap(), Card::Nvme { namespace: 1 });
        let pool = PoolConfig { name: "vfs".into(), pf, count: None, owner: None, card };
        let backing = Backing::Functions(pool);
        let region = Region { name: "vfs".into(), kind: Kind::Functions, size: None, backing, numa: None };
        let findings = examine(root, &[region]);
        find(&findings, "dpdk 0000:3b:00.1").clone()
    };
    let Finding { status, found, mend, .. } = told("0000:3b:00.0");
    assert_eq!((status, &*found, mend), (Status::Ok, "a function of region vfs, which leases it", None));
    assert!(told("0000:3c:00.0").mend.is_some(), "of another card");
}

#[test]
fn vfio_is_loaded_or_loadable_or_not_there() {
    let host = tuned();
    let root = host.path();
    fs::remove_dir_all(root.join("sys/bus/pci/drivers/vfio-pci")).unwrap();
    write(root, "proc/sys/kernel/osrelease", "6.1.0-9-amd64\n");
    let mend = || find(&examine(root, &[]), "vfio-pci").mend.clone().unwrap();
    assert!(mend().starts_with("boot a kernel with CONFIG_VFIO_PCI"), "{}", mend());
    write(root, "lib/modules/6.1.0-9-amd64/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko: kernel/a.ko\n");
    assert_eq!(mend(), "modprobe vfio-pci");
}

#[test]
fn without_rdma_the_kernel_says_whether_it_can_have_a_software_device() {
    let host = tempfile::tempdir().unwrap();
    let root = host.path();
    let mend = || find(&examine(root, &[]), "rdma").mend.clone().unwrap();
    write(root, "/proc/sys/kernel/osrelease", "6.12.1-cloud\n");
    assert_eq!(find(&examine(root, &[]), "rdma").status, Status::Warn);
    let found = find(&examine(root, &[]), "rdma").found.clone();
    assert_eq!(found, "no device, and the kernel 6.12.1-cloud has no module rdma_rxe for a software one");
    assert!(mend().starts_with("use a kernel built with CONFIG_RDMA_RXE"), "{}", mend());
    let add = "rdma link add rxe0 type rxe netdev eth0";
    let dep = "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko.xz: kernel/crypto/crc32_generic.ko.xz\n";
    write(root, "/lib/modules/6.12.1-cloud/modules.dep", dep);
    assert_eq!(mend(), format!("modprobe rdma_rxe && {add}"));
    write(root, "/sys/module/rdma_rxe/refcnt", "0\n");
    assert_eq!(mend(), add);
}

#[test]
fn an_empty_root_is_survived_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let findings = examine(folder.path(), &[]);
    assert_eq!(find(&findings, "libdpdk").status, Status::Missing);
    let text = table(&findings);
    assert!(text.contains("missing libdpdk"), "{text}");
    assert!(text.contains("-> apt-get install libdpdk-dev"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "doctor wrote into the root");
}

#[test]
fn this_host_as_json() {
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(["doctor", "--json"]).output().unwrap();
    assert!(output.status.success());
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let uring = findings.as_array().unwrap().iter().find(|finding| finding["what"] == "io_uring").unwrap();
    assert!(["ok", "missing"].contains(&uring["status"].as_str().unwrap()), "{uring}");
}
