//! Tokens, policy, the scheduler's fence, enrolment and rates, through the node's operations (decisions 2, 4 and 8 to
//! 12).

use std::time::Duration;

use crate::common::*;
use berth_fabric::{Carrier, Config, Policy, Recovered, Request, Rule};
use berth_identity::{Enrolment, token::delegate, verify_certificate};
use berth_lease::Status as Standing;
use berth_wire::fabric::{
    CapRefresh, CapRequest, CapRevoke, CapabilityToken, Caveat, Enroll, FenceSet, LeaseAlloc, LeaseRef, LeaseRenew,
    List, Op, Perms, ResourceType, RevokeBroadcast, Status, Tlvs, Wire as _,
};

fn id(n: u8) -> u128 {
    identity(n).id().0
}

fn request(perms: Perms, audience: u8, epoch: Option<u64>) -> Vec<u8> {
    CapRequest { perms: perms.bits(), ttl_secs: 60, audience: id(audience), epoch }.to_vec()
}

fn alloc_params(bytes: u64) -> Vec<u8> {
    LeaseAlloc {
        duration_secs: 60,
        grace_secs: 10,
        resource_type: Some(ResourceType::Mem),
        requested_bytes: Some(bytes),
        intents: Tlvs::EMPTY,
    }
    .to_vec()
}

fn set_fence(world: &mut World, epoch: u64) -> Status {
    let params = CapRequest { perms: Perms::ADMIN.bits(), ttl_secs: 60, audience: id(1), epoch: fence(world) };
    let admin = world.ok(1, Op::CapRequest, 0, &[], &params.to_vec());
    world.ask(1, Op::SchedulerFenceSet, 0, &admin, &FenceSet { new_epoch: epoch }.to_vec()).status
}

fn fence(world: &mut World) -> Option<u64> {
    let state = world.ok(3, Op::SchedulerFenceGet, 0, &[], &[]);
    let (installed, epoch) = state.split_at(1);
    let epoch = u64::from_be_bytes(epoch.try_into().unwrap());
    assert!(installed == [1] || epoch == 0);
    (installed == [1]).then_some(epoch)
}

#[test]
fn a_token_says_what_was_asked_for() {
    let mut world = World::new();
    let mem = world.node.resources()[0].resource_id;
    let params = CapRequest { perms: 5, ttl_secs: 1000, audience: id(1), epoch: Some(9) };
    let token = world.ok(1, Op::CapRequest, mem, &[], &params.to_vec());
    let token = CapabilityToken::parse(&token).unwrap();
    assert_eq!((token.issuer, token.audience, token.resource_id), (id(100), id(1), mem));
    assert_eq!(token.perms, Perms::READ | Perms::ALLOC);
    assert_eq!((token.issued_at, token.expires_at), (START_SECS, START_SECS + 300), "cut to 300 s");
    assert_eq!(token.epoch, 0, "without a fence the trailer is ignored");
    assert!(token.caveats.is_empty() && token.links.is_empty());
}

#[test]
fn policy_says_who_may_have_what() {
    let rule = |n: u8, perms, resources| Rule { presenter: Some(id(n)), perms, resources };
    let mem = World::new().node.resources()[0].resource_id;
    let policy = Policy::new(vec![
        rule(1, Perms::READ | Perms::ALLOC | Perms::DELEGATE, None),
        rule(2, Perms::READ, None),
        rule(2, Perms::ALLOC, Some(vec![mem])),
    ]);
    let mut world = World::with(Config { policy, ..config() });
    let mut ask = |n, resource, params: Vec<u8>| world.ask(n, Op::CapRequest, resource, &[], &params).status;
    let alloc = |audience| request(Perms::ALLOC, audience, None);
    assert_eq!(ask(1, 0, alloc(1)), Status::Ok);
    assert_eq!(ask(1, 0, request(Perms::WRITE, 1, None)), Status::InsufficientPerm);
    assert_eq!(ask(3, 0, alloc(3)), Status::InsufficientPerm, "enrolled, but without a rule");
    assert_eq!(ask(2, 0, alloc(2)), Status::InsufficientPerm, "on one resource only");
    assert_eq!(ask(2, mem, alloc(2)), Status::Ok);
    assert_eq!(ask(1, mem, alloc(2)), Status::Ok, "within both policies");
    assert_eq!(ask(1, 0, alloc(2)), Status::InsufficientPerm);
    assert_eq!(ask(2, mem, alloc(1)), Status::InsufficientPerm, "no DELEGATE");
    assert_eq!(ask(1, 0, alloc(50)), Status::InsufficientPerm, "the audience is not enrolled");
    let unknown = CapRequest { perms: 0x80, ttl_secs: 60, audience: id(1), epoch: None };
    assert_eq!(ask(1, 0, unknown.to_vec()), Status::InsufficientPerm);
    let forever = CapRequest { perms: 4, ttl_secs: 0, audience: id(1), epoch: None };
    assert_eq!(ask(1, 0, forever.to_vec()), Status::InvalidParams);
    for len in [0, 23, 25, 31, 33] {
        assert_eq!(ask(1, 0, vec![0; len]), Status::InvalidParams, "{len}");
    }
}

