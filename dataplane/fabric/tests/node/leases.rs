//! LEASE_* and SVC_TCP_* through the node, with exact results (decisions 4, 12 to 15 and 18).
#![allow(clippy::doc_markdown)] // the names of ops

use std::{net::SocketAddr, time::Duration};

use crate::common::*;
use berth_fabric::Config;
use berth_lease::{Access, Generation, Item, LeaseId, Op as Io, Quotas, Refusal, check};
use berth_wire::fabric::{
    BindingTlv, CapRevoke, CapabilityToken, EndpointKind, Identity, LeaseAlloc, LeaseEntry, LeaseGrant, LeaseList,
    LeaseRef, LeaseRenew, LeaseRenewed, LeaseState, LeaseStatus, Op, Pong, ResourceFlags, ResourceSummary,
    ResourceType, Status, SvcTcpBind, SvcTcpGrant, SvcTcpQuery, SvcTcpState, Tlvs, Wire as _,
};

fn id(n: u8) -> u128 {
    identity(n).id().0
}

fn params(kind: Option<ResourceType>, bytes: Option<u64>) -> LeaseAlloc<'static> {
    LeaseAlloc { duration_secs: 60, grace_secs: 10, resource_type: kind, requested_bytes: bytes, intents: Tlvs::EMPTY }
}

fn renew(id: LeaseId, duration_secs: u32) -> Vec<u8> {
    LeaseRenew { lease_id: id.0, duration_secs }.to_vec()
}

fn of(id: LeaseId) -> Vec<u8> {
    LeaseRef { lease_id: id.0 }.to_vec()
}

fn state(status: LeaseStatus, after: u64) -> Vec<u8> {
    LeaseState { status, expires_at: START_SECS + after }.to_vec()
}

/// How the dataplanes decide on a read of the lease's first byte.
fn access(world: &World, id: LeaseId) -> Result<(), Refusal> {
    let mut reader = world.node.table().reader();
    let entry = reader.enter().probe(id.key());
    let access = Access { op: Io::Read, key: id.key(), generation: None, offset: 0, len: 1, well_formed: true };
    check(entry.as_ref(), &access, world.now.mono).map(|_| ())
}

#[test]
fn a_grant_tells_where_and_how_the_bytes_are_reached() {
    let addr = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let kinds = [EndpointKind::ControlUdp, EndpointKind::TwoSidedUdp, EndpointKind::Fbmu, EndpointKind::Fbbu];
    let endpoints = kinds.into_iter().zip((5700..).map(addr)).collect();
    let mut world = World::with(Config { endpoints, ..config() });
    let token = world.token(1, ALL);
    for (kind, own, addr) in [
        (ResourceType::Mem, EndpointKind::Fbmu, "127.0.0.1:5702"),
        (ResourceType::Block, EndpointKind::Fbbu, "127.0.0.1:5703"),
    ] {
        let result = world.ok(1, Op::LeaseAlloc, 0, &token, &params(Some(kind), Some(8192)).to_vec());
        let grant = LeaseGrant::parse(&result).unwrap();
        assert_eq!(grant.expires_at, START_SECS + 60);
        let tlvs: Vec<_> = grant.bindings.iter().map(|tlv| BindingTlv::read(tlv).unwrap().unwrap()).collect();
        let expected = [
            BindingTlv::Endpoint { kind: EndpointKind::TwoSidedUdp, addr: "127.0.0.1:5701" },
            BindingTlv::Endpoint { kind: own, addr },
            BindingTlv::Generation(1),
            BindingTlv::LeaseKey(grant.lease_id as u64),
            BindingTlv::Limits { offset: 0, len: 8192, max_io: 1 << 20 },
        ];
        assert_eq!(tlvs, expected);
    }
}

