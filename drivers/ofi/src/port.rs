//! The hot path of a port: one endpoint.

use std::net::{IpAddr, SocketAddr};

use berth_port::{
    BURST, Frame, Mailbox, Peer, Port, PostError, Tables, Verdict,
    families::{PEERS, RX_DROPPED, RX_ERRORS, RX_FRAMES, TX_DEFERRED, TX_DROPPED, TX_FRAMES},
};
use berth_rendezvous::{Form, Held, Offer, Rendezvous, call};
use berth_wire::{
    fabric::BindingTlv,
    rendezvous::{Peer as Who, PeerKind},
};

use crate::{
    Error,
    address::{Format, MAX_ADDRESS},
    buffers::Buffer,
    endpoint::{Completion, Endpoint, Size},
    facts::Facts,
    info::Place,
    peers::{Command, Done, Peers},
    roster::Roster,
};

/// Approximate size of the buffers in each direction, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// One reliable datagram endpoint as a [`Port`].
///
/// Its peers are the endpoints that were admitted, by its rendezvous or by [`Peers::admit`].
///
/// Counters: `rx_frames`, `rx_unknown` (messages of endpoints that are not admitted, dropped), `rx_too_long` (longer
/// than `max_frame`, dropped), `rx_errors` (failed receives), `tx_frames` (accepted by the provider), `tx_deferred`
/// (times that the provider took no more for a peer), `tx_dropped` (answers without a buffer: the peer leaves too many
/// unread), `tx_errors` (messages that the provider gave up), `tx_gone` (to peers that have left), `peers_joined`,
/// `peers_left`, `peers_refused` (by the provider), `provider_errors` (failed polls and lost operations), and those of
/// the rendezvous.
#[derive(Debug)]
pub struct OfiPort {
    /// Dropped first: nobody is admitted any more, and everyone who waits for that learns it at once.
    mailbox: Mailbox<Command, Done>,
    rendezvous: Option<Rendezvous>,
    peers: Peers,
    local: SocketAddr,
    endpoint: Endpoint,
    max_frame: usize,
    roster: Roster,
    /// Buffers for future messages.
    free: Vec<Buffer>,
    /// Buffers to be posted as receives, for a single peer if its slot is given.
    idle: Vec<(Buffer, Option<u32>)>,
    /// Receives for each peer, if the provider needs them posted so, and buffers for future peers.
    directed: Option<Directed>,
    outbox: Outbox,
    counters: Counters,
    /// A client's connection to the rendezvous of its server.
    held: Option<Held>,
}

#[derive(Debug)]
struct Directed {
    each: usize,
    spare: Vec<Buffer>,
}

/// Messages that wait for the provider.
#[derive(Debug)]
struct Outbox {
    queue: Vec<Queued>,
    /// Empty except during a flush.
    later: Vec<Queued>,
    round: u64,
    inject_size: usize,
}

#[derive(Debug)]
struct Queued {
    buffer: Buffer,
    len: usize,
    /// Slot of the peer.
    to: u32,
}

berth_port::counters! {
    struct Counters {
        rx_frames: RX_FRAMES,
        rx_unknown: RX_DROPPED { reason: "unknown_peer" },
        rx_too_long: RX_DROPPED { reason: "too_long" },
        rx_errors: RX_ERRORS,
        tx_frames: TX_FRAMES,
        tx_deferred: TX_DEFERRED,
        tx_dropped: TX_DROPPED { reason: "full" },
        tx_errors: TX_DROPPED { reason: "error" },
        tx_gone: TX_DROPPED { reason: "peer_gone" },
        peers_joined: PEERS { event: "joined" },
        peers_left: PEERS { event: "left" },
        peers_refused: PEERS { event: "refused" },
        provider_errors: "errors of a libfabric provider that belong to no frame",
    }
}

/// Declarations of a port's counters, those of its rendezvous aside.
pub const COUNTERS: Tables = &[Counters::TABLE];

impl OfiPort {
    /// Opens an endpoint for frames of up to `max_frame` bytes. Its peers come through `rendezvous`, which serves
    /// `peers`.
    pub fn open(place: &Place, max_frame: usize, rendezvous: Rendezvous, peers: Peers) -> Result<Self, Error> {
        let local = rendezvous.local_addr();
        Self::new(place, max_frame, peers, local, Some(rendezvous))
    }

    /// Opens an endpoint, and has it admitted at the port whose rendezvous is at `server`, which is its only peer.
    pub fn connect(place: &Place, max_frame: usize, server: SocketAddr) -> Result<(Self, Peer), Error> {
        let mut held = None;
        let (mut port, peer) = Self::join(place, max_frame, server, |own| {
            let offer = Offer { kind: PeerKind::Ofi, peer: Who::Ofi { addr: own }, window: None };
            let called = call(server, Form::Berth, &offer);
            let (answer, connection) = called.map_err(|source| Error::Rendezvous { server, source })?;
            held = Some(connection);
            let theirs = answer.facts().find_map(|fact| match fact {
                BindingTlv::OfiAddr(address) => Some(address.to_vec()),
                _ => None,
            });
            theirs.ok_or(Error::NoAddress(server))
        })?;
        port.held = held;
        Ok((port, peer))
    }