#[test]
fn each_op_wants_its_permission_and_the_token_goes_before_the_params() {
    let mut world = World::new();
    let lease = world.alloc(1, ResourceType::Mem, 4096);
    let ops = [
        (Op::LeaseAlloc, Perms::ALLOC, alloc_params(4096)),
        (Op::LeaseRenew, Perms::ALLOC, LeaseRenew { lease_id: lease.0, duration_secs: 9 }.to_vec()),
        (Op::CapRevoke, Perms::REVOKE, CapRevoke { token_id: 5, ttl_secs: 1 }.to_vec()),
        (Op::CapRefresh, Perms::NONE, CapRefresh { ttl_secs: 5 }.to_vec()),
        (Op::SchedulerFenceSet, Perms::ADMIN, FenceSet { new_epoch: 1 }.to_vec()),
    ];
    for (op, perm, params) in ops {
        assert_eq!(world.refused(1, op, 0, &[], &[1]), Status::InvalidToken, "{op}");
        let others = Perms::ALL.without(perm);
        let lacking = world.token(1, others);
        if perm != Perms::NONE {
            assert_eq!(world.refused(1, op, 0, &lacking, &[1]), Status::InsufficientPerm, "{op}");
        }
        let token = world.token(1, if perm == Perms::NONE { Perms::READ } else { perm });
        assert_eq!(world.refused(2, op, 0, &token, &params), Status::InvalidToken, "{op}, held by another");
        assert_eq!(world.refused(1, op, 0, &token, &[1]), Status::InvalidParams, "{op}");
        assert_eq!(world.ask(1, op, 0, &token, &params).status, Status::Ok, "{op}");
    }
}

#[test]
fn a_token_for_one_resource_reaches_no_other_and_not_the_node() {
    let mut world = World::new();
    let resources: Vec<_> = world.node.resources().iter().map(|resource| resource.resource_id).collect();
    let token = world.ok(1, Op::CapRequest, resources[0], &[], &request(ALL, 1, None));
    assert_eq!(world.refused(1, Op::LeaseAlloc, resources[1], &token, &alloc_params(512)), Status::InsufficientPerm);
    assert_eq!(world.ask(1, Op::LeaseAlloc, resources[0], &token, &alloc_params(512)).status, Status::Ok);
    assert_eq!(world.ask(1, Op::LeaseAlloc, 0, &token, &alloc_params(512)).status, Status::Ok, "any: the token's");
    let revoke = CapRevoke { token_id: 5, ttl_secs: 1 }.to_vec();
    assert_eq!(world.refused(1, Op::CapRevoke, 0, &token, &revoke), Status::InsufficientPerm);
    let fence = FenceSet { new_epoch: 1 }.to_vec();
    assert_eq!(world.refused(1, Op::SchedulerFenceSet, 0, &token, &fence), Status::InsufficientPerm);
    let disk = world.alloc(1, ResourceType::Block, 512);
    let renew = LeaseRenew { lease_id: disk.0, duration_secs: 9 }.to_vec();
    assert_eq!(world.refused(1, Op::LeaseRenew, 0, &token, &renew), Status::InsufficientPerm);
}

#[test]
fn delegated_tokens_allocate_within_their_range() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let range = Caveat::Range { offset: 1024, len: 1024 };
    let passed = delegate(&token, &identity(1), identity(3).id(), &[range]).unwrap();
    assert_eq!(world.refused(3, Op::LeaseAlloc, 0, &passed, &alloc_params(2049)), Status::InvalidToken);
    let lease = world.alloc_under(3, ResourceType::Mem, 2048, &passed);
    let entry = world.node.leases().get(lease).unwrap();
    assert_eq!((entry.holder, entry.len), (id(3), 2048));
    let limited = delegate(&token, &identity(1), identity(3).id(), &[Caveat::RateLimit(1)]).unwrap();
    world.alloc_under(3, ResourceType::Mem, 512, &limited);
    assert_eq!(world.refused(3, Op::LeaseAlloc, 0, &limited, &alloc_params(512)), Status::RateLimited);
    world.pass(Duration::from_secs(1));
    world.alloc_under(3, ResourceType::Mem, 512, &limited);
}

