//! Recovery of leases from a journal.

mod common;

use berth_lease::{
    Attachment, Config, Entry, Event, GRANULE, Generation, Holding, Item, Lease, LeaseId, LeaseKey, Leases, Refusal,
    RegionId, Request, RestoreError, Rights, Standing, Wanted,
};
use common::{
    memory,
    node::{ANN, BLOCKS, BOB, MEMORY, Node, at, request, secs},
    vram,
};

#[test]
fn a_restart_restores_leases_at_their_bytes_and_raises_generations_of_memory() {
    let mut node = Node::new();
    let kept = node.alloc(&Request { range: Some((8, 9000)), ..request(9000) }, at(0));
    let gone = node.alloc(&Request { duration: secs(1), grace: secs(1), ..request(1) }, at(0));
    let block = node.alloc(&Request { wanted: Wanted::Bytes(&[BLOCKS]), rights: Rights::READ, ..request(512) }, at(0));
    let [revoked, fenced] = [(); 2].map(|()| node.alloc(&request(GRANULE), at(0)));
    node.leases.revoke(revoked, at(1)).unwrap();
    node.leases.revoke(fenced, at(1)).unwrap();
    node.leases.release(revoked, at(1));
    node.leases.fence(fenced);
    let snapshot: Vec<Lease> = node.leases.iter().collect();
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
    let lease = node.leases.get(id).unwrap();
    let restore = |node: &mut Node, lease| node.leases.restore(lease, at(1));
    assert_eq!(restore(&mut node, lease), Err(RestoreError::Taken));
    let other = Lease { id: LeaseId(9), ..lease };
    assert_eq!(restore(&mut node, other), Err(RestoreError::Taken), "the same bytes");
    let mut small = Node::with(Config { capacity: 1, ..Config::default() }, vec![memory(GRANULE, None)]);
    assert_eq!(restore(&mut small, Lease { holds: Holding::Bytes(RegionId(1)), ..lease }), Err(RestoreError::Region));
    assert_eq!(restore(&mut small, Lease { base: GRANULE, ..lease }), Err(RestoreError::Region));
    assert_eq!(restore(&mut small, Lease { base: u64::MAX, ..lease }), Err(RestoreError::Region));
    assert!(restore(&mut small, lease).unwrap().is_some());
    assert_eq!(restore(&mut small, Lease { holds: Holding::Nothing, ..other }), Err(RestoreError::Capacity));
    let over = Lease { standing: Standing::Over, ..other };
    assert_eq!(restore(&mut node, over), Ok(None));
}

/// A GPU's own memory begins with zeros, as memory does, though it lies behind an engine.
#[test]
fn a_restart_raises_generations_of_volatile_regions_behind_engines() {
    const UNIT: u64 = 4 * GRANULE;
    let start = || Node::with(Config::default(), vec![vram(4 * UNIT, UNIT)]);
    let mut node = start();
    let [first, second] = [(); 2].map(|()| node.alloc(&request(513), at(0)));
    let [first, second] = [first, second].map(|id| node.leases.get(id).unwrap());
    assert_eq!((first.base, second.base, second.len), (0, UNIT, 513));

    let mut again = start();
    assert!(again.leases.is_volatile(MEMORY));
    let restored = again.leases.restore(second, at(1)).unwrap();
    assert_eq!(restored, Some(Lease { generation: Generation(2), ..second }));
    assert_eq!((again.leases.available(MEMORY), again.leases.usage(ANN)[Item::Bytes]), (3 * UNIT, UNIT));
    let granted = again.try_alloc(&request(2 * UNIT), at(1)).unwrap();
    assert_eq!(granted.zero, []);

    let within = Lease { base: GRANULE, len: 1, ..first };
    assert_eq!(start().leases.restore(within, at(1)), Err(RestoreError::Granule));
}
