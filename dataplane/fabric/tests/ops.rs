//! Every op through the node's public face, with exact results.

mod common;

use std::time::Duration;

use berth_fabric::Recovered;
use berth_lease::{Generation, Status as Standing};
use berth_wire::fabric::{
    CapabilityToken, Identity, LeaseAlloc, LeaseGrant, Op, Pong, ResourceType, Status, Tlvs, Wire as _,
};
use common::*;

#[test]
fn the_node_says_who_it_is() {
    let mut world = World::new();
    world.pass(Duration::from_millis(2999));
    assert_eq!(world.ok(3, Op::Ping, 0, &[], &[]), Pong { uptime_secs: 2 }.to_vec());
    let node = identity(100);
    let expected = Identity { node_id: node.id().0, controller_pubkey: *node.public_key().as_bytes() };
    assert_eq!(world.ok(3, Op::GetIdentity, 0, &[], &[]), expected.to_vec());
    assert_eq!(world.refused(3, Op::Ping, 0, &[], &[0]), Status::InvalidParams);
    assert_eq!(world.ask_whole(3, 0x0005, 0, &[], &[]).answer.status, Status::UnsupportedOp);
}

#[test]
fn a_lease_is_granted_and_survives_a_restart() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let parsed = CapabilityToken::parse(&token).unwrap();
    assert_eq!((parsed.issued_at, parsed.expires_at), (START_SECS, START_SECS + 300));
    let params = LeaseAlloc {
        duration_secs: 60,
        grace_secs: 10,
        resource_type: Some(ResourceType::Mem),
        requested_bytes: Some(5000),
        intents: Tlvs::EMPTY,
    };
    let result = world.ok(1, Op::LeaseAlloc, 0, &token, &params.to_vec());
    let grant = LeaseGrant::parse(&result).unwrap();
    assert_eq!(grant.expires_at, START_SECS + 60);
    let block = world.alloc_under(1, ResourceType::Block, 4096, &token);

    let recovered: Recovered = world.journal.iter().cloned().collect();
    let later = START.after(Duration::from_secs(5));
    let world = World::start(config(), world.regions.clone(), recovered, later, 8);
    let leases = world.node.leases();
    let mem = leases.get(berth_lease::LeaseId(grant.lease_id)).unwrap();
    assert_eq!((mem.generation, mem.len), (Generation(2), 5000));
    assert_eq!(leases.query(mem.id, later.mono).unwrap().0, Standing::Active);
    assert_eq!(leases.get(block).unwrap().len, 4096);
}
