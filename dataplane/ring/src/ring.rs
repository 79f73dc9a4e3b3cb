//! Rings: slots in both directions, and the two roles that use them.

use std::sync::Arc;
#[cfg(not(loom))]
use std::{
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering::Release},
};

#[cfg(not(loom))]
use berth_memory::{Heap, Memory};

use crate::{
    Dispatcher, Producer,
    sync::{HEAD, Lane},
};
#[cfg(not(loom))]
use crate::{Outstanding, abi, sync::WORD};

/// Index of a slot, from 0. A response is in the tx slot with the same index as its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

impl SlotIndex {
    /// The next slot in a ring of `slots`, which wraps around.
    #[inline]
    pub(crate) fn next(self, slots: u32) -> Self {
        let next = self.0 + 1;
        Self(if next == slots { 0 } else { next })
    }
}

/// Bits 47:0 of a tx flag tagged as an error: why the slot has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(u64);

impl ErrorCode {
    /// The handler panicked.
    pub const UNWOUND: Self = Self(1);
    /// The rx flag was neither zero nor the slot's address; the slot was not read.
    pub const BAD_FLAG: Self = Self(2);
    /// The request was overwritten while it was being dispatched, so its answer is withheld.
    pub const SLOT_REUSED: Self = Self(3);
    /// The request never arrived, and the dispatcher went on to a later one.
    pub const SKIPPED: Self = Self(4);
    /// The first code that Berth does not use itself.
    pub const FIRST_FREE: Self = Self(0x100);

    const BITS: u32 = 48;

    /// `None` if the code does not fit 48 bits.
    pub const fn new(code: u64) -> Option<Self> {
        if code >> Self::BITS == 0 { Some(Self(code)) } else { None }
    }

    /// The code as a number below 2^48.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Keeps the low 48 bits.
    pub(crate) const fn from_value(value: u64) -> Self {
        Self(value & ((1 << Self::BITS) - 1))
    }

    /// The tx flag that carries the code.
    pub const fn to_flag(self) -> u64 {
        crate::abi::ERROR_TAG << Self::BITS | self.0
    }

    /// The code in a tx flag; `None` if the flag is not tagged as an error.
    pub const fn from_flag(flag: u64) -> Option<Self> {
        if flag >> Self::BITS == crate::abi::ERROR_TAG { Some(Self::from_value(flag)) } else { None }
    }
}

/// Number, size and spacing of a ring's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    slots: u32,
    slot_size: usize,
    stride: usize,
}

impl Geometry {
    /// Size of a cache line in bytes.
    const LINE: usize = 64;
    /// Alignment of the areas: a pair of lines, which prefetchers fetch together (and which an FPGA's RDMA requires).
    const AREA: usize = 128;

    /// `slots` slots of `slot_size` bytes each way; the stride is the size rounded up to 64.
    ///
    /// # Errors
    /// There are no slots, they are shorter than a message header (24 bytes), or the ring exceeds the address space.
    pub fn new(slots: u32, slot_size: usize) -> Result<Self, RingError> {
        let stride = slot_size.checked_next_multiple_of(Self::LINE).ok_or(RingError::TooLarge)?;
        Self::with_stride(slots, slot_size, stride)
    }

    /// As [`Geometry::new`] with a longer stride, such as the multiple of 128 that an FPGA sender needs.
    ///
    /// # Errors
    /// As [`Geometry::new`]; or the stride is not a multiple of 64, or is shorter than a slot.
    pub fn with_stride(slots: u32, slot_size: usize, stride: usize) -> Result<Self, RingError> {
        if slots == 0 {
            return Err(RingError::NoSlots);
        }
        if slot_size < HEAD {
            return Err(RingError::ShortSlot(slot_size));
        }
        if stride < slot_size || !stride.is_multiple_of(Self::LINE) {
            return Err(RingError::BadStride { stride, slot_size });
        }
        let data = (slots as usize).checked_mul(stride).filter(|&d| d <= isize::MAX as usize / 4);
        data.ok_or(RingError::TooLarge)?;
        Ok(Self { slots, slot_size, stride })
    }

