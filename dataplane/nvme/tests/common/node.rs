//! Memory whose every byte is known, blocks that end when told, a lease of each.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
};

use berth_lease::{
    BlockError, BlockInfo, BlockOp, BlockRequest, Blocks, Bytes, Entry, Generation, LeaseId, Region, RegionId,
    RegionKind, Regions, Rights, State, Storage, Table, TableWriter,
};
use berth_lease_io::{CHUNK, Pool};
use berth_nvme::{Limits, Target};
use berth_port::Nanos;

/// Bytes of each region.
pub const REGION: u64 = 2 << 20;
/// Where the leases begin in their region.
pub const BASE: u64 = 64 * 1024;
/// Bytes of a lease.
pub const LEN: u64 = 1 << 20;
pub const MAX_IO: u32 = 256 << 10;
pub const EXPIRES: Nanos = Nanos(1_000_000_000_000);
pub const MEMORY: LeaseId = LeaseId(0xAAAA_0000_0000_0000_1111_2222_3333_4444);
pub const BLOCK: LeaseId = LeaseId(0xBBBB_0000_0000_0000_5555_6666_7777_8888);
pub const NOW: Nanos = Nanos(5);
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:host-a";
/// Chunks of the pool.
pub const CHUNKS: usize = 128;

/// Memory that concurrent accesses may mix in.
pub struct Heap(Vec<AtomicU8>, AtomicU64);

impl Heap {
    pub fn new() -> Arc<Self> {
        Arc::new(Self((0..REGION).map(|at| AtomicU8::new(canary(at))).collect(), AtomicU64::new(0)))
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().map(|byte| byte.load(Relaxed)).collect()
    }

    /// How often it was read or written.
    pub fn accesses(&self) -> u64 {
        self.1.load(Relaxed)
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
        self.1.fetch_add(1, Relaxed);
        let from = &self.0[at as usize..][..into.len()];
        into.iter_mut().zip(from).for_each(|(to, byte)| *to = byte.load(Relaxed));
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.1.fetch_add(1, Relaxed);
        let to = &self.0[at as usize..][..from.len()];
        to.iter().zip(from).for_each(|(to, byte)| to.store(*byte, Relaxed));
    }

    fn zero(&self, at: u64, len: u64) {
        self.write(at, &vec![0; len as usize]);
    }
}

/// Blocks whose operations wait until they are told to end.
pub struct Disk {
    pub heap: Arc<Heap>,
    pub waiting: Mutex<Vec<BlockRequest>>,
    pub room: usize,
}

impl Disk {
    /// Ends one of the operations that wait.
    pub fn land(&self, nth: usize, result: Result<(), BlockError>) {
        let request = self.waiting.lock().unwrap().remove(nth);
        let mut result = result;
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
                BlockOp::Compare => {
                    request.read_at(0, &mut bytes);
                    let mut there = vec![0; bytes.len()];
                    self.heap.read(request.at, &mut there);
                    result = if there == bytes { Ok(()) } else { Err(BlockError::Miscompare) };
                }
                BlockOp::Zero(len) => self.heap.zero(request.at, len),
                BlockOp::Flush | BlockOp::Discard(_) => {}
            }
        }
        request.done.done(request.tag, request.pieces, result);
    }

    /// What the operations that wait do.
    pub fn ops(&self) -> Vec<BlockOp> {
        self.waiting.lock().unwrap().iter().map(|request| request.op).collect()
    }
}

impl Blocks for Disk {
    fn len(&self) -> u64 {
        REGION
    }

    fn info(&self) -> BlockInfo {
        BlockInfo { block_size: 4096, discard: Some(4096), compare: true, flush: true, ..BlockInfo::default() }
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

/// A node with one lease in memory and one on blocks, both bound for [`HOST`].
pub struct Node {
    pub heap: Arc<Heap>,
    pub disk: Arc<Disk>,
    pub table: Table,
    pub writer: TableWriter,
    pub target: Target,
    /// The subsystems of both leases.
    pub memory: String,
    pub blocks: String,
}

impl Node {
    pub fn new() -> Self {
        Self::with(Limits::default(), CHUNKS, memory(), blocks())
    }

    pub fn with(limits: Limits, chunks: usize, memory: Entry, blocks: Entry) -> Self {
        let heap = Heap::new();
        let disk = Arc::new(Disk { heap: Heap::new(), waiting: Mutex::default(), room: 100 });
        let region = |kind, storage| Region { name: format!("{kind:?}"), kind, numa: None, storage };
        let regions = Regions::new(vec![
            region(RegionKind::Memory, Storage::Bytes(heap.clone())),
            region(RegionKind::Block, Storage::Blocks(disk.clone())),
        ]);
        let (table, mut writer) = Table::new(16);
        writer.insert(&memory).unwrap();
        writer.insert(&blocks).unwrap();
        let pool = Pool::new(Arc::new(berth_memory::Heap::new(chunks * CHUNK)));
        let target = Target::new(&table, &regions, pool, limits);
        let bind = |entry: &Entry| target.bind(entry.id, entry.generation, HOST, NOW).unwrap();
        let (memory, blocks) = (bind(&memory), bind(&blocks));
        Self { heap, disk, table, writer, target, memory, blocks }
    }

    pub fn set(&mut self, entry: Entry) {
        assert!(self.writer.update(&entry));
    }

    /// Whether every byte outside of the leases is what it was, in both regions.
    pub fn canaries_live(&self) -> bool {
        [&self.heap, &self.disk.heap].into_iter().all(|heap| {
            let bytes = heap.bytes();
            let outside = (0..REGION).filter(|at| !(BASE..BASE + LEN).contains(at));
            outside.into_iter().all(|at| bytes[at as usize] == canary(at))
        })
    }

    pub fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        self.target.report(&mut |other, value| {
            if other == name {
                found = Some(value);
            }
        });
        found.unwrap()
    }
}

pub fn memory() -> Entry {
    Entry {
        id: MEMORY,
        generation: Generation(7),
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
    Entry { id: BLOCK, region: RegionId(1), ..memory() }
}

/// What `len` bytes of a lease from `offset` on are before anybody wrote them.
pub fn original(offset: u64, len: usize) -> Vec<u8> {
    (BASE + offset..).take(len).map(canary).collect()
}
