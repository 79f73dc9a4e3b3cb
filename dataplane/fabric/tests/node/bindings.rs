//! A binding beside the lease table: bound, bound again, counted, and connected anew by a start.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{common::*, rdma::*};
use berth_fabric::{
    Binding, BoundLease, Carrier, Config, Reach, Recovered, Request, Settings, Step, WorkFailed, journal::Record,
};
use berth_lease::{Generation, Item, LeaseId, Quotas, RegionId, Rights, Span, Status as Standing};
use berth_port::Nanos;
use berth_wire::fabric::{
    BindingTlv, CapRevoke, CapabilityToken, ClientTlv, LeaseBind, LeaseRelocate, Op, Perms, RelocateMode,
    ResourceFlags, ResourceType, Status, Tlv, Tlvs, Wire as _,
};

#[test]
fn a_lease_is_bound_and_bound_again() {
    let (mut world, told) = world();
    let token = world.token(1, Perms::ALLOC.or(Perms::READ));
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let mut expected = Vec::new();
    BindingTlv::RdmaRkey(7).write(&mut expected);
    BindingTlv::RdmaPsn(42).write(&mut expected);
    for times in 0..2 {
        assert_eq!(world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), expected);
        assert_eq!(told.lock().unwrap().torn_down.len(), times);
    }
    let bytes = Span { region: RegionId(0), at: 0, len: 4096 };
    let reach = Reach::Bytes { span: bytes, first: 0 };
    let bound = BoundLease { id: lease, generation: Generation(1), rights: Rights::READ, reach, secret: None };
    assert_eq!(told.lock().unwrap().last, Some(bound));

    let other = world.token(2, ALL);
    let unfit = world.token(1, Perms::READ);
    let no_client = LeaseBind { lease_id: lease.0, kind: 2, client: Tlvs::EMPTY }.to_vec();
    let mut refused = |n, token: &[u8], params: &[u8]| world.refused(n, Op::LeaseBind, 0, token, params);
    assert_eq!(refused(1, &[], &bind(lease, 2)), Status::InvalidToken);
    assert_eq!(refused(1, &unfit, &bind(lease, 2)), Status::InsufficientPerm);
    assert_eq!(refused(2, &other, &bind(lease, 2)), Status::InsufficientPerm);
    assert_eq!(refused(1, &token, &bind(LeaseId(9), 2)), Status::ResourceNotFound);
    assert_eq!(refused(1, &token, &bind(lease, 4)), Status::InvalidParams, "no such kind");
    assert_eq!(refused(1, &token, &bind(lease, 6)), Status::UnsupportedOp, "not live here");
    assert_eq!(refused(1, &token, &bind(lease, 2)[..16]), Status::InvalidParams);
    assert_eq!(refused(1, &token, &no_client), Status::InvalidParams, "what the binding says");
    world.pass(Duration::from_mins(1));
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), Status::LeaseExpired);
}

#[test]
fn a_binding_is_ticked_and_its_counters_are_the_nodes() {
    let (mut world, _) = world();
    world.tick();
    world.tick();
    let mut ticks = None;
    world.node.counters(&mut |name, count| {
        if name == "rdma_ticks" {
            ticks = Some(count);
        }
    });
    assert_eq!(ticks, Some(2));
}

/// While a client is looked for, the node serves others.
#[test]
fn what_takes_time_is_done_without_the_node() {
    let (mut world, told) = world();
    told.lock().unwrap().far = true;
    let token = world.token(1, ALL);
    let [first, second] = [(); 2].map(|()| world.alloc_under(1, ResourceType::Mem, 4096, &token));
    let begin = |world: &mut World, lease| {
        let (op, source, params) = (Op::LeaseBind.code(), "127.0.0.1:1".parse().unwrap(), bind(lease, 2));
        let (carrier, presenter) = (Carrier::Quic, identity(1).id().0);
        let request = Request { carrier, presenter, source, op, resource: 0, token: &token, params: &params };
        let Step::Work(work) = world.node.request(&request, world.now) else { panic!("it was done at once") };
        work
    };
    let work = begin(&mut world, first);
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(first, 2)), Status::ResourceBusy, "once at a time");
    assert_eq!(told.lock().unwrap().bound, BTreeSet::new());
    work.prepare.unwrap().run();
    let outcome = done(world.node.resume(work.ticket, Ok(()), world.now));
    assert_eq!(outcome.answer.status, Status::Ok);
    assert_ne!(outcome.answer.result, []);
    assert_eq!(told.lock().unwrap().bound, BTreeSet::from([first]));

    let work = begin(&mut world, second);
    world.ok(1, Op::LeaseFree, 0, &[], &of(second));
    assert_eq!(world.node.resources()[0].available, (1 << 20) - 8192, "its bytes are not another's yet");
    work.prepare.unwrap().run();
    let outcome = done(world.node.resume(work.ticket, Ok(()), world.now));
    assert_eq!((outcome.answer.status, outcome.answer.result), (Status::LeaseExpired, vec![]));
    assert_eq!(told.lock().unwrap().bound, BTreeSet::from([first]));
    assert_eq!(told.lock().unwrap().torn_down.last(), Some(&second), "what was prepared is given up");
    assert_eq!(world.node.resources()[0].available, (1 << 20) - 4096);

    let work = begin(&mut world, first);
    let outcome = done(world.node.resume(work.ticket, Err(WorkFailed), world.now));
    assert_eq!(outcome.answer.status, Status::InternalError);
    assert_eq!(told.lock().unwrap().bound, BTreeSet::new());
}

