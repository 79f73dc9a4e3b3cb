//! Regions for tests.
#![allow(dead_code, reason = "not every test uses all of them")]

pub(crate) mod node;

use std::sync::{Arc, Mutex};

use berth_lease::{BlockInfo, BlockOp, BlockRequest, Blocks, Bytes, Region, RegionKind, Regions, Storage};

/// Bytes behind a lock.
pub(crate) struct Memory(pub(crate) Mutex<Vec<u8>>);

impl Memory {
    fn with<R>(&self, at: u64, len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        f(&mut self.0.lock().unwrap()[at as usize..at as usize + len])
    }
}

impl Bytes for Memory {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        self.with(at, into.len(), |bytes| into.copy_from_slice(bytes));
    }
    fn write(&self, at: u64, from: &[u8]) {
        self.with(at, from.len(), |bytes| bytes.copy_from_slice(from));
    }
    fn zero(&self, at: u64, len: u64) {
        self.with(at, len as usize, |bytes| bytes.fill(0));
    }
}

/// Bytes whose requests complete as soon as they are submitted.
struct Engine {
    bytes: Memory,
    info: BlockInfo,
}

impl Blocks for Engine {
    fn len(&self) -> u64 {
        self.bytes.len()
    }
    fn info(&self) -> BlockInfo {
        self.info
    }
    fn submit(&self, request: BlockRequest) {
        let mut bytes = vec![0; request.len() as usize];
        match request.op {
            BlockOp::Read => {
                self.bytes.read(request.at, &mut bytes);
                request.write_at(0, &bytes);
            }
            BlockOp::Write => {
                request.read_at(0, &mut bytes);
                self.bytes.write(request.at, &bytes);
            }
            BlockOp::Zero(len) => self.bytes.zero(request.at, len),
            BlockOp::Flush | BlockOp::Compare | BlockOp::Discard(_) => {}
        }
        request.done.done(request.tag, request.pieces, Ok(()));
    }
}

pub(crate) fn memory(len: u64, numa: Option<u16>) -> Region {
    let bytes = Arc::new(Memory(Mutex::new(vec![0; len as usize])));
    Region { name: "memory".into(), kind: RegionKind::Memory, numa, storage: Storage::Bytes(bytes) }
}

fn behind_engine(kind: RegionKind, bytes: Vec<u8>, info: BlockInfo) -> Region {
    let storage = Storage::Blocks(Arc::new(Engine { bytes: Memory(Mutex::new(bytes)), info }));
    Region { name: "engine".into(), kind, numa: None, storage }
}

/// Blocks whose file used to hold sevens.
pub(crate) fn blocks(len: u64) -> Region {
    behind_engine(RegionKind::Block, vec![7; len as usize], BlockInfo::default())
}

/// A GPU's own memory, leased in units of `granule` bytes.
pub(crate) fn vram(len: u64, granule: u64) -> Region {
    let info = BlockInfo { granule, volatile: true, ..BlockInfo::default() };
    behind_engine(RegionKind::Vram, vec![0; len as usize], info)
}

pub(crate) fn bytes(regions: &Regions, index: u16) -> Arc<dyn Bytes> {
    match &regions.get(berth_lease::RegionId(index)).unwrap().storage {
        Storage::Bytes(bytes) => bytes.clone(),
        Storage::Blocks(_) => panic!("region {index} is behind an engine"),
    }
}
