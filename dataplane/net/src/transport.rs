//! Protocols between datagrams and the frames of a service.

use std::net::SocketAddr;

use berth_port::{Frame, Peer, Verdict};

use crate::{Datagram, Host, Route, Sealed};

/// A protocol over a [`Host`]'s datagrams. Owned by one queue, like its port.
pub trait Transport {
    /// Whether its datagrams carry UDP checksums, see [`crate::HostConfig::udp_checksums`].
    const UDP_CHECKSUMS: bool;

    /// Applies what other threads have sent. Called before each burst.
    fn poll(&mut self) {}

    /// Takes the `datagram` in `buf`. If it completes a frame, lends that to `handle` and writes the answer into `buf`.
    /// `offload` is as in [`Host::reply`].
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        datagram: &Datagram,
        offload: bool,
        handle: H,
    ) -> Taken;

    /// The address to which datagrams to this peer go; `None` if there is no such peer.
    fn address_of(&self, peer: Peer) -> Option<SocketAddr>;

    /// Writes a message to `peer`, reached by `route`, into `buf`: `fill` writes into [`Transport::max_frame`] bytes
    /// and returns the number written. `None` if the peer does not take that many.
    fn post<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        route: &Route,
        peer: Peer,
        offload: bool,
        fill: F,
    ) -> Option<Sealed>;

    /// Limit on messages that it sends, in bytes.
    fn max_frame(&self, host: &Host) -> usize;

    /// Calls `visit` with the name and value of each counter.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

/// The result of taking a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Length of the frame that was lent; `None` if there was none.
    pub lent: Option<usize>,
    /// What is to be sent in return.
    pub answer: Answer,
}

/// The answer to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing is to be sent.
    None,
    /// It does not fit into one datagram, so it is not sent.
    TooLong,
    /// It is in the buffer, ready to send.
    Sealed(Sealed),
}

impl Taken {
    /// No frame was lent, and nothing is to be sent.
    pub const NOTHING: Self = Self { lent: None, answer: Answer::None };
}

/// Plain UDP: a datagram is a frame, and a peer is an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Udp;

impl Transport for Udp {
    const UDP_CHECKSUMS: bool = true;

    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        datagram: &Datagram,
        offload: bool,
        mut handle: H,
    ) -> Taken {
        let len = datagram.payload.len();
        let room = &mut buf[datagram.payload.start..][..datagram.capacity.max(len)];
        let mut frame = Frame::new(room, len, len, datagram.peer).routed(datagram.way);
        let verdict = handle(&mut frame);
        let answer = frame.len();
        let answer = match verdict {
            Verdict::Drop | Verdict::Keep => Answer::None,
            Verdict::Reply if answer > datagram.capacity => Answer::TooLong,
            Verdict::Reply => Answer::Sealed(host.reply(buf, datagram, answer, offload)),
        };
        Taken { lent: Some(len), answer }
    }

    #[inline]
    fn address_of(&self, peer: Peer) -> Option<SocketAddr> {
        match peer {
            Peer::Address(addr) => Some(addr),
            Peer::Connection { .. } => None,
        }
    }

    #[inline]
    fn post<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        route: &Route,
        _: Peer,
        offload: bool,
        fill: F,
    ) -> Option<Sealed> {
        let len = fill(&mut buf[route.header_len()..][..host.max_payload()]);
        Some(host.seal(buf, route, len, offload))
    }

    fn max_frame(&self, host: &Host) -> usize {
        host.max_payload()
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}