    /// Number of slots each way.
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    /// Usable size of a slot in bytes.
    pub const fn slot_size(&self) -> usize {
        self.slot_size
    }

    /// Bytes from the start of one slot to the next.
    pub const fn stride(&self) -> usize {
        self.stride
    }

    const fn flags_len(&self) -> usize {
        (self.slots as usize * size_of::<u64>()).next_multiple_of(Self::AREA)
    }

    const fn data_len(&self) -> usize {
        (self.slots as usize * self.stride).next_multiple_of(Self::AREA)
    }

    /// Size of the memory for a [`Ring`] in bytes: both flag arrays, then rx and tx slots, each 128-aligned.
    pub const fn size(&self) -> usize {
        2 * (self.flags_len() + self.data_len())
    }

    /// Size of the memory for an internal ring in bytes.
    #[cfg(not(loom))]
    pub const fn internal_size(&self) -> usize {
        2 * self.internal_half()
    }

    #[cfg(not(loom))]
    const fn internal_half(&self) -> usize {
        (self.slots as usize * self.internal_stride()).next_multiple_of(Self::AREA)
    }

    #[cfg(not(loom))]
    const fn internal_stride(&self) -> usize {
        (WORD + self.slot_size).next_multiple_of(Self::LINE)
    }

    /// Size of the memory for a ring that another process maps, with its [`abi::SharedRing`], in bytes.
    #[cfg(not(loom))]
    pub const fn shared_size(&self) -> usize {
        SHARED_FRONT + self.size()
    }

    /// Size of a device's memory for requests in bytes, see [`posted`]: flags, then slots.
    #[cfg(not(loom))]
    pub const fn posted_size(&self) -> usize {
        self.flags_len() + self.data_len()
    }

    /// Where in it the first slot lies, in bytes.
    #[cfg(not(loom))]
    pub const fn posted_slots(&self) -> usize {
        self.flags_len()
    }
}

/// Why a ring cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The number of slots is 0.
    #[error("a ring needs at least 1 slot")]
    NoSlots,
    /// A slot of this size cannot hold a message header.
    #[error("a slot of {0} bytes cannot hold a message header; use at least {HEAD}")]
    ShortSlot(usize),
    /// The stride is not a multiple of 64, or is shorter than a slot.
    #[error("stride {stride} must be a multiple of 64 and at least the slot size {slot_size}")]
    BadStride {
        /// Stride asked for, in bytes.
        stride: usize,
        /// Slot size in bytes.
        slot_size: usize,
    },
    /// The ring exceeds the address space.
    #[error("the ring is larger than the address space; use fewer or smaller slots")]
    TooLarge,
    /// The memory is too short.
    #[error("the memory has {have} bytes, the ring needs {need}")]
    ShortMemory {
        /// Size of the memory in bytes.
        have: usize,
        /// Size that the geometry needs, in bytes.
        need: usize,
    },
    /// The memory is not 128-aligned.
    #[error("the memory must be aligned to 128 bytes")]
    Misaligned,
    /// The description of a foreign ring contradicts itself.
    #[error("foreign ring: {0}")]
    Foreign(&'static str),
}

/// A ring in the host API's layout. Each of its two roles is given out once.
///
/// The memory is kept until the ring and both roles are dropped.
pub struct Ring {
    #[cfg(not(loom))]
    abi: abi::Ringbuffer,
    slots: u32,
    rx: Lane,
    tx: Lane,
    producer_taken: bool,
    dispatcher_taken: bool,
    owner: Owner,
}

/// Keeps the memory of the slots; `None` if its owner is someone else.
#[cfg(not(loom))]
pub(crate) type Owner = Option<Arc<dyn Memory>>;
#[cfg(loom)]
pub(crate) type Owner = Option<Arc<()>>;

