//! The state machine of leases and what it publishes, op by op.
#![cfg(not(loom))]

mod common;

use std::{sync::Arc, time::Duration};

use berth_lease::{
    Access, Attachment, Bytes, Config, Entry, Event, GRANULE, Generation, Granted, Lease, LeaseError, LeaseId,
    LeaseKey, Leases, Mode, Op, Page, Quota, Refusal, Region, RegionId, RegionKind, Regions, RelocateError, Request,
    RestoreError, Rights, Span, Standing, Status, Storage, check,
};
use berth_port::Nanos;
use common::{blocks, bytes, memory};

const ANN: u128 = 0xA;
const BOB: u128 = 0xB;
const TOKEN: u128 = 0x70;
const MEMORY: RegionId = RegionId(0);
const BLOCKS: RegionId = RegionId(1);

const fn at(secs: u64) -> Nanos {
    Nanos(secs * 1_000_000_000)
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

struct Node {
    leases: Leases,
    next_id: u128,
}

impl Node {
    fn with(config: Config, regions: Vec<Region>) -> Self {
        Self { leases: Leases::new(config, Regions::new(regions)), next_id: 1 << 64 }
    }

    fn new() -> Self {
        Self::with(
            Config { capacity: 64, max_io: 8192, ..Config::default() },
            vec![memory(64 * GRANULE, None), blocks(64 * GRANULE)],
        )
    }

    fn try_alloc(&mut self, request: &Request<'_>, now: Nanos) -> Result<Granted, LeaseError> {
        let next = &mut self.next_id;
        self.leases.alloc(request, now, &mut || {
            *next += (1 << 64) | 1;
            *next
        })
    }

    fn alloc(&mut self, request: &Request<'_>, now: Nanos) -> LeaseId {
        self.try_alloc(request, now).unwrap().id
    }

    fn probe(&self, key: LeaseKey) -> Option<Entry> {
        self.leases.table().reader().enter().probe(key)
    }

    fn access(&self, op: Op, id: LeaseId, offset: u64, len: u64, now: Nanos) -> Result<Span, Refusal> {
        let access = Access { op, key: id.key(), generation: None, offset, len, well_formed: true };
        check(self.probe(id.key()).as_ref(), &access, now)
    }

    fn read(&self, id: LeaseId, now: Nanos) -> Result<Span, Refusal> {
        self.access(Op::Read, id, 0, 1, now)
    }
}

/// 10 s, then 5 s of grace.
fn request(bytes: u64) -> Request<'static> {
    Request {
        regions: &[MEMORY],
        near: None,
        bytes,
        range: None,
        rights: Rights::ALL,
        holder: ANN,
        token: TOKEN,
        duration: secs(10),
        grace: secs(5),
    }
}

#[test]
fn a_lease_is_active_then_in_grace_then_gone() {
    let mut node = Node::new();
    let id = node.alloc(&request(5000), at(100));
    let lease = *node.leases.get(id).unwrap();
    assert_eq!((lease.len, lease.first, lease.generation), (5000, 0, Generation::FIRST));
    assert_eq!(
        node.access(Op::Write, id, 4999, 1, at(109)),
        Ok(Span { region: MEMORY, at: lease.base + 4999, len: 1 })
    );
    assert_eq!(node.access(Op::Write, id, 5000, 1, at(109)), Err(Refusal::OutOfRange));
    let just_before = |secs| Nanos(at(secs).0 - 1);
    assert_eq!(node.leases.query(id, just_before(110)), Some((Status::Active, at(110))));
    assert_eq!(node.leases.query(id, at(110)), Some((Status::Expired, at(110))));
    assert_eq!(node.read(id, just_before(110)).map(|span| span.len), Ok(1));
    assert_eq!(node.read(id, at(110)), Err(Refusal::Expired));
    assert_eq!(node.leases.query(id, just_before(115)), Some((Status::Expired, at(110))));
    // All of this without a tick; and so is the end.
    assert_eq!(node.leases.query(id, at(115)), None);
    assert_eq!(node.leases.renew(id, ANN, secs(1), at(115)), Err(LeaseError::NotFound));
    assert_eq!(node.leases.free(id, ANN, at(115)), Err(LeaseError::NotFound));
    assert_eq!(node.leases.revoke(id, at(115)), Err(LeaseError::NotFound));
    assert_eq!(node.leases.tick(just_before(110)), []);
    assert_eq!(node.leases.tick(at(110)), [Event::Expired(id)]);
    assert_eq!(node.leases.tick(just_before(115)), []);
    assert_eq!(node.leases.available(MEMORY), 62 * GRANULE);
    assert_eq!(node.leases.tick(at(115)), [Event::Ended(id)]);
    assert_eq!(node.read(id, at(115)), Err(Refusal::Unknown));
    assert_eq!(node.leases.available(MEMORY), 62 * GRANULE, "its bindings are not torn down yet");
    assert!(node.leases.release(id, at(115)));
    assert!(!node.leases.release(id, at(115)), "released twice");
    assert_eq!(node.leases.available(MEMORY), 64 * GRANULE);
    assert_eq!(node.leases.iter().count(), 0);
    assert_eq!(node.leases.usage(ANN), Quota { leases: 0, bytes: 0 });
}

