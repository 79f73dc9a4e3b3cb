//! Our end of the connection to one peer.

use std::net::{IpAddr, SocketAddr};

use berth_net::{Answer, Datagram, Host, Route, Sealed, Taken};
use berth_port::{Frame, Peer, Verdict};
use berth_wire::roce::{HEADERS_MAX, Head, Icrc, IcrcMemo, Opcode, PKey, Packet, Psn, Qpn, Reth, UDP_PORT};

use crate::{
    Local, Remote,
    counters::Counters,
    region::Region,
    registrar::Window,
    responder::{Responder, Step, Then},
};

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) local: Local,
    pub(crate) remote: Remote,
    peer: Peer,
    p_key: PKey,
    /// Longest payload of a packet to the peer, in bytes.
    mtu: usize,
    responder: Responder,
    region: Region,
    send_psn: Psn,
    /// For received packets; `icrc_out` is for those sent.
    pub(crate) icrc_in: IcrcMemo,
    icrc_out: IcrcMemo,
    /// Slot of the peer's window that the next message goes to, unless it is an answer.
    next_slot: usize,
}

impl QueuePair {
    pub(crate) fn new(local: Local, remote: Remote, p_key: PKey, path_mtu: usize) -> Self {
        Self {
            p_key,
            mtu: path_mtu.min(remote.path_mtu),
            responder: Responder::new(remote.psn),
            region: Region::new(&local.slots),
            send_psn: local.psn,
            icrc_in: IcrcMemo::default(),
            icrc_out: IcrcMemo::default(),
            next_slot: 0,
            peer: peer(remote.address, local.qpn),
            local,
            remote,
        }
    }

