//! The remote end of a port's frames.

use std::net::{IpAddr, SocketAddr};

/// The sender or receiver of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A socket that sends and receives datagrams.
    Address(SocketAddr),
    /// A connection of the port, or an endpoint known to it.
    Connection {
        /// The port's number for it; not given to another peer soon after.
        number: u32,
        /// IP address of its host; `None` if unknown.
        host: Option<IpAddr>,
    },
}

impl Peer {
    /// The port's number for a connection; `None` for an address.
    #[inline]
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Address(_) => None,
            Self::Connection { number, .. } => Some(*number),
        }
    }

    /// IP address of its host; `None` if unknown. Limits count all traffic of one host as one peer; a peer whose host
    /// is unknown counts by itself.
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
