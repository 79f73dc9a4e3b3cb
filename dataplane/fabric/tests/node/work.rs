//! Work on leased bytes: what the node leaves to its host, and how it ends together with the leases.
#![allow(clippy::doc_markdown)] // the names of ops

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::common::*;
use berth_fabric::{Carrier, Job, Outcome, Recovered, Request, Step, Work, WorkFailed, journal::Record};
use berth_lease::{
    BlockRequest, Blocks, Bytes, Item, LeaseId, Region, RegionId, RegionKind, Regions, Span, Status as Standing,
    Storage,
};
use berth_wire::fabric::{
    CapRevoke, CapabilityToken, LeaseAlloc, LeaseGrant, LeaseRef, LeaseRelocate, LeaseRelocated, LeaseRenew, Op,
    RelocateMode, Relocation, ResourceType, Status, Tlvs, Wire as _,
};

/// Memory without contents, which counts the bytes that are zeroed.
struct Void {
    len: u64,
    zeroed: AtomicU64,
}

impl Bytes for Void {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, _: u64, _: &mut [u8]) {}
    fn write(&self, _: u64, _: &[u8]) {}
    fn zero(&self, _: u64, len: u64) {
        self.zeroed.fetch_add(len, Relaxed);
    }
}

/// Blocks that only the host touches.
struct Disk(u64);

impl Blocks for Disk {
    fn len(&self) -> u64 {
        self.0
    }
    fn submit(&self, request: BlockRequest) {
        panic!("the node did {request:?}");
    }
}

const GIB: u64 = 1 << 30;
const BLOCKS: RegionId = RegionId(1);

fn world() -> (World, Arc<Void>) {
    let void = Arc::new(Void { len: GIB, zeroed: AtomicU64::new(0) });
    let region = |name: &str, kind, storage| Region { name: name.into(), kind, numa: None, storage };
    let regions = Regions::new(vec![
        region("mem", RegionKind::Memory, Storage::Bytes(void.clone())),
        region("disk", RegionKind::Block, Storage::Blocks(Arc::new(Disk(GIB)))),
    ]);
    (World::start(config(), regions, Recovered::default(), START, 7), void)
}

fn step(world: &mut World, op: Op, carrier: Carrier, token: &[u8], params: &[u8]) -> Step {
    let request = Request {
        carrier,
        presenter: identity(1).id().0,
        source: ([10, 0, 0, 1], 1).into(),
        op: op.code(),
        resource: 0,
        token,
        params,
    };
    world.node.request(&request, world.now)
}

fn work(step: Step) -> Work {
    let Step::Work(work) = step else { panic!("bytes are to be worked on: {step:?}") };
    work
}

fn asked(kind: ResourceType, bytes: u64) -> Vec<u8> {
    LeaseAlloc {
        duration_secs: 60,
        grace_secs: 3600,
        resource_type: Some(kind),
        requested_bytes: Some(bytes),
        intents: Tlvs::EMPTY,
    }
    .to_vec()
}

fn alloc(world: &mut World, kind: ResourceType, bytes: u64, token: &[u8]) -> Step {
    step(world, Op::LeaseAlloc, Carrier::Quic, token, &asked(kind, bytes))
}

fn granted(outcome: &Outcome) -> LeaseId {
    assert_eq!(outcome.answer.status, Status::Ok);
    LeaseId(LeaseGrant::parse(&outcome.answer.result).unwrap().lease_id)
}

fn free(world: &mut World, lease: LeaseId) -> Outcome {
    world.ask_whole(1, Op::LeaseFree.code(), 0, &[], &LeaseRef { lease_id: lease.0 }.to_vec())
}

fn revoke(world: &mut World, token: &[u8]) -> Outcome {
    let token_id = CapabilityToken::parse(token).unwrap().token_id;
    let own = world.token(1, ALL);
    world.ask_whole(1, Op::CapRevoke.code(), 0, &own, &CapRevoke { token_id, ttl_secs: 1 }.to_vec())
}

