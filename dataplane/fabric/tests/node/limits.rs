//! Quotas and bounds of handles and proxies at their limits, and how what has ended frees its place. Those of bindings
//! are in bindings.rs.
#![allow(clippy::doc_markdown)] // the names of ops

use std::time::Duration;

use crate::common::*;
use berth_fabric::{Config, Recovered};
use berth_lease::{Item, LeaseId, Quotas};
use berth_wire::fabric::{
    CapRevoke, CapabilityToken, KeyRevoke, LeaseExport, LeaseExported, LeaseImport, LeaseRef, Op, ResourceType, Rights,
    Status, SvcTcpBind, SvcTcpGrant, TargetRuntime, Wire as _,
};

const FULL: Status = Status::CapacityExceeded;

fn id(n: u8) -> u128 {
    identity(n).id().0
}

fn has(world: &World, n: u8, item: Item) -> u64 {
    world.node.leases().usage(id(n))[item]
}

/// Lets time pass, and tells the node.
fn pass(world: &mut World, secs: u64) {
    world.pass(Duration::from_secs(secs));
    world.tick();
}

fn restarted(world: World) -> World {
    let recovered: Recovered = world.journal.iter().cloned().collect();
    World::start(world.node.config().clone(), world.regions, recovered, world.now, 8)
}

fn free(world: &mut World, n: u8, lease: LeaseId) {
    world.ok(n, Op::LeaseFree, 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec());
}

/// Revokes a token, and so ends what was allocated under it.
fn revoke(world: &mut World, token: &[u8]) {
    let token_id = CapabilityToken::parse(token).unwrap().token_id;
    let admin = world.token(2, ALL);
    world.ok(2, Op::CapRevoke, 0, &admin, &CapRevoke { token_id, ttl_secs: 1 }.to_vec());
}

fn export(lease: LeaseId, ttl_secs: u32) -> Vec<u8> {
    LeaseExport {
        lease_id: lease.key().0,
        target_runtime_kind: TargetRuntime::Tasklet,
        target_identity: 0,
        rights: Rights::READ,
        ttl_secs,
    }
    .to_vec()
}

/// A bound of the node's own, whatever quotas say: all presenters together have as many handles as there may be leases.
#[test]
fn all_handles_together_are_as_many_as_leases_may_be() {
    let leases = berth_lease::Config { capacity: 8, ..berth_lease::Config::default() };
    let mut world = World::with(Config { leases, ..config() });
    let lasting = world.alloc(1, ResourceType::Mem, 4096);
    let [freed, revoked] = [(); 2].map(|()| world.alloc(2, ResourceType::Mem, 4096));
    for (n, lease, ttl) in
        [(1, lasting, 5), (1, lasting, 50), (1, lasting, 50), (2, freed, 50), (2, freed, 50), (2, freed, 50)]
    {
        world.ok(n, Op::LeaseExportHandle, 0, &[], &export(lease, ttl));
    }
    let token = world.token(1, ALL);
    let under = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    world.ok(1, Op::LeaseExportHandle, 0, &[], &export(under, 50));
    let last = world.ok(2, Op::LeaseExportHandle, 0, &[], &export(revoked, 50));

    let full = |world: &mut World| {
        for (n, lease) in [(1, lasting), (2, revoked)] {
            assert_eq!(world.refused(n, Op::LeaseExportHandle, 0, &[], &export(lease, 50)), FULL);
        }
        assert_eq!(world.node.leases().handles().count(), 8);
        assert_eq!(has(world, 1, Item::Handles) + has(world, 2, Item::Handles), 8);
    };
    full(&mut world);
    let mut later = World::start(
        world.node.config().clone(),
        world.regions.clone(),
        world.journal.iter().cloned().collect(),
        world.now.after(Duration::from_secs(6)),
        9,
    );
    assert_eq!((later.node.leases().handles().count(), has(&later, 1, Item::Handles)), (7, 3), "one has expired");
    later.ok(1, Op::LeaseExportHandle, 0, &[], &export(lasting, 50));
    let mut world = restarted(world);
    full(&mut world);
    // An importer takes no place of a handle, and leases are granted while handles are not.
    let export_handle = LeaseExported::parse(&last).unwrap().export_handle;
    world.ok(3, Op::LeaseImportHandle, 0, &[], &LeaseImport { export_handle }.to_vec());
    world.alloc(2, ResourceType::Mem, 4096);
    full(&mut world);

    // A handle that expires gives back one place, a lease that is freed those of its handles.
    let refill = |world: &mut World, places: usize| {
        assert_eq!(world.node.leases().handles().count(), 8 - places);
        for _ in 0..places {
            world.ok(1, Op::LeaseExportHandle, 0, &[], &export(lasting, 40));
        }
        full(world);
    };
    pass(&mut world, 6);
    refill(&mut world, 1);
    free(&mut world, 2, freed);
    refill(&mut world, 3);
    // One that is revoked is remembered, and its handles with it; when it is forgotten they are, too.
    revoke(&mut world, &token);
    full(&mut world);
    pass(&mut world, 400);
    assert_eq!(world.node.leases().handles().count(), 0);
    assert_eq!((has(&world, 1, Item::Handles), has(&world, 2, Item::Handles)), (0, 0));
}

