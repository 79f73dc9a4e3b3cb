//! DPDK ports of a running appliance: over memif from a second process, and over a virtual cable from the kernel.

use std::process::Command;

use crate::common::{Berth, Client, INCREMENT, RPC_INCREMENT, fails};

fn port(device: &str, address: &str, more: &str) -> String {
    format!(
        "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n[[port]]\nname = \"d\"\ndriver = \"dpdk\"\ndevice = \
         \"{device}\"\naddress = \"{address}\"\nudp_port = 4700\ncpu = 0\nidle = \"wait\"\n{more}\n"
    )
}

#[test]
fn answers_a_memif_peer() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("m.sock");
    let server = format!("net_memif0,role=server,socket={}", socket.display());
    let berth = Berth::start(&format!("{}{INCREMENT}", port(&server, "10.0.0.2/24", "")));
    assert_eq!(berth.ready["ports"][0]["addr"], "10.0.0.2:4700");
    let client = format!("net_memif1,role=client,socket={}", socket.display());
    let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
    perf.args(["perf", "rpc", "--function", "rpc_increment", "--count", "2000", "--cpu", "0", "--port", "dpdk"]);
    let output =
        perf.args(["--device", &client, "--address", "10.0.0.1/24", "--peer", "10.0.0.2:4700"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0));
    // Warm-up comes on top.
    assert!(stopped.sum("d", "service", "calls_rpc_increment") >= 2000);
    assert_eq!(stopped.sum("d", "service", "answered"), stopped.sum("d", "service", "received"));
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A virtual cable; the kernel has 10.79.0.1/24 at the end "k", the port gets the other.
struct Cable(String);

impl Cable {
    fn new() -> Self {
        let name = format!("bd{}", std::process::id());
        ip(&format!("link add {name}k type veth peer name {name}d"));
        let cable = Self(name);
        let name = &cable.0;
        // A packet on a cable carries its checksum: there is no device to add it.
        let ethtool = Command::new("ethtool").args(["-K", &format!("{name}k"), "tx", "off"]).output().unwrap();
        assert!(ethtool.status.success());
        ip(&format!("address add 10.79.0.1/24 dev {name}k"));
        for end in ["k", "d"] {
            ip(&format!("link set {name}{end} up"));
        }
        cable
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &format!("{}k", self.0)]).status();
    }
}

#[test]
fn answers_the_kernel_over_a_cable() {
    let cable = Cable::new();
    let device = format!("net_af_packet0,iface={}d", cable.0);
    let berth = Berth::start(&format!("{}{INCREMENT}", port(&device, "10.79.0.2/24", "")));
    let socket = std::net::UdpSocket::bind("10.79.0.1:0").unwrap();
    socket.connect(berth.addr("d")).unwrap();
    let client = Client::of(socket);
    for i in 0..50 {
        assert_eq!(client.call(RPC_INCREMENT, &[i, 255]).result, [i + 1, 0]);
    }
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0));
    assert_eq!(stopped.sum("d", "service", "answered"), 50);
}

#[test]
fn a_device_that_is_none_is_named() {
    let (code, stderr) = fails(&format!("{}{INCREMENT}", port("net_af_packet0,iface=nosuch", "10.79.0.2/24", "")));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("port d: no DPDK driver took \"net_af_packet0,iface=nosuch\""), "{stderr}");
}

#[test]
fn without_huge_pages_it_says_how_to_reserve_them() {
    let free = |size| std::fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-{size}kB/free_hugepages"));
    if [free(2048), free(1_048_576)].into_iter().flatten().any(|pages| pages.trim() != "0") {
        // Somebody has reserved some.
        return;
    }
    let text = port("net_null0", "10.79.0.2/24", "").replace("hugepages = false", "hugepages = true");
    let (code, stderr) = fails(&format!("{text}{INCREMENT}"));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no free huge pages: reserve some (echo 512 > "), "{stderr}");
}
