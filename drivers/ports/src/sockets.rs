//! Kernel sockets, for every driver that uses them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use berth_host::{BindError, UdpConfig, UdpSocket};
use tracing::warn;

use crate::{Client, Opening};

/// Socket buffer asked of the kernel, in bytes as the kernel accounts for them: room for some 5,000 short frames.
const SOCKET_BUFFER: usize = 4 << 20;

/// What the kernel accounts for the smallest datagram, in bytes: its descriptor and data. Frames of many network
/// drivers are in buffers of 2 to 4 KiB, of which fewer fit.
const LEAST_DATAGRAM: usize = 768;

/// Longest frame of IPv4 over UDP, in bytes.
const LONGEST_UDP: usize = 65_507;

/// A socket to be opened by its thread.
#[derive(Debug)]
pub(crate) struct Socket(UdpConfig);

impl Socket {
    /// One for each queue of a port, all with the same address.
    pub(crate) fn queues(bind: SocketAddr, opening: &Opening<'_>) -> anyhow::Result<Vec<Self>> {
        let several = opening.queues > 1;
        // Several sockets share one address, which is settled here: a port number that the kernel is to choose is
        // chosen, and one that another program holds is refused, which the kernel would not do for the same user.
        let bind = if several { UdpSocket::bind(&UdpConfig::new(bind))?.local_addr() } else { bind };
        let rcvbuf = opening.waiting.map_or(SOCKET_BUFFER, |frames| frames as usize * LEAST_DATAGRAM);
        let config = UdpConfig {
            max_frame: opening.max_frame,
            reuse_port: several,
            rcvbuf: Some(rcvbuf),
            ..UdpConfig::new(bind)
        };
        Ok((0..opening.queues).map(|_| Self(config.clone())).collect())
    }

    /// A client's; by default with any address of the server's family, and a port that the kernel chooses.
    pub(crate) fn client(client: &Client<'_>) -> Self {
        let any = if client.peer.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { Ipv6Addr::UNSPECIFIED.into() };
        let config = UdpConfig::new(client.bind.unwrap_or(SocketAddr::new(any, 0)));
        Self(UdpConfig { max_frame: client.max_frame.min(LONGEST_UDP), rcvbuf: Some(SOCKET_BUFFER), ..config })
    }

    /// Opens the socket with a large buffer, or with the kernel's default if it does not grant that.
    pub(crate) fn open<P>(mut self, open: impl Fn(&UdpConfig) -> Result<P, BindError>) -> Result<P, BindError> {
        match open(&self.0) {
            Err(e @ BindError::Buffer { .. }) => {
                warn!(bind = %self.0.bind, "bursts may be lost: {e}");
                self.0.rcvbuf = None;
                open(&self.0)
            }
            opened => opened,
        }
    }
}
