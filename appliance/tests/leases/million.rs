//! A million verified round trips over each port, two processes, with nothing wrong and nothing lost but what `fault` takes.
//! The DPDK ports on a virtual cable face a client in a network namespace of its own.

use std::process::Command;

use serde_json::Value;

use crate::common::{Berth, INCREMENT};

const MILLION: u64 = 1_000_000;

fn config(port: &str, more: &str) -> String {
    format!(
        "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n[[port]]\nname = \"p\"\n{port}\ncpu = 1\nidle = \
         \"spin\"\n{more}\n{INCREMENT}"
    )
}

/// Runs the emulator as `launcher` would, and returns the counts of its report.
fn emulate(launcher: &[&str], peer: &str, arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.json");
    let mut command = Command::new("env");
    command.args(launcher).args([env!("CARGO_BIN_EXE_berth"), "perf", "rpc", "--no-progress", "--cpu", "0"]);
    command.args(["--warmup", "0", "--timeout", "5000", "--peer", peer]).args(arguments).arg("--json").arg(&report);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    report["cases"][0]["counts"].clone()
}

/// A server on `port`, and a million requests from a client with `arguments`; all are answered, and rightly.
fn million(port: &str, launcher: &[&str], arguments: &[&str]) {
    let berth = Berth::start(&config(port, ""));
    let peer = berth.addr("p").to_string();
    let counts = emulate(launcher, &peer, &[&["--count", "1000000", "--window", "32"], arguments].concat());
    for (count, value) in [("sent", MILLION), ("answered", MILLION), ("wrong", 0), ("lost", 0), ("duplicates", 0)] {
        assert_eq!(counts[count], value, "{count} of {counts}");
    }
    let stopped = berth.stop();
    for counter in ["received", "answered", "calls_rpc_increment"] {
        assert_eq!(stopped.sum("p", "service", counter), MILLION, "{counter}");
    }
}

#[test]
fn over_udp() {
    million("driver = \"udp\"\nbind = \"127.0.0.1:0\"", &[], &["--port", "udp"]);
}

#[test]
fn over_uring() {
    million("driver = \"uring\"\nbind = \"127.0.0.1:0\"", &[], &["--port", "uring"]);
}

#[test]
fn what_fault_takes_is_lost_and_nothing_else() {
    let fault = "[port.fault]\nseed = 7\ndrop = 0.001";
    let berth = Berth::start(&config("driver = \"udp\"\nbind = \"127.0.0.1:0\"", fault));
    let peer = berth.addr("p").to_string();
    let counts = emulate(&[], &peer, &["--count", "200000", "--window", "256", "--expect-losses"]);
    let stopped = berth.stop();
    let taken = |way| stopped.sum("p", "port", &format!("fault_{way}_dropped"));
    assert!(taken("rx") > 100 && taken("tx") > 100, "{} and {}", taken("rx"), taken("tx"));
    assert_eq!(counts["lost"], taken("rx") + taken("tx"));
    assert_eq!(counts["answered"], 200_000 - taken("rx") - taken("tx"));
    assert_eq!(stopped.sum("p", "service", "received"), 200_000 - taken("rx"));
    assert_eq!((&counts["wrong"], &counts["late"]), (&Value::from(0), &Value::from(0)));
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use super::*;

    fn device(device: &str, address: &str) -> String {
        format!("driver = \"dpdk\"\ndevice = \"{device}\"\naddress = \"{address}\"\nudp_port = 4700")
    }

    #[test]
    fn over_memif() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("m.sock");
        let server = device(&format!("net_memif0,role=server,socket={}", socket.display()), "10.0.0.2/24");
        let client = format!("net_memif1,role=client,socket={}", socket.display());
        million(&server, &[], &["--port", "dpdk", "--device", &client, "--address", "10.0.0.1/24"]);
    }

    fn run(program: &str, arguments: &str) {
        let output = Command::new(program).args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A virtual cable: its end `NAMEs` is here for a DPDK port, its end `NAMEc`, 10.78.0.1/24, in the namespace `NAME`.
    struct Cable(String);

    impl Cable {
        fn new(kind: &str) -> Self {
            let name = format!("b{kind}{}", std::process::id());
            run("ip", &format!("netns add {name}"));
            let cable = Self(name);
            let name = &cable.0;
            run("ip", &format!("link add {name}s type veth peer name {name}c netns {name}"));
            run("ip", &format!("link set {name}s up"));
            run("ip", &format!("-n {name} address add 10.78.0.1/24 dev {name}c"));
            run("ip", &format!("-n {name} link set {name}c up"));
            // A frame on a cable carries its checksum: there is no device to add it.
            run("ip", &format!("netns exec {name} ethtool -K {name}c tx off"));
            cable
        }

        fn million(&self, driver: &str) {
            let server = device(&format!("{driver}0,iface={}s", self.0), "10.78.0.2/24");
            million(&server, &["ip", "netns", "exec", &self.0], &["--port", "udp"]);
        }
    }

    impl Drop for Cable {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
        }
    }

    #[test]
    fn over_af_packet() {
        Cable::new("p").million("net_af_packet");
    }

    #[test]
    fn over_af_xdp() {
        Cable::new("x").million("net_af_xdp");
    }
}
