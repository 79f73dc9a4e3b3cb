//! Devices that vanish under a port, and return.

use std::{process::Command, thread::sleep, time::Duration};

use crate::{
    MACHINE, books,
    common::{Berth, INCREMENT},
};

fn run(program: &str, arguments: &str) -> bool {
    Command::new(program).args(arguments.split(' ')).output().unwrap().status.success()
}

/// A virtual cable: its end `NAMEs`, 10.79.0.2/24, is here, its end `NAMEc`, 10.79.0.1/24, in the namespace `NAME`.
struct Cable(String);

impl Cable {
    fn new(kind: &str) -> Self {
        let cable = Self(format!("v{kind}{}", std::process::id()));
        assert!(run("ip", &format!("netns add {}", cable.0)));
        cable.plug(kind);
        cable
    }

    /// `kind` u: the kernel has the near end's address.
    fn plug(&self, kind: &str) {
        let name = &self.0;
        assert!(run("ip", &format!("link add {name}s type veth peer name {name}c netns {name}")));
        if kind == "u" {
            assert!(run("ip", &format!("address add 10.79.0.2/24 dev {name}s")));
        }
        assert!(run("ip", &format!("link set {name}s up")));
        assert!(run("ip", &format!("-n {name} address add 10.79.0.1/24 dev {name}c")));
        assert!(run("ip", &format!("-n {name} link set {name}c up")));
        assert!(run("ip", &format!("netns exec {name} ethtool -K {name}c tx off")));
    }

    fn unplug(&self) {
        assert!(run("ip", &format!("link delete {}s", self.0)));
    }

    /// Whether so many requests of a client at the far end are answered.
    fn answers(&self, peer: &str, count: u32) -> bool {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, env!("CARGO_BIN_EXE_berth"), "perf", "rpc", "--no-progress"]);
        command.args(["--cpu", "0", "--warmup", "0", "--timeout", "300", "--peer", peer]);
        command.args(["--port", "udp", "--count", &count.to_string()]).output().unwrap().status.success()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", &format!("{}s", self.0)]).output();
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).output();
    }
}

#[test]
fn a_socket_serves_again_when_its_address_returns() {
    let _alone = MACHINE.blocking_lock();
    for driver in ["udp", "uring"] {
        let cable = Cable::new("u");
        let port = format!(
            "[[port]]\nname = \"a\"\ndriver = \"{driver}\"\nbind = \"10.79.0.2:4700\"\ncpu = 1\nidle = \"adaptive\"\n"
        );
        let berth = Berth::start(&format!("{port}{INCREMENT}"));
        assert!(cable.answers("10.79.0.2:4700", 1000), "{driver}");
        cable.unplug();
        sleep(Duration::from_millis(300));
        cable.plug("u");
        assert!((0..5).any(|_| cable.answers("10.79.0.2:4700", 1000)), "{driver}: after the device returned");
        let stopped = berth.stop();
        assert_eq!(stopped.status.code(), Some(0), "{driver}: {}", stopped.stderr);
        assert!(books(&stopped)[0].answered >= 2000, "{driver}");
    }
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use super::*;

    fn config(device: &str) -> String {
        format!(
            "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n[[port]]\nname = \"a\"\ndriver = \"dpdk\"\ndevice = \
             \"{device}\"\naddress = \"10.79.0.2/24\"\nudp_port = 4700\ncpu = 1\nidle = \"adaptive\"\n{INCREMENT}"
        )
    }

    /// The peer of a memif dies in the middle of its work, and another one comes.
    #[test]
    fn a_memif_serves_the_next_peer_when_one_was_killed() {
        let _alone = MACHINE.blocking_lock();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("m.sock").display().to_string();
        let berth = Berth::start(&config(&format!("net_memif0,role=server,socket={socket},socket-abstract=no")));
        let client = |count: &str| {
            let device = format!("net_memif1,role=client,socket={socket},socket-abstract=no");
            let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
            command.args(["perf", "rpc", "--no-progress", "--cpu", "0", "--warmup", "0", "--port", "dpdk"]);
            command.args(["--device", &device, "--address", "10.79.0.1/24", "--peer", "10.79.0.2:4700"]);
            command.args(["--window", "32", "--count", count]);
            command
        };
        for _ in 0..3 {
            let mut killed = client("1000000000").spawn().unwrap();
            sleep(Duration::from_millis(1200));
            assert_eq!(killed.try_wait().unwrap(), None, "it asks still");
            killed.kill().unwrap();
            killed.wait().unwrap();
        }
        let output = client("50000").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let stopped = berth.stop();
        assert_eq!(stopped.status.code(), Some(0), "{}", stopped.stderr);
        assert!(books(&stopped)[0].answered > 50_000);
    }
}
