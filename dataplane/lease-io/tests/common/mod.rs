//! A node under test: memory whose every byte is known, blocks and a GPU's memory that end when told, leases of each.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use berth_lease::{
    BlockError, BlockOp, BlockRequest, Blocks, Bytes, Entry, Generation, LeaseId, LeaseKey, Region, RegionId,
    RegionKind, Regions, Rights, State, Storage, Table, TableWriter,
};
use berth_port::{Frame, Loopback, Nanos, Now, Port as _, Service, Verdict};

/// Bytes of each region.
pub const REGION: u64 = 64 * 1024;
/// Where the leases begin in their region.
pub const BASE: u64 = 16 * 1024;
/// Bytes of a lease.
pub const LEN: u64 = 20_000;
pub const BLOCK_LEN: u64 = 16 * 1024;
pub const MAX_IO: u32 = 8192;
pub const GENERATION: u64 = 7;
pub const EXPIRES: Nanos = Nanos(1_000_000);
pub const MEMORY: LeaseId = LeaseId(0xAAAA_0000_0000_0000_1111_2222_3333_4444);
pub const BLOCK: LeaseId = LeaseId(0xBBBB_0000_0000_0000_5555_6666_7777_8888);
pub const VRAM: LeaseId = LeaseId(0xCCCC_0000_0000_0000_9999_AAAA_BBBB_CCCC);
pub const NOW: Nanos = Nanos(5);

/// Memory that concurrent accesses may mix in.
pub struct Heap(Vec<AtomicU8>);

impl Heap {
    pub fn new() -> Arc<Self> {
        Arc::new(Self((0..REGION).map(|at| AtomicU8::new(canary(at))).collect()))
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.load(Relaxed)).collect()
    }
}

/// What a byte of a region is before anybody wrote it.
pub fn canary(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

impl Bytes for Heap {
    fn len(&self) -> u64 {
        REGION
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        let from = &self.0[at as usize..][..into.len()];
        into.iter_mut().zip(from).for_each(|(to, byte)| *to = byte.load(Relaxed));
    }

    fn write(&self, at: u64, from: &[u8]) {
        let to = &self.0[at as usize..][..from.len()];
        to.iter().zip(from).for_each(|(to, byte)| to.store(*byte, Relaxed));
    }

    fn zero(&self, at: u64, len: u64) {
        self.write(at, &vec![0; len as usize]);
    }
}

/// Blocks, or a GPU's memory, whose operations wait until they are told to end.
pub struct Disk {
    pub heap: Arc<Heap>,
    pub waiting: Mutex<Vec<BlockRequest>>,
    pub room: usize,
}

impl Disk {
    fn new(room: usize) -> Arc<Self> {
        Arc::new(Self { heap: Heap::new(), waiting: Mutex::default(), room })
    }

    /// Ends the oldest operation.
    pub fn land(&self, result: Result<(), BlockError>) {
        let request = self.waiting.lock().unwrap().remove(0);
        if result.is_ok() {
            let mut bytes = vec![0; request.len() as usize];
            match request.op {
                BlockOp::Read => {
                    self.heap.read(request.at, &mut bytes);
                    request.write_at(0, &bytes);
                }
                BlockOp::Write => {
                    request.read_at(0, &mut bytes);
                    self.heap.write(request.at, &bytes);
                }
                BlockOp::Zero(len) => self.heap.zero(request.at, len),
                BlockOp::Flush | BlockOp::Compare | BlockOp::Discard(_) => {}
            }
        }
        request.done.done(request.tag, request.pieces, result);
    }
}

impl Blocks for Disk {
    fn len(&self) -> u64 {
        REGION
    }

    fn submit(&self, request: BlockRequest) {
        let mut waiting = self.waiting.lock().unwrap();
        if waiting.len() < self.room {
            return waiting.push(request);
        }
        drop(waiting);
        request.done.done(request.tag, request.pieces, Err(BlockError::Busy));
    }
}

/// A node with one lease in memory, one on blocks and one of a GPU's memory.
pub struct Node {
    pub heap: Arc<Heap>,
    pub disk: Arc<Disk>,
    pub gpu: Arc<Disk>,
    pub regions: Regions,
    pub table: Table,
    pub writer: TableWriter,
}

impl Node {
    pub fn new() -> Self {
        Self::with_room(3)
    }

    /// With engines that take so many operations at once.
    pub fn with_room(room: usize) -> Self {
        let (heap, disk, gpu) = (Heap::new(), Disk::new(room), Disk::new(room));
        let region = |kind, storage| Region { name: format!("{kind:?}"), kind, numa: None, storage };
        let regions = Regions::new(vec![
            region(RegionKind::Memory, Storage::Bytes(heap.clone())),
            region(RegionKind::Block, Storage::Blocks(disk.clone())),
            region(RegionKind::Vram, Storage::Blocks(gpu.clone())),
        ]);
        let (table, mut writer) = Table::new(16);
        writer.insert(&memory()).unwrap();
        writer.insert(&blocks()).unwrap();
        writer.insert(&vram()).unwrap();
        Self { heap, disk, gpu, regions, table, writer }
    }

    pub fn set(&mut self, entry: Entry) {
        assert!(self.writer.update(&entry));
    }

    /// Whether every byte outside of the leases is what it was, in each region.
    pub fn canaries_live(&self) -> bool {
        [(&self.heap, LEN), (&self.disk.heap, BLOCK_LEN), (&self.gpu.heap, LEN)].into_iter().all(|(heap, len)| {
            let bytes = heap.bytes();
            let outside = (0..REGION).filter(|at| !(BASE..BASE + len).contains(at));
            outside.into_iter().all(|at| bytes[at as usize] == canary(at))
        })
    }
}

pub fn memory() -> Entry {
    Entry {
        id: MEMORY,
        generation: Generation(GENERATION),
        rights: Rights::ALL,
        region: RegionId(0),
        base: BASE,
        len: LEN,
        first: 0,
        max_io: MAX_IO,
        expires: EXPIRES,
        state: State::Active,
    }
}

pub fn blocks() -> Entry {
    Entry { id: BLOCK, region: RegionId(1), len: BLOCK_LEN, ..memory() }
}

pub fn vram() -> Entry {
    Entry { id: VRAM, region: RegionId(2), ..memory() }
}

pub fn key(id: LeaseId) -> LeaseKey {
    id.key()
}

pub fn at(mono: Nanos) -> Now {
    Now { mono, wall: Nanos(0) }
}

pub fn peer() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 9))
}

