//! The state machine of all leases of a node.

mod deadlines;
mod end;
mod grantees;
mod handle;
mod page;
mod place;
mod quota;
mod record;
mod relocate;
mod restore;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    time::Duration,
};

use berth_port::Nanos;

pub use end::Event;
pub use handle::{Attachment, Handle};
pub use page::Page;
pub use quota::{Item, Limits, Quota, Quotas};
pub use relocate::{Mode, RelocateError, Relocation};
pub use restore::RestoreError;

use crate::{
    Entry, Extent, GRANULE, Generation, LeaseId, LeaseKey, Quiescence, RegionId, RegionKind, Regions, Rights, Span,
    State, Table, TableWriter,
    leases::{
        deadlines::Deadlines,
        grantees::Grantees,
        handle::Handles,
        place::Places,
        quota::Accounts,
        record::{Records, Slot},
    },
};

/// How long a revoked lease is remembered as such.
pub const REMEMBERED: Duration = Duration::from_mins(5);

/// Bytes of a block: block leases have a multiple of them, but for a RANGE caveat that ends within one.
pub const BLOCK: u64 = 512;

/// Ids drawn for a new lease, at most: one that is taken is drawn about never.
const DRAWS: usize = 64;

/// Sizes and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Leases and attachments at once, revoked ones that are remembered included; and as many handles.
    pub capacity: usize,
    /// The longest access to a lease, in bytes.
    pub max_io: u32,
    /// Bytes of a page of the page profile.
    pub page_size: u32,
}

impl Default for Config {
    /// 65,536 leases, accesses of 1 MiB, pages of 4,096 bytes.
    fn default() -> Self {
        Self { capacity: 1 << 16, max_io: 1 << 20, page_size: 4096 }
    }
}

/// What an allocation asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What it is to hold.
    pub wanted: Wanted<'a>,
    /// The NUMA node whose regions are tried first, if any.
    pub near: Option<u16>,
    /// How many bytes, 0 for a unit; rounded up to whole blocks where the region has blocks.
    pub bytes: u64,
    /// The token's RANGE caveat: the first byte that may be accessed and the byte after the last.
    pub range: Option<(u64, u64)>,
    /// What data I/O the token allows.
    pub rights: Rights,
    /// Who asks.
    pub holder: u128,
    /// The token's id.
    pub token: u128,
    /// How long it is active.
    pub duration: Duration,
    /// How long after that it can be renewed.
    pub grace: Duration,
}

/// What an allocation asks for.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// Bytes of one of these regions, the best first.
    Bytes(&'a [RegionId]),
    /// This unit.
    Unit(Unit),
}

/// What a lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// Bytes of this region.
    Bytes(RegionId),
    /// A unit of a resource that has no bytes.
    Unit(Unit),
    /// Nothing: it was revoked, and what it held is not configured any more.
    Nothing,
}

/// A unit of a resource that has no bytes, such as a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// The resource, by its position among the node's.
    pub resource: u16,
    /// As what it counts among what its holder has.
    pub item: Item,
}

/// A lease was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Its id.
    pub id: LeaseId,
    /// Those of its bytes that are not zero: they must be before the grant is answered.
    pub zero: Vec<Span>,
}

/// One lease, as the journal keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// What it holds.
    pub holds: Holding,
    /// Its first byte in the region; 0 without bytes.
    pub base: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The first byte, from its own first, that may be accessed.
    pub first: u64,
    /// What data I/O its token allowed.
    pub rights: Rights,
    /// Its generation.
    pub generation: Generation,
    /// Who may renew, free, export and move it.
    pub holder: u128,
    /// The token it was allocated under.
    pub token: u128,
    /// When it expires, or expired.
    pub expires: Nanos,
    /// How long after that it can be renewed.
    pub grace: Duration,
    /// Whether it was revoked or is over.
    pub standing: Standing,
    /// A binding could not be torn down: its bytes are never leased again.
    pub fenced: bool,
}

impl Lease {
    /// Where its bytes lie, if it has any.
    pub fn region(&self) -> Option<RegionId> {
        match self.holds {
            Holding::Bytes(region) => Some(region),
            Holding::Unit(_) | Holding::Nothing => None,
        }
    }

    /// When its grace ends.
    pub fn ends(&self) -> Nanos {
        self.expires + self.grace
    }

