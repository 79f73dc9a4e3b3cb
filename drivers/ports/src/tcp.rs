//! `driver = "tcp"`: byte streams, for FBMT.

use std::{fmt, net::SocketAddr};

use anyhow::Context as _;
use berth_control::{POLLED, Polled};
use berth_keys::{Owned, Table};
use berth_lease_io::Stream;
use berth_port::Tables;
use berth_stream::Listener;
use berth_uring::{Handover, UringStreams, handover};

use crate::{Facts, Open, OpenQueue, Opening, QueueUser, Reading, Settings, Traits, common, of_driver};

/// Values of the keys of `driver = "tcp"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tcp {
    /// Address to bind; port 0 takes a free one.
    pub bind: SocketAddr,
}

impl Settings for Tcp {
    const WORD: &'static str = "tcp";
    const DOC: &'static str = "byte streams behind an io_uring: FBMT for service = \"lease-io\"; one CPU";
    const KEYS: &'static [Owned] = &[of_driver(Self::WORD, &[common::BIND])];

    fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self> {
        Some(Self { bind: common::bind(t, reading)? })
    }

    fn traits(&self) -> Traits {
        let one_cpu = Some("connections all come to one CPU; give others ports of their own");
        Traits { one_cpu, has_frames: false, speaks_udp: false, ..Traits::default() }
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bind)
    }
}

/// The byte streams of a port: the poll core's task, and what hands connections to it.
#[derive(Debug)]
pub struct Queue {
    bind: SocketAddr,
    from: Handover<Stream>,
    /// `None` once the control plane has taken it.
    polled: Option<Polled>,
}

impl Open for Tcp {
    type Queue = Queue;
    const COUNTERS: &'static [Tables] = &[berth_uring::COUNTERS];

    fn queues(&self, _: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
        let listener = Listener::bind(self.bind).with_context(|| format!("binding {}", self.bind))?;
        let bind = listener.local_addr()?;
        let (core, from) = handover(POLLED.0)?;
        Ok((vec![Queue { bind, from, polled: Some(Polled { listener, core }) }], Facts::new()))
    }
}

impl OpenQueue for Queue {
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
        user.streams(UringStreams::new(self.from, POLLED.0)?, self.bind)
    }

    fn polled(&mut self) -> Option<Polled> {
        self.polled.take()
    }
}
