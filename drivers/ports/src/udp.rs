//! `driver = "udp"`: kernel sockets.

use std::{fmt, net::SocketAddr};

use berth_keys::{Owned, Table};
use berth_port::Tables;
use berth_udp::UdpPort;

use crate::{
    Client, Connect, Facts, Open, OpenQueue, Opening, PortUser, QueueUser, Reading, Settings, common, of_driver,
    sockets::Socket,
};

/// Values of the keys of `driver = "udp"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp {
    /// Address to bind; port 0 takes a free one.
    pub bind: SocketAddr,
}

impl Settings for Udp {
    const WORD: &'static str = "udp";
    const DOC: &'static str = "kernel sockets, polled";
    const KEYS: &'static [Owned] = &[of_driver(Self::WORD, &[common::BIND])];
    const LIMITS: &'static [Owned] = &[of_driver(Self::WORD, &[common::QUEUE])];

    fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self> {
        Some(Self { bind: common::bind(t, reading)? })
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bind)
    }
}

/// A socket to be opened by its thread.
#[derive(Debug)]
pub struct Queue(Socket);

impl Open for Udp {
    type Queue = Queue;
    const COUNTERS: &'static [Tables] = &[berth_udp::COUNTERS, berth_host::COUNTERS];

    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
        Ok((Socket::queues(self.bind, opening)?.into_iter().map(Queue).collect(), Facts::new()))
    }
}

impl OpenQueue for Queue {
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
        user.port(self.0.open(UdpPort::open)?)
    }
}

impl Connect for Udp {
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()> {
        user.run(Socket::client(client).open(UdpPort::open)?, client.peer.into());
        Ok(())
    }
}
