//! Accesses of a poll loop to what lies behind an engine: so many at once, each in a slot with what its answer needs.

use std::sync::Arc;

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Held, Op, Reader, Regions, Storage, Table};
use berth_memory::{Heap, Memory, Part};
use berth_port::{BURST, Nanos, Port, PostError, ReplyTo};
use crossbeam_queue::ArrayQueue;

use crate::{Failure, Gate, Later, Protocol, counts::Event, datagram::is_answered};

/// Bytes of a slot's memory: no datagram is longer.
const LONGEST: usize = 64 << 10;

/// Accesses under way and what waits for them.
pub(crate) struct Flights<E> {
    slots: Vec<Slot<E>>,
    /// [`LONGEST`] bytes for each slot, registered with every engine.
    memory: Arc<dyn Memory>,
    free: Vec<usize>,
    landed: Arc<Completions>,
    /// A slot whose answer found the transmit queue full.
    stalled: Option<usize>,
}

struct Slot<E> {
    /// Here while nothing is under way.
    reader: Option<Reader>,
    /// Here while something is.
    held: Option<Held>,
    /// One, or none while the engine has it. Kept from one access to the next.
    pieces: Vec<Part>,
    waiting: Option<(ReplyTo, Later<E>)>,
    outcome: Result<(), Failure>,
}

/// What the engines have finished.
#[derive(Debug)]
struct Completions(ArrayQueue<Completion>);

#[derive(Debug)]
struct Completion {
    slot: usize,
    pieces: Vec<Part>,
    result: Result<(), BlockError>,
}

impl BlockDone for Completions {
    fn done(&self, tag: u64, pieces: Vec<Part>, result: Result<(), BlockError>) {
        let landing = Completion { slot: tag as usize, pieces, result };
        self.0.push(landing).expect("the queue has room for every slot");
    }
}

impl<E: Copy> Flights<E> {
    /// Room for `slots` accesses at once to `regions`: none where those have no blocks.
    pub(crate) fn new(table: &Table, regions: &Regions, slots: usize) -> Self {
        let blocks = || {
            regions.iter().filter_map(|(_, region)| match &region.storage {
                Storage::Blocks(blocks) => Some(blocks),
                Storage::Bytes(_) => None,
            })
        };
        let slots = if blocks().next().is_some() { slots } else { 0 };
        let memory: Arc<dyn Memory> = Arc::new(Heap::new(slots * LONGEST));
        blocks().for_each(|blocks| blocks.register(&memory));
        let slot = || Slot {
            reader: Some(table.reader()),
            held: None,
            pieces: Vec::with_capacity(1),
            waiting: None,
            outcome: Ok(()),
        };
        Self {
            slots: std::iter::repeat_with(slot).take(slots).collect(),
            free: (0..slots).collect(),
            memory,
            landed: Arc::new(Completions(ArrayQueue::new(slots.max(1)))),
            stalled: None,
        }
    }

    /// Starts an access whose message is `message`. A failure is for the caller to answer.
    pub(crate) fn start(
        &mut self,
        gate: &Gate,
        to: ReplyTo,
        later: Later<E>,
        message: &[u8],
        now: Nanos,
    ) -> Result<(), Failure> {
        let index = self.free.pop().ok_or(Failure::Busy)?;
        let slot = &mut self.slots[index];
        let held = slot.reader.take().expect("a free slot has its reader").hold();
        let (blocks, span) = match gate.place(&held, &later.ask, now) {
            Ok(placed) => placed,
            Err(refusal) => {
                slot.reader = Some(held.end());
                self.free.push(index);
                return Err(refusal.into());
            }
        };
        let piece = usize::try_from(span.len).ok().filter(|len| *len <= LONGEST);
        let piece = piece.and_then(|len| Part::new(self.memory.clone(), index * LONGEST, len));
        let Some(piece) = piece else {
            slot.reader = Some(held.end());
            self.free.push(index);
            return Err(Failure::Storage);
        };
        let op = later.ask.access.op;
        if op == Op::Write {
            piece.write_at(0, &message[later.data.clone()]);
        }
        let mut pieces = std::mem::take(&mut slot.pieces);
        pieces.clear();
        pieces.push(piece);
        (slot.held, slot.waiting) = (Some(held), Some((to, later)));
        let op = match op {
            Op::Read => BlockOp::Read,
            Op::Write => BlockOp::Write,
        };
        blocks.submit(BlockRequest { op, at: span.at, pieces, tag: index as u64, done: self.landed.clone() });
        Ok(())
    }

    /// Posts the answers of accesses that have ended, and returns how many there were, unroutable ones among them.
    pub(crate) fn poll<P: Protocol<Echo = E>, Q: Port>(&mut self, gate: &mut Gate, port: &mut Q) -> usize {
        let mut posted = 0;
        if let Some(index) = self.stalled.take() {
            posted += self.post::<P, Q>(index, gate, port);
        }
        while posted < BURST && self.stalled.is_none() {
            let Some(Completion { slot: index, pieces, result }) = self.landed.0.pop() else { break };
            let slot = &mut self.slots[index];
            slot.reader = slot.held.take().map(Held::end);
            slot.pieces = pieces;
            slot.outcome = result.map_err(Failure::from);
            posted += self.post::<P, Q>(index, gate, port);
        }
        posted
    }

    /// Posts the answer of one slot and frees it, or keeps it for the next poll.
    fn post<P: Protocol<Echo = E>, Q: Port>(&mut self, index: usize, gate: &mut Gate, port: &mut Q) -> usize {
        let slot = &mut self.slots[index];
        let (to, later) = slot.waiting.as_ref().expect("somebody waits for every access");
        let (op, len) = (later.ask.access.op, slot.pieces.first().map_or(0, Part::size));
        let outcome = match slot.outcome {
            Ok(()) if op == Op::Read && P::HEAD + len > port.max_frame() => Err(Failure::Storage),
            outcome => outcome,
        };
        let data = if op == Op::Read { len } else { 0 };
        let mut posted = 0;
        if is_answered::<P>(outcome) {
            match port.reply(*to, |buf| {
                if let Some(piece) = slot.pieces.first().filter(|_| outcome.is_ok() && op == Op::Read) {
                    piece.read_at(0, &mut buf[P::HEAD..][..data]);
                }
                P::finish(&later.echo, outcome.map(|()| data), buf)
            }) {
                Ok(()) => posted = 1,
                Err(PostError::Full) => {
                    self.stalled = Some(index);
                    return 0;
                }
                Err(PostError::Unreachable) => {
                    gate.counts.add(Event::Unroutable);
                    posted = 1;
                }
            }
        }
        gate.counts.outcome(op, later.ask.access.len, outcome);
        slot.waiting = None;
        self.free.push(index);
        posted
    }

    /// Accesses that nobody has answered yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
