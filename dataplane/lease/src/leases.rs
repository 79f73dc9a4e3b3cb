//! The state machine of all leases on a node.

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
    Entry, Generation, LeaseId, LeaseKey, Quiescence, RegionId, RegionKind, Regions, Rights, Span, State, Table,
    TableWriter,
    leases::{
        deadlines::Deadlines,
        grantees::Grantees,
        handle::Handles,
        place::Places,
        quota::Accounts,
        record::{Records, Slot},
    },
};

/// For how long a revoked lease is reported as revoked.
pub const REMEMBERED: Duration = Duration::from_mins(5);

/// Block size in bytes. Block leases are a multiple of it long, unless a RANGE caveat ends within a block.
pub const BLOCK: u64 = 512;

/// Limit on the ids drawn for a new lease. Even one collision is very unlikely.
const DRAWS: usize = 64;

/// Sizes and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Limit on leases and attachments together, including remembered revoked ones. The same limit holds for handles.
    pub capacity: usize,
    /// Longest access to a lease, in bytes.
    pub max_io: u32,
    /// Page size of the page profile, in bytes.
    pub page_size: u32,
}

impl Default for Config {
    /// 65,536 leases, accesses of 1 MiB, pages of 4,096 bytes.
    fn default() -> Self {
        Self { capacity: 1 << 16, max_io: 1 << 20, page_size: 4096 }
    }
}

/// An allocation to be made.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Memory, blocks or a unit.
    pub wanted: Wanted<'a>,
    /// NUMA node whose regions are tried first; `None` for no preference.
    pub near: Option<u16>,
    /// Size in bytes, 0 for a unit. Rounded up to whole blocks in a block region.
    pub bytes: u64,
    /// The token's RANGE caveat: first byte that may be accessed, and the byte after the last.
    pub range: Option<(u64, u64)>,
    /// The data I/O that the token allows.
    pub rights: Rights,
    /// Id of the presenter that asks.
    pub holder: u128,
    /// `token_id` of the token.
    pub token: u128,
    /// How long the lease is active.
    pub duration: Duration,
    /// How long after its expiry it can be renewed.
    pub grace: Duration,
}

/// The kind of thing to allocate.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// Bytes from one of these regions, in order of preference.
    Bytes(&'a [RegionId]),
    /// This particular unit.
    Unit(Unit),
}

/// The thing that a lease holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// Bytes from this region.
    Bytes(RegionId),
    /// A unit of a resource without bytes.
    Unit(Unit),
    /// Nothing: it was revoked, and the configuration no longer has what it held.
    Nothing,
}

/// A unit of a resource without bytes, such as a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Index of the resource among the node's resources.
    pub resource: u16,
    /// The quota item that the unit counts towards.
    pub item: Item,
}

/// The result of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Granted {
    /// Id of the new lease.
    pub id: LeaseId,
    /// Those of its bytes that must be zeroed before the grant is answered.
    pub zero: Vec<Span>,
}

/// All state of one lease, as the journal keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Full id.
    pub id: LeaseId,
    /// Bytes, a unit, or nothing.
    pub holds: Holding,
    /// Offset of its first byte in the region; 0 without bytes.
    pub base: u64,
    /// Length in bytes; 0 for a unit.
    pub len: u64,
    /// First byte that may be accessed, counted from the lease's first; 0 without a RANGE caveat.
    pub first: u64,
    /// The data I/O that its token allowed.
    pub rights: Rights,
    /// Rises when a restart loses the contents.
    pub generation: Generation,
    /// Id of the presenter that may renew, free, export and move it.
    pub holder: u128,
    /// `token_id` of the token that it was allocated under; renewals keep it.
    pub token: u128,
    /// Monotonic time at which it expires or expired.
    pub expires: Nanos,
    /// How long after its expiry it can be renewed.
    pub grace: Duration,
    /// Live, revoked or over.
    pub standing: Standing,
    /// A binding could not be torn down, so its bytes are never leased again.
    pub fenced: bool,
}

impl Lease {
    /// The region that its bytes lie in; `None` without bytes.
    pub fn region(&self) -> Option<RegionId> {
        match self.holds {
            Holding::Bytes(region) => Some(region),
            Holding::Unit(_) | Holding::Nothing => None,
        }
    }