#[test]
fn renewal_counts_from_now_and_rescues_from_grace() {
    let mut node = Node::new();
    let id = node.alloc(&request(1), at(0));
    assert_eq!(node.leases.renew(id, BOB, secs(50), at(5)), Err(LeaseError::NotHolder));
    assert_eq!(
        node.leases.renew(id, ANN, secs(0), at(5)).map_err(|e| e.to_string()),
        Err("a lease lasts at least a second".into())
    );
    assert_eq!(node.leases.renew(id, ANN, secs(3), at(5)), Ok(at(8)), "shorter is as good as longer");
    assert_eq!(node.leases.tick(at(8)), [Event::Expired(id)]);
    assert_eq!(node.leases.renew(id, ANN, secs(10), at(12)), Ok(at(22)));
    assert_eq!(node.leases.query(id, at(13)), Some((Status::Active, at(22))));
    assert!(node.read(id, at(21)).is_ok());
    assert_eq!(node.probe(id.key()).unwrap().generation, Generation::FIRST);
    assert_eq!(node.leases.tick(at(21)), [], "the old deadlines are forgotten");
    assert_eq!(node.leases.tick(at(40)), [Event::Expired(id), Event::Ended(id)]);
}

#[test]
fn freeing_is_for_the_holder_and_at_once() {
    let mut node = Node::new();
    let id = node.alloc(&request(GRANULE), at(0));
    assert_eq!(node.leases.free(id, BOB, at(1)), Err(LeaseError::NotHolder));
    let namesake = LeaseId(id.0 ^ 1 << 100);
    assert_eq!(node.leases.free(namesake, ANN, at(1)), Err(LeaseError::NotFound), "only the low half is right");
    assert!(!node.leases.release(id, at(1)), "it lives");
    assert_eq!(node.leases.free(id, ANN, at(12)), Ok(()), "in its grace");
    assert_eq!(node.read(id, at(1)), Err(Refusal::Unknown));
    assert_eq!(node.leases.query(id, at(1)), None);
    assert_eq!(node.leases.free(id, ANN, at(12)), Err(LeaseError::NotFound));
    assert!(node.leases.release(id, at(12)));
    assert_eq!(node.leases.available(MEMORY), 64 * GRANULE);
    assert_eq!(node.leases.tick(at(100)), []);
}

#[test]
fn a_revocation_is_remembered_for_300_seconds() {
    let mut node = Node::new();
    let [id, other] = [node.alloc(&request(1), at(0)), node.alloc(&Request { token: 8, ..request(1) }, at(0))];
    let in_grace = node.alloc(&Request { duration: secs(1), ..request(1) }, at(0));
    assert_eq!(node.leases.revoke_token(TOKEN, at(2)), [id, in_grace]);
    assert_eq!(node.leases.revoke_token(TOKEN, at(2)), []);
    assert_eq!(node.read(id, at(2)), Err(Refusal::Revoked));
    assert_eq!(node.read(in_grace, at(2)), Err(Refusal::Revoked), "revoked comes before expired");
    assert!(node.read(other, at(2)).is_ok());
    assert_eq!(node.leases.query(id, at(2)), Some((Status::Revoked, at(10))));
    assert_eq!(node.leases.renew(id, ANN, secs(9), at(3)), Err(LeaseError::Revoked));
    assert_eq!(node.leases.free(id, ANN, at(3)), Err(LeaseError::Revoked));
    assert_eq!(node.leases.free(id, BOB, at(3)), Err(LeaseError::NotHolder));
    assert_eq!(node.leases.revoke(id, at(3)), Err(LeaseError::Revoked));
    assert!(node.leases.release(id, at(3)));
    assert_eq!(node.leases.available(MEMORY), 62 * GRANULE);
    assert_eq!(node.leases.tick(at(301)), [Event::Expired(other), Event::Ended(other)]);
    assert_eq!(node.leases.query(id, at(301)), Some((Status::Revoked, at(10))));
    assert_eq!(node.leases.query(id, at(302)), None);
    assert_eq!(node.leases.tick(at(302)), []);
    assert_eq!(node.read(id, at(302)), Err(Refusal::Unknown));
    assert!(node.leases.get(id).is_none());
    assert!(node.leases.release(in_grace, at(302)), "its bytes are its until its bindings are torn down");
    assert!(node.leases.get(in_grace).is_none());
}

