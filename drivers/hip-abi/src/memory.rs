//! Memory of devices and of the host; copies and sets.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use berth_hip::Session;
use berth_wire::hip::Code;

use crate::{
    args::{Address, Out},
    library::{Allocation, DEVICE, answer, make, objects, on},
};

/// Bytes that rows of [`hipMallocPitch`] begin apart are a multiple of this.
const PITCH: usize = 256;
/// What memory of the host is aligned to.
const PAGE: usize = 4096;

/// `hipMemoryTypeHost`, `hipMemoryTypeDevice`.
const HOST: i32 = 1;
const ON_DEVICE: i32 = 2;

/// Where the ends of a copy are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Host,
    In,
    Out,
    Device,
}

impl Direction {
    /// By `hipMemcpyKind`; for `hipMemcpyDefault`, by whether the addresses are of a device.
    pub(crate) fn of(kind: i32, to: Address, from: Address) -> Result<Self, Code> {
        let is_device = |at: Address| objects(|objects| objects.allocation(at.number()).is_some());
        Ok(match kind {
            0 => Self::Host,
            1 => Self::In,
            2 => Self::Out,
            3 => Self::Device,
            4 => match (is_device(to), is_device(from)) {
                (false, false) => Self::Host,
                (true, false) => Self::In,
                (false, true) => Self::Out,
                (true, true) => Self::Device,
            },
            _ => return Err(Code::INVALID_DIRECTION),
        })
    }

    /// Refuses ends, each with its bytes, that are nowhere, or on a device and not in one allocation.
    pub(crate) fn check(self, to: (Address, u64), from: (Address, u64)) -> Result<(), Code> {
        if to.0.is_null() || from.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        objects(|objects| {
            if matches!(self, Self::In | Self::Device) {
                objects.range(to.0.number(), to.1)?;
            }
            if matches!(self, Self::Out | Self::Device) {
                objects.range(from.0.number(), from.1)?;
            }
            Ok(())
        })
    }
}

fn allocate(to: Out<Address>, bytes: usize, f: impl FnOnce(&Session) -> berth_hip::Result<u64>) -> Result<(), Code> {
    let slot = to.slot()?;
    let allocation = Allocation { bytes: bytes as u64, device: DEVICE.get() };
    let at = make(f, |objects, at| {
        if *at != 0 {
            objects.memory.insert(*at, allocation);
        }
    })?;
    slot.set(Address::of(at as *mut u8));
    Ok(())
}

fn release(at: Address, f: impl FnOnce(&Session) -> berth_hip::Result<()>) -> Result<(), Code> {
    if at.is_null() {
        return Ok(());
    }
    objects(|objects| objects.memory.remove(&at.number())).ok_or(Code::INVALID_DEVICE_POINTER)?;
    on(f)
}

#[unsafe(no_mangle)]
extern "C" fn hipMalloc(to: Out<Address>, bytes: usize) -> i32 {
    answer(|| allocate(to, bytes, |session| session.malloc(bytes as u64)))
}