    /// Monotonic time at which its grace ends.
    pub fn ends(&self) -> Nanos {
        self.expires + self.grace
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

/// Stage of a lease's life, regardless of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Granted: active until it expires, then in its grace.
    Live,
    /// Taken back before its time.
    Revoked {
        /// Monotonic time of the revocation.
        at: Nanos,
    },
    /// Freed, or past its grace.
    Over,
}

/// The answer to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Neither expired nor revoked.
    Active,
    /// Expired, but in its grace: it can be renewed.
    Expired,
    /// Revoked within the last [`REMEMBERED`].
    Revoked,
}

/// Why an operation on leases was refused. It changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No such lease or handle: never made, freed, past its grace, or forgotten.
    #[error("no such lease")]
    NotFound,
    /// The presenter is not the lease's holder, or not the handle's target.
    #[error("the lease or handle is another presenter's")]
    NotHolder,
    /// The lease has expired and is in its grace.
    #[error("the lease has expired")]
    Expired,
    /// The lease was revoked and is still remembered.
    #[error("the lease was revoked")]
    Revoked,
    /// A parameter is out of its range; carries a sentence for people.
    #[error("{0}")]
    Invalid(&'static str),
    /// More bytes than the token's RANGE caveat covers.
    #[error("more bytes than the RANGE of the token")]
    Range,
    /// More rights than the lease has.
    #[error("the lease does not have these rights")]
    Rights,
    /// No region has so many contiguous free bytes, or a limit on leases is reached.
    #[error("not enough free capacity")]
    Capacity,
    /// The holder's quota is used up.
    #[error("the quota of the holder is used up")]
    Quota,
    /// A binding of one of the leases could not be torn down.
    #[error("the resource is fenced")]
    Fenced,
    /// Accesses that have not ended yet use the bytes; try again.
    #[error("accesses to the bytes have not ended yet")]
    Busy,
}

/// Deadlines other than those of leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// The bytes of a moved lease need no longer be kept.
    Kept(LeaseKey),
    /// The handle with this id expires.
    Handle(u128),
}

/// All leases of a node. It publishes by itself what the dataplanes need to the [`Table`].
///
/// Times are monotonic, and each operation goes by its own `now`: a lease ends on time even if [`Leases::tick`] comes
/// late. The caller must journal an operation before it answers it.
///
/// A lease that was freed, was revoked or has ended keeps its bytes until the caller has torn down its bindings. The
/// caller then calls [`Leases::release`], or [`Leases::fence`] if the teardown failed.
#[derive(Debug)]
pub struct Leases {
    config: Config,
    places: Places,
    writer: TableWriter,
    records: Records,
    grantees: Grantees,
    accounts: Accounts,
    /// Number of live leases, and of their bytes.
    live: (u64, u64),
    /// When each lease expires, when its grace ends, or when its revocation is forgotten.
    deadlines: Deadlines,
    timers: BTreeSet<(Nanos, Timer)>,
    handles: Handles,
    /// Until when the extents of moved leases are kept.
    kept: BTreeMap<LeaseKey, Nanos>,
    /// State of the pages that page operations have touched.
    pages: BTreeMap<LeaseKey, BTreeMap<u32, Page>>,
}

impl Leases {
    /// Starts without leases. The bytes of regions whose contents a restart loses are assumed to be zero; others are not.
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

