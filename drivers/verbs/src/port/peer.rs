//! One peer: its queue pair, its memory, and the use of its slots.

use std::{collections::VecDeque, net::Ipv6Addr, ptr::NonNull};

use berth_port::Peer as Name;
use berth_rendezvous::PeerId;
use berth_wire::rendezvous::{ImmForm, Slots, Window};

use crate::{BATCH, Error, Flags, Local, MemoryId, Mr, Op, Qp, RemoteBytes};

/// How requests and answers reach us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inbound {
    /// Into posted receives, each of which has a slot.
    Receives,
    /// Into the slot that the immediate names; receives are used up without memory.
    Slots(ImmForm),
}

/// How our messages are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outbound {
    /// As SENDs.
    Send,
    /// Answers are written into the peer's slot with the same number; other messages are SENDs.
    WriteBack(Window),
    /// Written into the peer's slots, one after the other.
    WriteSlots { to: RemoteBytes, slots: Slots },
}

/// Memory of a frame, out of the peer's reach.
#[derive(Debug, Clone, Copy)]
pub(super) enum Buffer {
    /// That of the receive with this slot.
    Received(u32),
    /// The copy of a request that was written into this slot.
    Copied(u32),
    /// One of our own, for posted messages.
    Own(u32),
}

/// Most sends per signalled one, and most receives that wait to be posted again.
const SIGNAL_EVERY: u32 = 16;

/// Sizes of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Limit on the peer's requests under way, and number of slots for them.
    pub(super) slots: u32,
    /// Number of slots for posted messages.
    pub(super) own: u32,
    /// Bytes from the start of one slot to the next.
    pub(super) stride: usize,
    /// Longest frame in bytes.
    pub(super) max_frame: usize,
    /// Limit on the requests that stay in their receives for another reader. One whose time was up stays although the
    /// peer has its answer.
    pub(super) kept: u32,
}

impl Shape {
    /// Sizes in bytes of the memory that requests arrive in, and of our own, which also holds copies of written
    /// requests.
    pub(super) fn bytes(self, written: bool) -> [usize; 2] {
        let [requests, own] = if written { [self.slots, self.own + self.slots] } else { [self.receives(), self.own] };
        [requests, own].map(|slots| slots as usize * self.stride)
    }

    /// Number of a peer's receives: those of a whole window, those of answers that the peer may have before we know it
    /// (no more than a window: [`Peer::must_wait`]), those that others read, and those that wait to be posted again.
    pub(super) fn receives(self) -> u32 {
        2 * self.slots + self.kept + SIGNAL_EVERY
    }

    /// Limit on sends under way.
    pub(super) fn sends(self) -> u32 {
        self.receives() + self.own
    }
}

/// A peer of a port.
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// The name that users of the port see.
    pub(super) name: Name,
    /// Tells its work requests from those of the earlier peer at its place.
    pub(super) generation: u16,
    qp: Qp,
    /// Memory that requests arrive in, which a peer that writes can access, and our own, which none can.
    rings: [Ring; 2],
    shape: Shape,
    pub(super) inbound: Inbound,
    outbound: Outbound,
    mtu: u32,
    /// Slots ready to be posted as receives.
    repost: Vec<u32>,
    /// Slots of inline answers, which are free once the doorbell was rung.
    after_ring: Vec<u32>,
    free: Vec<u32>,
    /// For each send under way, the buffer that it frees when it is over.
    held: VecDeque<Option<Buffer>>,
    /// Number of those that are receives'.
    kept: u32,
    /// Requests that arrived while their answers would hold too many receives: slot and length of each.
    waiting: VecDeque<(u32, usize)>,
    /// Number of the next send, and of the oldest under way.
    next: u32,
    oldest: u32,
    signal_every: u32,
    /// Packet sequence number for our next immediate.
    psn: u32,
    next_slot: u32,
    /// Packet sequence number that the next immediate should have; `None` before the first.
    expected: Option<u32>,
    /// For each slot, the last burst in which it arrived.
    seen: Box<[u64]>,
    /// Whether it is on the port's list of doorbells.
    pub(super) dirty: bool,
}

/// An array of slots in a region.
struct Ring {
    memory: MemoryId,
    base: NonNull<u8>,
    /// Keeps the memory behind `base`.
    _mr: Mr,
}

