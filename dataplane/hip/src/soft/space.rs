//! The address space of a session: where its allocations lie, and who counts their bytes.

use std::{
    any::Any,
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use berth_ptx::{Memory, Order, Refused, Width};
use berth_wire::hip::Code;

use crate::{Random, device::Allocation};

/// What allocations begin at multiples of, and are charged in.
const ALIGN: u64 = 256;
/// At least this lies between two allocations: a page of this size has bytes of one alone.
const GUARD: u64 = 1 << 20;
/// Addresses of one session: 2^44 of the 2^56 that kernels see.
const WINDOW: u64 = 1 << 44;
/// Windows up to this one, and the first that sessions get.
const WINDOWS: u64 = 1 << 12;
const FIRST: u64 = 1 << 5;

/// Addresses below are never those of a software GPU: GPUs with a driver have theirs there, which are of 49 bits at most.
pub const LOWEST: u64 = FIRST * WINDOW;
/// Longest block of a lease that is zeroed before it is freed; of longer ones the allocator makes mappings of their own.
const SCRUBBED: usize = 32 << 20;
/// Allocations that are skipped in search of room.
const SKIPS: usize = 1024;
/// Pages whose allocation is remembered.
const CACHED: usize = 16;

/// Which windows of 2^44 addresses live sessions have; there are 4064.
#[derive(Debug, Default)]
pub struct Windows(Mutex<BTreeSet<u64>>);

impl Windows {
    fn take(&self, random: &Random) -> Option<u64> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.len() as u64 >= WINDOWS - FIRST {
            return None;
        }
        loop {
            let window = random() % (WINDOWS - FIRST) + FIRST;
            if taken.insert(window) {
                return Some(window);
            }
        }
    }

    fn give_back(&self, window: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&window);
    }
}

/// Bytes of a device that sessions share, or of a session that its devices do.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    used: AtomicU64,
}

impl Budget {
    /// A budget of `total` bytes, none of them in use.
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: AtomicU64::new(0) })
    }

    /// All of its bytes, in use or not.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that sessions use, or that are reserved for leases.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Bytes that can still be taken.
    pub fn left(&self) -> u64 {
        self.total.saturating_sub(self.used())
    }

    /// Takes bytes into use, if there are so many; whether there were.
    pub fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.total);
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives back bytes that were taken.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

#[derive(Debug)]
struct Block {
    at: u64,
    bytes: Vec<u8>,
    device: usize,
}

/// Allocations of a session, and nothing between them.
#[derive(Debug)]
pub(super) struct Space {
    windows: Arc<Windows>,
    window: u64,
    budgets: Vec<Arc<Budget>>,
    /// What the session may have of all devices, some of which may be elsewhere, and has of these.
    quota: Arc<Budget>,
    used: u64,
    /// What it has of each device.
    charged: Vec<u64>,
    /// Where the next allocation is tried.
    next: u64,
    blocks: Vec<Option<Block>>,
    free: Vec<usize>,
    by_address: BTreeMap<u64, usize>,
    /// Pages, and the block that has bytes in each.
    cache: [(u64, usize); CACHED],
    /// The block that was found last: calls are mostly about the same one.
    recent: Cell<usize>,
    /// Of a leased device.
    reserved: Option<Reserved>,
}

/// Bytes of a device that a lease has. Dropped, they are free, and so is what the lease held for them.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<Budget>,
    bytes: u64,
    _held: Box<dyn Any + Send>,
}