    /// The bytes of the region that are taken for it.
    fn extent(&self) -> Extent {
        Extent { at: self.base, len: self.len.next_multiple_of(GRANULE) }
    }

    fn status(&self, now: Nanos) -> Option<Status> {
        match self.standing {
            Standing::Live if now < self.expires => Some(Status::Active),
            Standing::Live if now < self.ends() => Some(Status::Expired),
            Standing::Revoked { at } if now < at + REMEMBERED => Some(Status::Revoked),
            _ => None,
        }
    }
}

/// Where in its life a lease is, apart from what the time says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Granted; active until it expires, then in grace.
    Live,
    /// Taken back.
    Revoked {
        /// When.
        at: Nanos,
    },
    /// Freed, or past its grace.
    Over,
}

/// What a query answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It can be used.
    Active,
    /// It is in its grace.
    Expired,
    /// It was revoked within the last [`REMEMBERED`].
    Revoked,
}

/// Why an op on leases is refused. Nothing has changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// Never granted, freed, past its grace, or forgotten.
    #[error("no such lease")]
    NotFound,
    /// Another presenter holds it, or the handle was made for another.
    #[error("the lease or handle is another presenter's")]
    NotHolder,
    /// It is in its grace.
    #[error("the lease has expired")]
    Expired,
    /// It was revoked.
    #[error("the lease was revoked")]
    Revoked,
    /// A parameter has a value that it may not have.
    #[error("{0}")]
    Invalid(&'static str),
    /// More bytes than the token's RANGE caveat has.
    #[error("more bytes than the RANGE of the token")]
    Range,
    /// Rights that the lease does not have.
    #[error("the lease does not have these rights")]
    Rights,
    /// No region has so many free bytes in one piece, or there are as many leases as there may be.
    #[error("not enough free capacity")]
    Capacity,
    /// The holder has as much as one holder may have.
    #[error("the quota of the holder is used up")]
    Quota,
    /// A binding of one of its leases could not be torn down.
    #[error("the resource is fenced")]
    Fenced,
    /// The bytes are in use by accesses that have not ended; try again.
    #[error("accesses to the bytes have not ended yet")]
    Busy,
}

/// Something else that happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A lease's bytes were kept long enough.
    Kept(LeaseKey),
    /// The handle expires.
    Handle(u128),
}

/// All leases of a node. Publishes what the dataplanes need to know to the [`Table`] by itself.
///
/// Times are monotonic, and every op goes by its own `now`: a lease is over at its time, even where [`Leases::tick`]
/// comes late. Ops are to be journaled by the caller before they are answered.
///
/// A lease that was freed, revoked or has ended keeps its bytes until the caller has torn down its bindings and says
/// so with [`Leases::release`], or with [`Leases::fence`] where that failed.
#[derive(Debug)]
pub struct Leases {
    config: Config,
    places: Places,
    writer: TableWriter,
    records: Records,
    grantees: Grantees,
    accounts: Accounts,
    /// Leases that live, and their bytes.
    live: (u64, u64),
    /// When leases expire, then end, or when their revocation is forgotten.
    deadlines: Deadlines,
    timers: BTreeSet<(Nanos, Timer)>,
    handles: Handles,
    /// Until when the extents of moved leases are kept.
    kept: BTreeMap<LeaseKey, Nanos>,
    /// The pages that page ops have touched.
    pages: BTreeMap<LeaseKey, BTreeMap<u32, Page>>,
}

impl Leases {
    /// A node without leases. Memory and blocks in memory are taken to be zero, blocks behind an engine are not.
    pub fn new(config: Config, regions: Regions) -> Self {
        let (_, writer) = Table::new(config.capacity);
        Self {
            config,
            places: Places::new(regions),
            records: Records::new(config.capacity, writer.lines()),
            writer,
            grantees: Grantees::new(config.capacity),
            accounts: Accounts::default(),
            live: (0, 0),
            deadlines: Deadlines::new(config.capacity),
            timers: BTreeSet::new(),
            handles: Handles::default(),
            kept: BTreeMap::new(),
            pages: BTreeMap::new(),
        }
    }

    /// The table that these leases are published to.
    pub fn table(&self) -> &Table {
        self.writer.table()
    }