#[test]
fn memory_that_is_leased_again_is_zeroed_by_the_host() {
    let (mut world, void) = world();
    let token = world.token(1, ALL);
    let Step::Done(outcome) = alloc(&mut world, ResourceType::Mem, GIB, &token) else { panic!("it is zero") };
    free(&mut world, granted(&outcome));
    world.node.tick(world.now);
    let work = work(alloc(&mut world, ResourceType::Mem, GIB, &token));
    assert_eq!(work.jobs, [Job::Zero(Span { region: RegionId(0), at: 0, len: GIB })]);
    assert_eq!(work.journal, None, "a restart loses memory, whoever has it");
    assert_eq!(void.zeroed.load(Relaxed), 0, "while the node was held");
    granted(&done(world.node.resume(work.ticket, Ok(()), world.now)));
}

#[test]
fn the_background_zeroes_a_little_at_a_time() {
    let (mut world, void) = world();
    let token = world.token(1, ALL);
    let Step::Done(outcome) = alloc(&mut world, ResourceType::Mem, 1 << 20, &token) else { panic!("it is zero") };
    free(&mut world, granted(&outcome));
    for zeroed in 1..=4 {
        assert!(world.node.zero_free());
        assert_eq!(void.zeroed.load(Relaxed), zeroed * (256 << 10));
    }
    assert!(!world.node.zero_free());
}

#[test]
fn blocks_are_granted_when_their_zeroes_are_durable() {
    let (mut world, _) = world();
    let token = world.token(1, ALL);
    let work = work(alloc(&mut world, ResourceType::Block, 8192, &token));
    assert_eq!(work.jobs, [Job::Zero(Span { region: BLOCKS, at: 0, len: 8192 }), Job::Flush(BLOCKS)]);
    assert_eq!(work.journal, Some(Vec::new()), "the end of the lease that had them is durable first");
    granted(&done(world.node.resume(work.ticket, Ok(()), world.now)));
}

/// Nobody holds it then: its bytes are free although its grace would last an hour.
#[test]
fn an_allocation_that_ends_while_it_is_zeroed_is_freed() {
    for (revoked, work_done) in [(true, Ok(())), (false, Ok(())), (false, Err(WorkFailed))] {
        let (mut world, _) = world();
        let token = world.token(1, ALL);
        let work = work(alloc(&mut world, ResourceType::Block, GIB, &token));
        assert!(!work.deadline.is_over(world.now.mono));
        if revoked {
            assert_eq!(revoke(&mut world, &token).answer.status, Status::Ok);
        } else {
            world.pass(Duration::from_mins(1));
            world.node.tick(world.now);
        }
        assert!(work.deadline.is_over(world.now.mono), "there is no use in zeroing the rest");
        assert_eq!(world.node.resources()[1].available, 0, "it is still being zeroed");
        let outcome = done(world.node.resume(work.ticket, work_done, world.now));
        assert_eq!((outcome.answer.status, outcome.journal.len()), (Status::LeaseExpired, 0));
        assert_eq!(world.node.resources()[1].available, GIB);
        assert_eq!(world.node.leases().usage(identity(1).id().0)[Item::Bytes], 0);
    }
}

/// Two leases of blocks, the first under a token of its own, and a relocation from one to the other.
fn relocating(mode: RelocateMode) -> (World, Vec<u8>, [LeaseId; 2], Work) {
    let (mut world, _) = world();
    let token = world.token(1, ALL);
    let other = world.token(1, ALL);
    let [src, dst] = [&token, &other].map(|token| {
        let work = work(alloc(&mut world, ResourceType::Block, 8192, token));
        granted(&done(world.node.resume(work.ticket, Ok(()), world.now)))
    });
    let (src_lease_id, dst_lease_id) = (src.key().0, dst.key().0);
    let params = LeaseRelocate { src_lease_id, dst_lease_id, mode, preserve_until_ms: None }.to_vec();
    let work = work(step(&mut world, Op::LeaseRelocate, Carrier::Udp { nonce: 1 << 40 }, &[], &params));
    assert!(!work.deadline.is_over(world.now.mono));
    (world, token, [src, dst], work)
}

fn is_complete(outcome: &Outcome) -> bool {
    assert_eq!(outcome.answer.status, Status::Ok);
    LeaseRelocated::parse(&outcome.answer.result).unwrap().outcome == Relocation::Complete
}

