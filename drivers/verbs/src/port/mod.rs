//! The verbs port: the queue pairs of its peers on one device, polled as one queue of frames.
//!
//! # Peers
//!
//! Peers come by the rendezvous ([`PortConfig::rendezvous`]), whose thread makes their queue pairs and memory. Each
//! peer has its own: no peer reaches another's slots, and one that dies or whose work fails does not affect the others.
//! The finished peer goes to a queue's poll core through a mailbox, which [`Port::rx`] checks once per burst. It comes
//! back the same way to be destroyed.
//!
//! Users of the port see a peer as its address on the fabric, with a number that identifies its place in the port and
//! is not reused soon.
//!
//! # Frames
//!
//! Requests are SENDs, each into a posted receive with a slot, or RDMA WRITEs with immediate into the slot that the
//! immediate names. The latter are copied first, because the peer could change them while they are read. A frame is
//! answered where it is lent, and sent from there: inline if it is short, by SEND, or by RDMA WRITE with immediate into
//! the same slot of the peer's window if it offered one. Doorbells are rung once per burst and peer, and every 16th
//! send is signalled. Receives are posted again 16 at a time; there are so many that a peer may have as many requests
//! under way as it has slots.
//!
//! With [`PortConfig::kept`], SENDs are received into memory that another process, such as that of a GPU, can map to
//! read, and stay there as long as they are kept ([`Verdict::Keep`]), as many of a peer as it has slots. Written requests
//! are not: a peer may write its slot again once the time of a request was up, while a late reader is still at it.
//!
//! # The device
//!
//! If the device fails, is removed, or overruns a completion queue, the port returns everything made from it and serves
//! nobody. It looks for the device four times a second.

mod client;
mod device;
mod link;
mod peer;
mod shared;

use std::{fmt, net::SocketAddr, sync::Arc};

use berth_pages::Pages;
use berth_port::{
    BURST, Frame, Mailbox, Peer as Name, Port, PostError, Tables, Verdict,
    families::{PEERS, PSN_GAPS, PSN_LOST, RX_DROPPED, RX_FRAMES, RX_KEPT, RX_TRUNCATED, TX_DROPPED, TX_FRAMES},
    mailbox,
};
use berth_rendezvous::{Form, Limits, Rendezvous};
use berth_wire::rendezvous::{ImmForm, PeerKind};

use crate::{Completion, Error, Outcome, Work};
use device::{Device, Queues};
use link::{Lane, Link, Order, Report, Tally};
use peer::{Inbound, Peer, Refused, Shape, place_of, receive_id, split_id};
use shared::Shared;

/// Number of slots for messages that are posted to a peer rather than answers.
const OWN_SLOTS: u32 = 64;

/// Settings of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// Name of the device, such as `rxe0`.
    pub device: String,
    /// Port number of the device, from 1.
    pub port: u8,
    /// Index of our address in the port's GID table.
    pub gid_index: u8,
    /// Address of the rendezvous: where peers come, or, for a client, where it connects to.
    pub rendezvous: SocketAddr,
    /// Messages of the rendezvous.
    pub form: Form,
    /// How immediates name slots.
    pub immediate: ImmForm,
    /// Number of slots for each peer.
    pub slots: u32,
    /// Longest frame in bytes.
    pub max_frame: usize,
    /// Limit on the peers of each queue.
    pub peers: usize,
    /// Received frames of each queue that may be kept where they are at once ([`Verdict::Keep`]). If not 0, SENDs come
    /// into memory that others can read: [`VerbsPort::frames`].
    pub kept: u32,
}

impl PortConfig {
    fn shape(&self) -> Shape {
        // The alignment that FPGAs want.
        let stride = self.max_frame.next_multiple_of(128);
        let kept = self.kept.min(self.slots);
        Shape { slots: self.slots, own: OWN_SLOTS, stride, max_frame: self.max_frame, kept }
    }
}

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] Error),
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// This address of the rendezvous could not be used.
    #[error("the rendezvous cannot be at {0}: {1}")]
    Rendezvous(SocketAddr, #[source] std::io::Error),
    /// The call to the other side's rendezvous failed.
    #[error(transparent)]
    Call(#[from] berth_rendezvous::CallError),
    /// The other side's answer is not one for an RDMA peer.
    #[error(
        "the port behind the rendezvous answered nothing that an RDMA peer can use: is it a verbs port of this form?"
    )]
    Answer,
}

