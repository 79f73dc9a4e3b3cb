//! The bytes of regions, and which of them survive the process, or a power loss.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use berth_lease::{BlockRequest, Blocks, Bytes, Region, RegionKind, Regions, Storage};
use fastrand::Rng;

use super::world::SLOT;

/// Bytes of memory: too many to touch all of them while the node waits.
pub const MEMORY: u64 = 1 << 30;

/// Bytes of the disk: so few that leases compete for them.
const DISK: u64 = 64 << 10;

const PAGE: u64 = 4096;

/// Pages that are not all zero, by their first byte.
type Pages = BTreeMap<u64, Box<[u8; PAGE as usize]>>;

/// Bytes behind a lock.
#[derive(Clone)]
pub struct Heap {
    pages: Arc<Mutex<Pages>>,
    len: u64,
    /// Number of bytes that the node has touched itself while everybody waited.
    touched: Arc<AtomicU64>,
}

impl Heap {
    fn new(len: u64) -> Self {
        Self { pages: Arc::default(), len, touched: Arc::default() }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap()
    }

    pub fn load(&self, at: u64, into: &mut [u8]) {
        assert!(at + into.len() as u64 <= self.len);
        let pages = self.pages();
        for (at, part) in parts(at, into.len() as u64) {
            let into = &mut into[part];
            match pages.get(&(at / PAGE * PAGE)) {
                Some(page) => into.copy_from_slice(&page[(at % PAGE) as usize..][..into.len()]),
                None => into.fill(0),
            }
        }
    }

    pub fn store(&self, at: u64, from: &[u8]) {
        assert!(at + from.len() as u64 <= self.len);
        let mut pages = self.pages();
        for (at, part) in parts(at, from.len() as u64) {
            let page = pages.entry(at / PAGE * PAGE).or_insert_with(|| Box::new([0; PAGE as usize]));
            page[(at % PAGE) as usize..][..part.len()].copy_from_slice(&from[part]);
        }
    }

    pub fn clear(&self, at: u64, len: u64) {
        assert!(at + len <= self.len);
        let mut pages = self.pages();
        let first = at / PAGE * PAGE;
        let found: Vec<u64> = pages.range(first..at + len).map(|(page, _)| *page).collect();
        for page in found {
            if page >= at && page + PAGE <= at + len {
                pages.remove(&page);
            } else {
                let (from, to) = (page.max(at) - page, (page + PAGE).min(at + len) - page);
                pages.get_mut(&page).unwrap()[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Copies bytes to `into`, which may be this heap; the ranges do not overlap.
    pub fn copy(&self, from: u64, into: &Self, to: u64, len: u64) {
        let first = from / PAGE * PAGE;
        let found: Vec<u64> = self.pages().range(first..from + len).map(|(page, _)| *page).collect();
        into.clear(to, len);
        for page in found {
            let (start, end) = (page.max(from), (page + PAGE).min(from + len));
            let mut bytes = vec![0; (end - start) as usize];
            self.load(start, &mut bytes);
            into.store(to + (start - from), &bytes);
        }
    }
}

/// Splits a range by pages; yields the page and the bytes within it.
fn parts(at: u64, len: u64) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let start = at + done;
        let part = (PAGE - start % PAGE).min(len - done);
        let range = done as usize..(done + part) as usize;
        done += part;
        (part > 0).then_some((start, range))
    })
}

/// Access by the node itself.
impl Bytes for Heap {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        self.touched.fetch_add(into.len() as u64, Relaxed);
        self.load(at, into);
    }
    fn write(&self, at: u64, from: &[u8]) {
        self.touched.fetch_add(from.len() as u64, Relaxed);
        self.store(at, from);
    }
    fn zero(&self, at: u64, len: u64) {
        self.touched.fetch_add(len, Relaxed);
        self.clear(at, len);
    }
}

/// A disk whose bytes only the host touches.
struct Disk;

impl Blocks for Disk {
    fn len(&self) -> u64 {
        DISK
    }
    fn submit(&self, _: BlockRequest) {
        unreachable!("the simulated host does all block I/O")
    }
}

/// Memory, which a restart clears, and a disk, which it does not. A power loss leaves what was flushed; each block that
/// was written or zeroed since has its old or its new contents.
pub struct Stores {
    memory: Heap,
    disk: Heap,
    flushed: Pages,
}

impl Stores {
    pub fn new() -> Self {
        Self { memory: Heap::new(MEMORY), disk: Heap::new(DISK), flushed: Pages::new() }
    }

    pub fn lose_memory(&mut self) {
        self.memory = Heap::new(MEMORY);
    }

    pub fn flush(&mut self) {
        self.flushed = self.disk.pages().clone();
    }

    pub fn lose_power(&mut self, random: &mut Rng) {
        let old = Heap::new(DISK);
        *old.pages() = std::mem::take(&mut self.flushed);
        let touched: BTreeSet<u64> = old.pages().keys().chain(self.disk.pages().keys()).copied().collect();
        for page in touched {
            for at in (page..page + PAGE).step_by(SLOT as usize).filter(|_| random.bool()) {
                old.copy(at, &self.disk, at, SLOT);
            }
        }
        self.flush();
    }

    pub fn regions(&self) -> Regions {
        let region = |name: &str, kind, storage| Region { name: name.into(), kind, numa: None, storage };
        Regions::new(vec![
            region("memory", RegionKind::Memory, Storage::Bytes(Arc::new(self.memory.clone()))),
            region("disk", RegionKind::Block, Storage::Blocks(Arc::new(Disk))),
        ])
    }

    pub fn heap(&self, region: u16) -> &Heap {
        [&self.memory, &self.disk][usize::from(region)]
    }

    /// Bytes that the node has touched itself since the last call.
    pub fn touched(&self) -> u64 {
        self.memory.touched.swap(0, Relaxed)
    }
}