#[test]
fn a_refreshed_token_is_the_presenters() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let passed = delegate(&token, &identity(1), identity(3).id(), &[Caveat::RateLimit(9)]).unwrap();
    world.pass(Duration::from_secs(200));
    let fresh = world.ok(3, Op::CapRefresh, 0, &passed, &CapRefresh { ttl_secs: 400 }.to_vec());
    let (old, fresh) = (CapabilityToken::parse(&passed).unwrap(), CapabilityToken::parse(&fresh).unwrap());
    assert_eq!((fresh.token_id, fresh.audience, fresh.perms), (old.token_id, id(3), old.perms));
    assert_eq!((fresh.issued_at, fresh.expires_at), (START_SECS + 200, START_SECS + 500));
    assert_eq!(fresh.caveats.iter().collect::<Vec<_>>(), [Caveat::RateLimit(9), Caveat::Depth(7)]);
    assert!(fresh.links.is_empty());
    assert_eq!(
        world.refused(3, Op::CapRefresh, 0, &passed, &CapRefresh { ttl_secs: 0 }.to_vec()),
        Status::InvalidParams
    );
    world.pass(Duration::from_secs(100));
    assert_eq!(
        world.refused(3, Op::CapRefresh, 0, &passed, &CapRefresh { ttl_secs: 5 }.to_vec()),
        Status::InvalidToken
    );
}

#[test]
fn a_revocation_takes_the_leases_and_every_descendant_of_the_token() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let passed = delegate(&token, &identity(1), identity(2).id(), &[]).unwrap();
    let fresh = world.ok(1, Op::CapRefresh, 0, &token, &CapRefresh { ttl_secs: 300 }.to_vec());
    let mine = world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let theirs = world.alloc_under(2, ResourceType::Mem, 4096, &passed);
    let other = world.alloc(1, ResourceType::Mem, 4096);
    // Renewed under another token, it still goes with the one it was allocated under.
    let second = world.token(1, ALL);
    world.ok(1, Op::LeaseRenew, 0, &second, &LeaseRenew { lease_id: mine.0, duration_secs: 100 }.to_vec());

    let revoker = world.token(2, Perms::REVOKE);
    let outcome = world.ask_whole(2, Op::CapRevoke.code(), 0, &revoker, &CapRevoke { token_id, ttl_secs: 5 }.to_vec());
    assert_eq!(outcome.answer.status, Status::Ok);
    let broadcast = RevokeBroadcast::parse(&outcome.answer.result).unwrap();
    assert_eq!((broadcast.issuer, broadcast.until), (id(100), START_SECS + 300));
    assert_eq!(broadcast.token_ids.iter().collect::<Vec<_>>(), [token_id]);
    assert_eq!(outcome.effects.broadcasts, std::slice::from_ref(&outcome.answer.result));
    assert!(outcome.effects.ended.contains(&mine) && outcome.effects.ended.contains(&theirs));
    let status = |world: &World, lease| world.node.leases().query(lease, world.now.mono).unwrap().0;
    assert_eq!(
        [mine, theirs, other].map(|lease| status(&world, lease)),
        [Standing::Revoked, Standing::Revoked, Standing::Active]
    );
    for (n, token) in [(1, &token), (2, &passed), (1, &fresh)] {
        assert_eq!(world.refused(n, Op::LeaseAlloc, 0, token, &alloc_params(512)), Status::InvalidToken);
        assert_eq!(
            world.refused(n, Op::CapRefresh, 0, token, &CapRefresh { ttl_secs: 5 }.to_vec()),
            Status::InvalidToken
        );
    }

    let recovered: Recovered = world.journal.iter().cloned().collect();
    let mut world = World::start(config(), world.regions.clone(), recovered, world.now, 8);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &fresh, &alloc_params(512)), Status::InvalidToken);
    assert_eq!(status(&world, mine), Standing::Revoked, "nothing comes back with a restart");
}

#[test]
fn broadcasts_count_only_from_the_node_and_administrators() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let ids = [token_id];
    let mut obeyed = |sender, issuer| {
        let revoked = RevokeBroadcast { issuer, token_ids: List::of(&ids).unwrap(), until: START_SECS + 300 };
        world.node.revoke_broadcast(sender, &revoked, world.now).is_some()
    };
    assert!(!obeyed(id(3), id(3)), "without ADMIN");
    assert!(!obeyed(id(1), id(100)), "in another's name");
    assert!(!obeyed(id(77), id(77)));
    assert!(obeyed(id(1), id(1)) && obeyed(id(100), id(100)));
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &alloc_params(512)), Status::InvalidToken);
}

