//! Leases, table and arena under random ops of several holders, accesses that take their time, failed teardowns and
//! crashes, in virtual time and by seed.
//!
//! What must hold: at most one holder of a byte at a time; new bytes are zero, old ones are what their holder wrote;
//! no access after a revocation was answered; nothing that ended comes back, not even by a restart.
//!
//! `BERTH_SIM_SEEDS` says how many seeds are run (2,000), `BERTH_SIM_SEED` runs a single one.
#![cfg(not(loom))]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_lease::{
    Access, BlockDone, BlockError, BlockOp, BlockRequest, Config, Entry, Event, GRANULE, Generation, Handle, Held,
    Lease, LeaseError, LeaseId, LeaseKey, Leases, Mode, Op, Quiescence, Quota, REMEMBERED, Reader, Refusal, RegionId,
    Regions, RelocateError, Request, Rights, Span, Standing, Status, Storage, check,
};
use berth_port::Nanos;
use common::{blocks, memory};
use fastrand::Rng;

const STEPS: u32 = 250;
const HOLDERS: u128 = 3;
const TOKENS: u128 = 4;
const REGION: u64 = 12 * GRANULE;
const MAX_IO: u32 = 64;
const CONFIG: Config =
    Config { capacity: 24, max_io: MAX_IO, page_size: 4096, quota: Quota { leases: 6, bytes: 10 * GRANULE } };

/// What was answered about a lease, and so what must be true of it.
#[derive(Debug, Clone)]
struct Known {
    /// As the journal has it.
    lease: Lease,
    /// The bytes its holder wrote, by offset.
    wrote: BTreeMap<u64, u8>,
    /// It is over: its free was answered, or its grace has passed.
    over: bool,
    /// Its revocation was answered.
    revoked: bool,
}

impl Known {
    fn status(&self, now: Nanos) -> Option<Status> {
        let Lease { expires, grace, standing, .. } = self.lease;
        match standing {
            _ if self.over => None,
            Standing::Revoked { at } => (now < at + REMEMBERED).then_some(Status::Revoked),
            _ if now < expires => Some(Status::Active),
            _ if now < expires + grace => Some(Status::Expired),
            _ => None,
        }
    }

    fn extent(&self) -> Span {
        let Lease { region, base, len, .. } = self.lease;
        Span { region: region.unwrap(), at: base, len: len.next_multiple_of(GRANULE) }
    }
}

/// An access between its check and its end.
struct Flight {
    held: Held,
    id: LeaseId,
    span: Span,
    offset: u64,
    op: Op,
    stamp: u8,
}

/// Revoked, but not answered before the accesses from before have ended.
struct Unanswered {
    quiescence: Quiescence,
    ids: Vec<LeaseId>,
}

struct Sim {
    rng: Rng,
    now: Nanos,
    regions: Regions,
    leases: Leases,
    readers: Vec<Reader>,
    known: BTreeMap<LeaseId, Known>,
    handles: BTreeMap<u128, Handle>,
    /// Attachment: its handle and importer.
    attached: BTreeMap<LeaseId, (u128, u128)>,
    flights: Vec<Flight>,
    unanswered: Vec<Unanswered>,
    /// Who holds which granule, by region and first byte.
    owners: BTreeMap<(RegionId, u64), LeaseId>,
    counts: Counts,
}

/// What happened, so that a run in which nothing does is noticed.
#[derive(Debug, Default)]
struct Counts {
    granted: u32,
    served: u32,
    refused: BTreeMap<&'static str, u32>,
    revoked_in_use: u32,
    fenced: u32,
    crashes: u32,
    restored: u32,
    moved: u32,
    attached: u32,
    ended: u32,
}

/// Memory is as new after a restart, blocks are as they were.
fn with_new_memory(regions: &Regions) -> Regions {
    let renew = |(id, region): (RegionId, &berth_lease::Region)| match id.0 {
        2 => region.clone(),
        n => memory(REGION, Some(n)),
    };
    Regions::new(regions.iter().map(renew).collect())
}

