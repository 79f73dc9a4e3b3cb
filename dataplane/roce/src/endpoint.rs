//! The endpoint: takes datagrams, lends frames to the service, and builds packets.

use std::net::SocketAddr;

use berth_net::{Datagram, Host, Route, Sealed, Taken, Transport};
use berth_port::{Frame, Mailbox, Peer, Verdict};
use berth_wire::roce::{Bth, HEADERS_MAX, Icrc, Malformed, Packet, UDP_PORT, icrc};
use zerocopy::FromBytes as _;

use crate::{Config, Refusal, counters::Counters, queue_pair::QueuePair, registrar::Change};

/// The queue pairs of one port, as a [`Transport`].
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    /// Indexed by the low bits of their numbers.
    pairs: Box<[Option<Box<QueuePair>>]>,
    changes: Mailbox<Change, Box<QueuePair>>,
    counters: Counters,
}

impl Endpoint {
    pub(crate) fn new(config: Config, places: usize, changes: Mailbox<Change, Box<QueuePair>>) -> Self {
        let pairs = std::iter::repeat_with(|| None).take(places).collect();
        Self { config, pairs, changes, counters: Counters::default() }
    }

    #[cold]
    fn take_note(&mut self) {
        while let Some(change) = self.changes.take() {
            match change {
                Change::Add(pair) => {
                    let place = pair.local.qpn.get() as usize & (self.pairs.len() - 1);
                    self.pairs[place] = Some(pair);
                    self.counters.taken.peers_joined += 1;
                }
                Change::Remove(qpn) => {
                    let place = qpn.get() as usize & (self.pairs.len() - 1);
                    if let Some(pair) = self.pairs[place].take_if(|pair| pair.local.qpn == qpn) {
                        self.counters.taken.peers_left += 1;
                        self.changes.give_back(pair);
                    }
                }
            }
        }
    }

    /// The queue pair that a datagram is for, and the packet in it, once both have been verified.
    #[inline]
    fn admit<'a>(
        &'a mut self,
        buf: &[u8],
        datagram: &Datagram,
    ) -> Result<(&'a mut QueuePair, Packet, &'a mut Counters), (Refusal, &'a mut Counters)> {
        let counters = &mut self.counters;
        let bytes = &buf[datagram.payload.clone()];
        let Ok((bth, rest)) = Bth::ref_from_prefix(bytes) else { return Err((Refusal::Malformed, counters)) };
        if rest.len() < Icrc::LEN {
            return Err((Refusal::Malformed, counters));
        }
        // Before the ICRC is known to be right this is a guess, good enough to know whose packets have looked like it.
        let place = bth.destination().get() as usize & (self.pairs.len() - 1);
        let mut pair = self.pairs[place].as_deref_mut().filter(|pair| pair.local.qpn == bth.destination());
        let (packet, ip_len) = (&buf[datagram.ip..datagram.payload.end], datagram.udp - datagram.ip);
        let right = packet.split_last_chunk().is_some_and(|(packet, crc)| {
            let expected = match &mut pair {
                Some(pair) => pair.icrc_in.icrc(packet, ip_len),
                None => icrc(packet, ip_len),
            };
            Icrc(*crc) == expected
        });
        if !right {
            return Err((Refusal::BadIcrc, counters));
        }
        let packet = match Packet::parse(bytes) {
            Ok(packet) => packet,
            Err(Malformed::Opcode) => return Err((Refusal::UnknownOpcode, counters)),
            Err(Malformed::Truncated | Malformed::Version | Malformed::Padding) => {
                return Err((Refusal::Malformed, counters));
            }
        };
        let Some(pair) = pair else { return Err((Refusal::UnknownQpn, counters)) };
        if pair.remote.address != datagram.peer.ip() {
            return Err((Refusal::WrongSource, counters));
        }
        if !self.config.p_key.matches(packet.p_key) {
            return Err((Refusal::WrongPKey, counters));
        }
        Ok((pair, packet, counters))
    }

    fn place_of(&self, peer: Peer) -> Option<usize> {
        let Peer::Connection { number, .. } = peer else { return None };
        let place = number as usize & (self.pairs.len() - 1);
        self.pairs[place].as_ref().is_some_and(|pair| pair.peer() == peer).then_some(place)
    }
}

impl Transport for Endpoint {
    /// The ICRC covers more, and `RoCEv2` senders leave the field zero (annex A17.4.5.2).
    const UDP_CHECKSUMS: bool = false;

    #[inline]
    fn poll(&mut self) {
        if !self.changes.is_empty() {
            self.take_note();
        }
    }

    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        datagram: &Datagram,
        _offload: bool,
        handle: H,
    ) -> Taken {
        match self.admit(buf, datagram) {
            Ok((pair, packet, counters)) => {
                let taken = pair.rx(host, buf, datagram, &packet, counters, handle);
                counters.taken.sent += u64::from(matches!(taken.answer, berth_net::Answer::Sealed(_)));
                taken
            }
            Err((refusal, counters)) => {
                counters.refused[refusal as usize] += 1;
                Taken::NOTHING
            }
        }
    }

    #[inline]
    fn address_of(&self, peer: Peer) -> Option<SocketAddr> {
        self.place_of(peer)?;
        Some(SocketAddr::new(peer.host()?, UDP_PORT))
    }

    #[inline]
    fn post<F: FnOnce(&mut [u8]) -> usize>(
        &mut self,
        host: &Host,
        buf: &mut [u8],
        route: &Route,
        peer: Peer,
        _offload: bool,
        fill: F,
    ) -> Option<Sealed> {
        let most = self.max_frame(host);
        let place = self.place_of(peer)?;
        let pair = self.pairs[place].as_deref_mut()?;
        let sealed = pair.post(host, buf, route, most, fill);
        self.counters.taken.sent += u64::from(sealed.is_some());
        sealed
    }

    fn max_frame(&self, host: &Host) -> usize {
        let most = host.max_payload().saturating_sub(HEADERS_MAX + Icrc::LEN) & !3;
        most.min(self.config.path_mtu)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
    }
}
