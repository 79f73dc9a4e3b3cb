//! Long work on leased bytes: others are served meanwhile, leases end on time, and one flush serves many.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use berth_control::{Control, Listen, Settings};
use berth_fabric::{Config, Policy, Rule};
use berth_host::TscClock;
use berth_identity::link::Client;
use berth_lease::{BlockOp, BlockRequest, Blocks, Bytes, LeaseId, Region, RegionKind, Regions, Storage};
use berth_port::Nanos;
use berth_wire::fabric::{
    CapRequest, LeaseAlloc, LeaseGrant, LeaseRef, LeaseRelocate, LeaseRelocated, Op, Perms, RelocateMode, Relocation,
    ResourceType, Response, Status, Tlvs, Wire as _,
};
use tempfile::TempDir;

use crate::common::{LOCAL, who};

const GIB: u64 = 1 << 30;

/// Memory without contents, in which work proceeds at one GiB per second.
struct Slow {
    len: u64,
    /// Once set, it is no longer slow.
    fast: AtomicBool,
    worked_on: AtomicU64,
}

impl Slow {
    fn work(&self, len: u64) {
        if !self.fast.load(SeqCst) {
            thread::sleep(Duration::from_nanos(len));
        }
        self.worked_on.fetch_add(len, SeqCst);
    }
}

impl Bytes for Slow {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, _: u64, into: &mut [u8]) {
        self.work(into.len() as u64);
    }
    fn write(&self, _: u64, from: &[u8]) {
        self.work(from.len() as u64);
    }
    fn zero(&self, _: u64, len: u64) {
        self.work(len);
    }
}

/// Blocks without contents, whose flushes end when told to.
#[derive(Default)]
struct Disk {
    zeroed: AtomicU64,
    flushing: Mutex<Vec<BlockRequest>>,
    flushes: AtomicU64,
}

impl Blocks for Disk {
    fn len(&self) -> u64 {
        GIB
    }
    fn submit(&self, request: BlockRequest) {
        match request.op {
            BlockOp::Flush => {
                self.flushes.fetch_add(1, SeqCst);
                return self.flushing.lock().unwrap().push(request);
            }
            BlockOp::Zero(len) => drop(self.zeroed.fetch_add(len, SeqCst)),
            BlockOp::Read | BlockOp::Write | BlockOp::Compare | BlockOp::Discard(_) => {}
        }
        request.done.done(request.tag, request.pieces, Ok(()));
    }
}

impl Disk {
    fn end_flush(&self) {
        let ended = self.flushing.lock().unwrap().pop();
        if let Some(request) = ended {
            request.done.done(request.tag, request.pieces, Ok(()));
        }
    }
}

/// A node with one region, on which presenters 1 to 3 may do everything.
fn start(kind: RegionKind, storage: Storage) -> (Control, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let rule = |seed| Rule { presenter: Some(who(seed).id().0), perms: Perms::ALL, resources: None };
    let mut control = Control::open(Settings {
        identity: who(100),
        listen: Listen { udp: LOCAL, quic: LOCAL, relay: None, fbmu: None, fbmt: None, fbbt: None },
        announce: Vec::new(),
        state_dir: folder.path().into(),
        cpus: vec![0],
        clock: TscClock::calibrate(Duration::from_millis(20)),
        regions: Regions::new(vec![Region { name: "bytes".into(), kind, numa: None, storage }]),
        resources: Vec::new(),
        bindings: Vec::new(),
        tasklet_cpus: Vec::new(),
        node: Config {
            policy: Policy::new([1, 2, 3].map(rule).into()),
            enrolled: [1, 2, 3].map(|seed| *who(seed).public_key()).into(),
            ..Config::default()
        },
    })
    .unwrap();
    control.serve(&[], Vec::new());
    (control, folder)
}

/// A presenter with a token.
struct Asker {
    socket: UdpSocket,
    client: Client,
    node: SocketAddr,
    token: Vec<u8>,
}

impl Asker {
    fn new(seed: u8, control: &Control) -> Self {
        let node = control.endpoints().iter().find(|(name, _)| *name == "control-udp").unwrap().1;
        let socket = UdpSocket::bind(LOCAL).unwrap();
        let mut asker = Self { socket, client: Client::new(who(seed), 1 << 40, 1), node, token: Vec::new() };
        let params = CapRequest { perms: Perms::ALL.bits(), ttl_secs: 300, audience: who(seed).id().0, epoch: None };
        asker.token = asker.ask(Op::CapRequest, &params.to_vec());
        asker
    }

    fn send(&mut self, op: Op, params: &[u8]) -> u64 {
        let request = self.client.request(self.node, None, op.code(), 0, &self.token, params).unwrap();
        self.send_again(request);
        request
    }

    fn send_again(&self, request: u64) {
        for frame in self.client.frames(request) {
            self.socket.send_to(&frame, self.node).unwrap();
        }
    }

    /// Operation and result of the next answer. Repeats this request while it waits.
    fn answer(&mut self, request: u64) -> Option<(u16, Vec<u8>)> {
        let end = Instant::now() + Duration::from_secs(10);
        let mut buf = [0; 2048];
        self.socket.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        while Instant::now() < end {
            while let Ok((len, from)) = self.socket.recv_from(&mut buf) {
                if let Some(answer) = self.client.receive(&buf[..len], from, Nanos(0)) {
                    let response = Response::parse(&answer.payload).unwrap();
                    assert_eq!(response.status, Status::Ok.code());
                    return Some((response.op, response.result.get().to_vec()));
                }
            }
            self.send_again(request);
        }
        None
    }

