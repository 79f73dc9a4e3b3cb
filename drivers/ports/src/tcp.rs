//! `driver = "tcp"`: byte streams, for FBMT.

use std::{fmt, net::SocketAddr};

use berth_keys::{Owned, Table};

use crate::{Reading, Settings, Traits, common, of_driver};

/// The keys of `driver = "tcp"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tcp {
    /// The address to bind; port 0 takes a free one.
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