#[cfg(not(loom))]
impl Ring {
    /// Lays a ring out in `memory`, all slots free.
    ///
    /// # Errors
    /// The memory is shorter than [`Geometry::size`] or not 128-aligned.
    pub fn new(memory: impl Memory, geometry: Geometry) -> Result<Self, RingError> {
        Self::lay_out(memory, geometry, 0, None)
    }

    /// Lays out a ring `front` bytes into `memory`, whose first byte the dispatcher sees at `base`; `None` if it sees
    /// the same addresses as we do.
    fn lay_out(memory: impl Memory, geometry: Geometry, front: usize, base: Option<usize>) -> Result<Self, RingError> {
        fits(&memory, front + geometry.size())?;
        let flags = geometry.flags_len();
        let [tx_flags, rx_data] = [front + flags, front + 2 * flags];
        let tx_data = rx_data + geometry.data_len();
        // SAFETY: all offsets are within the bytes that the memory has.
        let host = |offset| unsafe { memory.base().add(offset).as_ptr() };
        let view = |offset| base.map_or(host(offset), |base| ptr::without_provenance_mut(base + offset));
        memory.zero_at(front, 2 * flags);
        let abi = abi::Ringbuffer {
            rx_flags: view(front).cast(),
            tx_flags: view(tx_flags).cast(),
            rx_data: view(rx_data),
            tx_data: view(tx_data),
            rx_stride: geometry.stride,
            tx_stride: geometry.stride,
            rx_flags_host: host(front).cast(),
            tx_flags_host: host(tx_flags).cast(),
            rx_data_host: host(rx_data),
            tx_data_host: host(tx_data),
        };
        // SAFETY: the description is of the memory just laid out, which `owner` keeps alive.
        let mut ring = unsafe { Self::attach(abi, geometry.slots, geometry.slot_size) }?;
        ring.owner = Some(Arc::new(memory));
        Ok(ring)
    }

    /// Joins a ring that someone else made, in either role, with both cursors at slot 0.
    ///
    /// Slots are reached through the `_host` pointers, or through the others if those are null. Flags carry addresses
    /// in the dispatcher's view (the pointers without suffix), as a device's dispatcher writes and reads them. Either
    /// view is accepted from the other side.
    ///
    /// # Errors
    /// A pointer is null or misaligned, or a stride is shorter than a slot.
    ///
    /// # Safety
    /// The pointers must be valid for `slots` flags and slots at the given strides, from any thread, until the ring and
    /// its roles are dropped; no two slots may overlap. The holder of the other role must keep to the protocol: it must
    /// not touch a request from the moment it sets its flag until that is zero again, nor an answer slot until its flag
    /// is set. No third party may hold the role that is taken here.
    pub unsafe fn attach(abi: abi::Ringbuffer, slots: u32, slot_size: usize) -> Result<Self, RingError> {
        if slots == 0 {
            return Err(RingError::NoSlots);
        }
        if slot_size < HEAD {
            return Err(RingError::ShortSlot(slot_size));
        }
        for stride in [abi.rx_stride, abi.tx_stride] {
            if stride < slot_size {
                return Err(RingError::Foreign("a stride is shorter than a slot"));
            }
            if (slots as usize).checked_mul(stride).is_none_or(|len| len > isize::MAX as usize) {
                return Err(RingError::TooLarge);
            }
        }
        let flags = |host: *mut u64, device| {
            let flags = NonNull::new(host).or(NonNull::new(device)).ok_or(RingError::Foreign("flags are null"))?;
            if flags.is_aligned() { Ok(flags) } else { Err(RingError::Foreign("flags must be 8-aligned")) }
        };
        let data = |host: *mut u8, device| {
            NonNull::new(host).or(NonNull::new(device)).ok_or(RingError::Foreign("slots are null"))
        };
        let (rx_flags, rx_data) = (flags(abi.rx_flags_host, abi.rx_flags)?, data(abi.rx_data_host, abi.rx_data)?);
        let (tx_flags, tx_data) = (flags(abi.tx_flags_host, abi.tx_flags)?, data(abi.tx_data_host, abi.tx_data)?);
        let rx_view = if abi.rx_data.is_null() { rx_data.as_ptr() } else { abi.rx_data } as u64;
        let tx_view = if abi.tx_data.is_null() { tx_data.as_ptr() } else { abi.tx_data } as u64;
        // SAFETY: validity is the caller's promise; alignment was checked above.
        let rx = unsafe { Lane::new(rx_flags, rx_data, abi.rx_stride, slot_size, rx_view) };
        // SAFETY: as above.
        let tx = unsafe { Lane::new(tx_flags, tx_data, abi.tx_stride, slot_size, tx_view) };
        Ok(Self { abi, slots, rx, tx, producer_taken: false, dispatcher_taken: false, owner: None })
    }