#[test]
fn rights_and_range_come_from_the_token() {
    let mut node = Node::new();
    let limited = Request { range: Some((100, 5000)), rights: Rights::READ, ..request(4000) };
    let id = node.alloc(&limited, at(0));
    assert_eq!(node.access(Op::Write, id, 100, 1, at(1)), Err(Refusal::Denied));
    assert_eq!(node.access(Op::Read, id, 99, 1, at(1)), Err(Refusal::OutOfRange));
    assert!(node.access(Op::Read, id, 100, 3900, at(1)).is_ok());
    assert_eq!(node.try_alloc(&Request { bytes: 5001, ..limited }, at(0)), Err(LeaseError::Range));
    let block = Request { regions: &[BLOCKS], range: Some((0, 1000)), ..request(513) };
    let id = node.alloc(&block, at(0));
    assert_eq!(node.leases.get(id).unwrap().len, 1000, "two blocks, but for the RANGE");
    let id = node.alloc(&Request { range: None, ..block }, at(0));
    assert_eq!(node.leases.get(id).unwrap().len, 1024);
}

#[test]
fn what_cannot_be_granted_is_refused_and_takes_nothing() {
    let quota = Quota { leases: 3, bytes: 10 * GRANULE };
    let regions = || vec![memory(16 * GRANULE, None)];
    let mut node = Node::with(Config { capacity: 5, quota, ..Config::default() }, regions());
    let whole = node.leases.available(MEMORY);
    let no_time = Request { duration: secs(0), ..request(1) };
    assert!(matches!(node.try_alloc(&no_time, at(0)), Err(LeaseError::Invalid(_))));
    assert!(matches!(node.try_alloc(&request(0), at(0)), Err(LeaseError::Invalid(_))));
    assert_eq!(node.try_alloc(&Request { regions: &[RegionId(9)], ..request(1) }, at(0)), Err(LeaseError::Capacity));
    assert_eq!(node.try_alloc(&request(10 * GRANULE + 1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.try_alloc(&request(u64::MAX), at(0)), Err(LeaseError::Quota));
    let id = node.alloc(&request(9 * GRANULE + 1), at(0));
    assert_eq!(node.leases.usage(ANN), Quota { leases: 1, bytes: 10 * GRANULE });
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.try_alloc(&Request { holder: BOB, ..request(7 * GRANULE) }, at(0)), Err(LeaseError::Capacity));
    assert_eq!(node.leases.available(MEMORY), whole - 10 * GRANULE);
    node.leases.free(id, ANN, at(0)).unwrap();
    assert!(node.leases.release(id, at(0)));
    // Revoked leases do not count, but take a place in the table.
    for _ in 0..3 {
        node.alloc(&request(1), at(0));
    }
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.leases.revoke_token(TOKEN, at(0)).len(), 3);
    assert_eq!(node.leases.usage(ANN), Quota { leases: 0, bytes: 0 });
    node.alloc(&request(1), at(0));
    node.alloc(&request(1), at(0));
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Capacity));
}

#[test]
fn ids_are_drawn_until_one_can_be_used() {
    let mut node = Node::new();
    let mut draws = [0, 7 << 64, 5, 5 << 64 | 5, 6].into_iter();
    let mut random = || draws.next().unwrap();
    let first = node.leases.alloc(&request(1), at(0), &mut random).unwrap().id;
    assert_eq!(first, LeaseId(5));
    assert_eq!(node.leases.alloc(&request(1), at(0), &mut random).unwrap().id, LeaseId(6));
    assert_eq!(node.leases.alloc(&request(1), at(0), &mut || 5), Err(LeaseError::Capacity));
}

