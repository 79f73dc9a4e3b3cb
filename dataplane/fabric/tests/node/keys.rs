//! What ends together with a key: its tokens, leases, attachments and enrolment (profile, decision 33; `KEY_REVOKE` and
//! `KEY_LIST`).

use std::time::Duration;

use crate::common::*;
use berth_fabric::journal::Record;
use berth_fabric::{Carrier, Config, Policy, Recovered, Request, Rule, Settings};
use berth_identity::{Enrolment, token::delegate};
use berth_lease::{LeaseId, Quotas, Status as Standing};
use berth_wire::fabric::{
    CapRefresh, CapabilityToken, Enroll, KeyEntry, KeyList, KeyListAsked, KeyRevoke, KeyRevoked, KeyStanding,
    LeaseExport, LeaseExported, LeaseImport, LeaseImported, LeaseRenew, Op, Perms, ResourceType, Rights, Status,
    TargetRuntime, Wire as _,
};

const READ_ALLOC: Perms = Perms::READ.or(Perms::ALLOC);

fn id(n: u8) -> u128 {
    identity(n).id().0
}

fn settings(rules: &[(u8, Perms)], enrolled: &[u8], enrolment: Enrolment) -> Settings {
    let rule = |&(n, perms): &(u8, Perms)| Rule { presenter: Some(id(n)), perms, resources: None };
    Settings {
        policy: Policy::new(rules.iter().map(rule).collect()),
        quotas: Quotas::default(),
        enrolled: enrolled.iter().map(|n| *identity(*n).public_key()).collect(),
        enrolment,
        max_requests_per_sec: 0,
    }
}

fn refresh(world: &mut World, n: u8, token: &[u8]) -> Result<Vec<u8>, Status> {
    let answer = world.ask(n, Op::CapRefresh, 0, token, &CapRefresh { ttl_secs: 300 }.to_vec());
    if answer.status == Status::Ok { Ok(answer.result) } else { Err(answer.status) }
}

fn perms(token: &[u8]) -> Perms {
    CapabilityToken::parse(token).unwrap().perms
}

/// `KEY_REVOKE` by presenter 1: the answer, and its records without the nonce.
fn revoke(world: &mut World, n: u8, remove: bool) -> (KeyRevoked, Vec<Record>) {
    let token = world.token(1, Perms::ADMIN);
    let params = KeyRevoke { key_id: id(n), remove }.to_vec();
    let outcome = world.ask_whole(1, Op::KeyRevoke.code(), 0, &token, &params);
    assert_eq!(outcome.answer.status, Status::Ok);
    assert!(outcome.quiescence.is_some(), "it waits for accesses from before");
    assert_eq!(outcome.effects.unenrolled, remove);
    let seen = |record: &Record| matches!(record, Record::Seen { .. });
    (
        KeyRevoked::parse(&outcome.answer.result).unwrap(),
        outcome.journal.into_iter().filter(|record| !seen(record)).collect(),
    )
}

fn standing(world: &World, lease: LeaseId) -> Option<Standing> {
    world.node.leases().query(lease, world.now.mono).map(|(standing, _)| standing)
}

/// The status that presenter `n` gets; `None` if its request is dropped.
fn ping(world: &mut World, n: u8) -> Option<Status> {
    let request = Request {
        carrier: Carrier::Quic,
        presenter: id(n),
        source: ([10, 0, 0, n], 5000).into(),
        op: Op::Ping.code(),
        resource: 0,
        token: &[],
        params: &[],
    };
    Some(world.ask_request(&request)?.answer.status)
}

fn restarted(world: &World, config: Config) -> World {
    let recovered: Recovered = world.journal.iter().cloned().collect();
    let snapshot: Recovered = recovered.records().collect();
    assert_eq!(snapshot, recovered, "a snapshot says the same");
    World::start(config, world.regions.clone(), recovered, world.now, 8)
}