#[test]
fn a_revocation_takes_leases_back_though_no_more_are_remembered_and_all_lapse_with_the_tokens() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let lease = world.alloc_under(1, ResourceType::Mem, 512, &token);
    let admin = world.token(2, ALL);
    for first in (0..1 << 20).step_by(1024) {
        let ids: Vec<u128> = (first..first + 1024).collect();
        let revoked = RevokeBroadcast { issuer: id(1), token_ids: List::of(&ids).unwrap(), until: u64::MAX };
        world.node.revoke_broadcast(id(1), &revoked, world.now).unwrap();
    }
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let revoke = CapRevoke { token_id, ttl_secs: 1 }.to_vec();
    assert_eq!(world.refused(2, Op::CapRevoke, 0, &admin, &revoke), Status::CapacityExceeded);
    assert_eq!(world.node.leases().query(lease, world.now.mono).unwrap().0, Standing::Revoked);
    let recovered: Recovered = world.journal.iter().cloned().collect();
    assert!(recovered.leases[&lease.0].revoked.is_some());
    world.pass(Duration::from_mins(5));
    let admin = world.token(2, ALL);
    world.ok(2, Op::CapRevoke, 0, &admin, &revoke);
}

#[test]
fn the_fence_rises_and_tokens_before_it_are_stale() {
    let mut world = World::new();
    assert_eq!(fence(&mut world), None);
    let before = world.token(1, ALL);
    assert_eq!(set_fence(&mut world, 0), Status::InvalidParams);
    assert_eq!(set_fence(&mut world, 7), Status::Ok);
    assert_eq!(fence(&mut world), Some(7));
    for epoch in [0, 6, 7] {
        assert_eq!(set_fence(&mut world, epoch), Status::StaleEpoch, "{epoch}");
    }
    for op in [Op::LeaseAlloc, Op::CapRefresh, Op::CapRevoke, Op::SchedulerFenceSet, Op::LeaseRenew] {
        assert_eq!(world.refused(1, op, 0, &before, &[]), Status::StaleEpoch, "{op}");
    }
    let mut ask = |epoch| world.ask(1, Op::CapRequest, 0, &[], &request(ALL, 1, epoch)).status;
    assert_eq!([None, Some(6), Some(8)].map(&mut ask), [Status::StaleEpoch; 3]);
    assert_eq!(ask(Some(7)), Status::Ok);
    let token = world.token(1, ALL);
    assert_eq!(CapabilityToken::parse(&token).unwrap().epoch, 7);
    world.alloc_under(1, ResourceType::Mem, 512, &token);

    let recovered: Recovered = world.journal.iter().cloned().collect();
    let mut world = World::start(config(), world.regions.clone(), recovered, world.now, 8);
    assert_eq!(fence(&mut world), Some(7), "it survives a restart");
    assert_eq!(set_fence(&mut world, 8), Status::Ok);
    assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &alloc_params(512)), Status::StaleEpoch);
}

#[test]
fn a_node_that_wants_a_fence_gives_only_administrators_a_token_without() {
    let mut world = World::with(Config { require_fence: true, ..config() });
    let mut ask = |perms, epoch| world.ask(1, Op::CapRequest, 0, &[], &request(perms, 1, epoch)).status;
    assert_eq!(ask(Perms::ALLOC, None), Status::FenceRequired);
    assert_eq!(ask(Perms::ALLOC, Some(5)), Status::FenceRequired);
    assert_eq!(ask(Perms::ADMIN | Perms::ALLOC, None), Status::FenceRequired);
    let admin = world.token(1, Perms::ADMIN);
    let refresh = CapRefresh { ttl_secs: 60 }.to_vec();
    assert_eq!(world.refused(1, Op::CapRefresh, 0, &admin, &refresh), Status::FenceRequired);
    assert_eq!(world.ask(1, Op::SchedulerFenceSet, 0, &admin, &FenceSet { new_epoch: 1 }.to_vec()).status, Status::Ok);
    assert_eq!(world.ask(1, Op::CapRequest, 0, &[], &request(Perms::ALLOC, 1, Some(1))).status, Status::Ok);
}