#[test]
fn regions_are_tried_in_order_but_the_near_ones_first() {
    let regions = vec![memory(4 * GRANULE, Some(0)), memory(4 * GRANULE, Some(1)), memory(4 * GRANULE, None)];
    let mut node = Node::with(Config::default(), regions);
    let all = Request { regions: &[RegionId(2), RegionId(0), RegionId(1)], ..request(3 * GRANULE) };
    let mut region = |near| {
        let id = node.try_alloc(&Request { near, ..all }, at(0)).map(|granted| granted.id);
        id.map(|id| node.leases.get(id).unwrap().region.unwrap().0)
    };
    assert_eq!(region(Some(1)), Ok(1));
    assert_eq!(region(Some(1)), Ok(2));
    assert_eq!(region(None), Ok(0));
    assert_eq!(region(Some(1)), Err(LeaseError::Capacity));
}

#[test]
fn memory_is_zeroed_before_it_is_leased_again() {
    let mut node = Node::with(Config::default(), vec![memory(4 * GRANULE, None)]);
    let memory = bytes(node.leases.regions(), 0);
    let dirty = |node: &mut Node| {
        let id = node.alloc(&request(4 * GRANULE), at(0));
        memory.write(0, &[7; 4 * GRANULE as usize]);
        node.leases.free(id, ANN, at(0)).unwrap();
        node.leases.release(id, at(0));
    };
    let zeros = |len| {
        let mut all = vec![1; len as usize];
        memory.read(0, &mut all);
        all.iter().all(|byte| *byte == 0)
    };
    dirty(&mut node);
    node.alloc(&request(2 * GRANULE), at(0));
    assert!(zeros(2 * GRANULE));
    assert!(!zeros(2 * GRANULE + 1), "no more than what is leased");
    assert_eq!(node.leases.zero(GRANULE), GRANULE);
    assert_eq!(node.leases.available(MEMORY), 2 * GRANULE);
    assert_eq!(node.leases.zero(u64::MAX), GRANULE);
    assert_eq!(node.leases.zero(u64::MAX), 0);
    assert!(zeros(4 * GRANULE));
    assert_eq!(node.alloc(&request(2 * GRANULE), at(0)), node.leases.iter().last().unwrap().id);
}

#[test]
fn dirty_blocks_are_returned_to_be_zeroed() {
    let mut node = Node::new();
    let block = Request { regions: &[BLOCKS], ..request(GRANULE) };
    let granted = node.try_alloc(&block, at(0)).unwrap();
    assert_eq!(granted.zero, [Span { region: BLOCKS, at: 0, len: GRANULE }], "what the file held before");
    assert_eq!(node.leases.zero(u64::MAX), 0);
}

/// `available` follows at once, but nobody gets bytes that an access from before may still touch.
#[test]
fn bytes_in_use_are_not_leased_again() {
    let mut node = Node::with(Config::default(), vec![memory(4 * GRANULE, None)]);
    let id = node.alloc(&request(4 * GRANULE), at(0));
    let held = node.leases.table().reader().hold();
    node.leases.free(id, ANN, at(0)).unwrap();
    assert!(node.leases.release(id, at(0)));
    assert_eq!(node.leases.available(MEMORY), 4 * GRANULE);
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Busy));
    assert_eq!(node.leases.zero(u64::MAX), 0);
    drop(held);
    node.alloc(&request(4 * GRANULE), at(0));
}

#[test]
fn a_failed_teardown_fences_bytes_and_region() {
    let mut node = Node::new();
    let [id, other] = [node.alloc(&request(1), at(0)), node.alloc(&request(1), at(0))];
    assert!(!node.leases.fence(id), "it lives");
    node.leases.revoke(id, at(1)).unwrap();
    assert!(node.leases.fence(id));
    assert!(node.leases.is_fenced(MEMORY) && !node.leases.is_fenced(BLOCKS));
    assert!(!node.leases.release(id, at(1)), "it is fenced");
    assert_eq!(node.try_alloc(&request(1), at(1)), Err(LeaseError::Fenced));
    let either = Request { regions: &[MEMORY, BLOCKS], ..request(1) };
    let elsewhere = node.alloc(&either, at(1));
    assert_eq!(node.leases.get(elsewhere).unwrap().region, Some(BLOCKS));
    assert!(node.read(other, at(1)).is_ok());
    assert_eq!(node.leases.available(MEMORY), 62 * GRANULE);
    node.leases.tick(at(400));
    assert_eq!(node.leases.query(id, at(400)), None);
    assert!(node.leases.get(id).unwrap().fenced, "a snapshot needs it for good");
}