    /// Sizes and limits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Grants a lease. `random` draws ids.
    pub fn alloc(
        &mut self,
        request: &Request<'_>,
        now: Nanos,
        random: &mut dyn FnMut() -> u128,
    ) -> Result<Granted, LeaseError> {
        let Request { wanted, near, bytes, range, rights, holder, token, duration, grace } = *request;
        if duration.is_zero() {
            return Err(LeaseError::Invalid("a lease lasts at least a second"));
        }
        if (bytes == 0) != matches!(wanted, Wanted::Unit(_)) {
            return Err(LeaseError::Invalid("a lease of bytes has at least one, and one of a unit none"));
        }
        let (first, end) = range.unwrap_or((0, u64::MAX));
        if bytes > end {
            return Err(LeaseError::Range);
        }
        if self.records.len() >= self.config.capacity {
            return Err(LeaseError::Capacity);
        }
        let id = self.draw(random)?;
        let mut lease = Lease {
            id,
            holds: Holding::Nothing,
            base: 0,
            len: 0,
            first,
            rights,
            generation: Generation::FIRST,
            holder,
            token,
            expires: now + duration,
            grace,
            standing: Standing::Live,
            fenced: false,
        };
        let mut zero = Vec::new();
        self.check_quota(holder, wanted, bytes)?;
        match wanted {
            Wanted::Bytes(regions) => {
                let (span, dirty) = self.places.place(regions, near, bytes)?;
                let blocks = self.places.kind(span.region) == Some(RegionKind::Block);
                lease.len = if blocks { bytes.next_multiple_of(BLOCK).min(end) } else { bytes };
                (lease.holds, lease.base, zero) = (Holding::Bytes(span.region), span.at, dirty);
            }
            Wanted::Unit(unit) => lease.holds = Holding::Unit(unit),
        }
        self.add(lease, true).inspect_err(|_| {
            if let Some(region) = lease.region() {
                self.places.give_back(region, lease.extent());
            }
        })?;
        Ok(Granted { id, zero })
    }

    /// Makes a lease active for `duration` from now, in its grace too; returns when it will expire. Its generation
    /// and token stay.
    pub fn renew(&mut self, id: LeaseId, holder: u128, duration: Duration, now: Nanos) -> Result<Nanos, LeaseError> {
        if duration.is_zero() {
            return Err(LeaseError::Invalid("a lease lasts at least a second"));
        }
        let (slot, lease) = self.held(id, holder, now)?;
        if lease.standing != Standing::Live {
            return Err(LeaseError::Revoked);
        }
        let lease = self.change(slot, |lease| lease.expires = now + duration);
        self.records[slot].in_grace = false;
        self.deadlines.set(slot, lease.expires);
        self.publish_attachments(id.key());
        Ok(lease.expires)
    }

    /// Whether a lease can be used and when it expires or expired; `None`: no such lease.
    pub fn query(&self, id: LeaseId, now: Nanos) -> Option<(Status, Nanos)> {
        let lease = self.get(id)?;
        Some((lease.status(now)?, lease.expires))
    }

    /// Every active lease: a consistent snapshot, in no particular order.
    pub fn active(&self, now: Nanos) -> impl Iterator<Item = Lease> {
        self.iter().filter(move |lease| lease.status(now) == Some(Status::Active))
    }

    /// How many places for leases there are, taken or free. A lease keeps its place.
    pub fn places(&self) -> usize {
        self.records.places()
    }

    /// The active leases of so many places. All places, one range after another, have every lease that was active all the
    /// while.
    pub fn active_among(&self, places: Range<usize>, now: Nanos) -> impl Iterator<Item = Lease> {
        let leases = self.records.slots_among(places).map(|slot| self.lease(slot));
        leases.filter(move |lease| lease.status(now) == Some(Status::Active))
    }

    /// Every lease that a snapshot of the journal needs: live, revoked and remembered, fenced; and those that are over
    /// but not released.
    pub fn iter(&self) -> impl Iterator<Item = Lease> {
        self.records.slots().map(|slot| self.lease(slot))
    }

    /// A lease, whatever its standing.
    pub fn get(&self, id: LeaseId) -> Option<Lease> {
        self.known(id).map(|(_, lease)| lease)
    }