    /// Addresses of the ring's parts, for someone else to take the role that is not taken here.
    ///
    /// The pointers are valid as long as the ring or one of its roles exists.
    pub fn as_abi(&self) -> abi::Ringbuffer {
        self.abi
    }
}

/// Bytes before the ring in a shared-memory file: one page, so that the flags are page-aligned.
#[cfg(not(loom))]
const SHARED_FRONT: usize = 4096;

/// The producer's end of a ring in `memory` that another process also maps, and serves. It finds an [`abi::SharedRing`]
/// at the front; flags hold addresses as if it had mapped the memory at `base`.
///
/// That process is not trusted: no reference is made to what it can write, a flag is compared and never followed, and
/// its answers are copied out of their slots before they are read.
///
/// # Errors
/// The memory is shorter than [`Geometry::shared_size`] or not 128-aligned.
#[cfg(not(loom))]
pub fn shared(memory: impl Memory, geometry: Geometry, base: usize) -> Result<Producer, RingError> {
    let (size, front) = (memory.size(), memory.base());
    let ring = Ring::lay_out(memory, geometry, SHARED_FRONT, Some(base))?;
    let offset = |address: usize| (address - base) as u64;
    let header = abi::SharedRing {
        magic: 0,
        version: abi::SHARED_VERSION,
        slots: geometry.slots,
        slot_size: geometry.slot_size as u64,
        stride: geometry.stride as u64,
        size: size as u64,
        base: base as u64,
        rx_flags: offset(ring.abi.rx_flags.addr()),
        tx_flags: offset(ring.abi.tx_flags.addr()),
        rx_data: offset(ring.abi.rx_data.addr()),
        tx_data: offset(ring.abi.tx_data.addr()),
    };
    // SAFETY: the header fits before the ring, and the memory, which the ring keeps, is aligned to pairs of lines.
    unsafe {
        front.cast::<abi::SharedRing>().write_volatile(header);
        AtomicU64::from_ptr(front.cast().as_ptr()).store(abi::SHARED_MAGIC, Release);
    }
    Ok(Producer::new(ring.rx, ring.tx, ring.slots, ring.owner).distrusting())
}

/// [`shared`], with requests in `posted`: memory of a device, which that process has mapped at `posted_base`. It has the flags of
/// requests, and behind them the slots ([`Geometry::posted_size`]); those of the file are unused.
///
/// The dispatcher clears a request's flag before it publishes the answer, since the slot is filled again after that. The producer
/// does not read the device's memory, but for the flag of an oldest request that has no answer. When the dispatcher's process has
/// ended, [`Outstanding::refuse`] answers the requests that it had.
///
/// # Errors
/// As [`shared`], of either memory.
#[cfg(not(loom))]
pub fn posted(
    memory: impl Memory,
    base: usize,
    posted: Arc<dyn Memory>,
    posted_base: usize,
    geometry: Geometry,
) -> Result<(Producer, Outstanding), RingError> {
    fits(&*posted, geometry.posted_size())?;
    let flags = geometry.flags_len();
    posted.zero_at(0, flags);
    berth_memory::flush_stores();
    // SAFETY: within the memory, which `owner` keeps; it is aligned, and so are strides and the length of the flags.
    let lane = unsafe {
        let data = posted.base().add(flags);
        Lane::new(posted.base().cast(), data, geometry.stride, geometry.slot_size, (posted_base + flags) as u64)
    };
    Ok(shared(memory, geometry, base)?.posting(lane, Some(posted)))
}

