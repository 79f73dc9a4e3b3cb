//! The life of a lease and what is published of it, operation by operation.

mod common;

use berth_lease::{
    Config, Event, GRANULE, Generation, Holding, Item, LeaseError, LeaseId, Op, Page, Quota, Quotas, Refusal, RegionId,
    Request, Rights, Span, Status, Unit, Wanted,
};
use berth_port::Nanos;
use common::{
    memory,
    node::{ANN, BLOCKS, BOB, MEMORY, Node, TOKEN, at, request, secs},
};

#[test]
fn a_lease_is_active_then_in_grace_then_gone() {
    let mut node = Node::new();
    let id = node.alloc(&request(5000), at(100));
    let lease = node.leases.get(id).unwrap();
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
    assert_eq!(node.leases.usage(ANN), Quota::NOTHING);
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
fn a_token_takes_back_what_lives_of_it_whoever_holds_that() {
    let mut node = Node::new();
    let holders = [ANN, BOB, ANN, BOB, BOB, ANN];
    let mut alloc = |token| holders.map(|holder| node.alloc(&Request { holder, token, ..request(1) }, at(0)));
    let (ids, others) = (alloc(TOKEN), alloc(TOKEN + 1));
    node.leases.free(ids[2], ANN, at(1)).unwrap();
    assert!(node.leases.release(ids[2], at(1)));
    node.leases.free(ids[1], BOB, at(1)).unwrap();
    node.leases.revoke(ids[3], at(1)).unwrap();
    // In the place of one that is gone, and listed anew.
    let late = node.alloc(&request(1), at(1));
    assert_eq!(node.leases.revoke_token(TOKEN, at(2)), [ids[0], ids[4], ids[5], late]);
    assert_eq!(node.leases.revoke_token(TOKEN, at(2)), []);
    assert_eq!(node.leases.active(at(2)).count(), others.len());
    assert_eq!(node.leases.revoke_token(TOKEN + 1, at(2)), others);
    assert_eq!(node.leases.live(), (0, 0));
    let fresh = [ANN, BOB].map(|holder| node.alloc(&Request { holder, token: 5, ..request(1) }, at(2)));
    assert_eq!(node.leases.revoke_holder(BOB, at(2)), fresh[1..]);
    assert_eq!(node.leases.revoke_holder(ANN, at(2)), fresh[..1]);
    assert_eq!(ids.map(|id| node.leases.get(id).is_some()), [true, true, false, true, true, true]);
    assert_eq!(ids.map(|id| node.leases.is_of(id, BOB)), [false, true, false, true, true, false]);
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
    let block = Request { wanted: Wanted::Bytes(&[BLOCKS]), range: Some((0, 1000)), ..request(513) };
    let id = node.alloc(&block, at(0));
    assert_eq!(node.leases.get(id).unwrap().len, 1000, "two blocks, but for the RANGE");
    let id = node.alloc(&Request { range: None, ..block }, at(0));
    assert_eq!(node.leases.get(id).unwrap().len, 1024);
}

#[test]
fn what_cannot_be_granted_is_refused_and_takes_nothing() {
    let regions = || vec![memory(16 * GRANULE, None)];
    let mut node = Node::with(Config { capacity: 5, ..Config::default() }, regions());
    let has = |leases, bytes| {
        let mut has = Quota::NOTHING;
        (has[Item::Leases], has[Item::Bytes]) = (leases, bytes);
        has
    };
    node.leases.set_quotas(Quotas { others: has(3, 10 * GRANULE), ..Quotas::default() });
    let whole = node.leases.available(MEMORY);
    let no_time = Request { duration: secs(0), ..request(1) };
    assert!(matches!(node.try_alloc(&no_time, at(0)), Err(LeaseError::Invalid(_))));
    assert!(matches!(node.try_alloc(&request(0), at(0)), Err(LeaseError::Invalid(_))));
    assert_eq!(
        node.try_alloc(&Request { wanted: Wanted::Bytes(&[RegionId(9)]), ..request(1) }, at(0)),
        Err(LeaseError::Capacity)
    );
    assert_eq!(node.try_alloc(&request(10 * GRANULE + 1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.try_alloc(&request(u64::MAX), at(0)), Err(LeaseError::Quota));
    let id = node.alloc(&request(9 * GRANULE + 1), at(0));
    assert_eq!(node.leases.usage(ANN), has(1, 10 * GRANULE));
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.try_alloc(&Request { holder: BOB, ..request(7 * GRANULE) }, at(0)), Err(LeaseError::Capacity));
    assert_eq!(node.leases.available(MEMORY), whole - 10 * GRANULE);
    node.leases.free(id, ANN, at(0)).unwrap();
    assert_eq!(node.leases.usage(ANN), has(1, 10 * GRANULE), "its bytes are not free yet");
    assert!(node.leases.release(id, at(0)));
    // Revoked leases count until they are forgotten, as they take a place in the table; their bytes are free.
    for _ in 0..3 {
        node.alloc(&request(1), at(0));
    }
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.leases.revoke_token(TOKEN, at(0)).len(), 3);
    assert_eq!(node.leases.usage(ANN), has(3, 3 * GRANULE));
    let revoked: Vec<LeaseId> = node.leases.iter().map(|lease| lease.id).collect();
    assert!(revoked.into_iter().all(|id| node.leases.release(id, at(0))));
    assert_eq!(node.leases.usage(ANN), has(3, 0));
    assert_eq!(node.try_alloc(&request(1), at(0)), Err(LeaseError::Quota));
    for _ in 0..2 {
        node.alloc(&Request { holder: BOB, ..request(1) }, at(0));
    }
    assert_eq!(node.try_alloc(&Request { holder: BOB, ..request(1) }, at(0)), Err(LeaseError::Capacity));
    assert_eq!(node.leases.tick(at(300)).len(), 4, "those of the other expire and end");
    assert_eq!(node.leases.usage(ANN), Quota::NOTHING);
    node.alloc(&request(1), at(300));
}

#[test]
fn a_policy_for_a_holder_goes_before_those_for_every_one() {
    let quotas = Quotas::new(&[
        (None, vec![(Item::Leases, 10), (Item::Handles, 7)]),
        (Some(ANN), vec![(Item::Leases, 2)]),
        (Some(ANN), vec![(Item::Leases, 3), (Item::Bytes, 5)]),
        (Some(BOB), vec![]),
    ]);
    let leases_bytes_handles = |id| [Item::Leases, Item::Bytes, Item::Handles].map(|item| quotas.get(id)[item]);
    assert_eq!(leases_bytes_handles(ANN), [3, 5, 7]);
    assert_eq!(leases_bytes_handles(BOB), [10, u64::MAX, 7]);
    assert_eq!(leases_bytes_handles(1), leases_bytes_handles(BOB));
    assert_eq!(quotas.get(ANN)[Item::Proxies], Quota::default()[Item::Proxies]);
    assert_eq!(quotas.of.keys().collect::<Vec<_>>(), [&ANN, &BOB]);
}

/// A holder above a lowered quota keeps what it has, and gets nothing more.
#[test]
fn a_quota_can_be_lowered_below_what_is_had() {
    let mut node = Node::new();
    let ids = [1, 2].map(|_| node.alloc(&request(1), at(0)));
    let mut quota = Quota::default();
    quota[Item::Leases] = 1;
    node.leases.set_quotas(Quotas { of: [(ANN, quota)].into(), ..Quotas::default() });
    assert!(node.leases.renew(ids[0], ANN, secs(20), at(1)).is_ok());
    node.alloc(&Request { holder: BOB, ..request(1) }, at(1));
    for id in ids {
        assert_eq!(node.try_alloc(&request(1), at(1)), Err(LeaseError::Quota));
        node.leases.free(id, ANN, at(1)).unwrap();
        node.leases.release(id, at(1));
    }
    node.alloc(&request(1), at(1));
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
fn a_lease_of_a_unit_lives_but_is_not_published() {
    let mut node = Node::new();
    let unit = Unit { resource: 2, item: Item::Proxies };
    let wanted = Wanted::Unit(unit);
    let id = node.alloc(&Request { wanted, ..request(0) }, at(0));
    assert_eq!(node.leases.get(id).unwrap().holds, Holding::Unit(unit));
    assert_eq!(node.leases.usage(ANN)[Item::Proxies], 1);
    assert_eq!(node.leases.query(id, at(1)), Some((Status::Active, at(10))));
    assert_eq!(node.probe(id.key()), None);
    node.leases.revoke(id, at(1)).unwrap();
    assert!(node.leases.release(id, at(1)));
    assert_eq!(node.leases.query(id, at(1)), Some((Status::Revoked, at(10))));
    assert_eq!(node.leases.usage(ANN)[Item::Proxies], 0);
    assert!(matches!(node.try_alloc(&Request { wanted, ..request(1) }, at(0)), Err(LeaseError::Invalid(_))));
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
    assert_eq!(node.leases.usage(ANN)[Item::PageState], 1);
    let mut quota = Quota::default();
    quota[Item::PageState] = 1;
    node.leases.set_quotas(Quotas { others: quota, ..Quotas::default() });
    let may = |index, now| node.leases.may_keep(&[(id, index)], now);
    assert_eq!([may(0, at(1)), may(1, at(1)), may(2, at(1)), may(0, at(90))], [false, true, true, true]);
    node.leases.free(id, ANN, at(1)).unwrap();
    node.leases.release(id, at(1));
    assert_eq!(node.leases.usage(ANN), Quota::NOTHING);
}
