//! Page operations against the state machine of leases.

mod common;

use std::{
    cell::Cell,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use berth_lease::{BlockError, Config, Item, LeaseId, Leases, Quotas, RegionId, Request as Alloc, Rights, Wanted};
use berth_lease_io::{Gate, PageOp};
use berth_port::Nanos;
use berth_wire::fabric::data::page::{PageRef, Request, Response, State, Status};
use common::{Disk, NOW, Node, REGION, canary};

const ANN: u128 = 0xA;
const BOB: u128 = 0xB;
const PAGE: usize = 4096;
const LATER: Nanos = Nanos(NOW.0 + 10_000_000_000);

struct Pages {
    node: Node,
    leases: Leases,
    gate: Gate,
    rng: fastrand::Rng,
    /// How accesses behind an engine end.
    ends: Result<(), BlockError>,
}

impl Pages {
    fn new() -> Self {
        let node = Node::new();
        let leases = Leases::new(Config::default(), node.regions.clone());
        let gate = Gate::new(leases.table(), &node.regions);
        Self { node, leases, gate, rng: fastrand::Rng::with_seed(1), ends: Ok(()) }
    }

    fn alloc(&mut self, region: u16, bytes: u64, rights: Rights, holder: u128) -> u128 {
        let request = Alloc {
            wanted: Wanted::Bytes(&[RegionId(region)]),
            near: None,
            bytes,
            range: None,
            rights,
            holder,
            token: 1,
            duration: Duration::from_secs(10),
            grace: Duration::from_secs(10),
        };
        let rng = &mut self.rng;
        self.leases.alloc(&request, NOW, &mut || rng.u128(1..)).unwrap().id.0
    }

    /// The response to an operation; what is behind an engine ends at once.
    fn ask(&mut self, request: Request<'_>, holder: u128, now: Nanos) -> Vec<u8> {
        let engines: [&Disk; 2] = [&self.node.disk, &self.node.gpu];
        let ends = self.ends;
        let mut out = Vec::new();
        let op = match PageOp::begin(request, &self.leases, holder, now) {
            Ok(op) => op,
            Err(status) => {
                PageOp::refused(status, self.gate.counts());
                Response::Status(request.op(), status).write(&mut out);
                return out;
            }
        };
        let done = {
            let mut run = pin!(op.run(&mut self.gate, || now));
            let mut cx = Context::from_waker(Waker::noop());
            loop {
                match run.as_mut().poll(&mut cx) {
                    Poll::Ready(done) => break done,
                    Poll::Pending => {
                        let waits = |engine: &&&Disk| !engine.waiting.lock().unwrap().is_empty();
                        engines.iter().find(waits).expect("an access under way").land(ends);
                    }
                }
            }
        };
        op.end(done.as_deref().map_err(|status| *status), &mut self.leases, 77, &mut out);
        out
    }

    fn status(&mut self, request: Request<'_>, holder: u128, now: Nanos) -> Status {
        let out = self.ask(request, holder, now);
        match Response::parse(&out) {
            Some(Response::Status(op, status)) if op == request.op() => status,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self, page: PageRef, offset: u32, length: u32) -> Vec<u8> {
        let out = self.ask(Request::Read { page, offset, length }, ANN, NOW);
        match Response::parse(&out) {
            Some(Response::Data(data)) => data.to_vec(),
            other => panic!("{other:?}"),
        }
    }

    /// What was counted under a name.
    fn count(&mut self, name: &str) -> u64 {
        let mut found = None;
        self.gate.counts().report(&mut |known, count| {
            if known == name {
                found = Some(count);
            }
        });
        found.expect("a counter")
    }

    /// What a holder has of the pages whose state is kept.
    fn kept(&self, holder: u128) -> u64 {
        self.leases.usage(holder)[Item::PageState]
    }

    fn state(&mut self, page: PageRef) -> State {
        let out = self.ask(Request::Query(page), ANN, NOW);
        match Response::parse(&out) {
            Some(Response::State(state)) => state,
            other => panic!("{other:?}"),
        }
    }
}

fn page(lease_id: u128, page: u32) -> PageRef {
    PageRef { lease_id, page }
}

#[test]
fn pages_are_written_copied_zeroed_and_counted() {
    for (region, tier) in [(0, 0), (1, 2)] {
        let mut pages = Pages::new();
        let lease = pages.alloc(region, 3 * PAGE as u64, Rights::ALL, ANN);
        let (first, last) = (page(lease, 0), page(lease, 2));
        let data = vec![5; 512];
        let write = Request::Write { page: first, offset: 512, data: &data };
        assert_eq!(pages.status(write, ANN, NOW), Status::Ok);
        assert_eq!(pages.read(first, 512, 512), data);
        assert_eq!(pages.status(Request::Copy { src: first, dst: last }, ANN, NOW), Status::Ok);
        assert_eq!(pages.read(last, 512, 512), data);
        assert_eq!(pages.status(Request::Zero(first), ANN, NOW), Status::Ok);
        assert_eq!(pages.read(first, 0, PAGE as u32), vec![0; PAGE]);
        assert_eq!(pages.status(Request::Advise { page: last, flags: 0x21 }, ANN, NOW), Status::Ok);
        let touched = |page, accesses, advice| State { page, tier, dirty: true, accesses, last_access_ms: 77, advice };
        assert_eq!(pages.state(first), touched(0, 5, 0));
        assert_eq!(pages.state(last), touched(2, 2, 0x21));
        assert_eq!(pages.state(page(lease, 1)), State { page: 1, tier, ..State::default() });
    }
}

/// The lease ends while its page is read: nothing is written any more.
/// A GPU's memory behind an engine is memory: any bytes of a page, and a last page that is no whole block.
#[test]
fn pages_of_a_gpu_are_those_of_memory() {
    let mut pages = Pages::new();
    let lease = pages.alloc(2, PAGE as u64 + 513, Rights::ALL, ANN);
    let memory = pages.alloc(0, 2 * PAGE as u64, Rights::ALL, ANN);
    let (first, last) = (page(lease, 0), page(lease, 1));
    assert_eq!(pages.status(Request::Write { page: first, offset: 3, data: &[5; 513] }, ANN, NOW), Status::Ok);
    let around = pages.read(first, 2, 515);
    assert_eq!(around, [&[canary(2)][..], &[5; 513], &[canary(516)]].concat());
    assert_eq!(pages.read(last, 512, 1), [canary(PAGE as u64 + 512)]);
    assert_eq!(pages.status(Request::Zero(last), ANN, NOW), Status::Ok);
    assert_eq!(pages.read(last, 0, 513), [0; 513]);
    let copy = Request::Copy { src: last, dst: page(memory, 1) };
    assert_eq!(pages.status(copy, ANN, NOW), Status::Ok);
    let [copied, whole] = [0, PAGE as u32 - 513].map(|offset| pages.read(page(memory, 1), offset, 513));
    assert!(copied == [0; 513] && whole != copied);
    assert_eq!(pages.state(last).tier, 0, "a restart loses it");
    let bytes = pages.node.gpu.heap.bytes();
    assert_eq!(bytes[PAGE + 513..], (PAGE as u64 + 513..REGION).map(canary).collect::<Vec<u8>>());
    for (failure, status) in
        [(BlockError::Busy, Status::InsufficientCapacity), (BlockError::Io(5), Status::LeaseNotActive)]
    {
        pages.ends = Err(failure);
        for request in [Request::Read { page: first, offset: 1, length: 1 }, Request::Zero(last)] {
            assert_eq!(pages.status(request, ANN, NOW), status);
        }
    }
}

#[test]
fn a_copy_begins_its_write_when_the_read_has_ended() {
    let mut pages = Pages::new();
    let lease = pages.alloc(1, 2 * PAGE as u64, Rights::ALL, ANN);
    let copy = Request::Copy { src: page(lease, 0), dst: page(lease, 1) };
    let op = PageOp::begin(copy, &pages.leases, ANN, NOW).unwrap();
    let now = Cell::new(NOW);
    let mut run = pin!(op.run(&mut pages.gate, || now.get()));
    let mut cx = Context::from_waker(Waker::noop());
    assert_eq!(run.as_mut().poll(&mut cx), Poll::Pending);
    pages.node.disk.land(Ok(()));
    now.set(LATER);
    assert_eq!(run.as_mut().poll(&mut cx), Poll::Ready(Err(Status::LeaseExpired)));
    assert_eq!(pages.node.disk.waiting.lock().unwrap().len(), 0);
}

#[test]
fn what_leaves_its_page_is_out_of_range() {
    let mut pages = Pages::new();
    let lease = pages.alloc(0, PAGE as u64 + 100, Rights::ALL, ANN);
    let read = |index, offset, length| Request::Read { page: page(lease, index), offset, length };
    for request in [
        read(0, 0, PAGE as u32 + 1),
        read(0, PAGE as u32, 1),
        read(0, u32::MAX, u32::MAX),
        read(1, 0, 101),
        read(2, 0, 1),
        read(u32::MAX, 0, 1),
        read(0, 0, 0),
        Request::Write { page: page(lease, 1), offset: 100, data: b"x" },
        Request::Zero(page(lease, 2)),
        Request::Query(page(lease, 2)),
        Request::Advise { page: page(lease, 2), flags: 1 },
        Request::Copy { src: page(lease, 0), dst: page(lease, 1) },
    ] {
        assert_eq!(pages.status(request, ANN, NOW), Status::PageOutOfRange, "{request:?}");
    }
    assert_eq!(pages.read(page(lease, 1), 99, 1).len(), 1);
    assert_eq!(pages.status(Request::Zero(page(lease, 1)), ANN, NOW), Status::Ok, "the short last page");
    assert_eq!(pages.status(read(0, 0, PAGE as u32 + 1), ANN, LATER), Status::LeaseExpired, "before the range");
}

#[test]
fn only_the_holder_finds_a_lease() {
    let mut pages = Pages::new();
    let (ours, theirs) = (pages.alloc(0, 4096, Rights::ALL, ANN), pages.alloc(0, 4096, Rights::ALL, BOB));
    let (ours, theirs, none) = (page(ours, 0), page(theirs, 0), page(1, 0));
    let mut copy = |src, dst| pages.status(Request::Copy { src, dst }, ANN, NOW);
    assert_eq!(copy(ours, theirs), Status::CrossTenantCopyDenied);
    assert_eq!(copy(theirs, ours), Status::CrossTenantCopyDenied);
    assert_eq!(copy(theirs, theirs), Status::SrcLeaseNotFound);
    assert_eq!(copy(none, ours), Status::SrcLeaseNotFound);
    assert_eq!(copy(ours, none), Status::DstLeaseNotFound);
    for foreign in [theirs, none, page(ours.lease_id ^ 1 << 100, 0)] {
        for request in [
            Request::Read { page: foreign, offset: 0, length: 1 },
            Request::Write { page: foreign, offset: 0, data: b"x" },
            Request::Zero(foreign),
            Request::Advise { page: foreign, flags: 1 },
            Request::Query(foreign),
        ] {
            assert_eq!(pages.status(request, ANN, NOW), Status::LeaseNotFound);
        }
    }
    assert_eq!(pages.leases.page(LeaseId(theirs.lease_id), 0), berth_lease::Page::default());
}

#[test]
fn leases_that_are_over_and_rights() {
    let mut pages = Pages::new();
    let lease = pages.alloc(0, 4096, Rights::READ, ANN);
    let first = page(lease, 0);
    assert_eq!(pages.status(Request::Zero(first), ANN, NOW), Status::LeaseFenced);
    assert_eq!(pages.status(Request::Copy { src: first, dst: first }, ANN, NOW), Status::LeaseFenced);
    assert_eq!(pages.read(first, 0, 8).len(), 8);
    pages.leases.revoke(LeaseId(lease), NOW).unwrap();
    for request in [Request::Zero(first), Request::Query(first), Request::Read { page: first, offset: 0, length: 8 }] {
        assert_eq!(pages.status(request, ANN, NOW), Status::LeaseRevoked, "{request:?}");
    }
}

/// Over its quota of pages whose state is kept, a holder is told so, and has what it had: bytes, states and its share.
#[test]
fn pages_over_the_quota_are_refused_and_counted_and_lose_nothing() {
    let mut pages = Pages::new();
    let quota = vec![(Item::PageState, 2)];
    pages.leases.set_quotas(Quotas::new(&[(None, quota)]));
    let [lease, other] =
        [pages.alloc(0, 5 * PAGE as u64, Rights::ALL, ANN), pages.alloc(0, PAGE as u64, Rights::ALL, BOB)];
    let write = |index, data| Request::Write { page: page(lease, index), offset: 0, data };
    assert_eq!(pages.status(write(0, b"kept"), ANN, NOW), Status::Ok);

    // A copy between two new pages needs two places, and one is left.
    let copy = |src, dst| Request::Copy { src: page(lease, src), dst: page(lease, dst) };
    assert_eq!(pages.status(copy(2, 3), ANN, NOW), Status::InsufficientCapacity);
    assert_eq!((pages.kept(ANN), pages.count("over_quota")), (1, 1));
    assert_eq!(pages.status(copy(1, 1), ANN, NOW), Status::Ok, "of a page to itself it is one");
    assert_eq!(pages.kept(ANN), 2);

    let before = [0, 1, 2].map(|index| (pages.state(page(lease, index)), pages.node.heap.bytes()));
    let over = page(lease, 2);
    for request in [
        Request::Read { page: over, offset: 0, length: 1 },
        write(2, b"lost"),
        Request::Zero(over),
        Request::Advise { page: over, flags: 1 },
        copy(0, 2),
        copy(2, 0),
    ] {
        assert_eq!(pages.status(request, ANN, NOW), Status::InsufficientCapacity, "{request:?}");
    }
    assert_eq!(pages.count("over_quota"), 7);
    assert_eq!([0, 1, 2].map(|index| (pages.state(page(lease, index)), pages.node.heap.bytes())), before);
    assert_eq!(pages.kept(ANN), 2);

    // What is kept already goes on, as do others, and what is wrong for another reason is told that.
    assert_eq!(pages.status(copy(0, 1), ANN, NOW), Status::Ok);
    assert_eq!(pages.read(page(lease, 1), 0, 4), b"kept");
    assert_eq!(pages.status(Request::Zero(page(other, 0)), BOB, NOW), Status::Ok);
    assert_eq!(pages.status(write(5, b"x"), ANN, NOW), Status::PageOutOfRange, "no such page");
    assert_eq!(pages.status(write(2, b"x"), ANN, LATER), Status::LeaseExpired);
    assert_eq!(pages.count("over_quota"), 7);

    // With the lease its pages' states go, and their places are free again.
    pages.leases.free(LeaseId(lease), ANN, NOW).unwrap();
    assert!(pages.leases.release(LeaseId(lease), NOW));
    assert_eq!((pages.kept(ANN), pages.kept(BOB)), (0, 1));
    let next = pages.alloc(0, 3 * PAGE as u64, Rights::ALL, ANN);
    for (index, status) in [(0, Status::Ok), (1, Status::Ok), (2, Status::InsufficientCapacity)] {
        assert_eq!(pages.status(Request::Zero(page(next, index)), ANN, NOW), status);
    }
}
