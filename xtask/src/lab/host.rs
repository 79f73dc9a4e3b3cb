//! What a suite has run on the host: a command that reaches the guest over a network card.

use std::{
    fs,
    net::UdpSocket,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::Result;

use crate::sh::{cmd, root};

/// The guest's end: its address in QEMU's user network, and the port that the host reaches.
const GUEST: &str = "10.0.2.15:4700";
/// The card's address, by which the suite finds it.
const MAC: &str = "02:00:00:00:ff:00";

/// A command of the host, and the port by which it reaches the guest.
pub(super) struct Host {
    command: String,
    port: u16,
}

impl Host {
    pub(super) fn new(command: &str) -> Result<Self> {
        // Free now; QEMU takes it a moment later.
        let port = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        Ok(Self { command: command.to_owned(), port })
    }

    /// QEMU's arguments for the card. Not `restrict=on`, which drops the answers of UDP.
    pub(super) fn device(&self) -> [String; 4] {
        let forward = format!("user,id=host,hostfwd=udp:127.0.0.1:{}-{GUEST}", self.port);
        ["-netdev".into(), forward, "-device".into(), format!("virtio-net-pci,netdev=host,romfile=,mac={MAC}")]
    }

    /// Runs the command once the suite makes the file `go`; what it prints and its exit code go to `host.log` and `host`
    /// beside it. All that ends when it is `over`.
    pub(super) fn run(&self, out: &Path, over: &AtomicBool) -> Result<()> {
        while !out.join("go").exists() {
            if over.load(Relaxed) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let log = fs::File::create(out.join("host.log"))?;
        let mut host = cmd("sh", ["-c", &format!("exec {}", self.command)]);
        host.env("BERTH", root().join("target/release/berth")).env("GUEST", format!("127.0.0.1:{}", self.port));
        host.env("OUT", out);
        let mut child = host.stdout(log.try_clone()?).stderr(log).spawn()?;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if over.load(Relaxed) {
                child.kill()?;
            }
            thread::sleep(Duration::from_millis(100));
        };
        Ok(fs::write(out.join("host"), status.code().unwrap_or(-1).to_string())?)
    }
}
