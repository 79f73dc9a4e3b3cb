//! A binding beside the lease table: bound, bound again, torn down, and what happens if that fails.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::common::*;
use berth_fabric::{
    Binding, BlockingWork, BoundLease, Carrier, Config, Outcome, Reach, Recovered, Request, Settings, Step, Teardown,
    TeardownFailed, WorkFailed, journal::Record,
};
use berth_lease::{Generation, Item, LeaseId, Quotas, RegionId, Rights, Span, Status as Standing};
use berth_port::Nanos;
use berth_wire::fabric::{
    BindKind, BindingTlv, CapRevoke, CapabilityToken, ClientTlv, LeaseBind, LeaseRef, LeaseRelocate, LeaseRelocated,
    LeaseRenew, Op, Perms, RelocateMode, Relocation, ResourceFlags, ResourceType, Status, Tlv, Tlvs, Wire as _,
};

/// What the node has told the transport.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is another fault")]
struct Told {
    bound: BTreeSet<LeaseId>,
    last: Option<BoundLease>,
    torn_down: Vec<LeaseId>,
    stuck: bool,
    ticks: u64,
    /// Whether clients must be looked for first.
    far: bool,
    found: bool,
    /// Whether tearing down takes time.
    slow: bool,
    /// Whether it finds no client.
    blind: bool,
    /// Whether its clients carry on after a restart.
    resumes: bool,
    /// Whether it looks at the clock itself.
    outlasts_expiry: bool,
    /// Leases whose clients are gone.
    lost: Vec<LeaseId>,
}

/// An RDMA binding without a device.
#[derive(Debug)]
struct Rdma(&'static str, Arc<Mutex<Told>>);

impl Binding for Rdma {
    fn kind(&self) -> BindKind {
        BindKind::Rdma
    }

    fn name(&self) -> &'static str {
        self.0
    }

    fn resumes(&self) -> bool {
        self.told().resumes
    }

    fn outlasts_expiry(&self) -> bool {
        self.told().outlasts_expiry
    }

    fn prepare(&mut self, _: &BoundLease, _: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let Told { far, blind, .. } = *self.told();
        if blind {
            return Err(Status::ResourceBusy);
        }
        let told = self.1.clone();
        Ok(far.then(|| BlockingWork::new(move || told.lock().unwrap().found = true)))
    }

    fn bind(&mut self, lease: &BoundLease, client: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let peer = client.iter().find_map(|tlv| ClientTlv::read(tlv).ok().flatten()).ok_or(Status::InvalidParams)?;
        let ClientTlv::RdmaPeer { psn, .. } = peer else { return Err(Status::InvalidParams) };
        let mut told = self.told();
        assert!(told.bound.insert(lease.id), "it was torn down first");
        assert_eq!(told.far, told.found, "the client was looked for");
        told.last = Some(*lease);
        BindingTlv::RdmaRkey(7).write(out);
        BindingTlv::RdmaPsn(psn + 1).write(out);
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        if self.told().slow {
            let told = self.1.clone();
            return Ok(Some(BlockingWork::new(move || told.lock().unwrap().end(lease))));
        }
        self.told().end(lease);
        self.torn_down(lease).map(|()| None)
    }

    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        if self.told().bound.contains(&lease) { Err(TeardownFailed) } else { Ok(()) }
    }

    fn tick(&mut self, _: Nanos, lost: &mut Vec<LeaseId>) {
        let mut told = self.told();
        told.ticks += 1;
        lost.append(&mut told.lost);
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        visit("rdma_ticks", self.told().ticks);
    }
}

impl Rdma {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.1.lock().unwrap()
    }
}

impl Told {
    fn end(&mut self, lease: LeaseId) {
        if self.stuck {
            self.bound.insert(lease);
        } else {
            self.bound.remove(&lease);
            self.torn_down.push(lease);
        }
    }
}

fn world() -> (World, Arc<Mutex<Told>>) {
    restarted(Recovered::default(), 0)
}

fn restarted(recovered: Recovered, after: u64) -> (World, Arc<Mutex<Told>>) {
    let told = Arc::<Mutex<Told>>::default();
    let bindings: Vec<Box<dyn Binding>> = vec![Box::new(Rdma("mlx5_0", told.clone()))];
    let now = START.after(Duration::from_secs(after));
    (World::start_with(config(), regions(), bindings, recovered, now, 7 + after), told)
}

fn bind(lease: LeaseId, kind: u8) -> Vec<u8> {
    let mut client = Vec::new();
    ClientTlv::RdmaPeer { qp_num: 1, gid: [0; 16], psn: 41, mtu: 1024 }.write(&mut client);
    LeaseBind { lease_id: lease.0, kind, client: Tlvs::parse(&client).unwrap() }.to_vec()
}

fn of(lease: LeaseId) -> Vec<u8> {
    LeaseRef { lease_id: lease.0 }.to_vec()
}

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