fn bind() -> Vec<u8> {
    SvcTcpBind { duration_secs: 60, backend_port: 80 }.to_vec()
}

fn proxy(world: &mut World, token: &[u8]) -> LeaseId {
    let granted = world.ok(1, Op::SvcTcpBind, 0, token, &bind());
    LeaseId(SvcTcpGrant::parse(&granted).unwrap().lease_id)
}

#[test]
fn a_proxy_that_ends_gives_its_place_back_however_it_ends() {
    let quotas = Quotas::new(&[(None, vec![(Item::Proxies, 2)])]);
    let mut world = World::with(Config { quotas, ..config() });
    let token = world.token(1, ALL);
    // One that the host cannot open takes no place.
    world.asked.lock().unwrap().no_proxies = true;
    assert_eq!(world.refused(1, Op::SvcTcpBind, 0, &token, &bind()), FULL);
    assert_eq!((has(&world, 1, Item::Proxies), has(&world, 1, Item::Leases)), (0, 0));
    world.asked.lock().unwrap().no_proxies = false;

    let full = |world: &mut World| {
        let token = world.token(1, ALL);
        let opened = world.asked.lock().unwrap().proxies.len();
        assert_eq!(world.refused(1, Op::SvcTcpBind, 0, &token, &bind()), FULL);
        assert_eq!(world.asked.lock().unwrap().proxies.len(), opened, "the host was not asked");
        assert_eq!(has(world, 1, Item::Proxies), 2);
    };
    let first = proxy(&mut world, &token);
    let other = world.token(1, ALL);
    proxy(&mut world, &other);
    full(&mut world);
    free(&mut world, 1, first);
    assert_eq!(has(&world, 1, Item::Proxies), 1);
    proxy(&mut world, &token);
    full(&mut world);
    // A revoked one is remembered as a lease, not as a proxy.
    revoke(&mut world, &other);
    assert_eq!((has(&world, 1, Item::Proxies), has(&world, 1, Item::Leases)), (1, 2));
    proxy(&mut world, &token);
    full(&mut world);
    let mut world = restarted(world);
    full(&mut world);
    pass(&mut world, 60);
    assert_eq!(has(&world, 1, Item::Proxies), 0, "they have no grace");
    let token = world.token(1, ALL);
    proxy(&mut world, &token);
    proxy(&mut world, &token);
    full(&mut world);
    let admin = world.token(2, ALL);
    world.ok(2, Op::KeyRevoke, 0, &admin, &KeyRevoke { key_id: id(1), remove: false }.to_vec());
    assert_eq!(has(&world, 1, Item::Proxies), 0, "all of the key's end with it");
}

/// A bound of the node's own: all presenters together have as many proxies as there are ports for them.
#[test]
fn all_proxies_together_are_as_many_as_the_node_says() {
    let quotas = Quotas::new(&[(None, vec![(Item::Proxies, 1 << 16)])]);
    let mut world = World::with(Config { quotas, ..config() });
    let available = |world: &World| {
        let resources = world.node.resources();
        resources.iter().find(|known| known.resource_type == ResourceType::Net.code()).unwrap().available
    };
    let most = available(&world);
    let mut tokens = [1, 2].map(|n| world.token(n, ALL));
    let first = proxy(&mut world, &tokens[0]);
    for _ in 1..most {
        world.ok(1, Op::SvcTcpBind, 0, &tokens[0], &bind());
    }
    assert_eq!((most, available(&world)), (28_232, 0));
    for (n, token) in [1, 2].into_iter().zip(&tokens) {
        assert_eq!(world.refused(n, Op::SvcTcpBind, 0, token, &bind()), FULL);
    }
    free(&mut world, 1, first);
    world.ok(2, Op::SvcTcpBind, 0, &tokens[1], &bind());
    assert_eq!(world.refused(1, Op::SvcTcpBind, 0, &tokens[0], &bind()), FULL);
    for _ in 0..20 {
        pass(&mut world, 60);
    }
    assert_eq!(available(&world), most);
    tokens[1] = world.token(2, ALL);
    world.ok(2, Op::SvcTcpBind, 0, &tokens[1], &bind());
}