#[test]
fn a_lease_without_bytes_lives_but_is_not_published() {
    let mut node = Node::new();
    let id = node.alloc(&Request { regions: &[], ..request(0) }, at(0));
    assert_eq!(node.leases.query(id, at(1)), Some((Status::Active, at(10))));
    assert_eq!(node.probe(id.key()), None);
    node.leases.revoke(id, at(1)).unwrap();
    assert!(node.leases.release(id, at(1)));
    assert_eq!(node.leases.query(id, at(1)), Some((Status::Revoked, at(10))));
    assert!(matches!(node.try_alloc(&Request { regions: &[], ..request(1) }, at(0)), Err(LeaseError::Invalid(_))));
}

#[test]
fn active_leases_are_listed_as_of_now() {
    let mut node = Node::new();
    let ids: Vec<LeaseId> = (1..=4).map(|n| node.alloc(&Request { duration: secs(n), ..request(1) }, at(0))).collect();
    node.leases.revoke(ids[3], at(1)).unwrap();
    let active = |now| node.leases.active(now).map(|lease| lease.id).collect::<Vec<_>>();
    assert_eq!(active(at(0)), ids[..3], "revoked at once");
    assert_eq!(active(at(2)), ids[2..3]);
}

#[test]
fn handles_attach_with_their_own_rights_until_they_expire() {
    let mut node = Node::new();
    let id = node.alloc(&request(GRANULE), at(0));
    let mut export = |holder, target, rights, ttl, now| {
        let leases = &mut node.leases;
        leases.export(id.key(), holder, target, 2, rights, secs(ttl), now, &mut || 0x99)
    };
    assert_eq!(export(BOB, 0, 1, 5, at(0)), Err(LeaseError::NotHolder));
    for (rights, ttl) in [(0, 5), (8, 5), (1, 0)] {
        assert!(matches!(export(ANN, 0, rights, ttl, at(0)), Err(LeaseError::Invalid(_))), "{rights} {ttl}");
    }
    assert_eq!(export(ANN, 0, 1, 5, at(10)), Err(LeaseError::Expired));
    let handle = export(ANN, BOB, 1, 500, at(1)).unwrap();
    assert_eq!((handle.id, handle.lease, handle.target, handle.kind, handle.rights), (0x99, id, BOB, 2, 1));
    assert_eq!(handle.expires, at(10), "not after its lease");
    let import = |node: &mut Node, handle, presenter, now| {
        node.leases.import(handle, presenter, now, &mut || 0xABCD << 64 | 0x77)
    };
    assert_eq!(import(&mut node, 0x98, BOB, at(2)), Err(LeaseError::NotFound));
    assert_eq!(import(&mut node, 0x99, ANN, at(2)), Err(LeaseError::NotHolder));
    let attachment = Attachment { key: LeaseKey(0x77), rights: 1, expires: at(10) };
    assert_eq!(import(&mut node, 0x99, BOB, at(2)), Ok(attachment));
    assert_eq!(import(&mut node, 0x99, BOB, at(3)), Ok(attachment), "it is reusable");
    let attached = LeaseId(0x77);
    assert_eq!([BOB, ANN].map(|who| node.leases.is_of(attached, who)), [true, false]);
    assert_eq!([BOB, ANN].map(|who| node.leases.is_of(id, who)), [false, true], "an importer has what it imported");
    assert!(!node.leases.is_of(LeaseId(1 << 64 | 0x77), BOB), "only the key is the attachment's");
    assert_eq!(node.read(attached, at(3)), node.read(id, at(3)));
    assert_eq!(node.access(Op::Write, attached, 0, 1, at(3)), Err(Refusal::Denied));
    node.leases.renew(id, ANN, secs(100), at(5)).unwrap();
    assert_eq!(node.read(attached, at(10)), Err(Refusal::Expired), "the handle is not renewed");
    assert_eq!(import(&mut node, 0x99, BOB, at(10)), Err(LeaseError::NotFound));
    assert_eq!(node.leases.tick(at(10)), []);
    assert_eq!(node.read(attached, at(10)), Err(Refusal::Unknown));
    assert!(!node.leases.is_of(attached, BOB));
    assert_eq!(node.leases.handles().count(), 0);
}

