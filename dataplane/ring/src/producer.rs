//! The host's side of a ring: requests in, answers out.

use std::{
    iter::Sum,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_port::{Family, Nanos};

use crate::{
    ErrorCode, RING_EVENTS, SlotIndex,
    abi::{FREE, IN_FLIGHT},
    cursor::Cursor,
    outstanding::Outstanding,
    ring::Owner,
    sync::Lane,
};

/// Rare conditions are checked once in this many empty polls: often enough to notice them within about a microsecond,
/// and seldom enough to leave the other side's cache lines alone.
pub(crate) const PROBE: u32 = if cfg!(loom) { 1 } else { 64 };

/// How long after a request was freed its answer may come, unless [`Producer::patient`] says otherwise. A dispatcher that
/// launches graphs frees a request at the launch, and its graph answers later.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// While the oldest request has no answer, all are looked at so many times within the patience.
const LOOKS: u32 = 16;

/// Fills rx slots and takes tx slots, both strictly in turn. Owned by one core at a time.
#[repr(align(128))]
pub struct Producer {
    rx: Lane,
    tx: Lane,
    /// Where requests go that a device reads in its own memory; `rx` is unused then.
    posted: Option<Posted>,
    elsewhere: Option<Elsewhere>,
    slots: u32,
    /// Next slot to fill.
    head: Cursor,
    /// Oldest slot whose answer was not taken yet.
    tail: Cursor,
    /// Number of slots between `tail` and `head`.
    outstanding: u32,
    /// Number of slots from `head` on that were seen free both ways. Only this producer's pushes can change that.
    free: u32,
    idle: u32,
    /// The time, as far as it was told.
    now: Nanos,
    patience: Duration,
    /// Requests that were seen freed without an answer, by slot: the number of the request, and when that was. Empty on
    /// internal rings.
    freed: Box<[(u64, Nanos)]>,
    /// When all of them were looked at last.
    looked: Option<Nanos>,
    /// Buffer in which messages are built and read if the other side may write to slots at any time.
    copy: Option<Box<[u8]>>,
    is_trusted: bool,
    stats: ProducerStats,
    owner: Owner,
}

/// Memory outside of the ring that the dispatcher reads too.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    /// Where the dispatcher sees its first byte.
    pub base: u64,
    /// Its size in bytes.
    pub size: usize,
    /// Set once a dispatcher reads there.
    pub is_read: Arc<AtomicBool>,
}

/// Requests in a device's memory, where a look takes a round trip to it.
struct Posted {
    lane: Lane,
    out: Outstanding,
    /// The number of the request that was given up last.
    given_up: Option<u64>,
}

impl Posted {
    /// Gives up a request by its slot and number; false if it is being refused, so that its answer comes.
    fn give_up(&mut self, slot: SlotIndex, number: u64) -> bool {
        if self.given_up != Some(number) && self.out.take(slot) {
            self.given_up = Some(number);
        }
        self.given_up == Some(number)
    }
}

const RING_REQUESTS: Family = Family::counter("ring_requests", "requests put into rings to workers");
const RING_ANSWERS: Family = Family::counter("ring_answers", "answers taken from rings");

berth_port::counters! {
    /// Counters of a producer.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct ProducerStats {
        /// Does not include refused pushes.
        pushed = ring_pushed: RING_REQUESTS,
        /// Those of them that were announced where they lie, and not copied into their slots.
        in_place = ring_in_place: RING_EVENTS { event: "in_place" },
        /// Answers taken, error codes included.
        collected = ring_collected: RING_ANSWERS,
        /// Pushes refused because the next slot was still in use.
        overruns = ring_overruns: RING_EVENTS { event: "overrun" },
        /// Answers that were error codes.
        errors = ring_error_answers: RING_EVENTS { event: "error_answer" },
        /// Slots that the dispatcher freed without an answer.
        unanswered = ring_unanswered: RING_EVENTS { event: "unanswered" },
        /// Answers that arrived after their slot was given up as unanswered, and were discarded.
        late_answers = ring_late_answers: RING_EVENTS { event: "late_answer" },
        /// Tx flags without a defined meaning.
        bad_flags = ring_bad_tx_flags: RING_EVENTS { event: "bad_tx_flag" },
    }
}

