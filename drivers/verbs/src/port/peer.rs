//! One peer: its queue pair, its memory, and which of its slots are whose.

use std::{collections::VecDeque, net::Ipv6Addr, ptr::NonNull};

use berth_port::Peer as Name;
use berth_rendezvous::PeerId;
use berth_wire::rendezvous::{ImmForm, Slots, Window};

use crate::{BATCH, Error, Flags, Local, MemoryId, Mr, Op, Qp, RemoteBytes};

/// How requests and answers reach us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inbound {
    /// Into posted receives, each with a slot of its own.
    Receives,
    /// Into the slot that the immediate names; receives are used up without memory.
    Slots(ImmForm),
}

/// How what we post leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outbound {
    /// As SENDs.
    Send,
    /// Answers into the peer's slot of the same number; all else as SENDs.
    WriteBack(Window),
    /// Into the peer's slots, one after the other.
    WriteSlots { to: RemoteBytes, slots: Slots },
}

/// Memory of a frame that the peer does not reach.
#[derive(Debug, Clone, Copy)]
pub(super) enum Buffer {
    /// A receive's.
    Received(u32),
    /// The copy of a request that was written into the slot of this number.
    Copied(u32),
    /// Ours, for what is posted.
    Own(u32),
}

/// The most sends to one that is signalled, and the most receives that wait to be posted again.
const SIGNAL_EVERY: u32 = 16;

/// How much a peer has of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Requests that the peer may have under way, and slots that it may write them into.
    pub(super) slots: u32,
    /// Slots for what is posted.
    pub(super) own: u32,
    /// Bytes from one slot to the next.
    pub(super) stride: usize,
    /// The longest frame.
    pub(super) max_frame: usize,
}

impl Shape {
    /// Bytes of the memory that requests come into, and of our own: there a request that was written is copied, too.
    pub(super) fn bytes(self, written: bool) -> [usize; 2] {
        let [requests, own] = if written { [self.slots, self.own + self.slots] } else { [self.receives(), self.own] };
        [requests, own].map(|slots| slots as usize * self.stride)
    }

    /// Receives of a peer: a whole window's, as many whose answers the peer has while we do not know that yet (no more:
    /// [`Peer::must_wait`]), and those that wait to be posted again together.
    pub(super) fn receives(self) -> u32 {
        2 * self.slots + SIGNAL_EVERY
    }

    /// Sends on their way at most.
    pub(super) fn sends(self) -> u32 {
        self.receives() + self.own
    }
}

/// A peer of a port.
pub(super) struct Peer {
    pub(super) id: PeerId,
    /// As the port's users know it.
    pub(super) name: Name,
    /// Tells its work requests from those of whoever was at its place before.
    pub(super) generation: u16,
    qp: Qp,
    /// What requests come into, which a peer that writes reaches, and our own, which none does.
    rings: [Ring; 2],
    shape: Shape,
    pub(super) inbound: Inbound,
    outbound: Outbound,
    mtu: u32,
    /// Ready to be posted as receives.
    repost: Vec<u32>,
    /// Slots of inline answers: free when the doorbell has been rung.
    after_ring: Vec<u32>,
    free: Vec<u32>,
    /// By send on its way: what is free once it is over.
    held: VecDeque<Option<Buffer>>,
    /// How many of those are receives'.
    kept: u32,
    /// Requests that came while their answers would keep too many receives: the slot and the length of each.
    waiting: VecDeque<(u32, usize)>,
    /// The number of the next send, and of the oldest on its way.
    next: u32,
    oldest: u32,
    signal_every: u32,
    /// The number of the next packet that an immediate of ours tells.
    psn: u32,
    next_slot: u32,
    /// What the next immediate's packet sequence number should be.
    expected: Option<u32>,
    /// By slot: the last burst that brought it.
    seen: Box<[u64]>,
    /// Whether the port has it on its list of doorbells.
    pub(super) dirty: bool,
}

/// Slots in a region.
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

/// A receive's work request: where the peer is, which it was, and the slot.
pub(super) fn receive_id(place: usize, generation: u16, slot: u32) -> u64 {
    (place as u64) << 48 | u64::from(generation) << 32 | u64::from(slot)
}

/// The place, generation and slot (or number) of a completed work request.
pub(super) fn split_id(id: u64) -> (usize, u16, u32) {
    ((id >> 48) as usize, (id >> 32) as u16, id as u32)
}