#[test]
fn a_refresh_asks_the_policy_of_now() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    world.node.reconfigure(settings(&[(1, READ_ALLOC)], &[1, 2, 3], Enrolment::Closed));
    let less = refresh(&mut world, 1, &token).unwrap();
    assert_eq!(perms(&less), READ_ALLOC, "what the policy gives no more is dropped");
    world.node.reconfigure(settings(&[(1, Perms::WRITE)], &[1, 2, 3], Enrolment::Closed));
    assert_eq!(refresh(&mut world, 1, &less), Err(Status::InsufficientPerm), "and none is left");
    assert_eq!(refresh(&mut world, 1, &token).map(|token| perms(&token)), Ok(Perms::WRITE));
    world.node.reconfigure(settings(&[], &[1, 2, 3], Enrolment::Closed));
    assert_eq!(refresh(&mut world, 1, &token), Err(Status::InsufficientPerm));
}

/// Presenter 3 has no policy. A token passed on to it depends on the policy of the one who passed it, even after
/// refreshes, which drop the links, and after a restart.
#[test]
fn a_refresh_of_what_was_passed_on_asks_for_whom_it_was_issued() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let passed = delegate(&token, &identity(1), identity(2).id(), &[]).unwrap();
    let passed = delegate(&passed, &identity(2), identity(3).id(), &[]).unwrap();
    let mut world = restarted(&world, config());
    let mut fresh = refresh(&mut world, 3, &passed).unwrap();
    for _ in 0..3 {
        world.pass(Duration::from_secs(200));
        fresh = refresh(&mut world, 3, &fresh).unwrap();
        assert_eq!((perms(&fresh), CapabilityToken::parse(&fresh).unwrap().audience), (ALL, id(3)));
    }
    world.node.reconfigure(settings(&[(1, READ_ALLOC), (2, ALL)], &[1, 2, 3], Enrolment::Closed));
    let less = refresh(&mut world, 3, &fresh).unwrap();
    assert_eq!(perms(&less), READ_ALLOC, "another's policy does not count");
    world.node.reconfigure(settings(&[(1, ALL)], &[2, 3], Enrolment::Closed));
    assert_eq!(refresh(&mut world, 3, &less), Err(Status::InsufficientPerm), "its giver is not known any more");
}

#[test]
fn a_revocation_by_holder_is_one_record_and_ends_all_that_the_key_has() {
    let mut world = World::new();
    let (held, passed_on) = (world.token(2, ALL), world.token(2, ALL));
    let leases: Vec<_> = (0..20).map(|_| world.alloc(2, ResourceType::Mem, 4096)).collect();
    let others = world.alloc(1, ResourceType::Mem, 4096);
    let to_another = delegate(&passed_on, &identity(2), identity(3).id(), &[]).unwrap();
    let given = world.token(1, ALL);
    let to_it = delegate(&given, &identity(1), identity(2).id(), &[]).unwrap();
    let attached = {
        let export = LeaseExport {
            lease_id: others.key().0,
            target_runtime_kind: TargetRuntime::Tasklet,
            target_identity: 0,
            rights: Rights::READ,
            ttl_secs: 60,
        };
        let result = world.ok(1, Op::LeaseExportHandle, 0, &[], &export.to_vec());
        let export_handle = LeaseExported::parse(&result).unwrap().export_handle;
        let import = LeaseImport { export_handle }.to_vec();
        let mut import = |n| {
            let result = world.ok(n, Op::LeaseImportHandle, 0, &[], &import);
            LeaseId(LeaseImported::parse(&result).unwrap().local_attach_id.into())
        };
        [import(2), import(3)]
    };
    world.pass(Duration::from_secs(1));
    let (revoked, journal) = revoke(&mut world, 2, false);
    assert_eq!((revoked.leases, revoked.until), (20, START_SECS + 301));
    assert!(matches!(journal[..], [Record::HolderRevoked { .. }]), "{journal:?}");

    let everything_is_over = |world: &mut World| {
        assert!(leases.iter().all(|lease| standing(world, *lease) == Some(Standing::Revoked)));
        assert_eq!(standing(world, others), Some(Standing::Active));
        let mut reader = world.node.table().reader();
        let mut found = |lease: LeaseId| reader.enter().probe(lease.key()).is_some();
        assert_eq!(attached.map(&mut found), [false, true], "its own attachment is gone, another's is not");
        assert!(!world.node.leases().is_of(attached[0], id(2)) && world.node.leases().is_of(attached[1], id(3)));
        for (n, token) in [(2, &held), (3, &to_another), (2, &to_it)] {
            assert_eq!(refresh(world, n, token), Err(Status::InvalidToken));
        }
        assert!(refresh(world, 1, &given).is_ok());
        let renew = LeaseRenew { lease_id: leases[0].0, duration_secs: 9 }.to_vec();
        let token = world.token(2, ALL);
        assert_eq!(world.refused(2, Op::LeaseRenew, 0, &token, &renew), Status::LeaseExpired);
        assert!(refresh(world, 2, &token).is_ok(), "the key is enrolled, and may have tokens anew");
    };
    world.pass(Duration::from_secs(1));
    everything_is_over(&mut world);
    let mut world = restarted(&world, config());
    everything_is_over(&mut world);
}