/// Adds up the counters of several producers.
impl Sum for ProducerStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            pushed: sum.pushed + one.pushed,
            in_place: sum.in_place + one.in_place,
            collected: sum.collected + one.collected,
            overruns: sum.overruns + one.overruns,
            errors: sum.errors + one.errors,
            unanswered: sum.unanswered + one.unanswered,
            late_answers: sum.late_answers + one.late_answers,
            bad_flags: sum.bad_flags + one.bad_flags,
        })
    }
}

/// The next slot was still in use when [`Producer::push`] was called; nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ring overrun: the next slot is still in use; use more slots or a faster dispatcher")]
pub struct Overrun;

/// Why a slot has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TxError {
    /// The dispatcher published an error code instead of an answer.
    #[error("the dispatcher answered with error {:#x}", .0.get())]
    Tagged(ErrorCode),
    /// The dispatcher freed the request, and published nothing for as long as [`Producer::patient`] says; a plain reader
    /// of slots in turn would wait forever.
    #[error("the dispatcher gave no answer")]
    Unanswered,
    /// The tx flag is neither the slot's address nor an error. The slot was not read.
    #[error("the tx flag {0:#x} is not the slot's address")]
    BadFlag(u64),
}

impl Producer {
    pub(crate) fn new(rx: Lane, tx: Lane, slots: u32, owner: Owner) -> Self {
        let freed = if rx.is_internal() { 0 } else { slots as usize };
        Self {
            rx,
            tx,
            posted: None,
            elsewhere: None,
            slots,
            head: Cursor::START,
            tail: Cursor::START,
            outstanding: 0,
            free: 0,
            idle: 0,
            now: Nanos(0),
            patience: PATIENCE,
            freed: vec![(u64::MAX, Nanos(0)); freed].into(),
            looked: None,
            copy: None,
            is_trusted: false,
            stats: ProducerStats::default(),
            owner,
        }
    }

    /// Makes it copy messages into and out of slots, because the other side may write to them at any time.
    pub(crate) fn distrusting(self) -> Self {
        Self { copy: Some(vec![0; self.rx.slot_size()].into()), ..self }
    }

    /// Makes it put requests into the slots of another lane, in a device's memory. The dispatcher clears a request's flag there
    /// before it publishes the answer.
    pub(crate) fn posting(self, lane: Lane, owner: Owner) -> (Self, Outstanding) {
        let out = Outstanding::new(lane.clone(), self.tx.clone(), self.slots, [owner, self.owner.clone()]);
        let posted = Posted { lane, out: out.clone(), given_up: None };
        (Self { posted: Some(posted), ..self }, out)
    }

    /// Lets requests lie in this memory, too: [`Producer::push_at`].
    ///
    /// # Panics
    /// On an internal ring, and where requests lie in a device's memory.
    #[must_use]
    pub fn reading(self, elsewhere: Elsewhere) -> Self {
        assert!(!self.is_internal() && self.posted.is_none(), "such a ring's requests lie in their slots");
        Self { elsewhere: Some(elsewhere), ..self }
    }

    /// Lets answers come up to `patience` after their requests were freed. Zero is for dispatchers that publish the answer
    /// first, as the protocol has it.
    #[must_use]
    pub fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Says that the dispatcher is one of ours, in another process: the statuses of its answers are its own and no handler's.
    #[must_use]
    pub fn trusted(self) -> Self {
        Self { is_trusted: true, ..self }
    }