    /// A lease by its key, whatever its standing.
    pub fn by_key(&self, key: LeaseKey) -> Option<Lease> {
        self.slot(key).map(|slot| self.lease(slot))
    }

    /// How many leases live, active or in grace, and how many bytes they have, each rounded up to [`GRANULE`].
    pub fn live(&self) -> (u64, u64) {
        self.live
    }

    /// What tells when no access from before this call goes on: to be waited for before a revocation is answered.
    pub fn quiescence(&self) -> Quiescence {
        self.writer.quiescence()
    }

    /// A lease of this presenter that is known: live, or revoked and remembered.
    fn held(&self, id: LeaseId, holder: u128, now: Nanos) -> Result<(Slot, Lease), LeaseError> {
        let known = self.known(id).filter(|(_, lease)| lease.status(now).is_some());
        let (slot, lease) = known.ok_or(LeaseError::NotFound)?;
        if lease.holder == holder { Ok((slot, lease)) } else { Err(LeaseError::NotHolder) }
    }

    /// A lease of this presenter that can be used.
    fn usable(&self, id: LeaseId, holder: u128, now: Nanos) -> Result<(Slot, Lease), LeaseError> {
        let (slot, lease) = self.held(id, holder, now)?;
        match lease.status(now) {
            Some(Status::Active) => Ok((slot, lease)),
            Some(Status::Expired) => Err(LeaseError::Expired),
            _ => Err(LeaseError::Revoked),
        }
    }

    /// An id whose key nothing has.
    fn draw(&self, random: &mut dyn FnMut() -> u128) -> Result<LeaseId, LeaseError> {
        let free = |id: &LeaseId| id.is_usable() && self.is_free(id.key());
        std::iter::repeat_with(|| LeaseId(random())).take(DRAWS).find(free).ok_or(LeaseError::Capacity)
    }

    fn is_free(&self, key: LeaseKey) -> bool {
        self.slot(key).is_none() && self.writer.line_of(key).is_none()
    }

    /// Whether a holder may have one more lease, of so many bytes or of a unit.
    fn check_quota(&self, holder: u128, wanted: Wanted<'_>, bytes: u64) -> Result<(), LeaseError> {
        let check = |item, more| self.accounts.check(holder, item, more);
        check(Item::Leases, 1)?;
        match wanted {
            Wanted::Unit(unit) => check(unit.item, 1),
            Wanted::Bytes(_) => check(Item::Bytes, bytes.checked_next_multiple_of(GRANULE).ok_or(LeaseError::Quota)?),
        }
    }

    /// Enters a lease whose bytes are taken already, and publishes it.
    fn add(&mut self, lease: Lease, holds: bool) -> Result<(), LeaseError> {
        if let Some(entry) = self.entry(&lease) {
            self.writer.insert(&entry).map_err(|_| LeaseError::Capacity)?;
        }
        let slot = self.store(&lease, holds);
        match lease.standing {
            Standing::Live => {
                self.deadlines.set(slot, lease.expires);
                self.grantees.list(self.records[slot].grantee, slot);
                self.count(&lease, true);
            }
            Standing::Revoked { at } => self.deadlines.set(slot, at + REMEMBERED),
            Standing::Over => {}
        }
        Ok(())
    }

    /// What the table says of a lease; `None`: nothing.
    fn entry(&self, lease: &Lease) -> Option<Entry> {
        let Lease { id, base, len, first, rights, generation, expires, standing, .. } = *lease;
        let state = match standing {
            Standing::Live => State::Active,
            Standing::Revoked { .. } => State::Revoked,
            Standing::Over => return None,
        };
        let max_io = self.config.max_io;
        Some(Entry { id, generation, rights, region: lease.region()?, base, len, first, max_io, expires, state })
    }

    /// A lease lives from now on, or does not any more.
    fn count(&mut self, lease: &Lease, lives: bool) {
        let (leases, bytes) = (&mut self.live.0, &mut self.live.1);
        let change: fn(&mut Accounts, u128, Item, u64) = if lives { Accounts::take } else { Accounts::give };
        if lives {
            *leases += 1;
            *bytes += lease.extent().len;
        } else {
            *leases -= 1;
            *bytes -= lease.extent().len;
        }
        if let Holding::Unit(unit) = lease.holds {
            change(&mut self.accounts, lease.holder, unit.item, 1);
        }
    }
}