/// After a restart its copy must not run again, as that would destroy what was written since.
#[test]
fn a_relocation_is_used_up_before_it_begins() {
    for mode in [RelocateMode::Copy, RelocateMode::Move] {
        let (mut world, _, _, work) = relocating(mode);
        let seen = Record::Seen { sender: identity(1).id().0, nonce: 1 << 40 };
        assert_eq!(work.journal, Some(vec![seen]));
        assert!(is_complete(&done(world.node.resume(work.ticket, Ok(()), world.now))));
    }
}

#[test]
fn a_relocation_fails_when_either_lease_ends() {
    type End = fn(&mut World, &[u8], [LeaseId; 2]) -> Option<Outcome>;
    let ends: [End; 4] = [
        |world, token, _| Some(revoke(world, token)),
        |world, _, [src, _]| Some(free(world, src)),
        |world, _, [_, dst]| Some(free(world, dst)),
        |world, _, _| {
            world.pass(Duration::from_mins(1));
            None
        },
    ];
    for end in ends {
        let (mut world, token, leases, work) = relocating(RelocateMode::Copy);
        // A piece is under way: its host has looked at the deadline.
        let piece = world.node.table().reader().hold();
        let ended = end(&mut world, &token, leases);
        assert!(work.deadline.is_over(world.now.mono), "no other piece begins");
        if let Some(Outcome { quiescence, answer, .. }) = ended {
            let mut quiescence = quiescence.unwrap();
            assert_eq!(answer.status, Status::Ok);
            assert!(!quiescence.is_over(), "the end is answered after the piece");
            drop(piece);
            assert!(quiescence.is_over());
        }
        assert!(!is_complete(&done(world.node.resume(work.ticket, Ok(()), world.now))));
    }
}

#[test]
fn a_move_fails_when_its_destination_ends_and_gives_the_source_back() {
    let (mut world, _, [src, dst], work) = relocating(RelocateMode::Move);
    free(&mut world, dst);
    assert!(work.deadline.is_over(world.now.mono));
    assert!(!is_complete(&done(world.node.resume(work.ticket, Ok(()), world.now))));
    assert_eq!(world.node.leases().query(src, world.now.mono).unwrap().0, Standing::Active);
}

#[test]
fn a_copy_fails_when_its_source_is_moved_away() {
    let (mut world, _, [src, dst], copy) = relocating(RelocateMode::Copy);
    let (src_lease_id, dst_lease_id) = (src.key().0, dst.key().0);
    let params = LeaseRelocate { src_lease_id, dst_lease_id, mode: RelocateMode::Move, preserve_until_ms: None };
    let moving = work(step(&mut world, Op::LeaseRelocate, Carrier::Quic, &[], &params.to_vec()));
    assert!(copy.deadline.is_over(world.now.mono) && !moving.deadline.is_over(world.now.mono));
    assert!(is_complete(&done(world.node.resume(moving.ticket, Ok(()), world.now))));
    assert!(!is_complete(&done(world.node.resume(copy.ticket, Ok(()), world.now))));
}

#[test]
fn a_relocation_goes_on_where_its_leases_are_renewed() {
    let (mut world, _, leases, work) = relocating(RelocateMode::Copy);
    world.pass(Duration::from_secs(59));
    let token = world.token(1, ALL);
    for lease in leases {
        let params = LeaseRenew { lease_id: lease.0, duration_secs: 60 }.to_vec();
        world.ok(1, Op::LeaseRenew, 0, &token, &params);
    }
    world.pass(Duration::from_secs(59));
    assert!(!work.deadline.is_over(world.now.mono));
    world.pass(Duration::from_secs(1));
    assert!(work.deadline.is_over(world.now.mono));
    world.ok(1, Op::LeaseRenew, 0, &token, &LeaseRenew { lease_id: leases[0].0, duration_secs: 60 }.to_vec());
    assert!(work.deadline.is_over(world.now.mono), "it has expired once");
    assert!(!is_complete(&done(world.node.resume(work.ticket, Ok(()), world.now))));
}