/// What the first `len` bytes of a lease at [`BASE`] are before anybody wrote them.
pub fn original(offset: u64, len: usize) -> Vec<u8> {
    (BASE + offset..).take(len).map(canary).collect()
}

/// Hands one datagram to a service, in a buffer with room for `capacity` bytes; the answer, if there is one.
pub fn handle(service: &mut impl Service, message: &[u8], capacity: usize, now: Nanos) -> Option<Vec<u8>> {
    let mut buf = vec![0xEE; capacity.max(message.len())];
    buf[..message.len()].copy_from_slice(message);
    let mut frame = Frame::new(&mut buf, message.len(), message.len(), peer());
    match service.handle(&mut frame, at(now)) {
        Verdict::Reply => Some(frame.data().to_vec()),
        Verdict::Drop | Verdict::Keep => None,
    }
}

/// Two ports of one process: messages from `ours` reach the service on `theirs`.
pub struct Line {
    pub ours: Loopback,
    pub theirs: Loopback,
}

impl Line {
    /// `depth` datagrams of at most `room` bytes.
    pub fn new(depth: usize, room: usize) -> Self {
        let addresses = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], 1)));
        let (ours, theirs) = Loopback::pair(addresses, depth, room);
        Self { ours, theirs }
    }

    pub fn ask(&mut self, message: &[u8]) {
        let to = self.theirs.local_addr();
        self.ours
            .post(to.into(), |buf| {
                buf[..message.len()].copy_from_slice(message);
                message.len()
            })
            .unwrap();
        self.ours.tx();
    }

    pub fn serve(&mut self, service: &mut impl Service) -> usize {
        self.theirs.rx(|frame| service.handle(frame, at(NOW)));
        let posted = service.poll(&mut self.theirs, at(NOW));
        self.theirs.tx();
        posted
    }

    pub fn answers(&mut self) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        self.ours.rx(|frame| {
            answers.push(frame.data().to_vec());
            Verdict::Drop
        });
        answers
    }
}

/// The counters that are not zero, checked for a complete account of what was received.
pub fn events(service: &impl Service) -> BTreeMap<&'static str, u64> {
    let mut counters = BTreeMap::new();
    service.counters(&mut |name, value| assert_eq!(counters.insert(name, value), None, "{name} is reported twice"));
    let account: u64 = counters
        .iter()
        .filter(|(name, _)| !["received", "bytes_read", "bytes_written", "unroutable"].contains(name))
        .map(|(_, value)| value)
        .sum();
    assert_eq!(counters.remove("received"), Some(account + service.outstanding() as u64), "{counters:?}");
    counters.retain(|_, value| *value > 0);
    counters
}