    fn ask(&mut self, op: Op, params: &[u8]) -> Vec<u8> {
        let request = self.send(op, params);
        let (answered, result) = self.answer(request).unwrap_or_else(|| panic!("{op} is not answered"));
        assert_eq!(answered, op.code());
        result
    }

    fn alloc(&mut self, kind: ResourceType, bytes: u64) -> u64 {
        let params = LeaseAlloc {
            duration_secs: 600,
            grace_secs: 0,
            resource_type: Some(kind),
            requested_bytes: Some(bytes),
            intents: Tlvs::EMPTY,
        };
        self.send(Op::LeaseAlloc, &params.to_vec())
    }

    fn granted(&mut self, request: u64) -> LeaseId {
        LeaseId(LeaseGrant::parse(&self.answer(request).expect("a grant").1).unwrap().lease_id)
    }
}

fn eventually(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "it did not come about");
        thread::sleep(Duration::from_millis(1));
    }
}

/// One worker and 16 s of work: another presenter's pings are answered in the first few of those.
#[test]
fn others_are_answered_while_memory_is_zeroed_or_copied() {
    let slow = Arc::new(Slow { len: 16 * GIB, fast: true.into(), worked_on: AtomicU64::new(0) });
    let (control, _folder) = start(RegionKind::Memory, Storage::Bytes(slow.clone()));
    let (mut tenant, mut other) = (Asker::new(1, &control), Asker::new(2, &control));
    let mut pings_while = |tenant: &mut Asker, op: &dyn Fn(&mut Asker) -> u64| {
        let before = slow.worked_on.load(SeqCst);
        slow.fast.store(false, SeqCst);
        let request = op(tenant);
        eventually(|| slow.worked_on.load(SeqCst) > before);
        for _ in 0..10 {
            other.ask(Op::Ping, &[]);
        }
        assert!(slow.worked_on.load(SeqCst) - before < 8 * GIB, "the pings waited for the work");
        request
    };
    let free = |lease: LeaseId| LeaseRef { lease_id: lease.0 }.to_vec();

    let request = tenant.alloc(ResourceType::Mem, 16 * GIB);
    let all = tenant.granted(request);
    tenant.ask(Op::LeaseFree, &free(all));
    let request = pings_while(&mut tenant, &|tenant| tenant.alloc(ResourceType::Mem, 16 * GIB));
    slow.fast.store(true, SeqCst);
    let all = tenant.granted(request);
    tenant.ask(Op::LeaseFree, &free(all));

    let [src, dst] = [0; 2].map(|_| {
        let request = tenant.alloc(ResourceType::Mem, 8 * GIB);
        tenant.granted(request)
    });
    let (src_lease_id, dst_lease_id, mode) = (src.key().0, dst.key().0, RelocateMode::Copy);
    let params = LeaseRelocate { src_lease_id, dst_lease_id, mode, preserve_until_ms: None }.to_vec();
    let request = pings_while(&mut tenant, &|tenant| tenant.send(Op::LeaseRelocate, &params));
    // The source ends: that is answered long before the copy would have been, and the copy fails.
    let ended = tenant.send(Op::LeaseFree, &free(src));
    for _ in 0..2 {
        let (op, result) = tenant.answer(ended).expect("both are answered");
        if op == Op::LeaseRelocate.code() {
            assert!(matches!(LeaseRelocated::parse(&result).unwrap().outcome, Relocation::Failed { .. }));
        }
    }
    assert_eq!(tenant.client.frames(request).count(), 0, "it was answered");
    slow.fast.store(true, SeqCst);
    control.stop(Duration::from_secs(5));
}

/// The first flush begins for the first allocation alone; allocations that come meanwhile share the next ones.
#[test]
fn one_flush_serves_all_allocations_that_wait_for_it() {
    const WAITING: u64 = 8;
    let disk = Arc::<Disk>::default();
    let (control, _folder) = start(RegionKind::Block, Storage::Blocks(disk.clone()));
    let mut tenants = [1, 2, 3].map(|seed| Asker::new(seed, &control));
    let mut asked = vec![(0, tenants[0].alloc(ResourceType::Block, 4096))];
    eventually(|| disk.flushes.load(SeqCst) == 1);
    for number in 0..WAITING {
        let tenant = 1 + number as usize % 2;
        asked.push((tenant, tenants[tenant].alloc(ResourceType::Block, 4096)));
    }
    eventually(|| disk.zeroed.load(SeqCst) == (WAITING + 1) * 4096);
    // Zeroed, and about to wait for the flush.
    thread::sleep(Duration::from_millis(100));
    assert_eq!(disk.flushes.load(SeqCst), 1);
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(SeqCst) {
                disk.end_flush();
                thread::sleep(Duration::from_millis(1));
            }
        });
        for (tenant, request) in asked {
            tenants[tenant].granted(request);
        }
        ended.store(true, SeqCst);
    });
    let flushes = disk.flushes.load(SeqCst);
    assert!((2..=WAITING / 2).contains(&flushes), "{flushes} flushes for {WAITING} that waited");
    control.stop(Duration::from_secs(5));
}