impl Sim {
    fn new(seed: u64) -> Self {
        let regions = Regions::new(vec![memory(REGION, Some(0)), memory(REGION, Some(1)), blocks(REGION)]);
        Self {
            rng: Rng::with_seed(seed),
            now: Nanos(1),
            leases: Leases::new(CONFIG, regions.clone()),
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

    fn run(mut self) -> Counts {
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
        self.counts
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.rng.u32(0..one_in) == 0
    }

    /// Mostly one that lives.
    fn any_lease(&mut self) -> Option<LeaseId> {
        let any = self.chance(8);
        let chosen = self.known.values().filter(|known| any || known.status(self.now).is_some());
        let chosen: Vec<LeaseId> = chosen.map(|known| known.lease.id).collect();
        self.rng.choice(chosen)
    }

    /// The holder of a lease, or now and then another.
    fn presenter(&mut self, id: LeaseId) -> u128 {
        if self.chance(6) { self.rng.u128(0..HOLDERS) } else { self.known[&id].lease.holder }
    }

    fn secs(&mut self, most: u64) -> Duration {
        Duration::from_secs(self.rng.u64(0..=most))
    }

    fn read(&self, span: Span) -> Vec<u8> {
        let mut bytes = vec![0; span.len as usize];
        match &self.regions.get(span.region).unwrap().storage {
            Storage::Bytes(memory) => memory.read(span.at, &mut bytes),
            Storage::Blocks(_) => bytes = self.on_blocks(BlockOp::Read, span, bytes.into()),
        }
        bytes
    }

    fn write(&self, span: Span, bytes: Vec<u8>) {
        match &self.regions.get(span.region).unwrap().storage {
            Storage::Bytes(memory) => memory.write(span.at, &bytes),
            Storage::Blocks(_) => drop(self.on_blocks(BlockOp::Write, span, bytes.into())),
        }
    }

    fn on_blocks(&self, op: BlockOp, span: Span, buffer: Box<[u8]>) -> Vec<u8> {
        struct Done(Mutex<Box<[u8]>>);
        impl BlockDone for Done {
            fn done(&self, _: u64, buffer: Box<[u8]>, result: Result<(), BlockError>) {
                result.unwrap();
                *self.0.lock().unwrap() = buffer;
            }
        }
        let Storage::Blocks(engine) = &self.regions.get(span.region).unwrap().storage else { panic!("not blocks") };
        let done = Arc::new(Done(Mutex::default()));
        engine.submit(BlockRequest { op, at: span.at, buffer, tag: 0, done: done.clone() });
        let buffer = std::mem::take(&mut *done.0.lock().unwrap());
        buffer.into_vec()
    }

    fn alloc(&mut self) {
        let regions: &[RegionId] = self.rng.choice([&[RegionId(0), RegionId(1)][..], &[RegionId(2)], &[]]).unwrap();
        let request = Request {
            regions,
            near: self.rng.choice([None, Some(0), Some(1), Some(7)]).unwrap(),
            bytes: if regions.is_empty() { 0 } else { self.rng.u64(1..4 * GRANULE) },
            range: if self.chance(4) { Some((self.rng.u64(0..2 * GRANULE), 2 * GRANULE)) } else { None },
            rights: Rights::from_bits(self.rng.choice([0, 1, 2, 3, 3, 3]).unwrap()),
            holder: self.rng.u128(0..HOLDERS),
            token: self.rng.u128(0..TOKENS),
            duration: self.secs(40),
            grace: self.secs(20),
        };
        // Few keys, so that they are drawn twice while they live; but none that lived before, as none of 64 bits would.
        let (now, draws) = (self.now, &mut self.rng);
        let ended = self.known.values().filter(|known| known.status(now).is_none());
        let ended: BTreeSet<LeaseKey> = ended.map(|known| known.lease.id.key()).collect();
        let mut random = || {
            let low = std::iter::repeat_with(|| draws.u64(0..300)).find(|low| !ended.contains(&LeaseKey(*low)));
            u128::from(draws.u64(..)) << 64 | u128::from(low.unwrap())
        };
        let granted = match self.leases.alloc(&request, self.now, &mut random) {
            Ok(granted) => granted,
            Err(refusal) => {
                let expected = match refusal {
                    LeaseError::Invalid(_) => request.duration.is_zero(),
                    LeaseError::Range => request.range.is_some_and(|(_, end)| request.bytes > end),
                    LeaseError::Busy => !self.flights.is_empty(),
                    LeaseError::Fenced => self.known.values().any(|known| known.lease.fenced),
                    LeaseError::Capacity => true,
                    LeaseError::Quota => {
                        let Quota { leases, bytes } = self.leases.usage(request.holder);
                        leases >= 6 || bytes + request.bytes.next_multiple_of(GRANULE) > 10 * GRANULE
                    }
                    _ => false,
                };
                assert!(expected, "{request:?} is refused: {refusal}");
                return;
            }
        };
        for dirty in &granted.zero {
            self.on_blocks(BlockOp::Zero(dirty.len), *dirty, Box::default());
        }
        let lease = *self.leases.get(granted.id).unwrap();
        if self.crashed_first() {
            return;
        }
        self.counts.granted += 1;
        let known = Known { lease, wrote: BTreeMap::new(), over: false, revoked: false };
        if lease.region.is_some() {
            self.take(granted.id, known.extent());
            let all = self.read(known.extent());
            assert!(all.iter().all(|byte| *byte == 0), "{lease:?} has bytes of another");
        }
        assert!(self.known.insert(granted.id, known).is_none(), "an id was granted twice");
    }

    /// Bytes get a holder: they must have none, and nobody may still be at them.
    fn take(&mut self, id: LeaseId, extent: Span) {
        for at in (extent.at..extent.at + extent.len).step_by(GRANULE as usize) {
            if let Some(before) = self.owners.insert((extent.region, at), id)
                && let Some(known) = self.known.get(&before)
            {
                let ended = known.status(self.now).is_none_or(|status| status == Status::Revoked);
                assert!(before == id || ended, "{extent:?} of {id} is held by {known:?}");
                assert!(before == id || !known.lease.fenced, "{extent:?} of {id} is fenced: {known:?}");
            }
        }
        for flight in &self.flights {
            let Span { region, at, len } = flight.span;
            let apart = region != extent.region || at + len <= extent.at || extent.at + extent.len <= at;
            assert!(apart || flight.id == id, "{extent:?} of {id} is still accessed by {}", flight.id);
        }
    }

    fn renew(&mut self) {
        let Some(id) = self.any_lease() else { return };
        let (presenter, duration) = (self.presenter(id), self.secs(40));
        let (status, lease) = (self.known[&id].status(self.now), self.known[&id].lease);
        let expected = match status {
            _ if duration.is_zero() => Err(LeaseError::Invalid("a lease lasts at least a second")),
            None => Err(LeaseError::NotFound),
            Some(_) if presenter != lease.holder => Err(LeaseError::NotHolder),
            Some(Status::Revoked) => Err(LeaseError::Revoked),
            Some(Status::Active | Status::Expired) => Ok(self.now + duration),
        };
        let renewed = self.leases.renew(id, presenter, duration, self.now);
        if self.is_pending(id) {
            // Its revocation is not answered yet: whether it still lives is for nobody to know.
            return;
        }
        assert_eq!(renewed, expected, "{lease:?}");
        if let Ok(expires) = renewed
            && !self.crashed_first()
        {
            self.known.get_mut(&id).unwrap().lease.expires = expires;
        }
    }

    fn free(&mut self) {
        let Some(id) = self.any_lease().filter(|id| !self.is_pending(*id)) else { return };
        let presenter = self.presenter(id);
        let expected = match self.known[&id].status(self.now) {
            None => Err(LeaseError::NotFound),
            Some(_) if presenter != self.known[&id].lease.holder => Err(LeaseError::NotHolder),
            Some(Status::Revoked) => Err(LeaseError::Revoked),
            Some(_) => Ok(()),
        };
        let freed = self.leases.free(id, presenter, self.now);
        assert_eq!(freed, expected);
        if freed.is_ok() && !self.crashed_first() {
            self.known.get_mut(&id).unwrap().over = true;
            self.tear_down(id);
        }
    }

    fn revoke(&mut self) {
        let Some(id) = self.any_lease().filter(|id| !self.is_pending(*id)) else { return };
        let expected = match self.known[&id].status(self.now) {
            None => Err(LeaseError::NotFound),
            Some(Status::Revoked) => Err(LeaseError::Revoked),
            Some(_) => Ok(()),
        };
        let revoked = self.leases.revoke(id, self.now);
        assert_eq!(revoked, expected);
        if revoked.is_ok() {
            self.await_quiescence(vec![id]);
        }
    }

    fn revoke_token(&mut self) {
        let token = self.rng.u128(0..TOKENS);
        let live = |known: &&Known| {
            let status = known.status(self.now);
            known.lease.token == token && matches!(status, Some(Status::Active | Status::Expired))
        };
        let expected: BTreeSet<LeaseId> = self.known.values().filter(live).map(|known| known.lease.id).collect();
        let pending: BTreeSet<LeaseId> = expected.iter().copied().filter(|id| self.is_pending(*id)).collect();
        let ids = self.leases.revoke_token(token, self.now);
        assert_eq!(ids.iter().copied().collect::<BTreeSet<_>>(), &expected - &pending);
        self.await_quiescence(ids);
    }

    fn await_quiescence(&mut self, ids: Vec<LeaseId>) {
        let mut quiescence = self.leases.quiescence();
        self.counts.revoked_in_use += u32::from(!quiescence.is_over());
        self.unanswered.push(Unanswered { quiescence, ids });
    }

    fn is_pending(&self, id: LeaseId) -> bool {
        self.unanswered.iter().any(|unanswered| unanswered.ids.contains(&id))
    }

    /// Journals and answers the revocations whose accesses have ended.
    fn answer(&mut self) {
        while let Some(index) = self.unanswered.iter_mut().position(|unanswered| unanswered.quiescence.is_over()) {
            let ids = self.unanswered.swap_remove(index).ids;
            if self.crashed_first() {
                return;
            }
            for id in ids {
                let standing = self.leases.get(id).map(|lease| lease.standing);
                let known = self.known.get_mut(&id).unwrap();
                if let Some(standing @ Standing::Revoked { .. }) = standing {
                    known.lease.standing = standing;
                }
                known.revoked = true;
                self.tear_down(id);
            }
        }
    }

    /// Tears the bindings of an ended lease down, which fails now and then.
    fn tear_down(&mut self, id: LeaseId) {
        if self.chance(400) {
            assert!(self.leases.fence(id));
            self.known.get_mut(&id).unwrap().lease.fenced = true;
            self.counts.fenced += 1;
        } else {
            assert!(self.leases.release(id, self.now), "{:?}", self.known[&id]);
        }
    }

    fn export(&mut self) {
        let Some(id) = self.any_lease().filter(|id| !self.is_pending(*id)) else { return };
        let (presenter, target, rights) = (self.presenter(id), self.rng.u128(0..=HOLDERS), self.rng.u32(1..8));
        let ttl = Duration::from_secs(self.rng.u64(1..30));
        let (status, lease) = (self.known[&id].status(self.now), self.known[&id].lease);
        let draw = self.rng.u128(..);
        let exported = self.leases.export(id.key(), presenter, target, 1, rights, ttl, self.now, &mut || draw);
        let has = |right: Rights, bits| rights & bits == 0 || lease.rights.contains(right);
        let sound = status == Some(Status::Active)
            && presenter == lease.holder
            && lease.region.is_some()
            && has(Rights::READ, 1)
            && has(Rights::WRITE, 6);
        assert_eq!(exported.is_ok(), sound, "{exported:?} of {lease:?}");
        if let Ok(handle) = exported
            && !self.crashed_first()
        {
            assert_eq!(handle.expires, lease.expires.min(self.now + ttl));
            self.handles.insert(handle.id, handle);
        }
    }

    fn import(&mut self) {
        let any = self.chance(8);
        let handles = self.handles.values().filter(|handle| any || self.now < handle.expires);
        let handles: Vec<Handle> = handles.copied().collect();
        let Some(handle) = self.rng.choice(handles).filter(|handle| !self.is_pending(handle.lease)) else { return };
        let presenter = self.rng.u128(1..=HOLDERS);
        let draws = &mut self.rng;
        let imported = self.leases.import(handle.id, presenter, self.now, &mut || draws.u128(..));
        let status = self.known[&handle.lease].status(self.now);
        let sound = self.now < handle.expires
            && (handle.target == 0 || handle.target == presenter)
            && status == Some(Status::Active);
        match imported {
            Ok(attachment) => {
                assert!(sound, "{handle:?} attaches {presenter}");
                let expires = handle.expires.min(self.known[&handle.lease].lease.expires);
                assert_eq!((attachment.rights, attachment.expires), (handle.rights, expires));
                let id = LeaseId(attachment.key.0.into());
                assert!(self.leases.is_of(id, presenter) && !self.leases.is_of(id, presenter + 1));
                if !self.crashed_first() {
                    self.attached.insert(id, (handle.id, presenter));
                }
                self.counts.attached += 1;
            }
            Err(refusal) => assert!(!sound || refusal == LeaseError::Capacity, "{handle:?}: {refusal}"),
        }
    }

    fn relocate(&mut self) {
        let (Some(src), Some(mut dst)) = (self.any_lease(), self.any_lease()) else { return };
        if !self.chance(4) {
            // One of the same holder.
            let holder = self.known[&src].lease.holder;
            let larger =
                self.known.values().filter(|known| known.status(self.now) == Some(Status::Active)).filter(|known| {
                    let Lease { id, len, .. } = known.lease;
                    id != src && known.lease.holder == holder && len >= self.known[&src].lease.len
                });
            let larger: Vec<LeaseId> = larger.map(|known| known.lease.id).collect();
            dst = self.rng.choice(larger).unwrap_or(dst);
        }
        if self.is_pending(src) || self.is_pending(dst) {
            return;
        }
        let presenter = self.presenter(src);
        let mode = self.rng.choice([Mode::Copy, Mode::Move, Mode::CowSeed]).unwrap();
        let relocation = match self.leases.relocate(src.key(), dst.key(), mode, presenter, self.now) {
            Ok(relocation) => relocation,
            Err(RelocateError::Failed(_)) => return,
            Err(RelocateError::Refused(_)) => {
                let fit = |id: &LeaseId, right| {
                    let known = &self.known[id];
                    let Lease { holder, rights, .. } = known.lease;
                    known.status(self.now) == Some(Status::Active) && holder == presenter && rights.contains(right)
                };
                assert!(!fit(&src, Rights::READ) || !fit(&dst, Rights::WRITE));
                return;
            }
        };
        if mode == Mode::Move && !self.leases.quiescence().is_over() {
            self.leases.relocate_failed(&relocation);
            return;
        }
        self.write(relocation.to, self.read(relocation.from));
        let first = relocation.from.at - self.known[&src].lease.base;
        let covered = first..first + relocation.from.len;
        let copied: Vec<(u64, u8)> =
            self.known[&src].wrote.range(covered.clone()).map(|(at, byte)| (*at, *byte)).collect();
        let wrote = &mut self.known.get_mut(&dst).unwrap().wrote;
        wrote.retain(|at, _| !covered.contains(at));
        wrote.extend(copied);
        if mode == Mode::Move {
            self.counts.moved += 1;
            if self.chance(2) {
                let until = self.now + self.secs(20);
                self.leases.preserve(src, until);
            }
            assert_eq!(self.leases.revoke(src, self.now), Ok(()), "its move can no longer fail");
            self.await_quiescence(vec![src]);
        }
    }

    /// Begins an access by a lease's or an attachment's key.
    fn access(&mut self) {
        let attachments: Vec<LeaseId> = self.attached.keys().copied().collect();
        let through = if self.chance(3) { self.rng.choice(attachments) } else { self.any_lease() };
        let Some(through) = through else { return };
        let handle = self.attached.get(&through).map(|(handle, _)| self.handles[handle]);
        let id = handle.map_or(through, |handle| handle.lease);
        let known = &self.known[&id];
        let (lease, status) = (known.lease, known.status(self.now));
        let stale = self.rng.u32(0..8) == 0;
        let access = Access {
            op: if self.rng.bool() { Op::Read } else { Op::Write },
            key: through.key(),
            generation: Some(if stale { Generation(lease.generation.0 - 1) } else { lease.generation }),
            offset: if self.rng.bool() { self.rng.u64(0..4 * GRANULE) } else { lease.first },
            len: self.rng.u64(1..=u64::from(MAX_IO) + 4),
            well_formed: true,
        };
        let held = self.readers.pop().unwrap_or_else(|| self.leases.table().reader()).hold();
        let entry: Option<Entry> = held.probe(access.key);
        let checked = check(entry.as_ref().filter(|entry| entry.id == through), &access, self.now);
        let pending = self.is_pending(id);
        let rights = handle.map_or(lease.rights, |handle| {
            lease.rights.and(Rights::from_bits(handle.rights & 1 | if handle.rights & 6 > 0 { 2 } else { 0 }))
        });
        let handle_over = handle.is_some_and(|handle| self.now >= handle.expires);
        let inside = access.offset >= lease.first && access.offset + access.len <= lease.len;
        // Where it lives, what is answered follows from what it is; where it does not, it must be refused.
        let expected = match status {
            _ if pending => Err(Refusal::Revoked),
            Some(Status::Active) if lease.region.is_some() && !handle_over => match () {
                () if stale => Err(Refusal::StaleGeneration),
                () if access.len > u64::from(MAX_IO) => Err(Refusal::TooLong),
                () if !inside => Err(Refusal::OutOfRange),
                () if !rights.contains(access.op.right()) => Err(Refusal::Denied),
                () => Ok(Span { region: lease.region.unwrap(), at: lease.base + access.offset, len: access.len }),
            },
            Some(Status::Revoked) => Err(Refusal::Revoked),
            _ => Err(Refusal::Expired),
        };
        let gone = |refused| matches!(refused, Refusal::Unknown | Refusal::Revoked | Refusal::Expired);
        match (checked, expected) {
            // Ended, or without bytes: a tick may have taken it out already, or not.
            (Err(refused), Err(Refusal::Expired | Refusal::Revoked)) if gone(refused) => {}
            _ => assert_eq!(checked, expected, "{access:?} by {through} of {known:?}"),
        }
        match checked {
            Ok(span) => {
                assert!(!known.revoked && !known.over);
                let stamp = self.rng.u8(1..);
                self.flights.push(Flight { held, id, span, offset: access.offset, op: access.op, stamp });
            }
            Err(refused) => {
                *self.counts.refused.entry(refused_as(refused)).or_default() += 1;
                self.readers.push(held.end());
            }
        }
    }

    /// An access touches its bytes and ends.
    fn end_access(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let index = self.rng.usize(0..self.flights.len());
        let Flight { held, id, span, offset, op, stamp } = self.flights.swap_remove(index);
        let known = &self.known[&id];
        assert!(!known.revoked, "an access to {id} goes on after its revocation was answered");
        let granule = span.at / GRANULE * GRANULE;
        assert_eq!(self.owners[&(span.region, granule)], id, "an access to {id} goes on after its bytes are another's");
        match op {
            Op::Write => {
                self.write(span, vec![stamp; span.len as usize]);
                let wrote = &mut self.known.get_mut(&id).unwrap().wrote;
                wrote.extend((offset..offset + span.len).map(|at| (at, stamp)));
            }
            Op::Read => {
                let expected: Vec<u8> =
                    (offset..offset + span.len).map(|at| known.wrote.get(&at).copied().unwrap_or(0)).collect();
                assert_eq!(self.read(span), expected, "{id} at {offset}");
            }
        }
        self.counts.served += 1;
        self.readers.push(held.end());
    }

    /// Time passes, and the node notices now or later.
    fn pass(&mut self) {
        let by = if self.chance(25) { REMEMBERED / 2 } else { self.secs(8) };
        self.now = self.now + by + Duration::from_nanos(self.rng.u64(0..2));
        if self.chance(3) {
            return;
        }
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

    /// Background zeroing.
    fn clean(&mut self) {
        self.leases.zero(3 * GRANULE);
    }

    /// Now and then the node dies between doing something and journaling it, so that it is never answered.
    fn crashed_first(&mut self) -> bool {
        let crashed = self.chance(120);
        if crashed {
            self.crash();
        }
        crashed
    }

    /// The process dies, and another starts from what was answered.
    fn crash(&mut self) {
        self.counts.crashes += 1;
        self.flights.clear();
        self.readers.clear();
        self.unanswered.clear();
        self.regions = with_new_memory(&self.regions);
        self.now = self.now + self.secs(10);
        self.leases = Leases::new(CONFIG, self.regions.clone());
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
                let lost = journaled.region.is_some_and(|region| region.0 < 2);
                if lost {
                    known.wrote.clear();
                    known.lease.generation = journaled.generation.next();
                }
                assert_eq!(restored, Some(known.lease));
                if journaled.region.is_some() {
                    let extent = known.extent();
                    self.take(id, extent);
                }
            }
        }
        self.handles.retain(|_, handle| now < handle.expires && self.leases.get(handle.lease).is_some());
        for handle in self.handles.values() {
            assert!(self.leases.restore_handle(*handle));
        }
        self.attached.retain(|_, (handle, _)| self.handles.contains_key(handle));
        for (id, (handle, importer)) in &self.attached {
            assert!(self.leases.restore_attachment(*handle, *importer, id.key()));
        }
    }

    /// What the node says of every lease is what was answered.
    fn compare(&mut self) {
        for (id, known) in &self.known {
            if self.unanswered.iter().any(|unanswered| unanswered.ids.contains(id)) {
                continue;
            }
            let expected = known.status(self.now).map(|status| (status, known.lease.expires));
            assert_eq!(self.leases.query(*id, self.now), expected, "{known:?}");
        }
        let active = self.leases.active(self.now).map(|lease| lease.id.key()).collect::<Vec<LeaseKey>>();
        assert!(active.is_sorted(), "a snapshot by key");
        let free: u64 = (0..3).map(|n| self.leases.available(RegionId(n))).sum();
        let held = self.leases.iter().filter(|lease| lease.standing == Standing::Live || lease.fenced);
        let held: u64 = held.map(|lease| lease.len.next_multiple_of(GRANULE)).sum();
        assert!(free + held <= 3 * REGION, "bytes are counted twice: {free} free, {held} held");
    }
}

fn refused_as(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Unknown => "unknown",
        Refusal::Revoked => "revoked",
        Refusal::Expired => "expired",
        Refusal::StaleGeneration => "stale",
        Refusal::BadRequest => "bad",
        Refusal::TooLong => "long",
        Refusal::OutOfRange => "range",
        Refusal::Denied => "denied",
    }
}

