//! The node, what it has answered, and the passing of time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_lease::{
    BlockDone, BlockError, BlockOp, BlockRequest, Config, Event, GRANULE, Handle, Held, Item, Lease, LeaseId, Leases,
    Op, Quiescence, Quota, Quotas, REMEMBERED, Reader, Region, RegionId, Regions, Span, Standing, Status, Storage,
};
use berth_memory::{Heap, Part};
use berth_port::Nanos;
use fastrand::Rng;

use crate::common::{blocks, memory, vram};

const STEPS: u32 = 250;
pub(crate) const HOLDERS: u128 = 3;
pub(crate) const TOKENS: u128 = 4;
pub(crate) const REGION: u64 = 12 * GRANULE;
pub(crate) const REGIONS: u16 = 4;
/// What leases of the last region take multiples of.
pub(crate) const UNIT: u64 = 2 * GRANULE;

/// Leases of a region take multiples of this.
pub(crate) fn granule(region: RegionId) -> u64 {
    if region.0 == REGIONS - 1 { UNIT } else { GRANULE }
}
pub(crate) const MAX_IO: u32 = 64;
pub(crate) const CONFIG: Config = Config { capacity: 24, max_io: MAX_IO, page_size: 4096 };
/// Each holder's limits on leases, bytes, handles and attachments.
pub(crate) const QUOTA: [(Item, u64); 4] =
    [(Item::Leases, 8), (Item::Bytes, 10 * GRANULE), (Item::Handles, 4), (Item::Attachments, 5)];

fn start(regions: Regions) -> Leases {
    let mut leases = Leases::new(CONFIG, regions);
    let mut quotas = Quotas::default();
    for (item, most) in QUOTA {
        quotas.others[item] = most;
    }
    leases.set_quotas(quotas);
    leases
}

/// What was answered about a lease, and therefore must hold.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// As the journal has it.
    pub(crate) lease: Lease,
    /// Bytes that its holder wrote, by offset.
    pub(crate) wrote: BTreeMap<u64, u8>,
    /// Whether its free was answered, or its grace has passed.
    pub(crate) over: bool,
    /// Whether its revocation was answered.
    pub(crate) revoked: bool,
}

impl Known {
    pub(crate) fn status(&self, now: Nanos) -> Option<Status> {
        let Lease { expires, grace, standing, .. } = self.lease;
        match standing {
            _ if self.over => None,
            Standing::Revoked { at } => (now < at + REMEMBERED).then_some(Status::Revoked),
            _ if now < expires => Some(Status::Active),
            _ if now < expires + grace => Some(Status::Expired),
            _ => None,
        }
    }

    pub(crate) fn extent(&self) -> Span {
        let Lease { base, len, .. } = self.lease;
        let region = self.lease.region().unwrap();
        Span { region, at: base, len: len.next_multiple_of(granule(region)) }
    }
}

/// An access between its check and its end.
pub(crate) struct Flight {
    pub(crate) held: Held,
    pub(crate) id: LeaseId,
    pub(crate) span: Span,
    pub(crate) offset: u64,
    pub(crate) op: Op,
    pub(crate) stamp: u8,
}

/// A revocation that is not answered until the accesses from before it have ended.
pub(crate) struct Unanswered {
    pub(crate) quiescence: Quiescence,
    pub(crate) ids: Vec<LeaseId>,
}

pub(crate) struct Sim {
    pub(crate) rng: Rng,
    pub(crate) now: Nanos,
    pub(crate) regions: Regions,
    pub(crate) leases: Leases,
    pub(crate) readers: Vec<Reader>,
    pub(crate) known: BTreeMap<LeaseId, Known>,
    pub(crate) handles: BTreeMap<u128, Handle>,
    /// Handle and importer of each attachment.
    pub(crate) attached: BTreeMap<LeaseId, (u128, u128)>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) unanswered: Vec<Unanswered>,
    /// Holder of each granule, by region and first byte.
    pub(crate) owners: BTreeMap<(RegionId, u64), LeaseId>,
    pub(crate) counts: Counts,
}

/// What happened, to notice runs in which nothing does.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) granted: u32,
    pub(crate) served: u32,
    pub(crate) refused: BTreeMap<&'static str, u32>,
    pub(crate) revoked_in_use: u32,
    pub(crate) fenced: u32,
    pub(crate) crashes: u32,
    pub(crate) restored: u32,
    pub(crate) moved: u32,
    pub(crate) attached: u32,
    pub(crate) ended: u32,
}

fn new_vram() -> Region {
    vram(REGION + GRANULE, UNIT)
}

/// After a restart memory is new and blocks are as they were.
fn with_new_memory(regions: &Regions) -> Regions {
    let renew = |(id, region): (RegionId, &Region)| match id.0 {
        2 => region.clone(),
        3 => new_vram(),
        n => memory(REGION, Some(n)),
    };
    Regions::new(regions.iter().map(renew).collect())
}

