//! Where leases lie, and what becomes of their bytes.

mod common;

use std::sync::Arc;

use berth_lease::{
    Bytes, Config, Event, GRANULE, Item, LeaseError, Quota, Quotas, Region, RegionId, RegionKind, Request, Span,
    Storage, Wanted,
};
use common::{
    bytes, memory,
    node::{ANN, BLOCKS, MEMORY, Node, at, request},
    vram,
};

#[test]
fn regions_are_tried_in_order_but_the_near_ones_first() {
    let regions = vec![memory(4 * GRANULE, Some(0)), memory(4 * GRANULE, Some(1)), memory(4 * GRANULE, None)];
    let mut node = Node::with(Config::default(), regions);
    let all = Request { wanted: Wanted::Bytes(&[RegionId(2), RegionId(0), RegionId(1)]), ..request(3 * GRANULE) };
    let mut region = |near| {
        let id = node.try_alloc(&Request { near, ..all }, at(0)).map(|granted| granted.id);
        id.map(|id| node.leases.get(id).unwrap().region().unwrap().0)
    };
    assert_eq!(region(Some(1)), Ok(1));
    assert_eq!(region(Some(1)), Ok(2));
    assert_eq!(region(None), Ok(0));
    assert_eq!(region(Some(1)), Err(LeaseError::Capacity));
}

#[test]
fn dirty_memory_is_returned_to_be_zeroed() {
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
    let granted = node.try_alloc(&request(2 * GRANULE), at(0)).unwrap();
    assert_eq!(granted.zero, [Span { region: MEMORY, at: 0, len: 2 * GRANULE }], "no more than what is leased");
    assert!(!zeros(1), "whoever holds the node does not wait for it");
    for span in granted.zero {
        memory.zero(span.at, span.len);
    }
    assert_eq!(node.leases.zero(GRANULE), GRANULE);
    assert_eq!(node.leases.available(MEMORY), 2 * GRANULE);
    assert_eq!(node.leases.zero(u64::MAX), GRANULE);
    assert_eq!(node.leases.zero(u64::MAX), 0);
    assert!(zeros(4 * GRANULE));
    let granted = node.try_alloc(&request(2 * GRANULE), at(0)).unwrap();
    assert_eq!(granted.zero, [], "it was zeroed in the background");
}

#[test]
fn dirty_blocks_are_returned_to_be_zeroed() {
    let mut node = Node::new();
    let block = Request { wanted: Wanted::Bytes(&[BLOCKS]), ..request(GRANULE) };
    let granted = node.try_alloc(&block, at(0)).unwrap();
    assert_eq!(granted.zero, [Span { region: BLOCKS, at: 0, len: GRANULE }], "what the file held before");
    assert_eq!(node.leases.zero(u64::MAX), 0);
}

/// `available` rises at once, but the bytes are not leased again while an earlier access may still touch them.
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
    let either = Request { wanted: Wanted::Bytes(&[MEMORY, BLOCKS]), ..request(1) };
    let elsewhere = node.alloc(&either, at(1));
    assert_eq!(node.leases.get(elsewhere).unwrap().region(), Some(BLOCKS));
    assert!(node.read(other, at(1)).is_ok());
    assert_eq!(node.leases.available(MEMORY), 62 * GRANULE);
    node.leases.tick(at(400));
    assert_eq!(node.leases.query(id, at(400)), None);
    assert!(node.leases.get(id).unwrap().fenced, "a snapshot needs it for good");
}

/// Memory without contents, for leases that nobody reads.
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

/// What a lease takes of a region, it takes in whole granules: of the region, and of its holder's quota.
#[test]
fn leases_take_whole_granules_of_their_region() {
    const UNIT: u64 = 2 << 20;
    const VRAM: RegionId = RegionId(1);
    let regions = vec![memory(8 * GRANULE, None), vram(4 * UNIT + GRANULE, UNIT)];
    let mut node = Node::with(Config::default(), regions);
    assert_eq!((node.leases.capacity(VRAM), node.leases.available(VRAM)), (4 * UNIT, 4 * UNIT));
    let mut others = Quota::default();
    others[Item::Bytes] = 3 * UNIT - 1;
    node.leases.set_quotas(Quotas { others, ..Quotas::default() });

    let of_vram = |bytes| Request { wanted: Wanted::Bytes(&[VRAM]), ..request(bytes) };
    assert_eq!(node.try_alloc(&of_vram(2 * UNIT + 1), at(0)), Err(LeaseError::Quota));
    assert_eq!(node.try_alloc(&of_vram(u64::MAX), at(0)), Err(LeaseError::Quota));
    let [one, other] = [node.alloc(&of_vram(1), at(0)), node.alloc(&of_vram(UNIT), at(0))];
    let lease = node.leases.get(other).unwrap();
    assert_eq!((lease.base, lease.len), (UNIT, UNIT));
    let one_lease = node.leases.get(one).unwrap();
    assert_eq!(node.leases.extent(&one_lease), Some(Span { region: VRAM, at: 0, len: UNIT }));
    assert_eq!(node.leases.usage(ANN)[Item::Bytes], 2 * UNIT);
    assert_eq!((node.leases.available(VRAM), node.leases.live()), (2 * UNIT, (2, 2 * UNIT)));

    // One of smaller granules can still be had.
    let either = Request { wanted: Wanted::Bytes(&[VRAM, MEMORY]), ..request(1) };
    assert_eq!(node.try_alloc(&of_vram(1), at(0)), Err(LeaseError::Quota));
    let id = node.alloc(&either, at(0));
    assert_eq!(node.leases.get(id).unwrap().region(), Some(MEMORY));

    for id in [one, other] {
        node.leases.free(id, ANN, at(1)).unwrap();
        assert!(node.leases.release(id, at(1)));
    }
    assert_eq!(node.leases.usage(ANN)[Item::Bytes], GRANULE);
    assert_eq!((node.leases.available(VRAM), node.leases.live()), (4 * UNIT, (1, GRANULE)));
    assert_eq!(node.leases.zero(u64::MAX), 0, "an engine zeroes what is leased next");
    let again = node.try_alloc(&of_vram(1), at(1)).unwrap();
    assert_eq!(again.zero, [Span { region: VRAM, at: 0, len: UNIT }], "also what lies behind the lease's length");
}
