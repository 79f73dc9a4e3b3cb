//! `driver = "udp"`: kernel sockets.

use std::{fmt, net::SocketAddr};

use berth_keys::{Owned, Table};

use crate::{Reading, Settings, common, of_driver};

/// The keys of `driver = "udp"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Udp {
    /// The address to bind; port 0 takes a free one.
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
