//! What lies between datagrams and the frames of a service.

use std::net::SocketAddr;

use berth_port::{Frame, Peer, Verdict};

use crate::{Datagram, Host, Route, Sealed};

/// A protocol over a [`Host`]'s datagrams. Owned by one queue, like its port.
pub trait Transport {
    /// Whether its datagrams carry UDP checksums, see [`crate::HostConfig::udp_checksums`].
    const UDP_CHECKSUMS: bool;

    /// Takes note of what other threads told it. Called before each burst.
    fn poll(&mut self) {}

    /// Takes in the `datagram` in `buf`, lends the frame that it completes, if it does, to `handle`, and writes the
    /// answer into `buf`. `offload` as in [`Host::reply`].
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        datagram: &Datagram,
        offload: bool,
        handle: H,
    ) -> Taken;

    /// Where datagrams to this peer go; `None` if there is no such peer.
    fn address_of(&self, peer: Peer) -> Option<SocketAddr>;

    /// Writes a message to `peer`, to which `route` leads, into `buf`: `fill` writes its bytes into
    /// [`Transport::max_frame`] bytes and returns their number. `None`: the peer does not take as many.
    fn post<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        route: &Route,
        peer: Peer,
        offload: bool,
        fill: F,
    ) -> Option<Sealed>;

    /// The longest message that it sends, in bytes.
    fn max_frame(&self, host: &Host) -> usize;

    /// Reports its counters, as a port does.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The bytes of the frame that was lent.
    pub lent: Option<usize>,
    /// What is to be sent.
    pub answer: Answer,
}

/// The answer to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// There is none.
    None,
    /// It is longer than one datagram.
    TooLong,
    /// It lies in the frame's buffer.
    Sealed(Sealed),
}

impl Taken {
    /// Nothing was lent.
    pub const NOTHING: Self = Self { lent: None, answer: Answer::None };
}

/// No protocol: a datagram is a frame, and a peer is an address.
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
            Verdict::Drop => Answer::None,
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