/// Checks that `memory` is aligned and has `need` bytes.
#[cfg(not(loom))]
fn fits(memory: &(impl Memory + ?Sized), need: usize) -> Result<(), RingError> {
    if memory.size() < need {
        return Err(RingError::ShortMemory { have: memory.size(), need });
    }
    if !memory.base().addr().get().is_multiple_of(Geometry::AREA) {
        return Err(RingError::Misaligned);
    }
    Ok(())
}

/// Both ends of an internal ring: `slots` slots of `slot_size` bytes each way, for two cores of this process.
///
/// In front of each slot is a word, in one cache line with a message of up to 56 bytes. One store of it announces the
/// message and its length. A reader gets exactly what was written, never the rest of an earlier message.
///
/// # Errors
/// As [`Geometry::new`].
#[cfg(not(loom))]
pub fn pair(slots: u32, slot_size: usize) -> Result<(Producer, Dispatcher), RingError> {
    let geometry = Geometry::new(slots, slot_size)?;
    pair_in(Heap::new(geometry.internal_size()), geometry)
}

/// [`pair`] in `memory`, with the strides that an internal ring needs.
///
/// # Errors
/// The memory is shorter than [`Geometry::internal_size`] or not 128-aligned.
#[cfg(not(loom))]
pub fn pair_in(memory: impl Memory, geometry: Geometry) -> Result<(Producer, Dispatcher), RingError> {
    let Geometry { slots, slot_size, .. } = geometry;
    let (stride, half) = (geometry.internal_stride(), geometry.internal_half());
    fits(&memory, 2 * half)?;
    memory.zero_at(0, 2 * half);
    // SAFETY: the memory is zeroed, aligned to lines as the stride is, holds both halves, and nobody else has it; `owner`
    // keeps it alive.
    let lane = |at: usize| unsafe { Lane::internal(memory.base().add(at), stride, slot_size) };
    let (rx, tx) = (lane(0), lane(half));
    let owner: Owner = Some(Arc::new(memory));
    Ok((Producer::new(rx.clone(), tx.clone(), slots, owner.clone()), Dispatcher::new(rx, tx, slots, owner)))
}

/// [`pair`] on loom's heap.
#[cfg(loom)]
pub fn pair(slots: u32, slot_size: usize) -> Result<(Producer, Dispatcher), RingError> {
    let (rx, tx) = (Lane::new(slots, slot_size, true), Lane::new(slots, slot_size, true));
    Ok((Producer::new(rx.clone(), tx.clone(), slots, None), Dispatcher::new(rx, tx, slots, None)))
}

#[cfg(loom)]
impl Ring {
    /// A ring on loom's heap.
    pub fn modelled(slots: u32, slot_size: usize) -> Self {
        let (rx, tx) = (Lane::new(slots, slot_size, false), Lane::new(slots, slot_size, false));
        Self { slots, rx, tx, producer_taken: false, dispatcher_taken: false, owner: None }
    }
}

impl Ring {
    /// The producer's role, which fills requests and takes answers. `None` if it was given out before.
    pub fn producer(&mut self) -> Option<Producer> {
        if std::mem::replace(&mut self.producer_taken, true) {
            return None;
        }
        Some(Producer::new(self.rx.clone(), self.tx.clone(), self.slots, self.owner.clone()))
    }

    /// The dispatcher's role, which takes requests and publishes answers. `None` if it was given out before.
    pub fn dispatcher(&mut self) -> Option<Dispatcher> {
        if std::mem::replace(&mut self.dispatcher_taken, true) {
            return None;
        }
        Some(Dispatcher::new(self.rx.clone(), self.tx.clone(), self.slots, self.owner.clone()))
    }
}
