//! A journal cut at every byte: the node that starts from it has exactly what was answered.

use std::{collections::BTreeMap, time::Duration};

use crate::common::*;
use berth_fabric::{
    Recovered,
    journal::{HEADER_LEN, Record, Replay, encode, frame_header, header},
};
use berth_identity::{NodeId, link::Server};
use berth_lease::{LeaseId, Status as Standing};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    CapRevoke, CapabilityToken, FenceSet, LeaseRef, LeaseRelocate, LeaseRenew, Op, RelocateMode, ResourceType,
    Wire as _,
};

const ID: u64 = 99;

/// Where the journal ends after each answered operation, and the state of every lease then.
struct Point {
    len: usize,
    leases: BTreeMap<LeaseId, (Standing, u64)>,
    fence: Option<u64>,
    nonces: BTreeMap<u128, u64>,
}

struct Script {
    world: World,
    file: Vec<u8>,
    frames: u64,
    written: usize,
    points: Vec<Point>,
}

impl Script {
    /// Writes what was journaled since the last answer as one frame.
    fn answered(&mut self, leases: &[LeaseId]) {
        let records = &self.world.journal[self.written..];
        if !records.is_empty() {
            let mut encoded = Vec::new();
            for record in records {
                encode(record, &mut encoded);
            }
            self.frames += 1;
            self.file.extend(frame_header(ID, self.frames, &encoded));
            self.file.extend(encoded);
        }
        self.written = self.world.journal.len();
        let now = self.world.now.mono;
        let node = &self.world.node;
        let time = |at| node.clock().unix(at).0;
        let leases = leases.iter().filter_map(|id| Some((*id, node.leases().query(*id, now)?)));
        let seen = self.world.journal.iter().filter_map(|record| match record {
            Record::Seen { sender, nonce } => Some((*sender, *nonce)),
            _ => None,
        });
        self.points.push(Point {
            len: self.file.len(),
            leases: leases.map(|(id, (status, expires))| (id, (status, time(expires)))).collect(),
            fence: node.fence(),
            nonces: seen.collect(),
        });
    }
}

fn script() -> (Script, Vec<LeaseId>) {
    let world = World::new();
    let mut script = Script { world, file: header(ID).to_vec(), frames: 0, written: 0, points: Vec::new() };
    script.answered(&[]);
    let mut leases = Vec::new();
    let token = script.world.token(1, ALL);
    for kind in [ResourceType::Mem, ResourceType::Block, ResourceType::Mem, ResourceType::Mem] {
        let lease = script.world.alloc_under(1, kind, 4096, &token);
        leases.push(lease);
        script.answered(&leases);
    }
    let other = script.world.token(2, ALL);
    leases.push(script.world.alloc_under(2, ResourceType::Block, 8192, &other));
    script.answered(&leases);
    let mut op = |n, op, token: &[u8], params: Vec<u8>| {
        script.world.pass(Duration::from_millis(300));
        script.world.ok(n, op, 0, token, &params);
        script.answered(&leases);
    };
    op(1, Op::LeaseRenew, &token, LeaseRenew { lease_id: leases[1].0, duration_secs: 90 }.to_vec());
    op(1, Op::LeaseFree, &[], LeaseRef { lease_id: leases[0].0 }.to_vec());
    let (src_lease_id, dst_lease_id) = (leases[2].key().0, leases[3].key().0);
    let mode = RelocateMode::Move;
    let relocate = LeaseRelocate { src_lease_id, dst_lease_id, mode, preserve_until_ms: None };
    op(1, Op::LeaseRelocate, &[], relocate.to_vec());
    op(2, Op::SchedulerFenceSet, &other, FenceSet { new_epoch: 4 }.to_vec());
    let admin = script.world.token(2, ALL);
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let mut op = |n, op, token: &[u8], params: Vec<u8>| {
        script.world.ok(n, op, 0, token, &params);
        script.answered(&leases);
    };
    op(2, Op::CapRevoke, &admin, CapRevoke { token_id, ttl_secs: 400 }.to_vec());
    op(2, Op::LeaseRenew, &admin, LeaseRenew { lease_id: leases[4].0, duration_secs: 30 }.to_vec());
    (script, leases)
}

#[test]
fn a_journal_cut_anywhere_gives_the_state_that_was_answered() {
    let (script, leases) = script();
    assert_eq!(script.points.len(), 12);
    let now = script.world.now;
    for cut in HEADER_LEN..=script.file.len() {
        let mut replay = Replay::new(&script.file[..cut]).unwrap();
        let recovered: Recovered = replay.by_ref().map(Result::unwrap).collect();
        let Some(point) = script.points.iter().rfind(|point| point.len <= cut) else {
            assert_eq!(recovered, Recovered::default(), "cut at {cut}");
            continue;
        };
        assert_eq!(recovered.seen, point.nonces, "cut at {cut}");
        let world = World::start(config(), script.world.regions.clone(), recovered, now, 9);
        assert_eq!(world.node.fence(), point.fence, "cut at {cut}");
        for id in &leases {
            let found = world.node.leases().query(*id, now.mono);
            let time = |at| world.node.clock().unix(at).0;
            let found = found.map(|(status, expires)| (status, time(expires)));
            assert_eq!(found, point.leases.get(id).copied(), "{id} of a journal cut at {cut}");
            let Some((Standing::Active, _)) = found else { continue };
            let before = script.world.node.leases().get(*id);
            let lease = world.node.leases().get(*id).unwrap();
            assert_eq!(lease.generation.0, 2, "its bytes were in memory");
            if let Some(before) = before.filter(|lease| lease.region().is_some()) {
                assert_eq!((lease.region(), lease.base, lease.len), (before.region(), before.base, before.len));
            }
        }
    }
}

