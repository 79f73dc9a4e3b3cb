//! The worker's side of a ring: requests out, answers in.

use std::sync::Arc;

use crate::{
    ErrorCode, RING_EVENTS, SlotIndex,
    abi::FREE,
    cursor::Cursor,
    producer::PROBE,
    ring::Owner,
    sync::{HEAD, Lane},
};

/// Takes rx slots and publishes tx slots, both strictly in turn. Owned by one core at a time.
#[repr(align(128))]
pub struct Dispatcher {
    rx: Lane,
    tx: Lane,
    slots: u32,
    cursor: Cursor,
    /// Number of tx slots from `cursor` on that were seen empty. Only this dispatcher's answers can change that.
    empty: u32,
    idle: u32,
    /// Distance from the cursor at which to look next for a gap, from 1 to slots - 1.
    probe: u32,
    /// `Some` if the cursor's slot is empty while the slot at this distance is ready.
    gap: Option<u32>,
    stats: DispatcherStats,
    owner: Owner,
}

berth_port::counters! {
    /// Counters of a dispatcher.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct DispatcherStats {
        /// Requests whose handler returned.
        dispatched = ring_dispatched: "requests taken from the ring by the worker",
        /// Handlers that returned an error code.
        errors = ring_handler_errors: RING_EVENTS { event: "handler_error" },
        /// Handlers that panicked, and those that returned [`ErrorCode::UNWOUND`] because a handler further down did.
        unwound = ring_handler_unwound: RING_EVENTS { event: "handler_unwound" },
        /// Rx flags that were neither zero nor the slot's address; answered with [`ErrorCode::BAD_FLAG`].
        bad_flags = ring_bad_rx_flags: RING_EVENTS { event: "bad_rx_flag" },
        /// Requests overwritten while they were being dispatched; answered with [`ErrorCode::SLOT_REUSED`].
        slots_reused = ring_slots_reused: RING_EVENTS { event: "slot_reused" },
        /// Answers published over one that nobody had taken.
        tx_overwritten = ring_tx_overwritten: RING_EVENTS { event: "tx_overwritten" },
        /// Times that the cursor's slot was empty while a later one was ready.
        gaps = ring_gaps: RING_EVENTS { event: "gap" },
        /// Slots that [`Dispatcher::skip_gap`] passed over.
        skipped = ring_skipped: RING_EVENTS { event: "skipped" },
    }
}

impl Dispatcher {
    pub(crate) fn new(rx: Lane, tx: Lane, slots: u32, owner: Owner) -> Self {
        let cursor = Cursor::START;
        let stats = DispatcherStats::default();
        Self { rx, tx, slots, cursor, empty: 0, idle: 0, probe: 1, gap: None, stats, owner }
    }

    /// Hands the requests that are ready, at most `limit`, to `handle(rx, tx)`. Returns the number of slots consumed.
    ///
    /// `handle` reads the request, writes the whole answer into the tx slot and returns its length. Bytes that it does
    /// not write keep the contents of an earlier answer. The request is the message as it was pushed on an internal
    /// ring, and the whole slot in the host API's layout. Every consumed slot gets exactly one tx publication: the
    /// answer, or an error if `handle` returns a code or panics, or the request cannot be trusted.
    ///
    /// # Panics
    /// If the length exceeds the slot size; this is answered as if `handle` had panicked.
    #[inline]
    pub fn poll(
        &mut self,
        limit: usize,
        mut handle: impl FnMut(&[u8], &mut [u8]) -> Result<usize, ErrorCode>,
    ) -> usize {
        for done in 0..limit {
            let slot = self.cursor.slot;
            let flag = self.rx.load(slot);
            let (len, before) = if self.rx.is_internal() {
                let Some(Ok(len)) = self.cursor.read(flag) else { return done };
                (len, None)
            } else {
                match self.find_foreign(flag) {
                    Foreign::Nothing => return done,
                    Foreign::Refused => continue,
                    Foreign::Request(head) => (self.rx.slot_size(), Some(head)),
                }
            };
            let mut turn = Publish { outcome: Err(ErrorCode::UNWOUND), dispatcher: self };
            let (rx, tx) = (&turn.dispatcher.rx, &turn.dispatcher.tx);
            // SAFETY: the flag says that the request is complete and how long it is, and the producer leaves both slots
            // alone until the answer is published and the rx flag zero; there is one dispatcher.
            let answer = unsafe { rx.read(slot, len, |request| tx.write(slot, |answer| handle(request, answer))) };
            assert!(answer.unwrap_or(0) <= tx.slot_size(), "an answer longer than its slot");
            let reused = before.is_some_and(|head| rx.load(slot) != flag || rx.head(slot) != head);
            let stats = &mut turn.dispatcher.stats;
            stats.dispatched += 1;
            stats.errors += u64::from(answer.is_err() && !reused);
            stats.slots_reused += u64::from(reused);
            turn.outcome = if reused { Err(ErrorCode::SLOT_REUSED) } else { answer };
        }
        limit
    }