impl Reserved {
    /// Takes so many bytes into use, beside `own` of them, which are already. `held` is dropped with them.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] if others use them.
    pub fn take(budget: Arc<Budget>, own: u64, bytes: u64, held: Box<dyn Any + Send>) -> Result<Self, Code> {
        if !budget.take(bytes.saturating_sub(own)) {
            return Err(Code::OUT_OF_MEMORY);
        }
        budget.give_back(own.saturating_sub(bytes));
        Ok(Self { budget, bytes, _held: held })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Bytes that are charged for an allocation.
fn charge_of(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(ALIGN)
}

impl Space {
    /// A window of its own; `None` if all are taken. `budgets` are those of the devices.
    pub(super) fn new(
        windows: &Arc<Windows>,
        budgets: Vec<Arc<Budget>>,
        quota: Arc<Budget>,
        random: &Random,
    ) -> Option<Self> {
        let window = windows.take(random)?;
        Some(Self {
            windows: windows.clone(),
            window,
            charged: vec![0; budgets.len()],
            budgets,
            quota,
            used: 0,
            // Within the first half, for there are more addresses than any quota needs.
            next: window * WINDOW + GUARD + random() % (WINDOW / 2) / ALIGN * ALIGN,
            blocks: Vec::new(),
            free: Vec::new(),
            by_address: BTreeMap::new(),
            cache: [(0, 0); CACHED],
            recent: Cell::new(0),
            reserved: None,
        })
    }

    /// Bytes that can still be taken of a device.
    pub(super) fn free_bytes(&self, device: usize) -> u64 {
        let budget = &self.budgets[device];
        self.quota.left().min(budget.left())
    }

    /// Bytes that the session may still take.
    pub(super) fn quota_left(&self) -> u64 {
        self.quota.left()
    }

    /// Frees everything, and leaves one device with so many bytes, which are this session's alone. Nothing is freed if
    /// others use them.
    pub(super) fn confine(&mut self, device: usize, bytes: u64, held: Box<dyn Any + Send>) -> Result<(), Code> {
        // What the session has of them stays its own throughout.
        let reserved = Reserved::take(self.budgets[device].clone(), self.charged[device], bytes, held)?;
        self.charged[device] = 0;
        self.clear();
        self.reserved = Some(reserved);
        (self.budgets, self.charged, self.quota) = (vec![Budget::new(bytes)], vec![0], Budget::new(bytes));
        Ok(())
    }

    /// Bytes that are in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Counts bytes as used.
    pub(super) fn charge(&mut self, device: usize, bytes: u64) -> Result<(), Code> {
        if !self.quota.take(bytes) {
            return Err(Code::OUT_OF_MEMORY);
        }
        if !self.budgets[device].take(bytes) {
            self.quota.give_back(bytes);
            return Err(Code::OUT_OF_MEMORY);
        }
        self.used += bytes;
        self.charged[device] += bytes;
        Ok(())
    }

    /// Counts them as free again.
    pub(super) fn refund(&mut self, device: usize, bytes: u64) {
        self.used -= bytes;
        self.charged[device] -= bytes;
        self.quota.give_back(bytes);
        self.budgets[device].give_back(bytes);
    }

    /// Allocates `len` zeros, `len` not 0.
    pub(super) fn allocate(&mut self, device: usize, len: u64) -> Result<u64, Code> {
        let bytes = charge_of(len).ok_or(Code::OUT_OF_MEMORY)?;
        self.charge(device, bytes)?;
        let Some(at) = self.place(len) else {
            self.refund(device, bytes);
            return Err(Code::OUT_OF_MEMORY);
        };
        let block = Block { at, bytes: vec![0; len as usize], device };
        let index = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[index] = Some(block);
        self.by_address.insert(at, index);
        self.next = at + len;
        Ok(at)
    }

    /// Addresses that nobody has, as far as possible ones that nobody has had.
    fn place(&self, len: u64) -> Option<u64> {
        let (begin, end) = (self.window * WINDOW, (self.window + 1) * WINDOW);
        let mut at = self.next;
        for _ in 0..SKIPS {
            at = at.checked_add(GUARD)?.next_multiple_of(ALIGN);
            let after = at.checked_add(len)?.checked_add(GUARD)?;
            if after > end {
                if len > WINDOW / 4 {
                    return None;
                }
                at = begin;
                continue;
            }
            // The last one that begins before the guard behind this one ends.
            let Some(block) = self.by_address.range(..after).next_back().and_then(|(_, index)| self.block(*index))
            else {
                return Some(at);
            };
            let taken = block.at + block.bytes.len() as u64;
            if taken + GUARD <= at {
                return Some(at);
            }
            at = taken;
        }
        None
    }

    /// Frees the allocation that begins here.
    pub(super) fn release(&mut self, at: u64) -> Result<(), Code> {
        let index = self.by_address.remove(&at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        self.cache = [(0, 0); CACHED];
        self.free.push(index);
        if let Some(mut block) = self.blocks[index].take() {
            if self.reserved.is_some() && block.bytes.len() <= SCRUBBED {
                block.bytes.fill(0);
                std::hint::black_box(&block.bytes);
            }
            self.refund(block.device, charge_of(block.bytes.len() as u64).unwrap_or(0));
        }
        Ok(())
    }

    /// The allocation in which an address lies.
    pub(super) fn find(&self, at: u64) -> Option<Allocation> {
        let block = self.block(self.index_of(at)?)?;
        Some(Allocation { at: block.at, len: block.bytes.len() as u64, device: block.device })
    }

    /// The block in which an address lies.
    fn index_of(&self, at: u64) -> Option<usize> {
        let has = |block: &Block| at.checked_sub(block.at).is_some_and(|offset| offset < block.bytes.len() as u64);
        let recent = self.recent.get();
        if self.block(recent).is_some_and(has) {
            return Some(recent);
        }
        let (_, index) = self.by_address.range(..=at).next_back()?;
        self.block(*index).filter(|block| has(block))?;
        self.recent.set(*index);
        Some(*index)
    }

    /// The bytes of a range of one allocation.
    pub(super) fn range(&mut self, at: u64, len: u64) -> Result<&mut [u8], Code> {
        let index = self.index_of(at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        let block = self.blocks[index].as_mut().ok_or(Code::INVALID_DEVICE_POINTER)?;
        let from = (at - block.at) as usize;
        let end = usize::try_from(len).ok().and_then(|len| from.checked_add(len));
        end.and_then(|end| block.bytes.get_mut(from..end)).ok_or(Code::INVALID_VALUE)
    }

    fn block(&self, index: usize) -> Option<&Block> {
        self.blocks.get(index)?.as_ref()
    }

    /// The bytes of a range of one allocation; none where there is no such range.
    pub(super) fn bytes(&mut self, at: u64, len: u64) -> &mut [u8] {
        self.range(at, len).unwrap_or(&mut [])
    }

    /// Copies a range of an allocation into one of the same or of another.
    pub(super) fn copy(&mut self, dst: u64, src: u64, len: u64) {
        let index =
            |at: u64| self.by_address.range(..=at).next_back().map(|(start, index)| (*index, (at - start) as usize));
        let (Some((to, dst)), Some((from, src))) = (index(dst), index(src)) else { return };
        let len = len as usize;
        let blocks = if to == from { None } else { self.blocks.get_disjoint_mut([to, from]).ok() };
        if let Some([Some(to), Some(from)]) = blocks {
            to.bytes[dst..dst + len].copy_from_slice(&from.bytes[src..src + len]);
        } else if let Some(block) = &mut self.blocks[to] {
            block.bytes.copy_within(src..src + len, dst);
        }
    }

    /// Frees all.
    pub(super) fn clear(&mut self) {
        for (device, charged) in self.charged.iter_mut().enumerate() {
            self.budgets[device].give_back(std::mem::take(charged));
        }
        self.quota.give_back(std::mem::take(&mut self.used));
        self.cache = [(0, 0); CACHED];
        // What a lease held is no longer there when it is over, not even unread. Longer blocks go back to the system, which
        // zeroes them.
        let scrubbed = self.blocks.iter_mut().flatten().filter(|block| block.bytes.len() <= SCRUBBED);
        for block in scrubbed.filter(|_| self.reserved.is_some()) {
            block.bytes.fill(0);
            std::hint::black_box(&block.bytes);
        }
        (self.blocks, self.free, self.by_address) = Default::default();
    }

    #[inline]
    fn access(&mut self, at: u64, width: Width) -> Result<&mut [u8], Refused> {
        let page = at / GUARD;
        let slot = page as usize % CACHED;
        let (known, mut index) = self.cache[slot];
        if known != page {
            let (_, found) = self.by_address.range(..=at).next_back().ok_or(Refused)?;
            let block = self.block(*found).ok_or(Refused)?;
            if at - block.at >= block.bytes.len() as u64 {
                return Err(Refused);
            }
            index = *found;
            self.cache[slot] = (page, index);
        }
        let Some(Some(block)) = self.blocks.get_mut(index) else { return Err(Refused) };
        let offset = at.checked_sub(block.at).ok_or(Refused)? as usize;
        block.bytes.get_mut(offset..offset + usize::from(width.bytes())).ok_or(Refused)
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.clear();
        self.windows.give_back(self.window);
    }
}

fn value(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(value)
}

fn set(bytes: &mut [u8], value: u64) {
    let len = bytes.len();
    bytes.copy_from_slice(&value.to_le_bytes()[..len]);
}

impl Memory for Space {
    #[inline]
    fn load(&mut self, at: u64, width: Width, _: Order) -> Result<u64, Refused> {
        self.access(at, width).map(|bytes| value(bytes))
    }

    #[inline]
    fn store(&mut self, at: u64, width: Width, value: u64, _: Order) -> Result<(), Refused> {
        self.access(at, width).map(|bytes| set(bytes, value))
    }

    fn update(&mut self, at: u64, width: Width, _: Order, f: impl Fn(u64) -> u64) -> Result<u64, Refused> {
        let bytes = self.access(at, width)?;
        let old = value(bytes);
        set(bytes, f(old));
        Ok(old)
    }

    fn fence(&mut self, _: Order) {}
}