#[test]
fn handles_end_with_their_lease() {
    let mut node = Node::new();
    let [freed, revoked] = [(); 2].map(|()| node.alloc(&request(GRANULE), at(0)));
    for (id, handle) in [(freed, 1), (revoked, 2)] {
        node.leases.export(id.key(), ANN, 0, 0, 2 | 4, secs(9), at(0), &mut || handle).unwrap();
        let key = node.leases.import(handle, BOB, at(0), &mut || 100 + handle).unwrap().key;
        assert!(node.access(Op::Write, LeaseId(key.0.into()), 0, 1, at(1)).is_ok());
    }
    node.leases.free(freed, ANN, at(1)).unwrap();
    node.leases.revoke(revoked, at(1)).unwrap();
    assert_eq!(node.read(LeaseId(101), at(1)), Err(Refusal::Unknown));
    assert_eq!(node.read(LeaseId(102), at(1)), Err(Refusal::Revoked));
    assert_eq!(node.leases.import(1, BOB, at(1), &mut || 5), Err(LeaseError::NotFound));
    assert_eq!(node.leases.import(2, BOB, at(1), &mut || 5), Err(LeaseError::Revoked));
    let reader = Request { rights: Rights::READ, ..request(1) };
    let id = node.alloc(&reader, at(1));
    for rights in [2, 4, 7] {
        let refused = node.leases.export(id.key(), ANN, 0, 0, rights, secs(9), at(1), &mut || 3);
        assert_eq!(refused, Err(LeaseError::Rights));
    }
}

#[test]
fn contents_are_copied_and_moved() {
    let mut node = Node::new();
    let memory = bytes(node.leases.regions(), 0);
    let [src, dst] = [node.alloc(&request(5000), at(0)), node.alloc(&request(6000), at(0))];
    let base = |node: &Node, id| node.leases.get(id).unwrap().base;
    let contents: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8).collect();
    memory.write(base(&node, src), &contents);
    let seen = |node: &Node| {
        let mut seen = vec![0; 5001];
        memory.read(base(node, dst), &mut seen);
        seen
    };
    let copy = |node: &mut Node, mode| {
        let relocation = node.leases.relocate(src.key(), dst.key(), mode, ANN, at(1)).unwrap();
        assert_eq!((relocation.src, relocation.dst, relocation.from.len), (src, dst, 5000));
        let mut bytes = vec![0; 5000];
        memory.read(relocation.from.at, &mut bytes);
        memory.write(relocation.to.at, &bytes);
        relocation
    };
    copy(&mut node, Mode::Copy);
    assert_eq!(seen(&node), [&contents[..], &[0]].concat());
    assert!(node.access(Op::Write, src, 0, 1, at(1)).is_ok());
    let failed = copy(&mut node, Mode::Move);
    assert_eq!(node.read(src, at(1)), Err(Refusal::Revoked));
    node.leases.relocate_failed(&failed);
    assert!(node.read(src, at(1)).is_ok());
    assert_eq!(node.leases.usage(ANN).leases, 2);
    assert_eq!(node.leases.tick(at(9)), []);
    copy(&mut node, Mode::Move);
    assert_eq!(node.leases.query(src, at(1)), Some((Status::Revoked, at(10))));
    node.leases.preserve(src, at(4));
    let available = node.leases.available(MEMORY);
    assert!(node.leases.release(src, at(1)));
    assert_eq!(node.leases.available(MEMORY), available, "kept for now");
    node.leases.tick(at(4));
    assert_eq!(node.leases.available(MEMORY), available + 2 * GRANULE);
}

#[test]
fn a_lease_that_is_revoked_while_it_is_moved_does_not_come_back() {
    for by_token in [false, true] {
        let mut node = Node::new();
        let [src, dst] = [request(1), Request { token: 1, ..request(1) }].map(|request| node.alloc(&request, at(0)));
        let moved = node.leases.relocate(src.key(), dst.key(), Mode::Move, ANN, at(1)).unwrap();
        if by_token {
            assert_eq!(node.leases.revoke_token(TOKEN, at(2)), [src]);
            assert_eq!(node.leases.revoke_token(TOKEN, at(2)), []);
        } else {
            assert_eq!(node.leases.revoke(src, at(2)), Ok(()));
        }
        assert_eq!(node.leases.revoke(src, at(2)), Err(LeaseError::Revoked));
        node.leases.relocate_failed(&moved);
        assert_eq!(node.read(src, at(2)), Err(Refusal::Revoked));
        assert_eq!(node.leases.usage(ANN).leases, 1);
    }
}