    /// As given to [`Leases::new`].
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Grants a lease. `random` draws candidate ids.
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
        self.accounts.check(holder, Item::Leases, 1)?;
        match wanted {
            Wanted::Bytes(regions) => {
                let room = self.accounts.room(holder, Item::Bytes);
                let (span, dirty) = self.places.place(regions, near, bytes, room)?;
                let blocks = self.places.kind(span.region) == Some(RegionKind::Block);
                lease.len = if blocks { bytes.next_multiple_of(BLOCK).min(end) } else { bytes };
                (lease.holds, lease.base, zero) = (Holding::Bytes(span.region), span.at, dirty);
            }
            Wanted::Unit(unit) => {
                self.accounts.check(holder, unit.item, 1)?;
                lease.holds = Holding::Unit(unit);
            }
        }
        self.add(lease, true).inspect_err(|_| {
            if let Some(region) = lease.region() {
                self.places.give_back(region, self.places.extent(&lease));
            }
        })?;
        Ok(Granted { id, zero })
    }

    /// Makes a lease active for `duration` from now, even if it is in its grace. Returns the new expiry. Generation and
    /// token stay.
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

    /// State of a lease, and when it expires or expired. `None` if there is no such lease.
    pub fn query(&self, id: LeaseId, now: Nanos) -> Option<(Status, Nanos)> {
        let lease = self.get(id)?;
        Some((lease.status(now)?, lease.expires))
    }

    /// A consistent snapshot of the active leases, in no particular order.
    pub fn active(&self, now: Nanos) -> impl Iterator<Item = Lease> {
        self.iter().filter(move |lease| lease.status(now) == Some(Status::Active))
    }

    /// Number of places for leases, taken or free. A lease keeps its place for life.
    pub fn places(&self) -> usize {
        self.records.places()
    }

    /// The active leases in these places. Ranges that together cover all places return every lease that was active
    /// throughout.
    pub fn active_among(&self, places: Range<usize>, now: Nanos) -> impl Iterator<Item = Lease> {
        let leases = self.records.slots_among(places).map(|slot| self.lease(slot));
        leases.filter(move |lease| lease.status(now) == Some(Status::Active))
    }

    /// Every lease that a snapshot of the journal needs: live ones, remembered revoked ones, fenced ones, and those
    /// that are over but not released.
    pub fn iter(&self) -> impl Iterator<Item = Lease> {
        self.records.slots().map(|slot| self.lease(slot))
    }

    /// The lease with this id, whatever its standing.
    pub fn get(&self, id: LeaseId) -> Option<Lease> {
        self.known(id).map(|(_, lease)| lease)
    }

    /// The lease with this key, whatever its standing.
    pub fn by_key(&self, key: LeaseKey) -> Option<Lease> {
        self.slot(key).map(|slot| self.lease(slot))
    }

    /// Number of live leases (active or in grace) and of their bytes, each lease rounded up to its region's granule.
    pub fn live(&self) -> (u64, u64) {
        self.live
    }

    /// Tells when every access that began before this call has ended. Wait for that before a revocation is answered.
    pub fn quiescence(&self) -> Quiescence {
        self.writer.quiescence()
    }

    /// A lease of this presenter that is live, or revoked and remembered.
    fn held(&self, id: LeaseId, holder: u128, now: Nanos) -> Result<(Slot, Lease), LeaseError> {
        let known = self.known(id).filter(|(_, lease)| lease.status(now).is_some());
        let (slot, lease) = known.ok_or(LeaseError::NotFound)?;
        if lease.holder == holder { Ok((slot, lease)) } else { Err(LeaseError::NotHolder) }
    }

    /// A lease of this presenter that is active.
    fn usable(&self, id: LeaseId, holder: u128, now: Nanos) -> Result<(Slot, Lease), LeaseError> {
        let (slot, lease) = self.held(id, holder, now)?;
        match lease.status(now) {
            Some(Status::Active) => Ok((slot, lease)),
            Some(Status::Expired) => Err(LeaseError::Expired),
            _ => Err(LeaseError::Revoked),
        }
    }

    /// Draws an id with an unused key.
    fn draw(&self, random: &mut dyn FnMut() -> u128) -> Result<LeaseId, LeaseError> {
        let free = |id: &LeaseId| id.is_usable() && self.is_free(id.key());
        std::iter::repeat_with(|| LeaseId(random())).take(DRAWS).find(free).ok_or(LeaseError::Capacity)
    }

    fn is_free(&self, key: LeaseKey) -> bool {
        self.slot(key).is_none() && self.writer.line_of(key).is_none()
    }

    /// Records and publishes a lease whose bytes are taken already.
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

    /// The table's entry for a lease; `None` if it has none.
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

    /// Counts a lease that begins or ceases to live.
    fn count(&mut self, lease: &Lease, lives: bool) {
        let extent = self.places.extent(lease);
        let (leases, bytes) = (&mut self.live.0, &mut self.live.1);
        let change: fn(&mut Accounts, u128, Item, u64) = if lives { Accounts::take } else { Accounts::give };
        if lives {
            *leases += 1;
            *bytes += extent.len;
        } else {
            *leases -= 1;
            *bytes -= extent.len;
        }
        if let Holding::Unit(unit) = lease.holds {
            change(&mut self.accounts, lease.holder, unit.item, 1);
        }
    }
}
