//! Connections that end: with their lease, before a move, slowly, or not at all.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{common::*, rdma::*};
use berth_fabric::{Carrier, Outcome, Recovered, Request, Step, Teardown, journal::Record};
use berth_lease::{Item, LeaseId, Status as Standing};
use berth_wire::fabric::{
    CapRevoke, CapabilityToken, LeaseRelocate, LeaseRelocated, LeaseRenew, Op, RelocateMode, Relocation, ResourceFlags,
    ResourceType, Status, Tlvs, Wire as _,
};

#[test]
fn every_end_of_a_lease_tears_its_binding_down() {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let leases = [(); 3].map(|()| {
        let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
        world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
        lease
    });
    world.ok(1, Op::LeaseFree, 0, &[], &of(leases[0]));
    assert_eq!(told.lock().unwrap().torn_down, [leases[0]]);
    // At the expiry, not at the end of the grace: the transport does not look at the clock.
    world.pass(Duration::from_mins(1));
    world.tick();
    assert_eq!(told.lock().unwrap().bound, BTreeSet::new());
    world.pass(Duration::from_mins(1));
    let ended: BTreeSet<LeaseId> = world.tick().into_iter().collect();
    assert_eq!(ended, leases[1..].iter().copied().collect());
    assert_eq!(told.lock().unwrap().torn_down.len(), 3, "once each");
}

#[test]
fn a_binding_that_looks_at_the_clock_stays_in_grace() {
    let (mut world, told) = world();
    told.lock().unwrap().outlasts_expiry = true;
    let token = world.token(1, ALL);
    let [kept, over] = [(); 2].map(|()| {
        let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
        world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
        lease
    });
    world.pass(Duration::from_mins(1));
    world.tick();
    assert_eq!(told.lock().unwrap().bound, BTreeSet::from([kept, over]), "both are in grace");
    let token = world.token(1, ALL);
    world.ok(1, Op::LeaseRenew, 0, &token, &LeaseRenew { lease_id: kept.0, duration_secs: 60 }.to_vec());
    world.pass(Duration::from_secs(11));
    world.tick();
    assert_eq!(told.lock().unwrap().bound, BTreeSet::from([kept]), "the other one's grace is over");
    assert_eq!(told.lock().unwrap().torn_down, [over]);
}

/// What the client wrote through its transport before a move is answered must be in the copy.
#[test]
fn the_source_of_a_move_is_torn_down_before_its_bytes_are_copied() {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let [src, dst] = [(); 2].map(|()| world.alloc_under(1, ResourceType::Mem, 4096, &token));
    let relocate = |mode| {
        let (src_lease_id, dst_lease_id) = (src.key().0, dst.key().0);
        LeaseRelocate { src_lease_id, dst_lease_id, mode, preserve_until_ms: None }.to_vec()
    };
    world.ok(1, Op::LeaseBind, 0, &token, &bind(src, 2));
    world.ok(1, Op::LeaseRelocate, 0, &[], &relocate(RelocateMode::Copy));
    assert_eq!(told.lock().unwrap().torn_down, []);
    told.lock().unwrap().stuck = true;
    let answer = world.ok(1, Op::LeaseRelocate, 0, &[], &relocate(RelocateMode::Move));
    let LeaseRelocated { bytes_transferred: 0, outcome: Relocation::Failed { reason } } =
        LeaseRelocated::parse(&answer).unwrap()
    else {
        panic!("it was moved")
    };
    assert_eq!(reason.get(), "the source's binding cannot be torn down");
    assert_eq!(world.node.leases().query(src, world.now.mono).unwrap().0, Standing::Active);
    told.lock().unwrap().stuck = false;
    let params = relocate(RelocateMode::Move);
    let (op, source) = (Op::LeaseRelocate.code(), "127.0.0.1:1".parse().unwrap());
    let (carrier, presenter) = (Carrier::Quic, identity(1).id().0);
    let request = Request { carrier, presenter, source, op, resource: 0, token: &[], params: &params };
    let Step::Work(work) = world.node.request(&request, world.now) else { panic!("bytes are to be copied") };
    assert_eq!(told.lock().unwrap().torn_down, [src], "before any job");
    world.node.resume(work.ticket, Ok(()), world.now);
    assert_eq!(told.lock().unwrap().torn_down, [src], "once");
}

#[test]
fn a_failed_teardown_fences_the_resource_until_a_restart_succeeds() {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    told.lock().unwrap().stuck = true;
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), Status::ResourceBusy);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let params = CapRevoke { token_id, ttl_secs: 1 }.to_vec();
    let outcome = world.ask_whole(1, Op::CapRevoke.code(), 0, &token, &params);
    assert_eq!((outcome.answer.status, outcome.answer.result), (Status::ResourceFenced, vec![]));
    assert!(outcome.journal.contains(&Record::LeaseFenced { lease: lease.0 }));
    assert_eq!(outcome.effects.broadcasts.len(), 1, "the token is revoked all the same");
    let fenced = |world: &World| world.node.resources()[0].flags == ResourceFlags::FENCED;
    assert!(fenced(&world));
    let token = world.token(2, ALL);
    let alloc = berth_wire::fabric::LeaseAlloc {
        duration_secs: 1,
        grace_secs: 0,
        resource_type: Some(ResourceType::Mem),
        requested_bytes: Some(1),
        intents: Tlvs::EMPTY,
    };
    assert_eq!(world.refused(2, Op::LeaseAlloc, 0, &token, &alloc.to_vec()), Status::ResourceFenced);
    assert_eq!(world.node.resources()[0].available, (1 << 20) - 4096, "the bytes are nobody's");

    let recovered: Recovered = world.journal.iter().cloned().collect();
    // Without its driver nobody knows whether the transport still serves it.
    let world = World::start(config(), regions(), recovered.clone(), START.after(Duration::from_secs(400)), 9);
    assert!(fenced(&world));
    let (world, told) = restarted(recovered, 5);
    assert_eq!(told.lock().unwrap().torn_down, [lease]);
    assert!(!fenced(&world));
    assert_eq!(world.node.leases().query(lease, world.now.mono).unwrap().0, Standing::Revoked);
    assert_eq!(world.node.resources()[0].available, 1 << 20);
}

