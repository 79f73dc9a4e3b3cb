//! Leases of units that a pool has, and connections that outlive the node: virtual functions.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_fabric::{
    Binding, BlockingWork, BoundLease, Reach, Recovered, Resource, Stock, TeardownFailed, journal::Record,
};
use berth_lease::{Item, LeaseId, Leases};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    BindKind, LeaseAlloc, LeaseBind, LeaseGrant, LeaseRef, Op, ResourceType, Status, SvcTcpBind, Tlvs, Wire as _,
};

use crate::common::{ALL, START, World, config, identity, regions};

/// Two functions.
#[derive(Debug, Default)]
struct Inside {
    /// Which function each lease has.
    of: BTreeMap<LeaseId, u8>,
    /// Leases whose functions are handed over.
    given: Vec<LeaseId>,
    teardowns: u32,
    clings: bool,
    lost: Vec<LeaseId>,
}

#[derive(Debug, Clone, Default)]
struct Card(Arc<Mutex<Inside>>);

impl Card {
    fn teardowns(&self) -> u32 {
        self.0.lock().unwrap().teardowns
    }

    fn given(&self) -> Vec<LeaseId> {
        self.0.lock().unwrap().given.clone()
    }
}

impl Resource for Card {
    fn kind(&self) -> ResourceType {
        ResourceType::Net
    }
    fn name(&self) -> &'static str {
        "vfs"
    }
    fn stock(&self, _: &Leases) -> Stock {
        let inside = self.0.lock().unwrap();
        Stock { capacity: 2, available: 2 - inside.of.len() as u64, fenced: inside.clings }
    }
    fn counts_as(&self) -> Option<Item> {
        Some(Item::Functions)
    }
    fn grant(&mut self, lease: LeaseId, wanted: &[u8]) -> Result<Vec<u8>, Status> {
        assert_eq!(wanted, []);
        let mut inside = self.0.lock().unwrap();
        let free = (0..2).find(|unit| !inside.of.values().any(|of| of == unit)).ok_or(Status::CapacityExceeded)?;
        inside.of.insert(lease, free);
        Ok(vec![free])
    }
    fn end(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let mut inside = self.0.lock().unwrap();
        assert!(!inside.given.contains(&lease), "it is taken back first");
        inside.of.remove(&lease);
        Ok(None)
    }
    fn recover(&mut self, lease: LeaseId, unit: &[u8]) -> bool {
        self.0.lock().unwrap().of.insert(lease, unit[0]).is_none()
    }
}

#[derive(Debug, Clone)]
struct Vfio(Card);

impl Binding for Vfio {
    fn kind(&self) -> BindKind {
        BindKind::SrIov
    }
    fn name(&self) -> &'static str {
        "vfio"
    }
    fn outlives(&mut self, lease: LeaseId) -> bool {
        self.0.0.lock().unwrap().given.contains(&lease)
    }
    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, _: &mut Vec<u8>) -> Result<(), Status> {
        assert_eq!(lease.reach, Reach::Unit);
        self.0.0.lock().unwrap().given.push(lease.id);
        Ok(())
    }
    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let inside = self.0.0.clone();
        Ok(Some(BlockingWork::new(move || {
            let mut inside = inside.lock().unwrap();
            inside.teardowns += 1;
            if !inside.clings {
                inside.given.retain(|given| *given != lease);
            }
        })))
    }
    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        if self.0.0.lock().unwrap().given.contains(&lease) { Err(TeardownFailed) } else { Ok(()) }
    }
    fn tick(&mut self, _: Nanos, lost: &mut Vec<LeaseId>) {
        lost.append(&mut self.0.0.lock().unwrap().lost);
    }
}

fn start(card: &Card, recovered: Recovered, now: Now) -> World {
    let units: Vec<Box<dyn Resource>> = vec![Box::new(card.clone())];
    let bindings: Vec<Box<dyn Binding>> = vec![Box::new(Vfio(card.clone()))];
    World::start_units(config(), regions(), units, bindings, recovered, now, 7)
}

fn alloc(requested_bytes: Option<u64>) -> Vec<u8> {
    let resource_type = Some(ResourceType::Net);
    LeaseAlloc { duration_secs: 60, grace_secs: 10, resource_type, requested_bytes, intents: Tlvs::EMPTY }.to_vec()
}

impl World {
    fn function(&mut self) -> LeaseId {
        let token = self.token(1, ALL);
        let granted = self.ok(1, Op::LeaseAlloc, 0, &token, &alloc(None));
        LeaseId(LeaseGrant::parse(&granted).unwrap().lease_id)
    }

    fn hand_over(&mut self, lease: LeaseId) {
        let token = self.token(1, ALL);
        let params = LeaseBind { lease_id: lease.0, kind: BindKind::SrIov.code(), client: Tlvs::EMPTY };
        self.ok(1, Op::LeaseBind, 0, &token, &params.to_vec());
    }

    fn pool(&self) -> (u128, u64, u64) {
        let pools = self.node.resources();
        let pool = pools.iter().find(|of| of.resource_type == ResourceType::Net.code() && of.capacity == 2).unwrap();
        (pool.resource_id, pool.capacity, pool.available)
    }

