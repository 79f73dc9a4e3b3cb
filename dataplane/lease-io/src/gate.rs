//! The one way to leased bytes.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use berth_lease::{
    Access, BlockError, Bytes, Entry, LeaseId, Op, Reader, Refusal, Region, Regions, Span, Storage, Table, check,
};
use berth_port::Nanos;
use berth_wire::fabric::data::BLOCK;

use crate::Counts;

/// An access to leased bytes, as a message asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRequest {
    /// The whole id, where the message carries it: a lease that merely shares its key is unknown.
    pub id: Option<LeaseId>,
    /// Which bytes of which lease, by its key, and whether they are read or written.
    pub access: Access,
}

/// The result of an access that was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The bytes have been copied.
    Done,
    /// They lie on blocks, or else behind an engine, and nothing was done: start it with [`Gate::start`].
    Blocks,
}

/// Why an access has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A check refuses it, for this reason.
    Refused(Refusal),
    /// Too many block operations are under way.
    Busy,
    /// The storage failed.
    Storage,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<BlockError> for Failure {
    fn from(error: BlockError) -> Self {
        match error {
            BlockError::Busy => Self::Busy,
            BlockError::Io(_) | BlockError::Miscompare => Self::Storage,
        }
    }
}

/// One core's, or one connection's, way to leased bytes.
#[derive(Debug)]
pub struct Gate {
    pub(crate) table: Table,
    reader: Reader,
    pub(crate) regions: Regions,
    pub(crate) counts: Counts,
    over: Option<Arc<AtomicBool>>,
}

impl Gate {
    /// A way to the leases of `table`, whose bytes lie in `regions`.
    pub fn new(table: &Table, regions: &Regions) -> Self {
        Self {
            table: table.clone(),
            reader: table.reader(),
            regions: regions.clone(),
            counts: Counts::default(),
            over: None,
        }
    }

    /// The same until `over` is set: from then on it refuses every access, as if the lease had been revoked. Accesses from
    /// before are gone when [`Table::quiescence`], asked for after that, is over.
    #[must_use]
    pub fn until(self, over: Arc<AtomicBool>) -> Self {
        Self { over: Some(over), ..self }
    }

    /// Decides on a read and, where the bytes lie in memory, copies them to the front of `into`.
    ///
    /// # Panics
    /// Where the read is allowed and longer than `into`.
    #[inline]
    pub fn read(&mut self, ask: &AccessRequest, into: &mut [u8], now: Nanos) -> Result<Served, Refusal> {
        debug_assert_eq!(ask.access.op, Op::Read);
        self.serve(ask, now, |bytes, at, len| bytes.read(at, &mut into[..len]))
    }

    /// Decides on a write and, where the bytes lie in memory, copies them from the front of `from`.
    ///
    /// # Panics
    /// Where the write is allowed and longer than `from`.
    #[inline]
    pub fn write(&mut self, ask: &AccessRequest, from: &[u8], now: Nanos) -> Result<Served, Refusal> {
        debug_assert_eq!(ask.access.op, Op::Write);
        self.serve(ask, now, |bytes, at, len| bytes.write(at, &from[..len]))
    }

    /// As [`Gate::read`], of a part of the access: the bytes from its byte `at` on, as many as `into` takes.
    ///
    /// # Panics
    /// Where the part is not within the access.
    #[inline]
    pub fn read_part(&mut self, ask: &AccessRequest, at: u64, into: &mut [u8], now: Nanos) -> Result<Served, Refusal> {
        debug_assert_eq!(ask.access.op, Op::Read);
        assert!(at + into.len() as u64 <= ask.access.len);
        self.serve(ask, now, |bytes, first, _| bytes.read(first + at, into))
    }

    /// As [`Gate::write`], of a part of the access: the bytes from its byte `at` on become `from`.
    ///
    /// # Panics
    /// As [`Gate::read_part`].
    #[inline]
    pub fn write_part(&mut self, ask: &AccessRequest, at: u64, from: &[u8], now: Nanos) -> Result<Served, Refusal> {
        debug_assert_eq!(ask.access.op, Op::Write);
        assert!(at + from.len() as u64 <= ask.access.len);
        self.serve(ask, now, |bytes, first, _| bytes.write(first + at, from))
    }