#[test]
fn what_cannot_be_relocated_stays_as_it_is() {
    let mut node = Node::new();
    let [small, large] = [node.alloc(&request(1), at(0)), node.alloc(&request(2), at(0))];
    let bobs = node.alloc(&Request { holder: BOB, ..request(2) }, at(0));
    let read_only = node.alloc(&Request { rights: Rights::READ, ..request(2) }, at(0));
    let write_only = node.alloc(&Request { rights: Rights::WRITE, ..request(2) }, at(0));
    let ranged = node.alloc(&Request { range: Some((1, 2)), ..request(2) }, at(0));
    let mut relocate = |src: LeaseId, dst: LeaseId| node.leases.relocate(src.key(), dst.key(), Mode::Move, ANN, at(1));
    let refused = |error| Err(RelocateError::Refused(error));
    assert_eq!(relocate(LeaseId(99), small), refused(LeaseError::NotFound));
    assert_eq!(relocate(small, bobs), refused(LeaseError::NotHolder));
    assert_eq!(relocate(write_only, large), refused(LeaseError::Rights));
    assert_eq!(relocate(large, read_only), refused(LeaseError::Rights));
    for (src, dst) in [(large, small), (small, small), (small, ranged)] {
        assert!(matches!(relocate(src, dst), Err(RelocateError::Failed(_))));
    }
    assert_eq!(node.leases.active(at(1)).count(), 6);
    // The bytes outside the source's RANGE stay unseen.
    let relocation = node.leases.relocate(ranged.key(), large.key(), Mode::Copy, ANN, at(1)).unwrap();
    let base = |id| node.leases.get(id).unwrap().base;
    assert_eq!(relocation.from, Span { region: MEMORY, at: base(ranged) + 1, len: 1 });
    assert_eq!(relocation.to, Span { region: MEMORY, at: base(large) + 1, len: 1 });
}

#[test]
fn pages_count_what_page_ops_do() {
    let mut node = Node::new();
    let id = node.alloc(&request(GRANULE + 1), at(0));
    assert_eq!(node.leases.page(id, 1), Page::default());
    node.leases.touch(id, 1, false, 77);
    node.leases.touch(id, 1, true, 78);
    node.leases.touch(id, 1, false, 79);
    node.leases.advise(id, 1, 0x21);
    node.leases.advise(id, 1, 0x02);
    assert_eq!(node.leases.page(id, 1), Page { dirty: true, accesses: 3, last_access_ms: 79, advice: 2 });
    assert_eq!(node.leases.page(id, 0), Page::default());
    node.leases.touch(id, 2, true, 80);
    assert_eq!(node.leases.page(id, 2), Page::default(), "beyond the lease");
}

#[test]
fn a_restart_restores_leases_at_their_bytes_and_raises_generations_of_memory() {
    let mut node = Node::new();
    let kept = node.alloc(&Request { range: Some((8, 9000)), ..request(9000) }, at(0));
    let gone = node.alloc(&Request { duration: secs(1), grace: secs(1), ..request(1) }, at(0));
    let block = node.alloc(&Request { regions: &[BLOCKS], rights: Rights::READ, ..request(512) }, at(0));
    let [revoked, fenced] = [(); 2].map(|()| node.alloc(&request(GRANULE), at(0)));
    node.leases.revoke(revoked, at(1)).unwrap();
    node.leases.revoke(fenced, at(1)).unwrap();
    node.leases.release(revoked, at(1));
    node.leases.fence(fenced);
    let snapshot: Vec<Lease> = node.leases.iter().copied().collect();
    let handle = node.leases.export(kept.key(), ANN, 0, 0, 1, secs(9), at(1), &mut || 4).unwrap();

    let mut again = Node::new();
    let mut restore = |id| {
        let lease = *snapshot.iter().find(|lease| lease.id == id).unwrap();
        (lease, again.leases.restore(lease, at(5)).unwrap())
    };
    let (lease, restored) = restore(kept);
    assert_eq!(restored, Some(Lease { generation: Generation(2), ..lease }));
    let (lease, restored) = restore(block);
    assert_eq!(restored, Some(lease));
    assert_eq!(restore(gone).1, None);
    let (lease, restored) = restore(revoked);
    assert_eq!(restored, Some(lease));
    let (lease, restored) = restore(fenced);
    assert_eq!(restored, Some(lease));
    assert!(again.leases.restore_handle(handle) && !again.leases.restore_handle(handle));
    let taken = |leases: &mut Leases, handle, who, key| !leases.restore_attachment(handle, who, LeaseKey(key));
    assert!(again.leases.restore_attachment(4, BOB, LeaseKey(66)));
    assert!(taken(&mut again.leases, 4, BOB, 67), "an importer has one");
    assert!(taken(&mut again.leases, 4, ANN, 66) && taken(&mut again.leases, 4, ANN, kept.key().0));
    assert!(taken(&mut again.leases, 4, ANN, 0) && taken(&mut again.leases, 5, ANN, 67));
    assert!(again.leases.is_of(LeaseId(66), BOB));
    let attachment = Attachment { key: LeaseKey(66), rights: 1, expires: at(10) };
    assert_eq!(again.leases.import(4, BOB, at(5), &mut || unreachable!()), Ok(attachment));
    assert_eq!(again.read(LeaseId(66), at(5)), again.read(kept, at(5)));

    assert_eq!(
        again.probe(kept.key()),
        node.probe(kept.key()).map(|entry| Entry { generation: Generation(2), ..entry })
    );
    assert_eq!(again.probe(block.key()), node.probe(block.key()));
    assert_eq!(again.read(revoked, at(5)), Err(Refusal::Revoked));
    assert_eq!(again.read(gone, at(5)), Err(Refusal::Unknown));
    assert!(again.leases.is_fenced(MEMORY));
    assert_eq!(again.leases.available(MEMORY), (64 - 3 - 1) * GRANULE);
    assert_eq!(again.leases.available(BLOCKS), 63 * GRANULE);
    assert_eq!(again.leases.query(revoked, at(302)), None);
    assert_eq!(again.leases.tick(at(10)), [Event::Expired(kept), Event::Expired(block)]);
}