impl Sim {
    pub(crate) fn new(seed: u64) -> Self {
        let regions = vec![memory(REGION, Some(0)), memory(REGION, Some(1)), blocks(REGION), new_vram()];
        let regions = Regions::new(regions);
        Self {
            rng: Rng::with_seed(seed),
            now: Nanos(1),
            leases: start(regions.clone()),
            regions,
            readers: Vec::new(),
            known: BTreeMap::new(),
            handles: BTreeMap::new(),
            attached: BTreeMap::new(),
            flights: Vec::new(),
            unanswered: Vec::new(),
            owners: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    pub(crate) fn run(mut self) -> Counts {
        for _ in 0..STEPS {
            match self.rng.u32(0..100) {
                0..20 => self.alloc(),
                20..28 => self.renew(),
                28..36 => self.free(),
                36..40 => self.revoke(),
                40..42 => self.revoke_token(),
                42..47 => self.export(),
                47..52 => self.import(),
                52..57 => self.relocate(),
                57..75 => self.access(),
                75..84 => self.end_access(),
                84..94 => self.pass(),
                94..99 => self.clean(),
                _ => self.crash(),
            }
            self.answer();
            self.compare();
        }
        self.end_all();
        self.counts
    }

    /// Ends everything; then nobody may hold anything except what is fenced.
    fn end_all(&mut self) {
        for _ in 0..3 {
            while !self.flights.is_empty() {
                self.end_access();
            }
            self.answer();
            self.now = self.now + REMEMBERED + Duration::from_secs(100);
            self.tick();
        }
        self.compare();
        for (holder, usage) in self.leases.usages() {
            let fenced = self.leases.iter().filter(|lease| lease.holder == holder && lease.fenced);
            assert_eq!(usage[Item::Leases], fenced.count() as u64, "leases of {holder}");
            for item in [Item::Handles, Item::Attachments, Item::Proxies] {
                assert_eq!(usage[item], 0, "{item:?} of {holder}");
            }
        }
    }

    pub(crate) fn chance(&mut self, one_in: u32) -> bool {
        self.rng.u32(0..one_in) == 0
    }

    /// Mostly a live one.
    pub(crate) fn any_lease(&mut self) -> Option<LeaseId> {
        let any = self.chance(8);
        let chosen = self.known.values().filter(|known| any || known.status(self.now).is_some());
        let chosen: Vec<LeaseId> = chosen.map(|known| known.lease.id).collect();
        self.rng.choice(chosen)
    }

    /// The holder of a lease, or now and then another key.
    pub(crate) fn presenter(&mut self, id: LeaseId) -> u128 {
        if self.chance(6) { self.rng.u128(0..HOLDERS) } else { self.known[&id].lease.holder }
    }

    pub(crate) fn secs(&mut self, most: u64) -> Duration {
        Duration::from_secs(self.rng.u64(0..=most))
    }

    pub(crate) fn read(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len as usize];
        match &self.regions.get(span.region).unwrap().storage {
            Storage::Bytes(memory) => memory.read(span.at, &mut bytes),
            Storage::Blocks(_) => bytes = self.on_blocks(BlockOp::Read, span, &bytes),
        }
        bytes
    }

    pub(crate) fn write(&self, span: Span, bytes: &[u8]) {
        match &self.regions.get(span.region).unwrap().storage {
            Storage::Bytes(memory) => memory.write(span.at, bytes),
            Storage::Blocks(_) => drop(self.on_blocks(BlockOp::Write, span, bytes)),
        }
    }

    pub(crate) fn zero(&self, span: Span) {
        match &self.regions.get(span.region).unwrap().storage {
            Storage::Bytes(memory) => memory.zero(span.at, span.len),
            Storage::Blocks(_) => drop(self.on_blocks(BlockOp::Zero(span.len), span, &[])),
        }
    }

    pub(crate) fn on_blocks(&self, op: BlockOp, span: Span, data: &[u8]) -> Vec<u8> {
        struct Done;
        impl BlockDone for Done {
            fn done(&self, _: u64, _: Vec<Part>, result: Result<(), BlockError>) {
                result.unwrap();
            }
        }
        let Storage::Blocks(engine) = &self.regions.get(span.region).unwrap().storage else { panic!("not blocks") };
        let pieces: Vec<Part> = (!data.is_empty()).then(|| Heap::from(data).into()).into_iter().collect();
        engine.submit(BlockRequest { op, at: span.at, pieces: pieces.clone(), tag: 0, done: Arc::new(Done) });
        let mut bytes = vec![0; data.len()];
        for piece in &pieces {
            piece.read_at(0, &mut bytes);
        }
        bytes
    }

    /// Lets time pass; the node notices at once or later.
    pub(crate) fn pass(&mut self) {
        let by = if self.chance(25) { REMEMBERED / 2 } else { self.secs(8) };
        self.now = self.now + by + Duration::from_nanos(self.rng.u64(0..2));
        if !self.chance(3) {
            self.tick();
        }
    }

    fn tick(&mut self) {
        loop {
            let events = self.leases.tick(self.now);
            if events.is_empty() {
                break;
            }
            for event in events {
                let (Event::Expired(id) | Event::Ended(id)) = event;
                let status = self.known[&id].status(self.now);
                assert_ne!(status, Some(Status::Active), "{event:?} of {:?}", self.known[&id]);
                if let Event::Ended(id) = event {
                    assert_eq!(status, None);
                    self.counts.ended += 1;
                    self.known.get_mut(&id).unwrap().over = true;
                    self.tear_down(id);
                }
            }
        }
    }

    /// Zeroes in the background.
    pub(crate) fn clean(&mut self) {
        self.leases.zero(3 * GRANULE);
    }

    /// Now and then kills the node after an operation and before it is journaled, so that it is never answered.
    pub(crate) fn crashed_first(&mut self) -> bool {
        let crashed = self.chance(120);
        if crashed {
            self.crash();
        }
        crashed
    }

    /// Kills the process, and starts another from what was answered.
    pub(crate) fn crash(&mut self) {
        self.counts.crashes += 1;
        self.flights.clear();
        self.readers.clear();
        self.unanswered.clear();
        self.regions = with_new_memory(&self.regions);
        self.now = self.now + self.secs(10);
        self.leases = start(self.regions.clone());
        let now = self.now;
        for id in self.known.keys().copied().collect::<Vec<_>>() {
            let known = self.known.get_mut(&id).unwrap();
            let mut journaled = known.lease;
            if known.over {
                journaled.standing = Standing::Over;
            }
            let status = known.status(now);
            let restored = self.leases.restore(journaled, now).unwrap();
            assert_eq!(restored.is_some(), status.is_some() || journaled.fenced);
            known.over |= status.is_none();
            if matches!(status, Some(Status::Active | Status::Expired)) {
                self.counts.restored += 1;
                let lost = journaled.region().is_some_and(|region| region.0 != 2);
                if lost {
                    known.wrote.clear();
                    known.lease.generation = journaled.generation.next();
                }
                assert_eq!(restored, Some(known.lease));
                if journaled.region().is_some() {
                    let extent = known.extent();
                    self.take(id, extent);
                }
            }
        }
        let known = |lease| self.leases.get(lease).is_some_and(|lease| lease.standing != Standing::Over);
        self.handles.retain(|_, handle| now < handle.expires && known(handle.lease));
        for handle in self.handles.values() {
            assert!(self.leases.restore_handle(*handle));
        }
        self.attached.retain(|_, (handle, _)| self.handles.contains_key(handle));
        for (id, (handle, importer)) in &self.attached {
            assert!(self.leases.restore_attachment(*handle, *importer, id.key()));
        }
    }

    /// Checks that the node reports every lease as it was answered.
    pub(crate) fn compare(&mut self) {
        let listed: Vec<LeaseId> = self.leases.active(self.now).map(|lease| lease.id).collect();
        let active: BTreeSet<LeaseId> = listed.iter().copied().collect();
        assert_eq!(listed.len(), active.len(), "a lease is listed twice");
        for (id, known) in &self.known {
            if self.unanswered.iter().any(|unanswered| unanswered.ids.contains(id)) {
                continue;
            }
            let expected = known.status(self.now).map(|status| (status, known.lease.expires));
            assert_eq!(self.leases.query(*id, self.now), expected, "{known:?}");
            assert_eq!(active.contains(id), known.status(self.now) == Some(Status::Active), "{known:?}");
        }
        self.compare_usage();
        let free: u64 = (0..REGIONS).map(|n| self.leases.available(RegionId(n))).sum();
        let held = self.leases.iter().filter(|lease| lease.standing == Standing::Live || lease.fenced);
        let held: u64 = held.filter_map(|lease| self.leases.extent(&lease)).map(|extent| extent.len).sum();
        assert!(free + held <= u64::from(REGIONS) * REGION, "bytes are counted twice: {free} free, {held} held");
    }

    /// Checks the node's usage counts against what holders have.
    fn compare_usage(&self) {
        let mut usage = BTreeMap::<u128, Quota>::new();
        let mut add = |holder, item, more| usage.entry(holder).or_insert(Quota::NOTHING)[item] += more;
        for lease in self.leases.iter() {
            add(lease.holder, Item::Leases, 1);
            let proxies = lease.region().is_none() && lease.standing == Standing::Live;
            add(lease.holder, Item::Proxies, u64::from(proxies));
        }
        for handle in self.leases.handles() {
            add(self.leases.get(handle.lease).unwrap().holder, Item::Handles, 1);
        }
        for holder in 0..=HOLDERS {
            let found = self.leases.usage(holder);
            let expected = usage.get(&holder).copied().unwrap_or(Quota::NOTHING);
            for item in [Item::Leases, Item::Proxies, Item::Handles] {
                assert_eq!(found[item], expected[item], "{item:?} of {holder}");
            }
        }
        let sum = |item| self.leases.usages().map(|(_, usage)| usage[item]).sum::<u64>();
        let free: u64 = (0..REGIONS).map(|n| self.leases.available(RegionId(n))).sum();
        assert_eq!(sum(Item::Bytes) + free, u64::from(REGIONS) * REGION, "bytes are whoever's has them, or free");
    }
}