#[test]
fn enrolment_is_closed_unless_it_is_open() {
    let params = |n: u8| Enroll { node_id: id(n), public_key: *identity(n).public_key().as_bytes() }.to_vec();
    let mut closed = World::new();
    assert_eq!(closed.refused(9, Op::EnrollRequest, 0, &[], &params(9)), Status::InsufficientPerm);
    assert!(!closed.node.knows(id(9)));

    let open = || Config { enrolment: Enrolment::Open, ..config() };
    let mut world = World::with(open());
    let certificate = world.ok(9, Op::EnrollRequest, 0, &[], &params(9));
    let key = verify_certificate(&certificate, identity(100).public_key(), START_SECS).unwrap();
    assert_eq!(&key, identity(9).public_key());
    assert_eq!(
        world.refused(9, Op::CapRequest, 0, &[], &request(Perms::READ, 9, None)),
        Status::InsufficientPerm,
        "an enrolled key has no permissions of its own"
    );
    let raw = |carrier, params| Request {
        carrier,
        presenter: id(9),
        source: ([10, 0, 0, 9], 1).into(),
        op: Op::EnrollRequest.code(),
        resource: 0,
        token: &[],
        params,
    };
    let sound = params(9);
    assert!(world.ask_request(&raw(Carrier::Udp { nonce: 900 }, &sound[..47])).is_none(), "dropped");
    let on_quic = world.ask_request(&raw(Carrier::Quic, &sound)).unwrap();
    assert_eq!(on_quic.answer.status, Status::UnsupportedOp);

    let recovered: Recovered = world.journal.iter().cloned().collect();
    let world = World::start(open(), world.regions.clone(), recovered, world.now, 8);
    assert!(world.node.knows(id(9)), "it survives a restart");
}

#[test]
fn a_presenter_is_limited_by_the_second() {
    let mut world = World::with(Config { max_requests_per_sec: 3, ..config() });
    let mut ping = |n, after| {
        world.now = START.after(Duration::from_millis(after));
        world.ask(n, Op::Ping, 0, &[], &[]).status
    };
    assert_eq!([0; 5].map(|after| ping(1, after))[2..], [Status::Ok, Status::RateLimited, Status::RateLimited]);
    assert_eq!(ping(2, 0), Status::Ok, "each for itself");
    assert_eq!(ping(1, 999), Status::RateLimited);
    assert_eq!(ping(1, 1000), Status::Ok);
    let mut unlimited = World::new();
    let pings = (0..50_000).map(|_| unlimited.ask(1, Op::Ping, 0, &[], &[]).status);
    assert!(pings.into_iter().all(|status| status == Status::Ok), "0 is off");
}

#[test]
fn a_lease_is_freed_by_its_holder_without_a_token() {
    let mut world = World::new();
    let lease = world.alloc(1, ResourceType::Mem, 4096);
    let params = LeaseRef { lease_id: lease.0 }.to_vec();
    assert_eq!(world.refused(2, Op::LeaseFree, 0, &[], &params), Status::InsufficientPerm);
    assert_eq!(world.ask(1, Op::LeaseFree, 0, &[], &params).status, Status::Ok);
    assert_eq!(world.refused(1, Op::LeaseFree, 0, &[], &params), Status::ResourceNotFound);
}

/// The second revocation of a token finds no leases, but is also answered only when accesses have ended.
#[test]
fn every_revocation_waits_for_accesses_from_before() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    world.alloc_under(1, ResourceType::Mem, 4096, &token);
    let access = world.node.table().reader().hold();
    let revoker = world.token(2, Perms::REVOKE);
    let revoke = CapRevoke { token_id, ttl_secs: 5 }.to_vec();
    let mut outcomes =
        [(); 2].map(|()| world.ask_whole(2, Op::CapRevoke.code(), 0, &revoker, &revoke).quiescence.unwrap());
    assert!(outcomes.iter_mut().all(|quiescence| !quiescence.is_over()));
    drop(access);
    assert!(outcomes.iter_mut().all(berth_lease::Quiescence::is_over));
}

/// A revocation made while the host's clock is wrong holds when the clock is right again.
#[test]
fn a_clock_that_was_set_back_does_not_shorten_a_revocation() {
    for restarted in [false, true] {
        let mut world = World::new();
        let token = world.token(1, ALL);
        let token_id = CapabilityToken::parse(&token).unwrap().token_id;
        let (right, two_hours) = (world.now.wall, Duration::from_hours(2).as_nanos() as u64);
        world.now.wall.0 -= two_hours;
        let revoker = world.token(2, Perms::REVOKE);
        world.ok(2, Op::CapRevoke, 0, &revoker, &CapRevoke { token_id, ttl_secs: 5 }.to_vec());
        world.now.wall = right;
        if restarted {
            let recovered: Recovered = world.journal.iter().cloned().collect();
            world = World::start(config(), world.regions.clone(), recovered, world.now, 8);
        }
        assert_eq!(world.refused(1, Op::LeaseAlloc, 0, &token, &alloc_params(512)), Status::InvalidToken);
    }
}