/// Opens a device as a port with `queues` queues, each for its own poll core. New peers go to the queue with the
/// fewest.
pub fn open(config: &PortConfig, queues: usize) -> Result<Vec<VerbsPort>, OpenError> {
    let shape = config.shape();
    if config.slots == 0 || config.slots > config.immediate.max_slots() {
        let (most, form) = (config.immediate.max_slots(), config.immediate);
        return Err(OpenError::Config(format!("immediates of the form {form} name 1 to {most} slots")));
    }
    let device = Device::open(config)?;
    let most = device.most_peers(shape).min(1024);
    if config.peers == 0 || config.peers > most {
        let device = &config.device;
        return Err(OpenError::Config(format!("{device} has room for 1 to {most} peers of {} slots", config.slots)));
    }
    let tally = Arc::<Tally>::default();
    let (mut ports, mut lanes) = (Vec::new(), Vec::new());
    for _ in 0..queues {
        let made = device.queues(config.peers, shape)?;
        let (core, mailbox) = mailbox(2 * config.peers + 4, config.peers + 4);
        let mut port = VerbsPort::new(config, made.clone(), mailbox, tally.clone());
        if config.kept > 0 {
            port.shared = Shared::new(config.peers, shape, config.kept, device.numa());
        }
        let frames = port.shared.as_ref().ok().map(|shared| shared.frames().clone());
        lanes.push(Lane { core, queues: Some(made), places: vec![None; config.peers], frames });
        ports.push(port);
    }
    let link = Link::new(config.clone(), device, lanes, tally);
    let limits = Limits { peers: config.peers * queues, ..Limits::default() };
    let rendezvous = Rendezvous::listen(config.rendezvous, config.form, limits, link)
        .map_err(|e| OpenError::Rendezvous(config.rendezvous, e))?;
    let rendezvous = Arc::new(rendezvous);
    for (nth, port) in ports.iter_mut().enumerate() {
        port.local = rendezvous.local_addr();
        port.first = nth == 0;
        port.way = Way::Server(rendezvous.clone());
    }
    Ok(ports)
}

/// What keeps the way to the peers open.
enum Way {
    None,
    Server(Arc<Rendezvous>),
    Client(#[expect(dead_code, reason = "held open")] berth_rendezvous::Held),
}

/// One queue of a device, as a [`Port`].
///
/// Counters: `rx_frames`, `rx_truncated` (longer than `max_frame`, lent with the length cut), `rx_kept`, `tx_frames`,
/// `tx_dropped`
/// (answers to a peer that accepts none), `psn_gaps` (immediates whose number does not follow), `psn_lost` (the packets
/// missing there), `slot_overruns` (requests that were overwritten before they were looked at), `slot_out_of_range`,
/// `bad_immediates`, `peers_joined` and `peers_failed` (those whose work failed), `device_losses`, `device_returns`,
/// `cq_overruns`, `offers_refused`, and those of the rendezvous.
pub struct VerbsPort {
    local: SocketAddr,
    max_frame: usize,
    peers: Box<[Option<Box<Peer>>]>,
    queues: Option<Queues>,
    mailbox: Mailbox<Order, Report>,
    completions: Box<[Completion; BURST]>,
    /// Which completions of the burst were overwritten by later ones.
    stale: [bool; BURST],
    burst: u64,
    /// Places whose doorbell must be rung.
    dirty: Vec<usize>,
    /// Places with requests that wait until answers have been sent.
    waiting: Vec<usize>,
    /// Receives that others can read, or why none.
    shared: Result<Shared, String>,
    counters: Counters,
    tally: Arc<Tally>,
    /// Whether this queue reports the counters that all queues share.
    first: bool,
    way: Way,
}

berth_port::counters! {
    struct Counters {
        rx_frames: RX_FRAMES,
        rx_truncated: RX_TRUNCATED,
        rx_kept: RX_KEPT,
        tx_frames: TX_FRAMES,
        tx_dropped: TX_DROPPED { reason: "full" },
        psn_gaps: PSN_GAPS,
        psn_lost: PSN_LOST,
        slot_overruns: RX_DROPPED { reason: "slot_overrun" },
        slot_out_of_range: RX_DROPPED { reason: "slot_out_of_range" },
        bad_immediates: RX_DROPPED { reason: "bad_immediate" },
        peers_joined: PEERS { event: "joined" },
        peers_failed: PEERS { event: "failed" },
    }
}

/// Declarations of a port's counters, those of its rendezvous aside.
pub const COUNTERS: Tables = &[Counters::TABLE, Tally::TABLE];

impl VerbsPort {
    fn new(config: &PortConfig, queues: Queues, mailbox: Mailbox<Order, Report>, tally: Arc<Tally>) -> Self {
        let places = config.peers;
        Self {
            local: config.rendezvous,
            max_frame: config.max_frame,
            peers: std::iter::repeat_with(|| None).take(places).collect(),
            queues: Some(queues),
            mailbox,
            completions: Box::new([Completion::default(); BURST]),
            stale: [false; BURST],
            burst: 0,
            dirty: Vec::with_capacity(places),
            waiting: Vec::with_capacity(places),
            shared: Err("the port is to keep no frames".to_owned()),
            counters: Counters::default(),
            tally,
            first: true,
            way: Way::None,
        }
    }