    /// The peer at the other end.
    #[inline]
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    /// Takes a packet for this queue pair whose ICRC was verified.
    #[inline]
    pub(crate) fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        datagram: &Datagram,
        packet: &Packet,
        counters: &mut Counters,
        mut handle: H,
    ) -> Taken {
        let slots = self.local.slots;
        let Step { land, then } = match self.responder.step(packet, &slots, self.local.rkey, &mut counters.gaps) {
            Ok(step) => step,
            Err(refusal) => {
                counters.refused[refusal as usize] += 1;
                return Taken::NOTHING;
            }
        };
        let (base, len) = (datagram.payload.start, packet.payload.len());
        if let Some(at) = land {
            self.region.bytes()[at..at + len].copy_from_slice(&buf[base..][packet.payload.clone()]);
        }
        if let Then::Refuse(refusal) = then {
            counters.refused[refusal as usize] += 1;
            return Taken::NOTHING;
        }
        counters.taken.packets += 1;
        counters.taken.messages += u64::from(then != Then::Wait);
        let peer = self.peer;
        match then {
            Then::Wait | Then::End | Then::Refuse(_) => Taken::NOTHING,
            Then::Slot { slot, len } => {
                let window = self.remote.window.filter(|window| slot < window.slots.count);
                let headers = Self::headers_len(window.is_some());
                let most = self.most(datagram.capacity, headers, window.as_ref());
                let room = &mut self.region.bytes()[slot * slots.stride..][..slots.stride.min(most.max(len))];
                let mut frame = Frame::new(room, len, len, peer).routed(datagram.way);
                if handle(&mut frame) != Verdict::Reply {
                    return Taken { lent: Some(len), answer: Answer::None };
                }
                let answer = frame.len();
                if answer > most {
                    return Taken { lent: Some(len), answer: Answer::TooLong };
                }
                let from = slot * slots.stride;
                buf[base + headers..][..answer].copy_from_slice(&self.region.bytes()[from..from + answer]);
                let to = window.map(|window| (window, slot));
                Taken { lent: Some(len), answer: Answer::Sealed(self.reply(host, buf, datagram, to, answer)) }
            }
            Then::Payload => {
                let most = self.most(datagram.capacity, Self::headers_len(false), None);
                let room = &mut buf[base..][packet.payload.start..][..most.max(len)];
                let mut frame = Frame::new(room, len, len, peer).routed(datagram.way);
                let verdict = handle(&mut frame);
                let answer = frame.len();
                let answer = match verdict {
                    Verdict::Drop | Verdict::Keep => Answer::None,
                    Verdict::Reply if answer > most => Answer::TooLong,
                    Verdict::Reply => Answer::Sealed(self.reply(host, buf, datagram, None, answer)),
                };
                Taken { lent: Some(len), answer }
            }
        }
    }

    /// Writes a message that is not an answer into `buf`.
    #[inline]
    pub(crate) fn post<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        route: &Route,
        most: usize,
        fill: F,
    ) -> Option<Sealed> {
        let to = self.remote.window.map(|window| (window, self.next_slot));
        let headers = Self::headers_len(to.is_some());
        let payload = &mut buf[route.header_len() + headers..];
        let mut len = fill(&mut payload[..most]);
        assert!(len <= most, "posted frame longer than the port's longest");
        if len > self.mtu.min(to.map_or(usize::MAX, |(window, _)| window.slots.stride)) {
            return None;
        }
        if let Some((window, slot)) = to {
            let padded = len.next_multiple_of(window.unit);
            payload[len..padded].fill(0);
            len = padded;
            self.next_slot = if slot + 1 < window.slots.count { slot + 1 } else { 0 };
        }
        let len = self.write(&mut buf[route.header_len()..], to, len);
        let sealed = host.seal(buf, route, len, false);
        self.sign(&mut buf[..sealed.len], sealed);
        Some(sealed)
    }

    /// Turns a request's packet into its answer, whose payload is behind the request's headers.
    #[inline]
    fn reply(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        datagram: &Datagram,
        to: Option<(Window, usize)>,
        len: usize,
    ) -> Sealed {
        let len = self.write(&mut buf[datagram.payload.start..], to, len);
        let peer = SocketAddr::new(datagram.peer.ip(), UDP_PORT);
        let sealed = host.reply(buf, &datagram.by(peer), len, false);
        self.sign(&mut buf[..sealed.len], sealed);
        sealed
    }

    /// Writes the transport headers of the next packet around a payload of `len` bytes; returns the datagram's length.
    #[inline]
    fn write(&mut self, datagram: &mut [u8], to: Option<(Window, usize)>, len: usize) -> usize {
        let psn = self.send_psn;
        self.send_psn = psn.plus(1);
        let write = to.map(|(Window { rkey, slots, .. }, slot)| {
            let address = slots.base + (slot * slots.stride) as u64;
            (Reth::new(address, rkey, len as u32), slots.form.join(psn.get(), slot as u32))
        });
        Head { p_key: self.p_key, destination: self.remote.qpn, psn, write }.write(datagram, len)
    }

    /// Writes the ICRC at the end of a frame that is complete otherwise.
    #[inline]
    fn sign(&mut self, frame: &mut [u8], sealed: Sealed) {
        if let Some((packet, crc)) = frame[sealed.link_len..].split_last_chunk_mut::<{ Icrc::LEN }>() {
            *crc = self.icrc_out.icrc(packet, sealed.ip_len).0;
        }
    }

    #[inline]
    fn headers_len(write: bool) -> usize {
        if write { HEADERS_MAX } else { Opcode::SendOnly.headers_len() }
    }

    /// Longest payload behind these headers in a datagram of at most `capacity` bytes.
    #[inline]
    fn most(&self, capacity: usize, headers: usize, window: Option<&Window>) -> usize {
        let most = capacity.saturating_sub(headers + Icrc::LEN) & !3;
        most.min(self.mtu).min(window.map_or(usize::MAX, |window| window.slots.stride))
    }
}

/// The peer at `address` that our queue pair `qpn` is connected to.
pub(crate) fn peer(address: IpAddr, qpn: Qpn) -> Peer {
    Peer::Connection { number: qpn.get(), host: Some(address) }
}