#[unsafe(no_mangle)]
extern "C" fn hipMallocAsync(to: Out<Address>, bytes: usize, stream: u64) -> i32 {
    answer(|| {
        let stream = objects(|objects| objects.stream(stream))?;
        allocate(to, bytes, |session| session.malloc_async(bytes as u64, stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMallocPitch(to: Out<Address>, pitch: Out<usize>, width: usize, height: usize) -> i32 {
    answer(|| {
        let slot = pitch.slot()?;
        let apart = width.checked_next_multiple_of(PITCH).ok_or(Code::INVALID_VALUE)?;
        let bytes = apart.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
        allocate(to, bytes, |session| session.malloc(bytes as u64))?;
        slot.set(apart);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipFree(at: Address) -> i32 {
    answer(|| release(at, |session| session.free(at.number())))
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeAsync(at: Address, stream: u64) -> i32 {
    answer(|| {
        let stream = objects(|objects| objects.stream(stream))?;
        release(at, |session| session.free_async(at.number(), stream))
    })
}

/// Copies; what goes to the host is there when this returns, and what comes from it may be changed.
fn copy(to: Address, from: Address, bytes: usize, kind: i32, stream: u64) -> Result<(), Code> {
    let direction = Direction::of(kind, to, from)?;
    let stream = objects(|objects| objects.stream(stream))?;
    if bytes == 0 {
        return Ok(());
    }
    direction.check((to, bytes as u64), (from, bytes as u64))?;
    match direction {
        Direction::Host => {
            to.copy_from(from, bytes);
            Ok(())
        }
        Direction::In => on(|session| session.copy_in(to.number(), from.bytes(bytes), stream)),
        Direction::Out => on(|session| session.copy_out(to.bytes_mut(bytes), from.number(), stream)),
        Direction::Device => on(|session| session.copy(to.number(), from.number(), bytes, stream)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpy(to: Address, from: Address, bytes: usize, kind: i32) -> i32 {
    answer(|| copy(to, from, bytes, kind, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyAsync(to: Address, from: Address, bytes: usize, kind: i32, stream: u64) -> i32 {
    answer(|| copy(to, from, bytes, kind, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyWithStream(to: Address, from: Address, bytes: usize, kind: i32, stream: u64) -> i32 {
    answer(|| copy(to, from, bytes, kind, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyHtoD(to: Address, from: Address, bytes: usize) -> i32 {
    answer(|| copy(to, from, bytes, 1, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyHtoDAsync(to: Address, from: Address, bytes: usize, stream: u64) -> i32 {
    answer(|| copy(to, from, bytes, 1, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyDtoH(to: Address, from: Address, bytes: usize) -> i32 {
    answer(|| copy(to, from, bytes, 2, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyDtoHAsync(to: Address, from: Address, bytes: usize, stream: u64) -> i32 {
    answer(|| copy(to, from, bytes, 2, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyDtoD(to: Address, from: Address, bytes: usize) -> i32 {
    answer(|| copy(to, from, bytes, 3, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyDtoDAsync(to: Address, from: Address, bytes: usize, stream: u64) -> i32 {
    answer(|| copy(to, from, bytes, 3, stream))
}

fn copy_peer(to: (Address, i32), from: (Address, i32), bytes: usize, stream: u64) -> Result<(), Code> {
    if bytes == 0 {
        return Ok(());
    }
    let stream = objects(|objects| {
        objects.range(to.0.number(), bytes as u64)?;
        objects.range(from.0.number(), bytes as u64)?;
        objects.stream(stream)
    })?;
    let (to, from) = ((to.0.number(), to.1), (from.0.number(), from.1));
    on(|session| session.copy_peer(to, from, bytes as u64, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyPeer(to: Address, to_device: i32, from: Address, from_device: i32, bytes: usize) -> i32 {
    answer(|| copy_peer((to, to_device), (from, from_device), bytes, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpyPeerAsync(
    to: Address,
    to_device: i32,
    from: Address,
    from_device: i32,
    bytes: usize,
    stream: u64,
) -> i32 {
    answer(|| copy_peer((to, to_device), (from, from_device), bytes, stream))
}

fn fill(at: Address, byte: i32, bytes: usize, stream: u64) -> Result<(), Code> {
    let stream = objects(|objects| {
        let stream = objects.stream(stream)?;
        if bytes > 0 {
            objects.range(at.number(), bytes as u64)?;
        }
        Ok(stream)
    })?;
    if bytes == 0 { Ok(()) } else { on(|session| session.fill(at.number(), byte as u8, bytes as u64, stream)) }
}

#[unsafe(no_mangle)]
extern "C" fn hipMemset(at: Address, byte: i32, bytes: usize) -> i32 {
    answer(|| fill(at, byte, bytes, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemsetAsync(at: Address, byte: i32, bytes: usize, stream: u64) -> i32 {
    answer(|| fill(at, byte, bytes, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemsetD8(at: Address, byte: u8, bytes: usize) -> i32 {
    answer(|| fill(at, byte.into(), bytes, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemsetD8Async(at: Address, byte: u8, bytes: usize, stream: u64) -> i32 {
    answer(|| fill(at, byte.into(), bytes, stream))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemGetInfo(free: Out<usize>, total: Out<usize>) -> i32 {
    answer(|| {
        let (free, total) = (free.slot()?, total.slot()?);
        let (is_free, in_all) = on(Session::memory)?;
        free.set(is_free as usize);
        total.set(in_all as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemGetAddressRange(begin: Out<u64>, bytes: Out<usize>, at: Address) -> i32 {
    answer(|| {
        let found = objects(|objects| objects.allocation(at.number()));
        let (first, allocation) = found.ok_or(Code::INVALID_DEVICE_POINTER)?;
        if let Some(slot) = begin.wanted() {
            slot.set(first);
        }
        if let Some(slot) = bytes.wanted() {
            slot.set(allocation.bytes as usize);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemPtrGetInfo(at: Address, bytes: Out<usize>) -> i32 {
    answer(|| {
        let slot = bytes.slot()?;
        let found = objects(|objects| objects.memory.get(&at.number()).copied());
        slot.set(found.ok_or(Code::INVALID_DEVICE_POINTER)?.bytes as usize);
        Ok(())
    })
}

/// `hipPointerAttribute_t`.
#[derive(Debug)]
#[repr(C)]
struct Attributes {
    kind: i32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    is_managed: i32,
    flags: u32,
}

#[unsafe(no_mangle)]
extern "C" fn hipPointerGetAttributes(to: Out<Attributes>, at: Address) -> i32 {
    answer(|| {
        let slot = to.slot()?;
        let nothing = Attributes { kind: 0, device: 0, device_pointer: 0, host_pointer: 0, is_managed: 0, flags: 0 };
        slot.set(if let Some((_, of)) = objects(|objects| objects.allocation(at.number())) {
            Attributes { kind: ON_DEVICE, device: of.device, device_pointer: at.number(), ..nothing }
        } else if is_host(at) {
            Attributes { kind: HOST, host_pointer: at.number(), ..nothing }
        } else {
            return Err(Code::INVALID_VALUE);
        });
        Ok(())
    })
}

/// Memory of the host that was allocated here: by where it begins, its bytes.
fn host() -> MutexGuard<'static, BTreeMap<Address, Layout>> {
    static ALLOCATIONS: Mutex<BTreeMap<Address, Layout>> = Mutex::new(BTreeMap::new());
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_host(at: Address) -> bool {
    let host = host();
    let before = host.range(..=at).next_back();
    before.is_some_and(|(begin, layout)| at.number() - begin.number() < layout.size() as u64)
}

fn host_malloc(to: Out<Address>, bytes: usize) -> i32 {
    answer(|| {
        let slot = to.slot()?;
        if bytes == 0 {
            slot.set(Address::of(std::ptr::null_mut()));
            return Ok(());
        }
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| Code::OUT_OF_MEMORY)?;
        // SAFETY: the layout has a size.
        let at = Address::of(unsafe { alloc_zeroed(layout) });
        if at.is_null() {
            return Err(Code::OUT_OF_MEMORY);
        }
        host().insert(at, layout);
        slot.set(at);
        Ok(())
    })
}

fn host_free(at: Address) -> i32 {
    answer(|| {
        if at.is_null() {
            return Ok(());
        }
        let layout = host().remove(&at).ok_or(Code::INVALID_VALUE)?;
        // SAFETY: it was allocated with this layout, and is freed once: it was in the list.
        unsafe { dealloc(at.pointer(), layout) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipHostMalloc(to: Out<Address>, bytes: usize, _flags: u32) -> i32 {
    host_malloc(to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn hipHostAlloc(to: Out<Address>, bytes: usize, _flags: u32) -> i32 {
    host_malloc(to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn hipMallocHost(to: Out<Address>, bytes: usize) -> i32 {
    host_malloc(to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn hipMemAllocHost(to: Out<Address>, bytes: usize) -> i32 {
    host_malloc(to, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn hipHostFree(at: Address) -> i32 {
    host_free(at)
}

#[unsafe(no_mangle)]
extern "C" fn hipFreeHost(at: Address) -> i32 {
    host_free(at)
}