#[test]
fn an_allocation_is_refused_for_one_reason_after_the_other() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let [mem, disk] = [0, 1].map(|index| world.node.resources()[index].resource_id);
    let mut alloc = |resource, params: &[u8]| world.ask(1, Op::LeaseAlloc, resource, &token, params).status;
    let sound = params(Some(ResourceType::Mem), Some(4096)).to_vec();
    assert_eq!(alloc(0, &sound), Status::Ok);
    assert_eq!(alloc(mem, &sound), Status::Ok);
    assert_eq!(alloc(0, &sound[..8]), Status::CapacityExceeded, "1 MiB of MEM is the default, and less is left");
    assert_eq!(alloc(0, &sound[..9]), Status::InvalidParams);
    assert_eq!(alloc(0, &sound[..17]), Status::InvalidParams);
    assert_eq!(alloc(0, &[&sound[..], &[9]].concat()), Status::InvalidParams);
    assert_eq!(alloc(0, &[&[0; 4], &sound[4..]].concat()), Status::InvalidParams, "no duration");
    assert_eq!(alloc(0, &[&sound[..8], &[0x77, 0x77], &sound[10..]].concat()), Status::InvalidParams, "no such type");
    assert_eq!(alloc(0, &params(Some(ResourceType::Mem), Some(0)).to_vec()), Status::InvalidParams);
    assert_eq!(alloc(99, &sound), Status::ResourceNotFound);
    assert_eq!(alloc(disk, &sound), Status::ResourceNotFound, "it is not memory");
    for kind in [ResourceType::Cpu, ResourceType::Gpu, ResourceType::Net, ResourceType::Scheduler] {
        assert_eq!(alloc(0, &params(Some(kind), Some(1)).to_vec()), Status::CapacityExceeded);
    }
    for bytes in [1 << 20, u64::MAX, u64::MAX - 4095] {
        assert_eq!(alloc(0, &params(Some(ResourceType::Mem), Some(bytes)).to_vec()), Status::CapacityExceeded);
    }
}

#[test]
fn a_lease_expires_has_its_grace_and_ends() {
    let mut world = World::new();
    let lease = world.alloc(1, ResourceType::Mem, 4096);
    let token = world.token(1, ALL);
    world.pass(Duration::from_millis(59_999));
    assert_eq!(access(&world, lease), Ok(()));
    assert_eq!(world.ok(3, Op::LeaseQuery, 0, &[], &of(lease)), state(LeaseStatus::Active, 60));
    world.pass(Duration::from_millis(1));
    assert_eq!(access(&world, lease), Err(Refusal::Expired), "at its time, whenever the tick comes");
    assert_eq!(world.tick(), [lease]);
    assert_eq!(world.ok(3, Op::LeaseQuery, 0, &[], &of(lease)), state(LeaseStatus::Expired, 60));
    assert_eq!(world.refused(2, Op::LeaseRenew, 0, &token, &renew(lease, 5)), Status::InvalidToken, "another's token");
    let other = world.token(2, ALL);
    assert_eq!(world.refused(2, Op::LeaseRenew, 0, &other, &renew(lease, 5)), Status::InsufficientPerm);
    assert_eq!(world.refused(1, Op::LeaseRenew, 0, &token, &renew(lease, 0)), Status::InvalidParams);
    let renewed = world.ok(1, Op::LeaseRenew, 0, &token, &renew(lease, 5));
    assert_eq!(renewed, LeaseRenewed { expires_at: START_SECS + 65 }.to_vec());
    assert_eq!(access(&world, lease), Ok(()));
    world.pass(Duration::from_secs(15));
    assert_eq!(world.refused(1, Op::LeaseRenew, 0, &token, &renew(lease, 5)), Status::ResourceNotFound);
    assert_eq!(world.refused(3, Op::LeaseQuery, 0, &[], &of(lease)), Status::ResourceNotFound);
    world.node.tick(world.now);
    assert_eq!(world.node.resources()[0].available, 1 << 20);
}

#[test]
fn bytes_are_zero_again_for_the_next_holder() {
    let mut world = World::new();
    let lease = world.alloc(1, ResourceType::Mem, 1 << 20);
    let region = world.node.leases().get(lease).unwrap().region().unwrap();
    let berth_lease::Storage::Bytes(bytes) = world.regions.get(region).unwrap().storage.clone() else { panic!() };
    bytes.write(5000, b"secret");
    assert_eq!(world.node.resources()[0].available, 0);
    assert_eq!(world.ok(1, Op::LeaseFree, 0, &[], &of(lease)), []);
    assert_eq!(access(&world, lease), Err(Refusal::Unknown));
    assert_eq!(world.node.resources()[0].available, 1 << 20, "at once");
    world.alloc(2, ResourceType::Mem, 1 << 20);
    let mut found = [9; 6];
    bytes.read(5000, &mut found);
    assert_eq!(found, [0; 6]);
}

#[test]
fn a_revoked_lease_is_remembered_as_such_for_300_s() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    world.ok(1, Op::LeaseRenew, 0, &token, &renew(lease, 1000));
    world.ok(1, Op::CapRevoke, 0, &token, &CapRevoke { token_id, ttl_secs: 1 }.to_vec());
    assert_eq!(access(&world, lease), Err(Refusal::Revoked));
    let token = world.token(1, ALL);
    world.pass(Duration::from_millis(299_999));
    assert_eq!(world.ok(3, Op::LeaseQuery, 0, &[], &of(lease)), state(LeaseStatus::Revoked, 1000));
    assert_eq!(world.refused(1, Op::LeaseRenew, 0, &token, &renew(lease, 5)), Status::LeaseExpired);
    assert_eq!(world.refused(1, Op::LeaseFree, 0, &[], &of(lease)), Status::LeaseExpired);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.refused(3, Op::LeaseQuery, 0, &[], &of(lease)), Status::ResourceNotFound);
}