// SAFETY: the memory behind `base` is registered and kept by `_mr`; whoever owns the peer owns its slots.
unsafe impl Send for Ring {}

impl Ring {
    fn new(qp: &mut Qp, mr: &Mr) -> Result<Self, Error> {
        let base = mr.base().ok_or(Error::Misuse("a port's slots are in memory"))?;
        Ok(Self { memory: qp.keep(mr)?, base, _mr: mr.clone() })
    }
}

/// Work request id of a receive: the peer's place and generation, and the slot.
pub(super) fn receive_id(place: usize, generation: u16, slot: u32) -> u64 {
    (place as u64) << 48 | u64::from(generation) << 32 | u64::from(slot)
}

/// Place, generation and slot (or number) of a completed work request.
pub(super) fn split_id(id: u64) -> (usize, u16, u32) {
    ((id >> 48) as usize, (id >> 32) as u16, id as u32)
}

/// The name of the peer at a place, from its address on the fabric. The generation makes its number one that is not
/// reused soon.
pub(super) fn name(gid: [u8; 16], place: usize, generation: u16) -> Name {
    let number = u32::from(generation) << 16 | place as u32;
    Name::Connection { number, host: Some(Ipv6Addr::from(gid).to_canonical()) }
}

/// The place that a name refers to.
pub(super) fn place_of(name: Name) -> Option<usize> {
    match name {
        Name::Connection { number, .. } => Some(usize::from(number as u16)),
        Name::Address(_) => None,
    }
}

impl Peer {
    /// Makes a peer from a queue pair that is connected, or about to be, and posts all its receives.
    pub(super) fn new(
        (id, name, place, generation): (PeerId, Name, usize, u16),
        mut qp: Qp,
        [requests, own]: [&Mr; 2],
        shape: Shape,
        (inbound, outbound): (Inbound, Outbound),
        mtu: u16,
    ) -> Result<Self, Error> {
        let rings = [Ring::new(&mut qp, requests)?, Ring::new(&mut qp, own)?];
        let mut peer = Self {
            id,
            name,
            generation,
            qp,
            rings,
            shape,
            inbound,
            outbound,
            mtu: u32::from(mtu),
            repost: (0..shape.receives()).collect(),
            after_ring: Vec::with_capacity(shape.receives() as usize),
            free: (0..shape.own).collect(),
            held: VecDeque::with_capacity(shape.sends() as usize),
            kept: 0,
            waiting: VecDeque::with_capacity(shape.receives() as usize),
            next: 0,
            oldest: 0,
            signal_every: (shape.slots.min(shape.own.max(1)) / 4).clamp(1, SIGNAL_EVERY),
            psn: 0,
            next_slot: 0,
            expected: None,
            seen: vec![0; shape.slots as usize].into(),
            dirty: false,
        };
        peer.repost(place, 1)?;
        Ok(peer)
    }

    /// Puts it, which is at `place`, on the port's list of doorbells unless it is there.
    #[inline]
    pub(super) fn ring_soon(&mut self, place: usize, list: &mut Vec<usize>) {
        if !self.dirty {
            self.dirty = true;
            list.push(place);
        }
    }

    pub(super) fn qp(&mut self) -> &mut Qp {
        &mut self.qp
    }

    /// Changes how posted messages are sent.
    pub(super) fn send_by(&mut self, outbound: Outbound) {
        self.outbound = outbound;
    }

    /// Memory of a buffer, for the processor.
    #[inline]
    fn bytes(&mut self, buffer: Buffer) -> &mut [u8] {
        let (ring, at) = self.place(buffer);
        // SAFETY: within the registration. The peer does not reach it: it reaches none of our own memory, and of that which
        // requests come into only slots that it writes, which are no `Buffer::Received`. And no work request of ours names
        // it: receives are posted again, and sends' slots lent again, only afterwards; the copy of a request that was
        // written may still be on its way as the answer before, which a peer that writes so early has mixed itself.
        unsafe { std::slice::from_raw_parts_mut(ring.base.as_ptr().add(at), self.shape.max_frame) }
    }