/// A node whose bindings take time to tear down, and a lease of 4 KiB that is connected.
fn slowly() -> (World, Arc<Mutex<Told>>, Vec<u8>, LeaseId) {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    told.lock().unwrap().slow = true;
    world.held = Some(Vec::new());
    (world, told, token, lease)
}

/// The only teardown that waits.
fn held(world: &mut World) -> Teardown {
    let mut held = std::mem::take(world.held.as_mut().unwrap());
    assert_eq!(held.len(), 1);
    held.remove(0)
}

fn revoke(world: &mut World, token: &[u8]) -> Outcome {
    let own = world.token(2, ALL);
    let token_id = CapabilityToken::parse(token).unwrap().token_id;
    world.ask_whole(2, Op::CapRevoke.code(), 0, &own, &CapRevoke { token_id, ttl_secs: 1 }.to_vec())
}

#[test]
fn a_lease_keeps_its_bytes_until_a_slow_teardown_is_done() {
    for revoked in [false, true] {
        let (mut world, told, token, lease) = slowly();
        let outcome = if revoked {
            revoke(&mut world, &token)
        } else {
            world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &of(lease))
        };
        assert_eq!(outcome.answer.status, Status::Ok);
        let [ending] = &outcome.endings[..] else { panic!("the answer waits for the teardown") };
        assert!(!ending.is_over() && told.lock().unwrap().bound.contains(&lease));
        assert_eq!(world.node.resources()[0].available, (1 << 20) - 4096);
        assert!(!world.journal.contains(&Record::Ended { lease: lease.0 }));
        // Another revocation waits for the same.
        if revoked {
            let again = revoke(&mut world, &token);
            assert!(again.endings.len() == 1 && !again.endings[0].is_over());
        }
        let teardown = held(&mut world);
        world.tear_down(teardown);
        assert!(ending.is_over() && !ending.has_failed());
        assert_eq!(world.node.resources()[0].available, 1 << 20);
        assert_eq!(world.journal.contains(&Record::Ended { lease: lease.0 }), !revoked);
        assert_eq!(world.node.leases().usage(identity(1).id().0)[Item::Bindings], 0);
    }
}

#[test]
fn a_slow_teardown_that_fails_fences_what_it_was_of() {
    let (mut world, told, token, lease) = slowly();
    told.lock().unwrap().stuck = true;
    let outcome = revoke(&mut world, &token);
    assert!(outcome.endings.iter().all(|ending| !ending.is_over()));
    let teardown = held(&mut world);
    world.tear_down(teardown);
    assert!(outcome.endings.iter().all(berth_fabric::Ending::has_failed));
    assert!(world.journal.contains(&Record::LeaseFenced { lease: lease.0 }));
    assert_eq!(world.node.resources()[0].flags, ResourceFlags::FENCED);
    // Whoever revokes again is told again that its client may still be there.
    assert_eq!(revoke(&mut world, &token).answer.status, Status::ResourceFenced);
}

/// A teardown that an expiry began goes on while the lease is renewed, and a new connection waits for its end.
#[test]
fn a_lease_is_bound_again_when_its_slow_teardown_is_done() {
    let (mut world, told, _, lease) = slowly();
    world.pass(Duration::from_mins(1));
    world.tick();
    let token = world.token(1, ALL);
    let renew = LeaseRenew { lease_id: lease.0, duration_secs: 60 }.to_vec();
    world.ok(1, Op::LeaseRenew, 0, &token, &renew);
    let params = bind(lease, 2);
    let (op, source) = (Op::LeaseBind.code(), "127.0.0.1:1".parse().unwrap());
    let (carrier, presenter) = (Carrier::Quic, identity(1).id().0);
    let request = Request { carrier, presenter, source, op, resource: 0, token: &token, params: &params };
    let Step::Work(work) = world.node.request(&request, world.now) else { panic!("the former is still there") };
    assert!(work.ending.as_ref().is_some_and(|ending| !ending.is_over()));
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &params), Status::ResourceBusy);
    let teardown = held(&mut world);
    world.tear_down(teardown);
    let outcome = world.finish(Step::Work(work)).unwrap();
    assert_eq!(outcome.answer.status, Status::Ok);
    let told = told.lock().unwrap();
    assert_eq!((told.bound.len(), told.torn_down.len()), (1, 1));
}

/// When the client of a connection is gone, the node ends the connection and nothing else of the lease.
#[test]
fn a_lost_client_is_disconnected_and_its_lease_goes_on() {
    let (mut world, told, token, lease) = slowly();
    told.lock().unwrap().lost.push(lease);
    world.tick();
    let teardown = held(&mut world);
    world.tear_down(teardown);
    assert_eq!(told.lock().unwrap().torn_down, [lease]);
    assert!(matches!(world.journal.last(), Some(Record::Unbound { .. })));
    assert_eq!(world.node.leases().query(lease, world.now.mono).unwrap().0, Standing::Active);
    told.lock().unwrap().slow = false;
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
}
