//! A disk of an NVMe/TCP controller as a port: its frames are commands.

mod echo;
mod port;
mod wire;

use std::{net::SocketAddr, time::Duration};

use berth_host::TscClock;
use berth_nvme::host::{Facts, Names, Settings};
use berth_ports::PortUser;

pub(crate) use port::ASK;

/// A disk, and how it is used.
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    /// Where its controller listens.
    pub(crate) address: SocketAddr,
    /// `None`: a baseline, which answers each command with so many bytes.
    pub(crate) names: Option<Names>,
    /// Digests, and how long its answers may take.
    pub(crate) settings: Settings,
    /// I/O queues, each on a connection of its own.
    pub(crate) queues: u16,
    /// Commands of a queue at once.
    pub(crate) depth: u16,
    /// Bytes of data of the longest command.
    pub(crate) longest: u32,
    /// Whether data is compared; otherwise it is not even looked at.
    pub(crate) verify: bool,
}

impl Disk {
    /// Connects on the calling thread, and hands the port to `user`. Frames are `longest` bytes at most.
    pub(crate) fn open(&self, longest: usize, clock: &TscClock, user: impl PortUser) -> anyhow::Result<()> {
        let peer = self.address.into();
        match &self.names {
            Some(names) => user.run(port::NvmePort::open(self, names, longest, clock)?, peer),
            None => user.run(echo::EchoPort::open(self, longest)?, peer),
        }
        Ok(())
    }

    /// What the controller says of itself and of the disk.
    pub(crate) fn facts(&self, names: &Names) -> anyhow::Result<Facts> {
        let clock = TscClock::calibrate(Duration::from_millis(1));
        let (_, facts) = port::Admin::connect(self, names, &clock)?;
        Ok(facts)
    }
}

/// What a command does; its opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Write = 1,
    Read = 2,
}

impl Kind {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}