    /// Ring and offset of a buffer.
    #[inline]
    fn place(&self, buffer: Buffer) -> (&Ring, usize) {
        let Shape { own, stride, .. } = self.shape;
        let (ring, index) = match buffer {
            Buffer::Received(slot) => (&self.rings[0], slot),
            Buffer::Own(slot) => (&self.rings[1], slot),
            Buffer::Copied(slot) => (&self.rings[1], own + slot),
        };
        (ring, index as usize * stride)
    }

    /// The request of `len` bytes in a slot, in memory that no longer changes, and the buffer for its answer.
    #[inline]
    pub(super) fn request(&mut self, slot: u32, len: usize) -> (Buffer, &mut [u8]) {
        if self.inbound == Inbound::Receives {
            let buffer = Buffer::Received(slot);
            return (buffer, self.bytes(buffer));
        }
        let buffer = Buffer::Copied(slot);
        // SAFETY: within the slots of both rings.
        let (from, to) = unsafe {
            let from = self.rings[0].base.add(slot as usize * self.shape.stride);
            let (ring, at) = self.place(buffer);
            (from.cast::<u64>(), ring.base.add(at).cast::<u64>())
        };
        for word in 0..len.div_ceil(size_of::<u64>()) {
            // SAFETY: words of slots, whose stride is a multiple of 128 bytes from the beginning of a page. The peer may write
            // the one meanwhile: it is read once, and the read is volatile. It does not reach the other.
            unsafe { to.add(word).write(from.add(word).read_volatile()) };
        }
        (buffer, self.bytes(buffer))
    }

    /// Slot and length of an immediate's frame, or what is wrong with the immediate.
    #[inline]
    pub(super) fn written(&mut self, form: ImmForm, immediate: u32, len: usize) -> Result<(u32, u64), Refused> {
        let (psn, slot) = form.split(immediate).ok_or(Refused::Immediate)?;
        // A message of several packets moves the number by as many.
        let packets = (len as u32).div_ceil(self.mtu).max(1);
        let lost = self.expected.map_or(0, |at| psn.wrapping_sub(at.wrapping_add(packets)) & form.psn_mask());
        self.expected = Some(psn);
        if slot >= self.shape.slots { Err(Refused::Slot) } else { Ok((slot, u64::from(lost))) }
    }

    /// Notes that a burst brought a slot; false if it did so before. Bursts are walked from their end.
    #[inline]
    pub(super) fn first_of(&mut self, slot: u32, burst: u64) -> bool {
        self.seen.get_mut(slot as usize).is_none_or(|seen| std::mem::replace(seen, burst) != burst)
    }

    /// Whether answers hold as many receives as a window has requests. With one more, a peer that gets these answers
    /// before the device reports them might not find a receive for each request of its next window.
    #[inline]
    fn keeps_a_window(&self) -> bool {
        self.kept + self.after_ring.len() as u32 >= self.shape.slots
    }

    /// Whether the next request must wait until the device has sent answers, because its own could be one too many.
    #[inline]
    pub(super) fn must_wait(&self) -> bool {
        self.inbound == Inbound::Receives && (self.is_waiting() || self.keeps_a_window())
    }

    /// Makes a request wait. Returns whether others do.
    #[cold]
    pub(super) fn wait(&mut self, slot: u32, len: usize) -> bool {
        let others = self.is_waiting();
        self.waiting.push_back((slot, len));
        others
    }

    /// The next waiting request that may be answered now.
    pub(super) fn waited(&mut self) -> Option<(u32, usize)> {
        if self.keeps_a_window() { None } else { self.waiting.pop_front() }
    }