#[test]
fn active_leases_are_listed_and_the_inventory_counts_their_bytes() {
    let mut world = World::new();
    let mem = world.alloc(1, ResourceType::Mem, 5000);
    let block = world.alloc(2, ResourceType::Block, 1000);
    world.pass(Duration::from_secs(2));
    let freed = world.alloc(2, ResourceType::Block, 512);
    world.ok(2, Op::LeaseFree, 0, &[], &of(freed));
    let resources = world.node.resources();
    let list = world.ok(3, Op::LeaseListActive, 0, &[], &[]);
    let mut listed: Vec<_> = LeaseList::parse(&list).unwrap().iter().collect();
    listed.sort_by_key(|lease| lease.alloc_bytes);
    let entry = |lease: LeaseId, resource: &ResourceSummary, n, alloc_bytes| LeaseEntry {
        lease_id: lease.0,
        resource_id: resource.resource_id,
        holder: id(n),
        expires_at: START_SECS + 60,
        alloc_bytes,
    };
    assert_eq!(listed, [entry(block, &resources[1], 2, 1024), entry(mem, &resources[0], 1, 5000)]);
    let summary = |index: usize, kind: ResourceType, capacity, available| ResourceSummary {
        resource_id: resources[index].resource_id,
        resource_type: kind.code(),
        flags: ResourceFlags::NONE,
        capacity,
        available,
    };
    let inventory = world.ok(3, Op::GetInventory, 0, &[], &[]);
    let expected = [
        summary(0, ResourceType::Mem, 1 << 20, (1 << 20) - 8192),
        summary(1, ResourceType::Block, 256 << 10, (256 << 10) - 4096),
    ];
    let inventory = berth_wire::fabric::Inventory::parse(&inventory).unwrap();
    assert_eq!(inventory.iter().take(2).collect::<Vec<_>>(), expected);
    assert_eq!(inventory.iter().nth(2).unwrap().resource_type, ResourceType::Net.code());
    assert_eq!(world.refused(3, Op::LeaseListActive, 0, &[], &[0]), Status::InvalidParams);
}

#[test]
fn a_quota_is_the_holders() {
    let quotas = Quotas::new(&[(None, vec![(Item::Leases, 2), (Item::Bytes, 8192)])]);
    let mut world = World::with(Config { quotas, ..config() });
    let token = world.token(1, ALL);
    let mem = |bytes| params(Some(ResourceType::Mem), Some(bytes)).to_vec();
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &mem(8193)), Status::CapacityExceeded);
    let first = world.alloc(1, ResourceType::Mem, 1);
    world.alloc(1, ResourceType::Mem, 1);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &mem(1)), Status::CapacityExceeded);
    world.alloc(2, ResourceType::Mem, 1);
    world.ok(1, Op::LeaseFree, 0, &[], &of(first));
    world.alloc(1, ResourceType::Mem, 1);
}

#[test]
fn a_proxy_lives_as_long_as_its_lease() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let bind = |duration_secs, backend_port| SvcTcpBind { duration_secs, backend_port }.to_vec();
    for bad in [bind(0, 80), bind(5, 0), bind(5, 80)[..5].to_vec()] {
        assert_eq!(world.refused(1, Op::SvcTcpBind, 0, &token, &bad), Status::InvalidParams);
    }
    let result = world.ok(1, Op::SvcTcpBind, 0, &token, &bind(5, 80));
    let grant = SvcTcpGrant::parse(&result).unwrap();
    assert_eq!((grant.expires_at, grant.ingress_port), (START_SECS + 5, 40_000));
    let lease = LeaseId(grant.lease_id);
    let proxy = berth_fabric::Proxy { ingress: 40_000, backend: 80 };
    assert_eq!(world.asked.lock().unwrap().proxies, [(lease, proxy)]);
    let query = SvcTcpQuery { lease_id: lease.0 }.to_vec();
    let state = |status, ingress_port| SvcTcpState { status, expires_at: START_SECS + 5, ingress_port }.to_vec();
    assert_eq!(world.ok(3, Op::SvcTcpQuery, 0, &[], &query), state(LeaseStatus::Active, 40_000));
    let memory = world.alloc(1, ResourceType::Mem, 1);
    let other = SvcTcpQuery { lease_id: memory.0 }.to_vec();
    assert_eq!(world.refused(3, Op::SvcTcpQuery, 0, &[], &other), Status::ResourceNotFound, "it is no proxy");

    // It is restarted on its own port.
    let recovered = world.journal.iter().cloned().collect();
    let mut world = World::start(config(), world.regions.clone(), recovered, world.now, 8);
    assert_eq!(world.asked.lock().unwrap().proxies, [(lease, proxy)]);
    assert_eq!(world.ok(3, Op::SvcTcpQuery, 0, &[], &query), state(LeaseStatus::Active, 40_000));
    world.pass(Duration::from_secs(5));
    world.tick();
    assert_eq!(world.asked.lock().unwrap().closed, [lease]);
    assert_eq!(world.refused(3, Op::SvcTcpQuery, 0, &[], &query), Status::ResourceNotFound);

    world.asked.lock().unwrap().no_proxies = true;
    let token = world.token(1, ALL);
    assert_eq!(world.refused(1, Op::SvcTcpBind, 0, &token, &bind(5, 80)), Status::CapacityExceeded);
    assert_eq!(world.node.leases().usage(id(1))[Item::Leases], 1);
}