    /// The memory that SENDs are received into, for another process to read.
    ///
    /// # Errors
    /// Why frames cannot be kept, in words.
    pub fn frames(&self) -> Result<Arc<Pages>, &str> {
        self.shared.as_ref().map(Shared::pages).map_err(String::as_str)
    }

    /// Carries out the commands of the rendezvous's thread.
    #[cold]
    fn obey(&mut self) {
        while let Some(order) = self.mailbox.take() {
            match order {
                Order::Take(peer) => {
                    self.counters.peers_joined += 1;
                    if let Some(place) = place_of(peer.name) {
                        self.peers[place] = Some(peer);
                    }
                }
                Order::Drop(id) => {
                    let is = |peer: &Option<Box<Peer>>| peer.as_ref().is_some_and(|peer| peer.id == id);
                    if let Some(place) = self.peers.iter().position(is) {
                        self.give_back(place);
                    }
                }
                Order::Down => {
                    for place in 0..self.peers.len() {
                        self.give_back(place);
                    }
                    let queues = self.queues.take();
                    self.mailbox.give_back(Report::Down(queues));
                }
                Order::Up(queues) => self.queues = Some(queues),
            }
        }
    }

    #[cold]
    fn give_back(&mut self, place: usize) {
        if let Some(peer) = self.peers[place].take() {
            // There is room for each peer there can be.
            self.mailbox.give_back(Report::Peer(peer));
        }
    }

    /// Gives up a peer whose work failed.
    #[cold]
    fn fail(&mut self, place: usize) {
        self.counters.peers_failed += u64::from(self.peers[place].is_some());
        self.give_back(place);
    }

    /// Walks a burst from its end, because a later write into a slot replaces the request that was announced earlier.
    #[inline]
    fn find_stale(&mut self, burst: usize) {
        self.burst += 1;
        for index in (0..burst).rev() {
            let completion = &self.completions[index];
            self.stale[index] = false;
            let Some(immediate) = completion.immediate().filter(|_| completion.work() == Work::Written) else {
                continue;
            };
            let Some(peer) = at(&mut self.peers, completion.id()) else { continue };
            if let Inbound::Slots(form) = peer.inbound
                && let Some((_, slot)) = form.split(immediate)
            {
                self.stale[index] = !peer.first_of(slot, self.burst);
            }
        }
    }

    /// Handles one completed receive. Returns whether a frame was lent.
    #[inline]
    fn received<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, index: usize, handle: &mut H) -> bool {
        let completion = self.completions[index];
        let (place, _, posted) = split_id(completion.id());
        let Some(peer) = at(&mut self.peers, completion.id()) else { return false };
        if completion.outcome() != Outcome::Done {
            self.fail(place);
            return false;
        }
        peer.ring_soon(place, &mut self.dirty);
        let wire_len = completion.len();
        if peer.must_wait() {
            if !peer.wait(posted, wire_len) {
                self.waiting.push(place);
            }
            return false;
        }
        let counters = &mut self.counters;
        let slot = match peer.inbound {
            Inbound::Receives => posted,
            Inbound::Slots(form) => {
                peer.release(posted);
                let told = completion.immediate().ok_or(Refused::Immediate);
                match told.and_then(|immediate| peer.written(form, immediate, wire_len)) {
                    Ok((slot, lost)) => {
                        counters.psn_gaps += u64::from(lost > 0);
                        counters.psn_lost += lost;
                        slot
                    }
                    Err(Refused::Immediate) => {
                        counters.bad_immediates += 1;
                        return false;
                    }
                    Err(Refused::Slot) => {
                        counters.slot_out_of_range += 1;
                        return false;
                    }
                }
            }
        };
        if self.stale[index] {
            counters.slot_overruns += 1;
            return false;
        }
        self.lend(place, slot, wire_len, handle);
        true
    }

