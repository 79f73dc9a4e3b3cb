//! Regions for tests.

use std::sync::{Arc, Mutex};

use berth_lease::{BlockRequest, Blocks, Bytes, Region, RegionKind, Regions, Storage};

/// Memory that starts zeroed.
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

/// Blocks that nobody writes: an engine of this length which is never ready.
struct Engine(u64);

impl Blocks for Engine {
    fn len(&self) -> u64 {
        self.0
    }
    fn submit(&self, request: BlockRequest) {
        request.done.done(request.tag, request.buffer, Err(berth_lease::BlockError::Busy));
    }
}

pub(crate) fn memory(len: u64, numa: Option<u16>) -> Region {
    let bytes = Arc::new(Memory(Mutex::new(vec![0; len as usize])));
    Region { name: "memory".into(), kind: RegionKind::Memory, numa, storage: Storage::Bytes(bytes) }
}

pub(crate) fn blocks(len: u64) -> Region {
    Region {
        name: "blocks".into(),
        kind: RegionKind::Block,
        numa: None,
        storage: Storage::Blocks(Arc::new(Engine(len))),
    }
}

/// The bytes of a memory region.
pub(crate) fn bytes(regions: &Regions, index: u16) -> Arc<dyn Bytes> {
    match &regions.get(berth_lease::RegionId(index)).unwrap().storage {
        Storage::Bytes(bytes) => bytes.clone(),
        Storage::Blocks(_) => panic!("region {index} is behind an engine"),
    }
}
