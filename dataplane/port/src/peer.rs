//! The other end of a port's frames.

use std::net::{IpAddr, SocketAddr};

/// Who sent a frame, or gets one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Whoever receives datagrams at an address.
    Address(SocketAddr),
    /// A connection of the port, or an endpoint that the port knows.
    Connection {
        /// The port's own number of it; no other peer gets it soon after.
        number: u32,
        /// The address of its host, if that is known.
        host: Option<IpAddr>,
    },
}

impl Peer {
    /// The port's own number of a connection.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Address(_) => None,
            Self::Connection { number, .. } => Some(*number),
        }
    }

    /// The address of its host, if that is known. Whatever comes from one host counts as one peer for limits; a peer of
    /// which no host is known counts by itself.
    #[inline]
    pub fn host(&self) -> Option<IpAddr> {
        match self {
            Self::Address(addr) => Some(addr.ip()),
            Self::Connection { host, .. } => *host,
        }
    }
}

impl From<SocketAddr> for Peer {
    #[inline]
    fn from(addr: SocketAddr) -> Self {
        Self::Address(addr)
    }
}