    /// Reads a flag in the host API's layout: a request is announced by its slot's address.
    #[inline]
    fn find_foreign(&mut self, flag: u64) -> Foreign {
        let slot = self.cursor.slot;
        if flag == FREE {
            self.rx.prefetch(slot);
            self.look_for_gap();
            return Foreign::Nothing;
        }
        self.gap = None;
        if self.rx.announces(slot, flag) {
            return Foreign::Request(self.rx.head(slot));
        }
        self.stats.bad_flags += 1;
        drop(Publish { outcome: Err(ErrorCode::BAD_FLAG), dispatcher: self });
        Foreign::Refused
    }

    /// Number of slots to skip to reach a request that is ready, if one was found waiting behind an empty slot: the
    /// sender's message was lost, or the sender does not fill slots in turn.
    pub fn gap(&self) -> Option<u32> {
        self.gap
    }

    /// Gives up the empty slots of [`Dispatcher::gap`]. Each is answered with [`ErrorCode::SKIPPED`], and the cursor
    /// moves to the request behind them. Returns the number of slots skipped.
    ///
    /// A request that still arrives in a skipped slot is dispatched on the next lap.
    pub fn skip_gap(&mut self) -> u32 {
        let mut skipped = 0;
        while skipped < self.gap.unwrap_or(0) && self.rx.load(self.cursor.slot) == FREE {
            self.publish(Err(ErrorCode::SKIPPED));
            self.cursor.advance(self.slots);
            skipped += 1;
        }
        self.gap = None;
        self.stats.skipped += skipped as u64;
        skipped
    }

    /// In one of [`PROBE`] empty polls, looks at one slot ahead of the cursor, each time one further away.
    #[inline]
    fn look_for_gap(&mut self) {
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(PROBE) && self.gap.is_none() && self.slots > 1 {
            self.probe_ahead();
        }
    }

    #[cold]
    fn probe_ahead(&mut self) {
        let ahead = self.probe;
        self.probe = if ahead + 1 < self.slots { ahead + 1 } else { 1 };
        let cursor = self.cursor.slot;
        let slot = SlotIndex(((cursor.0 as u64 + ahead as u64) % self.slots as u64) as u32);
        // A producer that keeps the order has set the cursor's flag before this one: a second look is final.
        if self.rx.load(slot) != FREE && self.rx.load(cursor) == FREE {
            self.gap = Some(ahead);
            self.stats.gaps += 1;
        }
    }

    /// Publishes the outcome for the cursor's slot.
    #[inline]
    fn publish(&mut self, outcome: Result<usize, ErrorCode>) {
        let slot = self.cursor.slot;
        let flag = match outcome {
            Ok(len) if self.tx.is_internal() => self.cursor.message(len),
            Err(code) if self.tx.is_internal() => self.cursor.error(code),
            Ok(_) => self.tx.address(slot),
            Err(code) => code.to_flag(),
        };
        if !self.tx.is_internal() {
            if self.empty == 0 {
                self.empty = self.tx.free_run(slot, self.slots);
                if self.empty == 0 {
                    self.stats.tx_overwritten += 1;
                    self.empty = 1;
                }
            }
            self.empty -= 1;
        }
        self.tx.store(slot, flag);
    }

    /// Whether requests may still be pushed; always true for a foreign producer.
    pub fn is_fed(&self) -> bool {
        self.owner.as_ref().is_none_or(|owner| Arc::strong_count(owner) > 1)
    }

    /// Usable size of a slot in bytes.
    pub fn slot_size(&self) -> usize {
        self.rx.slot_size()
    }

    /// The counters so far.
    pub fn stats(&self) -> DispatcherStats {
        self.stats
    }

    /// Calls `visit` with the name and value of each counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.stats.report(visit);
    }
}

/// Meaning of the flag at the cursor, in the host API's layout.
enum Foreign {
    /// There is no request yet.
    Nothing,
    /// The flag is invalid; it was answered.
    Refused,
    /// A request with these first bytes.
    Request([u8; HEAD]),
}

/// On drop, publishes the outcome, frees the request and moves on, even if the handler panics.
struct Publish<'a> {
    dispatcher: &'a mut Dispatcher,
    outcome: Result<usize, ErrorCode>,
}

impl Drop for Publish<'_> {
    #[inline]
    fn drop(&mut self) {
        let d = &mut *self.dispatcher;
        if self.outcome == Err(ErrorCode::UNWOUND) {
            d.stats.unwound += 1;
        }
        d.publish(self.outcome);
        // An internal ring's producer sees by the answer that the request was read.
        if !d.rx.is_internal() {
            d.rx.store(d.cursor.slot, FREE);
        }
        d.cursor.advance(d.slots);
    }
}