/// How the port's users know the peer at a place, whose fabric has this address: the generation makes the number one
/// that is not used again soon.
pub(super) fn name(gid: [u8; 16], place: usize, generation: u16) -> Name {
    let number = u32::from(generation) << 16 | place as u32;
    Name::Connection { number, host: Some(Ipv6Addr::from(gid).to_canonical()) }
}

/// The place that such a name tells.
pub(super) fn place_of(name: Name) -> Option<usize> {
    match name {
        Name::Connection { number, .. } => Some(usize::from(number as u16)),
        Name::Address(_) => None,
    }
}

impl Peer {
    /// Takes a queue pair over that is connected or about to be. All its receives are posted.
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

    pub(super) fn qp(&mut self) -> &mut Qp {
        &mut self.qp
    }

    /// Changes how what is posted leaves.
    pub(super) fn send_by(&mut self, outbound: Outbound) {
        self.outbound = outbound;
    }

    /// The bytes of a buffer, for the processor.
    #[inline]
    fn bytes(&mut self, buffer: Buffer) -> &mut [u8] {
        let (ring, at) = self.place(buffer);
        // SAFETY: within the registration. The peer does not reach it: it reaches none of our own memory, and of that which
        // requests come into only slots that it writes, which are no `Buffer::Received`. And no work request of ours names
        // it: receives are posted again, and sends' slots lent again, only afterwards; the copy of a request that was
        // written may still be on its way as the answer before, which a peer that writes so early has mixed itself.
        unsafe { std::slice::from_raw_parts_mut(ring.base.as_ptr().add(at), self.shape.max_frame) }
    }

    /// Where a buffer is: its ring, and its first byte there.
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

    /// The request of `len` bytes in a slot, which nobody changes any more, and where it is answered.
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

    /// The slot and the length of an immediate's frame; what was wrong with it otherwise.
    #[inline]
    pub(super) fn written(&mut self, form: ImmForm, immediate: u32, len: usize) -> Result<(u32, u64), Refused> {
        let (psn, slot) = form.split(immediate).ok_or(Refused::Immediate)?;
        // A message of several packets moves the number by as many.
        let packets = (len as u32).div_ceil(self.mtu).max(1);
        let lost = self.expected.map_or(0, |at| psn.wrapping_sub(at.wrapping_add(packets)) & form.psn_mask());
        self.expected = Some(psn);
        if slot >= self.shape.slots { Err(Refused::Slot) } else { Ok((slot, u64::from(lost))) }
    }

    /// Notes that a burst brought a slot; false if it did so before. Bursts are looked at from their end.
    #[inline]
    pub(super) fn first_of(&mut self, slot: u32, burst: u64) -> bool {
        self.seen.get_mut(slot as usize).is_none_or(|seen| std::mem::replace(seen, burst) != burst)
    }

    /// Whether answers keep as many receives as a window has requests. Were it one more, a peer that has these answers
    /// before the device tells of them might not find a receive for each request of its next window.
    #[inline]
    fn keeps_a_window(&self) -> bool {
        self.kept + self.after_ring.len() as u32 >= self.shape.slots
    }

    /// Whether the next request has to wait until the device has sent answers, for its own could be one too many.
    #[inline]
    pub(super) fn must_wait(&self) -> bool {
        self.inbound == Inbound::Receives && (self.is_waiting() || self.keeps_a_window())
    }

    /// Has a request wait. Returns whether others did.
    #[cold]
    pub(super) fn wait(&mut self, slot: u32, len: usize) -> bool {
        let others = self.is_waiting();
        self.waiting.push_back((slot, len));
        others
    }

    /// The next request that waited and may be answered now.
    pub(super) fn waited(&mut self) -> Option<(u32, usize)> {
        if self.keeps_a_window() { None } else { self.waiting.pop_front() }
    }

    /// Whether requests wait.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether one more send fits.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.oldest) < self.shape.sends()
    }

    /// Queues the answer in a buffer to the request that came in a slot.
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

    /// A signalled send is over, and all before it.
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

    /// A receive was used up, or its slot is not needed any more.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.repost.push(slot);
    }

    /// Rings the doorbell, and posts receives again once there are several: before it where they are free, for who has
    /// an answer may send the next request.
    #[inline]
    pub(super) fn flush(&mut self, place: usize) -> Result<(), Error> {
        self.repost(place, self.signal_every as usize)?;
        self.qp.ring().1?;
        self.repost.append(&mut self.after_ring);
        self.repost(place, self.signal_every as usize)
    }

    /// Posts the receives that were used up, if there are at least so many.
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

/// What was wrong with an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Bits that must be zero are not, or there was none.
    Immediate,
    /// A slot that there is not.
    Slot,
}
