//! `driver = "uring"`: `io_uring` on kernel sockets.

use std::{fmt, net::SocketAddr};

use berth_keys::{Owned, Table};
use berth_port::Tables;
use berth_uring::UringSocket;

use crate::{
    Client, Connect, Facts, Open, OpenQueue, Opening, PortUser, QueueUser, Reading, Settings, common, of_driver,
    sockets::Socket,
};

/// Values of the keys of `driver = "uring"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uring {
    /// Address to bind; port 0 takes a free one.
    pub bind: SocketAddr,
}

impl Settings for Uring {
    const WORD: &'static str = "uring";
    const DOC: &'static str = "kernel sockets behind an io_uring";
    const KEYS: &'static [Owned] = &[of_driver(Self::WORD, &[common::BIND])];
    const LIMITS: &'static [Owned] = &[of_driver(Self::WORD, &[common::QUEUE])];

    fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self> {
        Some(Self { bind: common::bind(t, reading)? })
    }
}

impl fmt::Display for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bind)
    }
}

/// A socket to be opened by its thread.
#[derive(Debug)]
pub struct Queue(Socket);

impl Open for Uring {
    type Queue = Queue;
    const COUNTERS: &'static [Tables] = &[berth_uring::COUNTERS, berth_host::COUNTERS];

    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
        Ok((Socket::queues(self.bind, opening)?.into_iter().map(Queue).collect(), Facts::new()))
    }
}

impl OpenQueue for Queue {
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
        // On this thread: the ring belongs to the one that makes it.
        user.port(self.0.open(UringSocket::bind)?.into_port()?)
    }
}

impl Connect for Uring {
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()> {
        user.run(Socket::client(client).open(UringSocket::bind)?.into_port()?, client.peer.into());
        Ok(())
    }
}