/// Two places for bindings: those that are being made count, and every end frees a place.
#[test]
fn bindings_have_a_quota_and_give_their_places_back() {
    let (mut world, told) = world();
    let Config { policy, enrolled, enrolment, .. } = world.node.config().clone();
    let quotas = Quotas::new(&[(None, vec![(Item::Bindings, 2)])]);
    world.node.reconfigure(Settings { policy, quotas, enrolled, enrolment, max_requests_per_sec: 0 });
    let token = world.token(1, ALL);
    let [first, second, third, source] = [(); 4].map(|()| world.alloc_under(1, ResourceType::Mem, 4096, &token));
    let has = |world: &World| world.node.leases().usage(identity(1).id().0)[Item::Bindings];
    let full = |world: &mut World| {
        assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(third, 2)), Status::CapacityExceeded);
        assert_eq!((has(world), told.lock().unwrap().bound.contains(&third)), (2, false));
    };
    world.ok(1, Op::LeaseBind, 0, &token, &bind(first, 2));
    // What the binding refuses takes no place.
    let no_client = LeaseBind { lease_id: second.0, kind: 2, client: Tlvs::EMPTY }.to_vec();
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &no_client), Status::InvalidParams);
    assert_eq!(has(&world), 1);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(source, 2));
    full(&mut world);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(source, 2));
    full(&mut world);
    let other = world.token(2, ALL);
    let theirs = world.alloc_under(2, ResourceType::Mem, 4096, &other);
    world.ok(2, Op::LeaseBind, 0, &other, &bind(theirs, 2));

    // Freed, and moved away.
    world.ok(1, Op::LeaseFree, 0, &[], &of(first));
    assert_eq!(has(&world), 1);
    world.ok(1, Op::LeaseBind, 0, &token, &bind(second, 2));
    full(&mut world);
    let (src_lease_id, dst_lease_id) = (source.key().0, third.key().0);
    let relocate = LeaseRelocate { src_lease_id, dst_lease_id, mode: RelocateMode::Move, preserve_until_ms: None };
    world.ok(1, Op::LeaseRelocate, 0, &[], &relocate.to_vec());
    assert_eq!(has(&world), 1);

    // One that is being made has the last place, and gives it back where it comes to nothing.
    told.lock().unwrap().far = true;
    let params = bind(third, 2);
    let (op, source) = (Op::LeaseBind.code(), "127.0.0.1:1".parse().unwrap());
    let (carrier, presenter) = (Carrier::Quic, identity(1).id().0);
    let request = Request { carrier, presenter, source, op, resource: 0, token: &token, params: &params };
    let Step::Work(work) = world.node.request(&request, world.now) else { panic!("it was done at once") };
    let fourth = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(fourth, 2)), Status::CapacityExceeded);
    assert_eq!(done(world.node.resume(work.ticket, Err(WorkFailed), world.now)).answer.status, Status::InternalError);
    assert_eq!(has(&world), 1);
    told.lock().unwrap().far = false;
    world.ok(1, Op::LeaseBind, 0, &token, &bind(third, 2));

    // One that cannot be torn down keeps its place; the others end with the token.
    told.lock().unwrap().stuck = true;
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(third, 2)), Status::ResourceBusy);
    assert_eq!(has(&world), 2);
    told.lock().unwrap().stuck = false;
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    world.ok(1, Op::CapRevoke, 0, &token, &CapRevoke { token_id, ttl_secs: 1 }.to_vec());
    assert_eq!(has(&world), 0);
    assert_eq!(told.lock().unwrap().bound, BTreeSet::from([theirs]));
}