#[test]
fn a_degraded_node_grants_nothing_and_says_so() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    world.node.journal_failed();
    let alloc = params(Some(ResourceType::Mem), Some(1)).to_vec();
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &alloc), Status::InternalError);
    assert_eq!(world.refused(1, Op::LeaseRenew, 0, &token, &renew(lease, 9)), Status::InternalError);
    assert_eq!(world.refused(1, Op::LeaseFree, 0, &[], &of(lease)), Status::InternalError);
    assert_eq!(world.ok(3, Op::LeaseQuery, 0, &[], &of(lease)), state(LeaseStatus::Active, 60));
    assert!(world.node.resources().iter().all(|resource| resource.flags == ResourceFlags::DEGRADED));
}

#[test]
fn steps_of_the_clock_move_no_lease() {
    let mut world = World::new();
    let lease = world.alloc(1, ResourceType::Mem, 4096);
    for step in [0, 3600, 100_000] {
        world.now.wall.0 = START.wall.0 - step * SECOND;
        assert_eq!(world.ok(3, Op::LeaseQuery, 0, &[], &of(lease)), state(LeaseStatus::Active, 60));
        world.now.wall.0 = START.wall.0 + step * SECOND;
        assert_eq!(world.ok(3, Op::LeaseQuery, 0, &[], &of(lease)), state(LeaseStatus::Active, 60));
    }
    assert_eq!(world.tick(), []);
    // A restart with a clock that went back a day: the lease does not live longer than a minute from what was written.
    let recovered: berth_fabric::Recovered = world.journal.iter().cloned().collect();
    let mut now = START;
    now.wall.0 -= 86_400 * SECOND;
    let mut world = World::start(config(), world.regions.clone(), recovered, now, 8);
    assert_eq!(world.node.leases().get(lease).unwrap().generation, Generation(2));
    world.pass(Duration::from_mins(1));
    assert_eq!(world.tick(), [lease]);
}

#[test]
fn the_node_says_who_it_is_and_what_it_does_not_do() {
    let mut world = World::new();
    world.pass(Duration::from_millis(2999));
    assert_eq!(world.ok(3, Op::Ping, 0, &[], &[]), Pong { uptime_secs: 2 }.to_vec());
    let node = identity(100);
    let expected = Identity { node_id: node.id().0, controller_pubkey: *node.public_key().as_bytes() };
    assert_eq!(world.ok(3, Op::GetIdentity, 0, &[], &[]), expected.to_vec());
    assert_eq!(world.refused(3, Op::Ping, 0, &[], &[0]), Status::InvalidParams);
    assert_eq!(world.refused(3, Op::GetIdentity, 0, &[], &[0]), Status::InvalidParams);
    let [tasklets, gpu, composite] = [0x0500..0x0505, 0x0600..0x0601, 0x0800..0x0802];
    for op in tasklets.chain(gpu).chain(composite).chain([0x0005, 0xFFFF]) {
        assert_eq!(world.ask_whole(3, op, 0, &[], &[]).answer.status, Status::UnsupportedOp, "{op:#06x}");
    }
    let mut counted = std::collections::BTreeMap::new();
    world.node.counters(&mut |name, count| {
        counted.insert(name.to_owned(), count);
    });
    let counts = ["op_ping", "op_ping_refused", "op_gpu_submit_refused", "unknown_ops", "op_lease_alloc"]
        .map(|name| counted[name]);
    assert_eq!(counts, [1, 1, 1, 2, 0]);
}