    /// Tells the time, by which freed requests are given up. Once a poll is enough; internal rings do not need it.
    #[inline]
    pub fn tell_time(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Fills the next slot through `fill`, which returns the message's length, and announces it.
    ///
    /// `fill` gets the whole slot. Bytes that it does not write keep the contents of an earlier request. On an internal
    /// ring the reader gets only the message; in the host API's layout it gets the slot, so the message itself must
    /// state its true length. If `fill` panics, nothing is announced and the slot stays free.
    ///
    /// # Errors
    /// The slot is still in use; counted. Use [`Producer::can_push`] to wait without counting.
    ///
    /// # Panics
    /// If the length exceeds the slot size.
    #[inline]
    pub fn push(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<SlotIndex, Overrun> {
        if !self.can_push() {
            self.stats.overruns += 1;
            return Err(Overrun);
        }
        let (head, slot) = (self.head, self.head.slot);
        let len = match &mut self.copy {
            // SAFETY: the slot was found free, and there is one producer.
            None => unsafe { self.rx.write(slot, fill) },
            Some(copy) => {
                let len = fill(copy);
                match &self.posted {
                    None => self.rx.copy_in(slot, &copy[..len]),
                    Some(posted) => {
                        posted.lane.post(slot, &copy[..len]);
                        // Who sees it out sees it announced.
                        posted.out.set(slot, true);
                    }
                }
                len
            }
        };
        assert!(len <= self.rx.slot_size(), "a request longer than its slot");
        if self.posted.is_none() {
            self.rx.store(slot, if self.rx.is_internal() { head.message(len) } else { self.rx.address(slot) });
        }
        Ok(self.pushed())
    }

    /// The address that announces a request `at` so many bytes into the memory of [`Producer::reading`]. `None` if it has to be
    /// copied: nobody reads there yet, the slot's size does not fit there, or it is at no multiple of 4.
    #[inline]
    pub fn address(&self, at: usize) -> Option<u64> {
        let Elsewhere { base, size, is_read } = self.elsewhere.as_ref()?;
        // Readers take whole lines.
        let read = self.rx.slot_size().next_multiple_of(64);
        let fits = at.is_multiple_of(4) && at.checked_add(read).is_some_and(|end| end <= *size);
        (fits && is_read.load(Relaxed)).then(|| base + at as u64)
    }

    /// Announces a request at this [address](Producer::address) in the next slot's turn. It must stay as it is until that slot's
    /// answer is taken.
    ///
    /// # Errors
    /// The slot is still in use; counted.
    #[inline]
    pub fn push_at(&mut self, address: u64) -> Result<SlotIndex, Overrun> {
        if !self.can_push() {
            self.stats.overruns += 1;
            return Err(Overrun);
        }
        self.rx.store(self.head.slot, address);
        self.stats.in_place += 1;
        Ok(self.pushed())
    }

    /// Counts the next slot as filled, and returns it.
    #[inline]
    fn pushed(&mut self) -> SlotIndex {
        let slot = self.head.slot;
        self.head.advance(self.slots);
        self.outstanding += 1;
        self.free -= 1;
        self.stats.pushed += 1;
        slot
    }

    /// Whether the next slot is free both ways.
    #[inline]
    pub fn can_push(&mut self) -> bool {
        if self.free == 0 {
            self.free = self.find_free();
        }
        self.free != 0
    }

    /// Counts the free slots at the head. Slots that wait for their answer are not free and need no look.
    fn find_free(&mut self) -> u32 {
        let unused = self.slots - self.outstanding;
        // On an internal ring a slot whose answer was taken has no other user.
        if unused == 0 || self.rx.is_internal() {
            return unused;
        }
        let slot = self.head.slot;
        let rx = if self.posted.is_some() { unused } else { self.rx.free_run(slot, self.slots).min(unused) };
        let tx = self.tx.free_run(slot, self.slots);
        if rx != 0 && tx == 0 && self.tx.load(slot) != IN_FLIGHT {
            // No request of ours is waiting in this slot: the answer of one that was given up.
            self.stats.late_answers += 1;
            self.tx.store(slot, FREE);
            return 1;
        }
        rx.min(tx)
    }

    /// Takes the answers that are ready, at most `limit`, strictly in the order of the requests. Returns their number.
    ///
    /// An answer that a foreign dispatcher published ahead of an earlier one waits in its slot for its turn. A slot
    /// that was freed without an answer is reported as [`TxError::Unanswered`] when patience is over, which is the same
    /// time for all that were freed together. If `take` panics, the slot counts as taken.
    #[inline]
    pub fn collect(&mut self, limit: usize, mut take: impl FnMut(SlotIndex, Result<&[u8], TxError>)) -> usize {
        let mut taken = 0;
        while taken < limit
            && self.collect_if(|slot, answer| {
                take(slot, answer);
                true
            })
        {
            taken += 1;
        }
        taken
    }

    /// Shows the oldest request's answer to `take`, if it is ready, and takes it if that returns true; otherwise it
    /// stays. Returns whether it was taken.
    #[inline]
    pub fn collect_if(&mut self, take: impl FnOnce(SlotIndex, Result<&[u8], TxError>) -> bool) -> bool {
        let Some(found) = self.find_answer() else { return false };
        let mut turn = Publish { producer: self, taken: true, error: found.err() };
        let Self { tail, tx, copy, .. } = &mut *turn.producer;
        let slot = tail.slot;
        turn.taken = match (found, copy) {
            // SAFETY: the flag says that the answer is complete, and the dispatcher leaves it until it is taken.
            (Ok(len), None) => unsafe { tx.read(slot, len, |answer| take(slot, Ok(answer))) },
            (Ok(len), Some(copy)) => {
                tx.copy_out(slot, &mut copy[..len]);
                take(slot, Ok(&copy[..len]))
            }
            (Err(error), _) => take(slot, Err(error)),
        };
        turn.taken
    }

    /// Length of the answer at the tail, or why it has none; `None` if it is not ready.
    #[inline]
    fn find_answer(&mut self) -> Option<Result<usize, TxError>> {
        if self.outstanding == 0 {
            return None;
        }
        let flag = self.tx.load(self.tail.slot);
        if self.tx.is_internal() {
            return self.tail.read(flag).map(|answer| answer.map_err(TxError::Tagged));
        }
        if flag == FREE || flag == IN_FLIGHT {
            self.tx.prefetch(self.tail.slot);
            return self.is_unanswered().then_some(Err(TxError::Unanswered));
        }
        if self.tx.announces(self.tail.slot, flag) {
            return Some(Ok(self.tx.slot_size()));
        }
        Some(Err(ErrorCode::from_flag(flag).map_or(TxError::BadFlag(flag), TxError::Tagged)))
    }

    /// Whether the oldest request was freed without an answer, long enough ago; checked once in [`PROBE`] polls.
    #[inline]
    fn is_unanswered(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        if !self.idle.is_multiple_of(PROBE) {
            return false;
        }
        self.note_freed();
        let (slot, number) = (self.tail.slot, self.stats.collected);
        let (noted, since) = self.freed[slot.0 as usize];
        // Where the answer is published first, this second look at the tx flag is final.
        let over = noted == number
            && self.now - since >= self.patience
            && self.tx.load(slot) == FREE
            && self.posted.as_mut().is_none_or(|posted| posted.give_up(slot, number));
        // The next one may have been freed with it.
        self.idle = self.idle.wrapping_sub(u32::from(over));
        over
    }

    /// Notes when requests were freed, so that nobody's time begins when others' is over.
    #[cold]
    fn note_freed(&mut self) {
        let is_due = |looked| self.now - looked >= self.patience / LOOKS;
        if !self.looked.is_none_or(is_due) {
            return;
        }
        self.looked = Some(self.now);
        let mut slot = self.tail.slot;
        if let Some(posted) = &self.posted {
            let freed = &mut self.freed[slot.0 as usize];
            if freed.0 != self.stats.collected && posted.lane.load(slot) == FREE {
                *freed = (self.stats.collected, self.now);
            }
            return;
        }
        for number in self.stats.collected..self.stats.pushed {
            let freed = &mut self.freed[slot.0 as usize];
            if freed.0 != number && self.rx.load(slot) == FREE {
                *freed = (number, self.now);
            }
            slot = slot.next(self.slots);
        }
    }

    /// Number of requests whose answers were not taken yet.
    pub fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Number of slots in the ring.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Whether both ends are ours, as with [`pair`](crate::pair), so that the other end is told each message's length.
    #[inline]
    pub fn is_internal(&self) -> bool {
        self.rx.is_internal()
    }

    /// Whether what answers say of the protocol comes from a dispatcher of ours.
    #[inline]
    pub fn is_trusted(&self) -> bool {
        self.is_trusted || self.is_internal()
    }

    /// Usable size of a slot in bytes.
    pub fn slot_size(&self) -> usize {
        self.rx.slot_size()
    }

    /// The counters so far.
    pub fn stats(&self) -> ProducerStats {
        self.stats
    }
}

/// On drop, frees the tx slot at the tail and moves on if the answer was taken, even if the callback panics.
struct Publish<'a> {
    producer: &'a mut Producer,
    taken: bool,
    error: Option<TxError>,
}

impl Drop for Publish<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.taken {
            return;
        }
        let p = &mut *self.producer;
        match self.error {
            None => {}
            Some(TxError::Tagged(_)) => p.stats.errors += 1,
            Some(TxError::Unanswered) => p.stats.unanswered += 1,
            Some(TxError::BadFlag(_)) => p.stats.bad_flags += 1,
        }
        if let Some(posted) = &p.posted {
            // Before the flag: who sees it out and without an answer is to give it one.
            posted.out.set(p.tail.slot, false);
        }
        if !p.tx.is_internal() {
            p.tx.store(p.tail.slot, FREE);
        }
        p.tail.advance(p.slots);
        p.outstanding -= 1;
        p.stats.collected += 1;
    }
}
