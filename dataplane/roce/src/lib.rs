//! `RoCEv2` in software: unreliable connections over Berth's own IP host.
//!
//! An [`Endpoint`] is a [`berth_net::Transport`]: it turns datagrams on UDP port 4791 into the frames of a service, and
//! answers into packets. An FPGA that writes into an RDMA card's memory so writes into that of a host with a plain one.
//! It does no I/O and never reads a clock; every packet costs one pass of the ICRC and one copy into its slot.
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
//! Each peer has a queue pair: a number, a key and a region of slots that are its alone, all random or of its own, so
//! that no peer can reach another's. The [`Registrar`] makes and unmakes them on any thread; the endpoint takes note at
//! its next burst. A peer's name, in [`berth_port::Frame::peer`], is its IP address with the low 16 bits of its queue
//! pair's number as port, which no two peers share.
//!
//! # Loss
//!
//! Nothing is sent twice on an unreliable connection. A gap in the sequence ends the message under way, and the next
//! that starts is taken. A packet from the past is a duplicate or was overtaken, and is dropped; but [`RESTART`] packets
//! in a row, in sequence and each the start of a message, are a sender that has begun anew. Each datagram is counted
//! once: as a packet that was taken, or by the reason for which it was not.
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

/// What all peers of an endpoint have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The partition.
    pub p_key: PKey,
    /// The slots of each peer.
    pub slots: Slots,
    /// The longest payload of a packet that is sent, in bytes: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: usize,
    /// The most peers, up to [`PEERS_MAX`].
    pub peers: usize,
}

impl Config {
    /// Whether an endpoint can be so.
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

/// The longest path MTU whose packets fit IP packets of `mtu` bytes, in either family and with all headers.
///
/// At least 256, which the smallest packets of IPv6, 1280 bytes, hold with ease.
pub fn path_mtu(mtu: usize) -> usize {
    let payload = mtu.saturating_sub(Ipv6Header::LEN + UdpHeader::LEN + HEADERS_MAX + Icrc::LEN);
    [4096, 2048, 1024, 512].into_iter().find(|path| *path <= payload).unwrap_or(256)
}

/// The most peers of an endpoint.
pub const PEERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    #[test]
    fn path_mtus_fit_their_packets() {
        let mtus = [1280, 1500, 2131, 2132, 4179, 4180, 9000].map(super::path_mtu);
        assert_eq!(mtus, [1024, 1024, 1024, 2048, 2048, 4096, 4096]);
    }
}