#[test]
fn each_restart_raises_the_generation_and_a_snapshot_keeps_it() {
    let (script, leases) = script();
    let mut state: Recovered = script.world.journal.iter().cloned().collect();
    for restart in 2..5 {
        let world = World::start(config(), script.world.regions.clone(), state.clone(), script.world.now, restart);
        assert_eq!(world.node.leases().get(leases[4]).unwrap().generation.0, restart);
        assert_eq!(world.node.epoch(), restart);
        for record in world.journal {
            state.apply(record);
        }
        state.forget_lapsed();
        state = state.records().collect();
    }
}

#[test]
fn requests_from_before_a_restart_are_not_executed_again() {
    let (script, _) = script();
    let recovered: Recovered = script.world.journal.iter().cloned().collect();
    let mut server = Server::default();
    for (sender, nonce) in &recovered.seen {
        server.replay.refuse_up_to(NodeId(*sender), *nonce);
        assert!(!server.replay.is_fresh(NodeId(*sender), *nonce) && server.replay.is_fresh(NodeId(*sender), nonce + 1));
    }
    assert_eq!(recovered.seen.len(), 2);
}

#[test]
fn a_region_that_is_gone_is_not_forgotten_silently() {
    let (script, leases) = script();
    let recovered: Recovered = script.world.journal.iter().cloned().collect();
    let memory_alone = script.world.regions.get(berth_lease::RegionId(0)).unwrap().clone();
    let regions = berth_lease::Regions::new(vec![memory_alone]);
    let start = |now| {
        let (identity, host) = (identity(100), TestHost::new(1).0);
        let starting = berth_fabric::Starting::new(recovered.clone(), Vec::new()).0;
        berth_fabric::Node::start(identity, config(), host, regions.clone(), Vec::new(), starting, now)
    };
    let error = start(script.world.now).unwrap_err();
    assert_eq!(error, berth_fabric::RecoverError::Resource(leases[4]));
    assert!(error.to_string().contains("put the region back"), "{error}");
    let later = script.world.now.after(Duration::from_secs(1000));
    assert!(start(later).is_ok(), "its leases are over");
}

/// As on the wire: one token, many leases, and a journal that does not grow with them.
#[test]
fn a_revocation_of_any_size_is_one_record() {
    let mut world = World::new();
    let token = world.token(1, ALL);
    let leases: Vec<LeaseId> = (0..40).map(|_| world.alloc_under(1, ResourceType::Mem, 4096, &token)).collect();
    let before = world.journal.len();
    let token_id = CapabilityToken::parse(&token).unwrap().token_id;
    let admin = world.token(2, ALL);
    world.ok(2, Op::CapRevoke, 0, &admin, &CapRevoke { token_id, ttl_secs: u32::MAX }.to_vec());
    let at = world.node.clock().unix(world.now.mono);
    let sender = identity(2).id().0;
    // It is remembered for as long as a token can live, whatever was asked for.
    let expected = [
        Record::TokenRevoked { token: token_id, until: at + Duration::from_mins(5) },
        Record::LeasesRevoked { token: token_id, at },
    ];
    assert_eq!(world.journal[before..before + 2], expected);
    assert!(matches!(world.journal[before + 2..], [Record::Seen { sender: seen, .. }] if seen == sender));
    let recovered: Recovered = world.journal.iter().cloned().collect();
    let world = World::start(config(), world.regions.clone(), recovered, world.now, 9);
    for id in leases {
        assert_eq!(world.node.leases().query(id, world.now.mono).unwrap().0, Standing::Revoked);
    }
}

/// The lease lasts its minute whatever the host's clock shows: right again, never set, or a little behind.
#[test]
fn a_clock_that_was_years_ahead_is_set_right() {
    let years = Duration::from_hours(9 * 365 * 24);
    let ahead = Now { wall: START.wall + years, ..START };
    let mut world = World::start(config(), regions(), Recovered::default(), ahead, 7);
    let lease = world.alloc(1, ResourceType::Block, 4096);
    let nearly = START.wall + Duration::from_hours(9 * 365 * 24 - 1);
    for (wall, unix) in [(START.wall, START.wall), (Nanos(SECOND), ahead.wall), (nearly, ahead.wall)] {
        let now = Now { mono: START.mono, wall };
        let mut journal = world.journal.clone();
        for seed in 8..10 {
            let recovered = journal.iter().cloned().collect();
            let next = World::start(config(), world.regions.clone(), recovered, now, seed);
            assert_eq!(next.node.clock().unix(now.mono), unix);
            let minute = now.mono + Duration::from_mins(1);
            assert_eq!(next.node.leases().query(lease, now.mono), Some((Standing::Active, minute)));
            journal.extend(next.journal);
        }
    }
}