    /// Decides on an access and does nothing: whoever then moves bytes decides anew.
    ///
    /// # Errors
    /// Why the access is not allowed now.
    #[inline]
    pub fn check(&self, ask: &AccessRequest, now: Nanos) -> Result<Served, Refusal> {
        let (region, _) = self.decide(self.reader.peek(ask.access.key), ask, now)?;
        Ok(match region.storage {
            Storage::Bytes(_) => Served::Done,
            Storage::Blocks(_) => Served::Blocks,
        })
    }

    #[inline]
    fn serve(
        &mut self,
        ask: &AccessRequest,
        now: Nanos,
        copy: impl FnOnce(&dyn Bytes, u64, usize),
    ) -> Result<Served, Refusal> {
        let guard = self.reader.enter();
        let (region, span) = decide(guard.probe(ask.access.key), ask, &self.regions, self.over.as_deref(), now)?;
        let Storage::Bytes(bytes) = &region.storage else { return Ok(Served::Blocks) };
        copy(&**bytes, span.at, span.len as usize);
        Ok(Served::Done)
    }

    /// Decides on a write of zeros and, where the bytes lie in memory, zeroes them.
    pub fn zero(&mut self, ask: &AccessRequest, now: Nanos) -> Result<Served, Refusal> {
        debug_assert_eq!(ask.access.op, Op::Write);
        self.serve(ask, now, |bytes, at, len| bytes.zero(at, len as u64))
    }

    /// [`decide`] on what a probe said.
    pub(crate) fn decide(
        &self,
        entry: Option<Entry>,
        ask: &AccessRequest,
        now: Nanos,
    ) -> Result<(&Region, Span), Refusal> {
        decide(entry, ask, &self.regions, self.over.as_deref(), now)
    }

    /// The lease that `ask` names, if it takes accesses now; what of it is asked for does not matter.
    pub fn look(&mut self, ask: &AccessRequest, now: Nanos) -> Result<Entry, Refusal> {
        let guard = self.reader.enter();
        if is_set(self.over.as_deref()) {
            return Err(Refusal::Revoked);
        }
        let entry = named(guard.probe(ask.access.key), ask);
        let offset = entry.map_or(0, |entry| entry.first);
        let first = Access { offset, len: 1, well_formed: true, ..ask.access };
        match (check(entry.as_ref(), &first, now), entry) {
            (Ok(_) | Err(Refusal::Denied), Some(entry)) => Ok(entry),
            (Err(refusal), _) => Err(refusal),
            (Ok(_), None) => Err(Refusal::Unknown),
        }
    }

    /// The counters of this gate, to be reported or moved to [`Totals`](crate::Totals).
    pub fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }
}

/// The entry, if it is the one that the message names.
#[inline]
fn named(entry: Option<Entry>, ask: &AccessRequest) -> Option<Entry> {
    entry.filter(|entry| ask.id.is_none_or(|id| id == entry.id))
}

#[inline]
fn is_set(over: Option<&AtomicBool>) -> bool {
    over.is_some_and(|over| over.load(Relaxed))
}

/// Decides on an access by what a probe said, and by `over`, read after it. Blocks are accessed whole,
/// memory by the byte, also where it lies behind an engine.
#[inline]
fn decide<'r>(
    entry: Option<Entry>,
    ask: &AccessRequest,
    regions: &'r Regions,
    over: Option<&AtomicBool>,
    now: Nanos,
) -> Result<(&'r Region, Span), Refusal> {
    if is_set(over) {
        return Err(Refusal::Revoked);
    }
    let entry = named(entry, ask);
    let region = entry.and_then(|entry| regions.get(entry.region));
    let whole = region
        .is_none_or(|region| region.kind.is_memory() || (ask.access.offset | ask.access.len).is_multiple_of(BLOCK));
    let access = Access { well_formed: ask.access.well_formed && whole, ..ask.access };
    let span = check(entry.as_ref(), &access, now)?;
    Ok((region.ok_or(Refusal::Unknown)?, span))
}
