//! `RoCEv2` in software: unreliable connections over Berth's own IP host.
//!
//! An [`Endpoint`] is a [`berth_net::Transport`]: it turns datagrams on UDP port 4791 into the frames of a service, and
//! answers into packets. An FPGA that expects to write into the memory of a host with an RDMA card can thus write to a
//! host with a plain one. The endpoint does no I/O and never reads a clock. Every packet costs one pass of the ICRC and
//! one copy into its slot.
//!
//! ```text
//! WRITE, no immediate            bytes land in the peer's region
//! WRITE with immediate           ... and the slot that it names becomes a frame, lent where it lies
//! SEND Only                      the packet becomes a frame, lent where it lies
//! answer                         SEND Only; or, to a peer that has a window, WRITE Only with immediate
//! ```
//!
//! # Peers
//!
//! Each peer has a queue pair of its own, with a number, a key and a region of slots. Number and key are random, so no
//! peer can reach another's region. The [`Registrar`] adds and removes peers on any thread; the endpoint applies the
//! changes at its next burst. In [`berth_port::Frame::peer`], a peer is its IP address, with the low 16 bits of its
//! queue pair's number as the port, which no two peers share.
//!
//! # Loss
//!
//! An unreliable connection repeats nothing. A gap in the sequence ends the message under way, and the next message
//! that starts is taken. A packet from the past is a duplicate or was overtaken, and is dropped. However, [`RESTART`]
//! such packets in a row, in sequence and each the start of a message, mean that the sender has restarted. Each
//! datagram is counted once: as a packet taken, or by the reason why it was not.
#![forbid(unsafe_code)]

mod counters;
mod endpoint;
mod queue_pair;
mod region;
mod registrar;
mod responder;

use berth_wire::{
    net::{Ipv6Header, UdpHeader},
    roce::{HEADERS_MAX, Icrc, PATH_MTU_MAX, PKey},
};

pub use counters::{COUNTERS, Refusal};
pub use endpoint::Endpoint;
pub use region::{ConfigError, Slots};
pub use registrar::{AddError, Local, Registrar, Remote, Window, endpoint};
pub use responder::RESTART;

/// Settings that all peers of an endpoint share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Partition key of all queue pairs.
    pub p_key: PKey,
    /// Layout of each peer's slots.
    pub slots: Slots,
    /// Longest payload of a packet sent, in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: usize,
    /// Limit on the peers, up to [`PEERS_MAX`].
    pub peers: usize,
}

impl Config {
    /// Checks that an endpoint can have these settings.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.slots.check()?;
        if self.peers == 0 || self.peers > PEERS_MAX {
            return Err(ConfigError::Peers(self.peers));
        }
        if !(256..=PATH_MTU_MAX).contains(&self.path_mtu) || !self.path_mtu.is_power_of_two() {
            return Err(ConfigError::PathMtu(self.path_mtu));
        }
        Ok(())
    }
}

/// The longest path MTU whose packets fit into IP packets of `mtu` bytes, in either family and with all headers.
///
/// It is at least 256, which fits even IPv6's smallest MTU of 1280 bytes.
pub fn path_mtu(mtu: usize) -> usize {
    let payload = mtu.saturating_sub(Ipv6Header::LEN + UdpHeader::LEN + HEADERS_MAX + Icrc::LEN);
    [4096, 2048, 1024, 512].into_iter().find(|path| *path <= payload).unwrap_or(256)
}

/// Upper bound of [`Config::peers`].
pub const PEERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    #[test]
    fn path_mtus_fit_their_packets() {
        let mtus = [1280, 1500, 2131, 2132, 4179, 4180, 9000].map(super::path_mtu);
        assert_eq!(mtus, [1024, 1024, 1024, 2048, 2048, 4096, 4096]);
    }
}