    /// What was journaled, `before` and now, as the next start finds it.
    fn crash(self, before: &mut Vec<Record>, card: &Card, now: Now) -> World {
        card.0.lock().unwrap().of.clear();
        before.extend(self.journal);
        start(card, before.iter().cloned().collect(), now)
    }
}

#[test]
fn a_lease_of_net_is_one_function() {
    let card = Card::default();
    let mut world = start(&card, Recovered::default(), START);
    let token = world.token(1, ALL);
    let (pool, _, available) = world.pool();
    assert_eq!(available, 2);
    let granted = world.ok(1, Op::LeaseAlloc, pool, &token, &alloc(Some(1)));
    assert!(LeaseGrant::parse(&granted).unwrap().bindings.as_bytes().is_empty());
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &alloc(Some(2))), Status::InvalidParams);
    world.function();
    assert_eq!(world.pool().2, 0);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &alloc(None)), Status::CapacityExceeded);
    let holder = identity(1).id().0;
    assert_eq!(world.node.leases().usage(holder)[Item::Functions], 2);

    // Proxies are of NET as well, and have ops of their own.
    let proxy = SvcTcpBind { duration_secs: 9, backend_port: 80 };
    world.ok(1, Op::SvcTcpBind, 0, &token, &proxy.to_vec());
    let proxies = world.node.resources();
    let proxies = proxies.iter().find(|of| of.resource_type == ResourceType::Net.code() && of.capacity > 2).unwrap();
    let refused = world.refused(1, Op::LeaseAlloc, proxies.resource_id, &token, &alloc(None));
    assert_eq!(refused, Status::ResourceNotFound);
    let plain = World::new().token(1, ALL);
    assert_eq!(World::new().refused(1, Op::LeaseAlloc, 0, &plain, &alloc(None)), Status::CapacityExceeded);

    let lease = LeaseGrant::parse(&granted).unwrap().lease_id;
    world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease }.to_vec());
    assert_eq!((world.pool().2, world.node.leases().usage(holder)[Item::Functions]), (1, 1));
}

#[test]
fn a_function_that_was_fenced_is_free_when_it_was_taken_back_after_all() {
    let card = Card::default();
    let mut world = start(&card, Recovered::default(), START);
    let lease = world.function();
    world.hand_over(lease);
    card.0.lock().unwrap().clings = true;
    let params = LeaseRef { lease_id: lease.0 }.to_vec();
    assert_eq!(world.refused(1, Op::LeaseFree, 0, &[], &params), Status::ResourceFenced);
    assert!(world.journal.contains(&Record::LeaseFenced { lease: lease.0 }));
    assert!(world.node.leases().get(lease).unwrap().fenced);
    world.tick();
    assert_eq!(world.pool().2, 1);

    let mut inside = card.0.lock().unwrap();
    inside.clings = false;
    inside.lost.push(lease);
    drop(inside);
    world.tick();
    assert_eq!((world.pool().2, world.node.leases().get(lease)), (2, None));
    assert_eq!(world.journal.last(), Some(&Record::Ended { lease: lease.0 }));
    assert_eq!(world.node.leases().usage(identity(1).id().0)[Item::Functions], 0);
    let recovered: Recovered = world.journal.into_iter().collect();
    assert!(recovered.leases.is_empty() && recovered.bound.is_empty());
}

#[test]
fn a_connection_that_outlives_the_node_goes_on_while_its_lease_does() {
    let (card, mut journal) = (Card::default(), Vec::new());
    let mut world = start(&card, Recovered::default(), START);
    let (lease, other) = (world.function(), world.function());
    for lease in [lease, other] {
        world.hand_over(lease);
    }
    let mut world = world.crash(&mut journal, &card, START.after(Duration::from_secs(1)));
    world.tick();
    assert_eq!((card.teardowns(), world.pool().2), (0, 0));
    // It is known: its lease's end is its own.
    world.ok(1, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
    assert_eq!((card.teardowns(), world.pool().2), (1, 1));

    // The other's grace is over before the next start.
    let mut world = world.crash(&mut journal, &card, START.after(Duration::from_secs(100)));
    assert!(card.given().contains(&other));
    world.tick();
    assert_eq!((card.teardowns(), card.given().len()), (2, 0));
    assert_eq!((world.pool().2, world.node.leases().get(other)), (2, None));
    assert_eq!(world.journal.last(), Some(&Record::Ended { lease: other.0 }));
}

#[test]
fn a_connection_of_a_lease_in_grace_ends_with_the_start() {
    let (card, mut journal) = (Card::default(), Vec::new());
    let mut world = start(&card, Recovered::default(), START);
    let lease = world.function();
    world.hand_over(lease);
    let mut world = world.crash(&mut journal, &card, START.after(Duration::from_secs(65)));
    world.tick();
    assert_eq!((card.teardowns(), world.pool().2), (1, 1), "the function is still its lease's");
    assert!(world.node.leases().get(lease).is_some());
}