/// Of two ports of one kind, the first that accepts a client gets it.
#[test]
fn the_next_binding_of_a_kind_takes_what_the_first_refuses() {
    let both = [(); 2].map(|()| Arc::<Mutex<Told>>::default());
    let binding = |name, told: &Arc<Mutex<Told>>| -> Box<dyn Binding> { Box::new(Rdma(name, told.clone())) };
    let bindings = vec![binding("mlx5_0", &both[0]), binding("mlx5_1", &both[1])];
    let mut world = World::start_with(config(), regions(), bindings, Recovered::default(), START, 7);
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let bound = || both.each_ref().map(|told| told.lock().unwrap().bound.contains(&lease));
    both[0].lock().unwrap().blind = true;
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    assert_eq!(bound(), [false, true]);
    both[0].lock().unwrap().blind = false;
    world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    assert_eq!(bound(), [true, false], "never over both");
    for told in &both {
        told.lock().unwrap().blind = true;
    }
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &bind(lease, 2)), Status::ResourceBusy);
    assert_eq!((bound(), world.node.leases().usage(identity(1).id().0)[Item::Bindings]), ([false; 2], 0));
    let mut ticks = 0;
    world.tick();
    world.node.counters(&mut |name, count| ticks += if name == "rdma_ticks" { count } else { 0 });
    assert_eq!(ticks, 2, "counters of one kind are added up");
}

/// A start looks only at what was connected. Clients that carry on without asking are let in again.
#[test]
fn a_start_ends_what_was_connected_and_connects_what_goes_on() {
    let (mut world, _) = world();
    let token = world.token(1, ALL);
    let [bound, other, ended, revoked] = [(); 4].map(|()| world.alloc_under(1, ResourceType::Mem, 4096, &token));
    for lease in [bound, ended, revoked] {
        world.ok(1, Op::LeaseBind, 0, &token, &bind(lease, 2));
    }
    world.ok(1, Op::LeaseFree, 0, &[], &of(ended));
    let mut recovered: Recovered = world.journal.iter().cloned().collect();
    recovered.apply(Record::LeaseRevoked { lease: revoked.0, at: Nanos(START.wall.0) });
    let snapshot: Recovered = recovered.records().collect();
    assert_eq!(snapshot.bound, recovered.bound);
    for resumes in [false, true] {
        let told = Arc::new(Mutex::new(Told { resumes, far: true, ..Told::default() }));
        let bindings: Vec<Box<dyn Binding>> = vec![Box::new(Rdma("mlx5_0", told.clone()))];
        let mut world = World::start_with(config(), regions(), bindings, recovered.clone(), START, 9);
        let torn_down: BTreeSet<LeaseId> = told.lock().unwrap().torn_down.iter().copied().collect();
        assert_eq!(torn_down, BTreeSet::from([bound, revoked]));
        for work in std::mem::take(&mut world.works) {
            world.finish(Step::Work(work));
        }
        let expected = if resumes { BTreeSet::from([bound]) } else { BTreeSet::new() };
        assert_eq!(told.lock().unwrap().bound, expected);
        assert_eq!(world.node.leases().query(other, world.now.mono).unwrap().0, Standing::Active);
        let mut after = recovered.clone();
        world.journal.into_iter().for_each(|record| after.apply(record));
        assert_eq!(after.bound.keys().map(|(lease, _)| LeaseId(*lease)).collect::<BTreeSet<_>>(), expected);
    }
    // Another device's connections have ended with the process.
    let bindings: Vec<Box<dyn Binding>> = vec![Box::new(Rdma("mlx5_1", Arc::default()))];
    let world = World::start_with(config(), regions(), bindings, recovered, START, 9);
    assert_eq!(world.node.resources()[0].flags, ResourceFlags::NONE);
}

#[test]
fn what_a_client_says_of_itself_is_short() {
    let (mut world, told) = world();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let mut client = Vec::new();
    ClientTlv::RdmaPeer { qp_num: 1, gid: [0; 16], psn: 41, mtu: 1024 }.write(&mut client);
    Tlv::append(&mut client, 0x02FF, |value| value.extend([0; 1024]));
    let params = LeaseBind { lease_id: lease.0, kind: 2, client: Tlvs::parse(&client).unwrap() }.to_vec();
    assert_eq!(world.refused(1, Op::LeaseBind, 0, &token, &params), Status::InvalidParams);
    assert_eq!(told.lock().unwrap().bound, BTreeSet::new());
}