/// The host's clock goes back after a restart. Tokens issued before that are revoked all the same.
#[test]
fn a_clock_that_went_back_saves_no_token_from_a_revocation_by_holder() {
    let mut world = World::new();
    let token = world.token(2, ALL);
    world.pass(Duration::from_secs(1));
    world.alloc(1, ResourceType::Mem, 4096);
    let mut world = restarted(&world, config());
    world.pass(Duration::from_secs(1));
    let right = world.now;
    world.now.wall.0 -= 1800 * SECOND;
    revoke(&mut world, 2, false);
    world.now = right;
    assert_eq!(refresh(&mut world, 2, &token), Err(Status::InvalidToken));
    world.pass(Duration::from_secs(1));
    let fresh = world.token(2, ALL);
    assert!(refresh(&mut world, 2, &fresh).is_ok());
}

#[test]
fn a_removed_key_is_not_served_whoever_lists_or_enrols_it() {
    let open = || Config { enrolment: Enrolment::Open, ..config() };
    let enrol = |n: u8| Enroll { node_id: id(n), public_key: *identity(n).public_key().as_bytes() }.to_vec();
    let mut world = World::with(open());
    for n in [2, 9] {
        world.ok(n, Op::EnrollRequest, 0, &[], &enrol(n));
    }
    let lease = world.alloc(2, ResourceType::Mem, 4096);
    for n in [2, 9, 77] {
        let (revoked, journal) = revoke(&mut world, n, true);
        assert_eq!(revoked.leases, u32::from(n == 2));
        assert!(matches!(journal[..], [Record::Unenrolled { .. }, Record::HolderRevoked { .. }]), "{journal:?}");
    }
    assert_eq!(standing(&world, lease), Some(Standing::Revoked));
    for restart in [false, true] {
        if restart {
            world = restarted(&world, open());
        }
        for n in [2, 9, 77] {
            assert_eq!(ping(&mut world, n), None, "dropped");
            assert_eq!(world.refused(n, Op::EnrollRequest, 0, &[], &enrol(n)), Status::InsufficientPerm);
        }
        assert!(!world.node.admit(id(2), world.now), "nor are its other messages");
        assert_eq!(ping(&mut world, 3), Some(Status::Ok));
        world.node.reconfigure(settings(&[(1, ALL), (2, ALL)], &[1, 2, 3, 9], Enrolment::Open));
    }
}

#[test]
fn a_closed_node_serves_only_listed_keys_also_after_a_restart() {
    let mut world = World::with(Config { enrolment: Enrolment::Open, ..config() });
    let enrol = Enroll { node_id: id(9), public_key: *identity(9).public_key().as_bytes() }.to_vec();
    world.ok(9, Op::EnrollRequest, 0, &[], &enrol);
    assert_eq!(ping(&mut world, 9), Some(Status::Ok));
    let mut closed = restarted(&world, config());
    assert_eq!([1, 3, 9].map(|n| ping(&mut closed, n)), [Some(Status::Ok), Some(Status::Ok), None]);
    // And at once where a reload closes it.
    world.node.reconfigure(settings(&[(1, ALL)], &[1, 4], Enrolment::Closed));
    assert_eq!([1, 3, 4, 9].map(|n| ping(&mut world, n)), [Some(Status::Ok), None, Some(Status::Ok), None]);
}