    /// Lends a request and queues its answer.
    #[inline]
    fn lend<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, place: usize, slot: u32, wire_len: usize, handle: &mut H) {
        let Some(peer) = self.peers[place].as_deref_mut() else { return };
        peer.ring_soon(place, &mut self.dirty);
        let counters = &mut self.counters;
        counters.rx_frames += 1;
        let len = wire_len.min(self.max_frame);
        counters.rx_truncated += u64::from(wire_len > len);
        let (name, generation) = (peer.name, peer.generation);
        let (buffer, bytes) = peer.request(slot, len);
        let lies = self.shared.as_ref().ok().and_then(|shared| shared.place(place, &bytes[..len]));
        let mut frame = Frame::new(bytes, len, wire_len, name);
        if let Some(lies) = lies {
            frame.set_place(lies);
        }
        let verdict = handle(&mut frame);
        let (len, urgent) = (frame.len(), frame.is_urgent());
        if let (Verdict::Keep, Some(_), Ok(shared)) = (verdict, lies, &mut self.shared) {
            counters.rx_kept += 1;
            shared.keep(receive_id(place, generation, slot));
        } else if verdict != Verdict::Reply || !peer.has_room() {
            counters.tx_dropped += u64::from(verdict == Verdict::Reply);
            if peer.inbound == Inbound::Receives {
                peer.release(slot);
            }
        } else {
            counters.tx_frames += 1;
            if peer.answer(place, slot, buffer, len).is_err() {
                self.fail(place);
            }
        }
        if urgent {
            self.flush();
        }
    }

    /// Lends a burst of waiting requests, as far as answers have been sent. Returns their number.
    #[cold]
    fn resume<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, handle: &mut H) -> usize {
        let mut lent = 0;
        for _ in 0..self.waiting.len() {
            let place = self.waiting.remove(0);
            while lent < BURST
                && let Some((slot, len)) = self.peers[place].as_deref_mut().and_then(Peer::waited)
            {
                self.lend(place, slot, len, handle);
                lent += 1;
            }
            if self.peers[place].as_deref().is_some_and(Peer::is_waiting) {
                self.waiting.push(place);
            }
        }
        lent
    }

    /// Rings the doorbells that are due.
    #[inline]
    fn flush(&mut self) {
        while let Some(place) = self.dirty.pop() {
            let Some(peer) = self.peers[place].as_deref_mut() else { continue };
            peer.dirty = false;
            if peer.flush(place).is_err() {
                self.fail(place);
            }
        }
    }

    /// Takes completions of sends, which free slots and room.
    #[inline]
    fn reap(&mut self) {
        let Some(queues) = &self.queues else { return };
        let Ok(burst) = queues.sent.poll(&mut self.completions[..]) else { return };
        for index in 0..burst {
            let completion = self.completions[index];
            let (place, _, number) = split_id(completion.id());
            let Some(peer) = at(&mut self.peers, completion.id()) else { continue };
            if completion.outcome() != Outcome::Done {
                self.fail(place);
                continue;
            }
            peer.sent(number);
            // Its buffers that came back are posted again.
            peer.ring_soon(place, &mut self.dirty);
        }
    }
}

/// The peer that a work request was for, if it is still there.
#[inline]
fn at(peers: &mut [Option<Box<Peer>>], id: u64) -> Option<&mut Peer> {
    let (place, generation, _) = split_id(id);
    peers.get_mut(place)?.as_deref_mut().filter(|peer| peer.generation == generation)
}

impl Port for VerbsPort {
    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        if !self.mailbox.is_empty() {
            self.obey();
        }
        if !self.waiting.is_empty() {
            let resumed = self.resume(&mut handle);
            if resumed > 0 {
                return resumed;
            }
        }
        let Some(queues) = &self.queues else { return 0 };
        let Ok(burst) = queues.received.poll(&mut self.completions[..]) else { return 0 };
        if burst == 0 {
            return 0;
        }
        self.find_stale(burst);
        (0..burst).filter(|index| self.received(*index, &mut handle)).count()
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Name, fill: F) -> Result<(), PostError> {
        let place = place_of(peer).ok_or(PostError::Unreachable)?;
        let there = self.peers.get_mut(place).and_then(Option::as_mut).filter(|there| there.name == peer);
        let there = there.ok_or(PostError::Unreachable)?;
        match there.post(place, fill) {
            None => Err(PostError::Full),
            Some(Ok(())) => {
                self.counters.tx_frames += 1;
                there.ring_soon(place, &mut self.dirty);
                Ok(())
            }
            Some(Err(_)) => {
                self.fail(place);
                Err(PostError::Unreachable)
            }
        }
    }

    #[inline]
    fn release(&mut self, number: u32) {
        let Some(id) = self.shared.as_mut().ok().and_then(|shared| shared.release(number)) else { return };
        let (place, _, slot) = split_id(id);
        let Some(peer) = at(&mut self.peers, id) else { return };
        peer.release(slot);
        peer.ring_soon(place, &mut self.dirty);
    }

    #[inline]
    fn tx(&mut self) {
        self.reap();
        self.flush();
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    /// The address of the rendezvous.
    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
        if self.first {
            self.tally.report(visit);
            if let Way::Server(rendezvous) = &self.way {
                rendezvous.counters(visit);
            }
        }
    }
}

impl fmt::Debug for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsPort({}, {} peers)", self.local, self.peers.iter().flatten().count())
    }
}