    /// Opens an endpoint with one peer, at the node at `server`. `meet` gets the endpoint's own address and finds the
    /// peer's.
    pub fn join<E: From<Error>>(
        place: &Place,
        max_frame: usize,
        server: SocketAddr,
        meet: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<(Self, Peer), E> {
        let mut port = Self::new(place, max_frame, Peers::new(1), server, None)?;
        let own = port.facts().address.clone();
        let theirs = meet(&own)?;
        let format = Format { code: port.endpoint.info().addr_format(), len: own.len() };
        let padded = format.check(&theirs).ok_or(Error::Address)?;
        let slot = port.insert(theirs.into(), &padded, Some(server.ip()));
        let peer = slot.and_then(|slot| port.roster.peer(slot)).map(|peer| peer.name);
        Ok((port, peer.ok_or(Error::Address)?))
    }

    fn new(
        place: &Place,
        max_frame: usize,
        peers: Peers,
        local: SocketAddr,
        rendezvous: Option<Rendezvous>,
    ) -> Result<Self, Error> {
        let depth = (BUFFER_BYTES / max_frame.max(1)).clamp(2 * BURST, 16 * BURST);
        let size = Size { frame: max_frame, receives: depth, sends: depth, peers: peers.limit() };
        let (endpoint, mut free, receives) = Endpoint::open(place, size)?;
        let info = endpoint.info();
        let named = endpoint.name();
        let address = named.map_err(|reason| Error::Call { call: "fi_getname", place: place.to_string(), reason })?;
        let format = Format { code: info.addr_format(), len: address.len() };
        let max_message = info.max_message().min(max_frame);
        let facts = Facts {
            provider: info.provider(),
            fabric: info.fabric(),
            address,
            caps: info.caps(),
            max_message: max_message as u64,
        };
        let received = free.split_off(free.len() - receives);
        let (idle, directed) = if info.is_directed() {
            let each = (receives / peers.limit()).max(1);
            (Vec::with_capacity(receives), Some(Directed { each, spare: received }))
        } else {
            (received.into_iter().map(|buffer| (buffer, None)).collect(), None)
        };
        let mut port = Self {
            mailbox: peers.opened(facts, format),
            local,
            max_frame: max_message,
            roster: Roster::new(peers.limit()),
            outbox: Outbox {
                queue: Vec::with_capacity(free.len()),
                later: Vec::with_capacity(free.len()),
                round: 0,
                inject_size: info.inject_size(),
            },
            free,
            idle,
            directed,
            counters: Counters::default(),
            endpoint,
            rendezvous,
            peers,
            held: None,
        };
        port.post_receives();
        Ok(port)
    }

    /// Description of the endpoint for peers.
    ///
    /// # Panics
    /// Never, as the port is open.
    pub fn facts(&self) -> &Facts {
        self.peers.facts().expect("the port is open")
    }

    /// Admits an endpoint and returns its slot.
    fn insert(&mut self, address: Box<[u8]>, padded: &[u8; MAX_ADDRESS], host: Option<IpAddr>) -> Option<u32> {
        let Ok(at) = self.endpoint.insert(padded) else {
            self.counters.peers_refused += 1;
            return None;
        };
        let Some(slot) = self.roster.insert(address, at, host) else {
            self.counters.peers_refused += 1;
            return None;
        };
        self.counters.peers_joined += 1;
        if let Some(Directed { each, spare }) = &mut self.directed {
            let kept = spare.len().saturating_sub(*each);
            self.idle.extend(spare.drain(kept..).map(|buffer| (buffer, Some(slot))));
            self.post_receives();
        }
        Some(slot)
    }

    fn remove(&mut self, address: &[u8]) {
        let Some((slot, at)) = self.roster.remove(address) else { return };
        self.counters.peers_left += 1;
        if self.directed.is_some() {
            self.endpoint.cancel_receives(slot);
        }
        self.counters.provider_errors += u64::from(self.endpoint.remove(at).is_err());
    }

    #[cold]
    fn obey(&mut self) {
        while let Some(command) = self.mailbox.take() {
            let done = match command {
                Command::Insert { address, padded, host } => {
                    Done::Inserted(self.insert(address, &padded, host).is_some(), padded)
                }
                Command::Remove { address } => {
                    self.remove(&address);
                    Done::Removed(address)
                }
            };
            self.mailbox.give_back(done);
        }
    }

    /// Posts idle buffers as receives, as many as the provider takes.
    #[inline]
    fn post_receives(&mut self) {
        while let Some((buffer, slot)) = self.idle.pop() {
            let from = slot.map(|slot| (slot, self.roster.peer(slot).map(|peer| peer.at)));
            let from = match (from, &mut self.directed) {
                (Some((_, None)), Some(Directed { spare, .. })) => {
                    // Its peer has gone.
                    spare.push(buffer);
                    continue;
                }
                (from, _) => from.and_then(|(slot, at)| Some((slot, at?))),
            };
            if let Err(buffer) = self.endpoint.receive(buffer, from) {
                self.idle.push((buffer, slot));
                return;
            }
            if let Some(slot) = slot {
                self.roster.post(slot);
            }
        }
    }
}

impl Outbox {
    /// Offers the queue to the provider. A peer for which it takes no more does not delay messages to others.
    #[inline]
    fn flush(&mut self, endpoint: &mut Endpoint, roster: &mut Roster, free: &mut Vec<Buffer>, counters: &mut Counters) {
        self.round += 1;
        for Queued { mut buffer, len, to } in self.queue.drain(..) {
            let Some(peer) = roster.peer(to) else {
                counters.tx_gone += 1;
                roster.release(to);
                free.push(buffer);
                continue;
            };
            if roster.is_full(to, self.round) {
                self.later.push(Queued { buffer, len, to });
                continue;
            }
            let at = peer.at;
            let refused = if len <= self.inject_size {
                match endpoint.inject(&buffer.bytes()[..len], at) {
                    Ok(()) => {
                        roster.release(to);
                        free.push(buffer);
                        None
                    }
                    Err(reason) => Some((buffer, reason)),
                }
            } else {
                endpoint.send(buffer, len, to, at).err()
            };
            match refused {
                None => counters.tx_frames += 1,
                Some((buffer, reason)) if reason.is_again() => {
                    counters.tx_deferred += 1;
                    roster.set_full(to, self.round);
                    self.later.push(Queued { buffer, len, to });
                }
                Some((buffer, _)) => {
                    counters.tx_errors += 1;
                    roster.release(to);
                    free.push(buffer);
                }
            }
        }
        std::mem::swap(&mut self.queue, &mut self.later);
    }
}

impl Port for OfiPort {
    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        if !self.mailbox.is_empty() {
            self.obey();
        }
        let max_frame = self.max_frame;
        let Self { endpoint, roster, free, idle, outbox, counters, .. } = self;
        let mut lent = 0;
        let polled = endpoint.poll(|endpoint, completion| match completion {
            Completion::Received { mut buffer, len, peer: directed, from } => {
                let found = match directed {
                    None => roster.by_entry(from),
                    Some(slot) => {
                        roster.end(slot);
                        roster.peer(slot).map(|peer| (slot, peer))
                    }
                };
                let Some((slot, peer)) = found else {
                    counters.rx_unknown += 1;
                    idle.push((buffer, directed));
                    return;
                };
                if len > max_frame {
                    counters.rx_too_long += 1;
                    idle.push((buffer, directed));
                    return;
                }
                lent += 1;
                let mut frame = Frame::new(&mut buffer.bytes()[..max_frame], len, len, peer.name);
                let verdict = handle(&mut frame);
                let (len, urgent) = (frame.len(), frame.is_urgent());
                if verdict != Verdict::Reply {
                    idle.push((buffer, directed));
                } else if roster.may_hold(slot, free.len())
                    && let Some(fresh) = free.pop()
                {
                    // The answer keeps its request's buffer; another one takes its place among the receives.
                    idle.push((fresh, directed));
                    roster.hold(slot);
                    outbox.queue.push(Queued { buffer, len, to: slot });
                } else {
                    counters.tx_dropped += 1;
                    idle.push((buffer, directed));
                }
                if urgent {
                    outbox.flush(endpoint, roster, free, counters);
                }
            }
            Completion::Sent { buffer, peer, failed } => {
                counters.tx_errors += u64::from(failed);
                roster.release(peer);
                free.push(buffer);
            }
            Completion::ReceiveFailed { buffer, peer: directed, reason } => {
                if let Some(slot) = directed {
                    roster.end(slot);
                }
                counters.rx_too_long += u64::from(reason.is_truncation());
                counters.rx_errors += u64::from(!reason.is_truncation() && !reason.is_cancelled());
                idle.push((buffer, directed));
            }
            Completion::Lost => counters.provider_errors += 1,
        });
        self.counters.rx_frames += lent as u64;
        self.counters.provider_errors += u64::from(polled.is_err());
        lent
    }

    #[inline]
    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        let slot = self.roster.by_name(peer).ok_or(PostError::Unreachable)?;
        if !self.roster.may_hold(slot, self.free.len()) {
            return Err(PostError::Full);
        }
        let mut buffer = self.free.pop().ok_or(PostError::Full)?;
        let len = fill(&mut buffer.bytes()[..self.max_frame]);
        assert!(len <= self.max_frame, "posted frame longer than the port's longest");
        self.roster.hold(slot);
        self.outbox.queue.push(Queued { buffer, len, to: slot });
        Ok(())
    }

    #[inline]
    fn tx(&mut self) {
        let Self { endpoint, roster, free, outbox, counters, .. } = self;
        if !outbox.queue.is_empty() {
            outbox.flush(endpoint, roster, free, counters);
        }
        // After the answers: nobody waits for it.
        self.post_receives();
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
        if let Some(rendezvous) = &self.rendezvous {
            rendezvous.counters(visit);
        }
    }
}