/// Says how to run a seed again when it fails.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: BERTH_SIM_SEED={} cargo test -p berth-lease --release --test simulation", self.0);
        }
    }
}

#[test]
fn random_ops_and_crashes_keep_every_promise() {
    let number = |name| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let seeds = match number("BERTH_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BERTH_SIM_SEEDS").unwrap_or(2000),
    };
    let single = seeds.clone().count() < 100;
    let mut all = Counts::default();
    for seed in seeds {
        let replay = Replay(seed);
        let counts = Sim::new(seed).run();
        all.granted += counts.granted;
        all.served += counts.served;
        all.revoked_in_use += counts.revoked_in_use;
        all.fenced += counts.fenced;
        all.crashes += counts.crashes;
        all.restored += counts.restored;
        all.moved += counts.moved;
        all.attached += counts.attached;
        all.ended += counts.ended;
        for (refusal, count) in counts.refused {
            *all.refused.entry(refusal).or_default() += count;
        }
        drop(replay);
    }
    println!("{all:?}");
    let Counts { granted, served, ref refused, revoked_in_use, fenced, crashes, restored, moved, attached, ended } =
        all;
    let happened = [granted, served, revoked_in_use, fenced, crashes, restored, moved, attached, ended];
    assert!(single || happened.iter().all(|count| *count > 50) && refused.len() == 7, "too little happened: {all:?}");
}