    /// Whether requests are waiting.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there is room for one more send.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.oldest) < self.shape.sends()
    }

    /// Queues the answer in `buffer` to the request that arrived in `slot`.
    #[inline]
    pub(super) fn answer(&mut self, place: usize, slot: u32, buffer: Buffer, len: usize) -> Result<(), Error> {
        let op = match self.outbound {
            Outbound::WriteBack(window) => {
                let addr = window.addr + u64::from(slot) * u64::from(window.slots.stride);
                let immediate = window.slots.form.join(self.psn, slot);
                self.psn = self.psn.wrapping_add(1);
                Op::WriteImm(RemoteBytes { addr, rkey: window.rkey }, immediate)
            }
            Outbound::Send | Outbound::WriteSlots { .. } => Op::Send,
        };
        self.send(place, op, buffer, len)
    }

    /// Queues what `fill` writes into a slot of our own; `None` if there is no room.
    pub(super) fn post(&mut self, place: usize, fill: impl FnOnce(&mut [u8]) -> usize) -> Option<Result<(), Error>> {
        if !self.has_room() {
            return None;
        }
        let buffer = Buffer::Own(self.free.pop()?);
        let len = fill(self.bytes(buffer));
        assert!(len <= self.shape.max_frame, "posted frame longer than its buffer");
        let op = match self.outbound {
            Outbound::Send | Outbound::WriteBack(_) => Op::Send,
            Outbound::WriteSlots { to, slots } => {
                let slot = self.next_slot;
                self.next_slot = (slot + 1) % slots.count;
                let addr = to.addr + u64::from(slot) * u64::from(slots.stride);
                self.psn = self.psn.wrapping_add((len as u32).div_ceil(self.mtu).max(1));
                Op::WriteImm(RemoteBytes { addr, ..to }, slots.form.join(self.psn, slot))
            }
        };
        Some(self.send(place, op, buffer, len))
    }

    #[inline]
    fn send(&mut self, place: usize, op: Op, buffer: Buffer, len: usize) -> Result<(), Error> {
        let number = self.next;
        let inline = len <= self.qp.max_inline();
        let flags = Flags { signalled: number.is_multiple_of(self.signal_every), inline, fence: false };
        let id = receive_id(place, self.generation, number);
        let (ring, at) = self.place(buffer);
        let bytes = Local { memory: ring.memory, at, len };
        match self.qp.send(id, op, Some(bytes), flags) {
            Err(Error::Full) => {
                self.flush(place)?;
                self.qp.send(id, op, Some(bytes), flags)?;
            }
            result => result?,
        }
        self.next = number.wrapping_add(1);
        let held = match buffer {
            Buffer::Received(slot) if inline => {
                self.after_ring.push(slot);
                None
            }
            Buffer::Copied(_) => None,
            held => Some(held),
        };
        self.kept += u32::from(matches!(held, Some(Buffer::Received(_))));
        self.held.push_back(held);
        Ok(())
    }

    /// A signalled send is complete, and with it all before.
    #[inline]
    pub(super) fn sent(&mut self, number: u32) {
        let over = number.wrapping_sub(self.oldest).wrapping_add(1);
        for _ in 0..over {
            match self.held.pop_front() {
                Some(Some(Buffer::Own(slot))) => self.free.push(slot),
                Some(Some(Buffer::Received(slot))) => {
                    self.kept -= 1;
                    self.repost.push(slot);
                }
                Some(None | Some(Buffer::Copied(_))) => {}
                None => return,
            }
            self.oldest = self.oldest.wrapping_add(1);
        }
    }

    /// Frees the slot of a receive that was used up or is no longer needed.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.repost.push(slot);
    }

    /// Rings the doorbell, and posts receives again once there are several. Free ones are posted before the doorbell,
    /// because a peer that has an answer may send its next request.
    #[inline]
    pub(super) fn flush(&mut self, place: usize) -> Result<(), Error> {
        self.repost(place, self.signal_every as usize)?;
        self.qp.ring().1?;
        self.repost.append(&mut self.after_ring);
        self.repost(place, self.signal_every as usize)
    }

    /// Posts the receives that were used up, if there are at least `least`.
    fn repost(&mut self, place: usize, least: usize) -> Result<(), Error> {
        if self.repost.len() < least {
            return Ok(());
        }
        while !self.repost.is_empty() {
            for _ in 0..self.repost.len().min(BATCH) {
                let Some(slot) = self.repost.pop() else { break };
                let bytes = (self.inbound == Inbound::Receives).then(|| {
                    let (ring, at) = self.place(Buffer::Received(slot));
                    Local { memory: ring.memory, at, len: self.shape.max_frame }
                });
                self.qp.receive(receive_id(place, self.generation, slot), bytes)?;
            }
            self.qp.ring_receives().1?;
        }
        Ok(())
    }
}

/// What is wrong with an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Bits that must be zero are not, or there is no immediate.
    Immediate,
    /// It names a slot that does not exist.
    Slot,
}