#[test]
fn a_node_knows_its_own_key_which_administers_it() {
    let mut world = World::with(Config { policy: Policy::default(), enrolled: Vec::new(), ..config() });
    assert_eq!(ping(&mut world, 100), Some(Status::Ok));
    let request = |perms: Perms| {
        berth_wire::fabric::CapRequest { perms: perms.bits(), ttl_secs: 60, audience: id(100), epoch: None }.to_vec()
    };
    let refused = world.refused(100, Op::CapRequest, 0, &[], &request(Perms::ALLOC));
    assert_eq!(refused, Status::InsufficientPerm, "it leases nothing");
    let token = world.ok(100, Op::CapRequest, 0, &[], &request(Perms::ADMIN | Perms::REVOKE));
    let remove = |n| KeyRevoke { key_id: id(n), remove: true }.to_vec();
    world.ok(100, Op::KeyRevoke, 0, &token, &remove(5));
    assert_eq!(world.refused(100, Op::KeyRevoke, 0, &token, &remove(100)), Status::InvalidParams, "nor ends itself");
    assert_eq!(ping(&mut world, 100), Some(Status::Ok));
}

#[test]
fn keys_are_for_administrators_alone() {
    let mut world = World::new();
    let params = [(Op::KeyRevoke, KeyRevoke { key_id: id(3), remove: true }.to_vec()), {
        (Op::KeyList, KeyListAsked { after: 0, max: 10 }.to_vec())
    }];
    let (admin, other) = (world.token(1, Perms::ADMIN), world.token(1, ALL.without(Perms::ADMIN)));
    for (op, params) in &params {
        assert_eq!(world.refused(1, *op, 0, &[], params), Status::InvalidToken);
        assert_eq!(world.refused(1, *op, 0, &other, params), Status::InsufficientPerm);
        assert_eq!(world.refused(1, *op, 0, &admin, &params[1..]), Status::InvalidParams);
    }
    let none = KeyListAsked { after: 0, max: 0 }.to_vec();
    assert_eq!(world.refused(1, Op::KeyList, 0, &admin, &none), Status::InvalidParams);
}

#[test]
fn keys_are_listed_in_pages_with_how_they_stand() {
    let mut world = World::with(Config { enrolment: Enrolment::Open, ..config() });
    let enrol = Enroll { node_id: id(9), public_key: *identity(9).public_key().as_bytes() }.to_vec();
    world.ok(9, Op::EnrollRequest, 0, &[], &enrol);
    revoke(&mut world, 3, true);
    let token = world.token(1, Perms::ADMIN);
    let mut want: Vec<_> = [1, 2, 3, 9, 100]
        .map(|n| match n {
            3 => KeyEntry { key_id: id(3), public_key: [0; 32], standing: KeyStanding::Removed },
            n => KeyEntry {
                key_id: id(n),
                public_key: *identity(n).public_key().as_bytes(),
                standing: if n == 9 { KeyStanding::Enrolled } else { KeyStanding::Listed },
            },
        })
        .into();
    want.sort_by_key(|entry| entry.key_id);
    let mut listed = Vec::new();
    loop {
        let after = listed.last().map_or(0, |entry: &KeyEntry| entry.key_id);
        let result = world.ok(1, Op::KeyList, 0, &token, &KeyListAsked { after, max: 2 }.to_vec());
        let page = KeyList::parse(&result).unwrap();
        listed.extend(page.keys.iter());
        assert_eq!(page.more, listed.len() < want.len());
        if !page.more {
            break;
        }
    }
    assert_eq!(listed, want);
}