#[test]
fn a_journal_that_does_not_fit_is_refused() {
    let mut node = Node::new();
    let id = node.alloc(&request(GRANULE), at(0));
    let lease = *node.leases.get(id).unwrap();
    let restore = |node: &mut Node, lease| node.leases.restore(lease, at(1));
    assert_eq!(restore(&mut node, lease), Err(RestoreError::Taken));
    let other = Lease { id: LeaseId(9), ..lease };
    assert_eq!(restore(&mut node, other), Err(RestoreError::Taken), "the same bytes");
    let mut small = Node::with(Config { capacity: 1, ..Config::default() }, vec![memory(GRANULE, None)]);
    assert_eq!(restore(&mut small, Lease { region: Some(RegionId(1)), ..lease }), Err(RestoreError::Region));
    assert_eq!(restore(&mut small, Lease { base: GRANULE, ..lease }), Err(RestoreError::Region));
    assert_eq!(restore(&mut small, Lease { base: u64::MAX, ..lease }), Err(RestoreError::Region));
    assert!(restore(&mut small, lease).unwrap().is_some());
    assert_eq!(restore(&mut small, Lease { region: None, ..other }), Err(RestoreError::Capacity));
    let over = Lease { standing: Standing::Over, ..other };
    assert_eq!(restore(&mut node, over), Ok(None));
}

/// Memory that holds nothing: of these leases nobody reads.
struct Void(u64);

impl Bytes for Void {
    fn len(&self) -> u64 {
        self.0
    }
    fn read(&self, _: u64, _: &mut [u8]) {}
    fn write(&self, _: u64, _: &[u8]) {}
    fn zero(&self, _: u64, _: u64) {}
}

#[test]
fn many_leases_are_granted_and_end() {
    const MANY: usize = 100_000;
    let void = Storage::Bytes(Arc::new(Void(MANY as u64 * GRANULE)));
    let region = Region { name: "void".into(), kind: RegionKind::Memory, numa: None, storage: void };
    let mut node = Node::with(Config { capacity: MANY, ..Config::default() }, vec![region]);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..MANY {
        node.leases.alloc(&request(GRANULE), at(0), &mut || rng.u128(..)).unwrap();
    }
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Capacity));
    assert_eq!((node.leases.available(MEMORY), node.leases.active(at(9)).count()), (0, MANY));
    let mut ended = 0;
    loop {
        let events = node.leases.tick(at(15));
        if events.is_empty() {
            break;
        }
        for event in events {
            if let Event::Ended(id) = event {
                assert!(node.leases.release(id, at(15)));
                ended += 1;
            }
        }
    }
    assert_eq!((ended, node.leases.available(MEMORY)), (MANY, MANY as u64 * GRANULE));
    node.alloc(&request(MANY as u64 * GRANULE), at(16));
}
