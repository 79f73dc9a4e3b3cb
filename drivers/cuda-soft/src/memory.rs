//! Memory of the host and of the device.

use std::{
    env,
    ffi::{c_uint, c_void},
    ptr::NonNull,
    sync::Arc,
};

use berth_gpu::{Buffer, Device as _};
use berth_memory::Memory;

use crate::state::{Gpu, Handle, INVALID_VALUE, OUT_OF_MEMORY, UNKNOWN, export, idle, initialised, put, within};

/// What it says is free, where `CUDA_SOFT_ROOM_MIB` does not say it.
const FREE: usize = 64 << 20;

/// Bytes of its own memory.
pub(crate) const TOTAL: usize = 1 << 30;

/// `CU_MEMHOSTALLOC_DEVICEMAP`
const MAPPED: c_uint = 2;

/// `CU_MEMHOSTREGISTER_READ_ONLY`
const READ_ONLY: c_uint = 8;

/// Memory that is mapped for as long as kernels may reach it: the caller's, which he unmaps after he unregistered it, or the
/// device's own.
pub(crate) struct Mapped {
    pub(crate) base: NonNull<u8>,
    pub(crate) size: usize,
}

// SAFETY: it is only ever handed out as a pointer.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

// SAFETY: mapped, readable and writable, as the caller of `cuMemHostRegister` promises, or as `cuMemSetAccess` has made it.
unsafe impl Memory for Mapped {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn size(&self) -> usize {
        self.size
    }
}

fn allocate(gpu: &mut Gpu, bytes: usize) -> Result<u64, i32> {
    let buffer = gpu.soft.allocate(bytes).map_err(|_| OUT_OF_MEMORY)?;
    let address = buffer.address;
    gpu.memory.push(buffer);
    Ok(address)
}

/// How much of its own memory a process can have, where that is bounded.
fn room() -> Option<usize> {
    let mib: usize = env::var("CUDA_SOFT_ROOM_MIB").ok()?.parse().ok()?;
    Some(mib << 20)
}

/// Notes that this process has so many more bytes of its own memory.
pub(crate) fn take(gpu: &mut Gpu, bytes: usize) -> Result<(), i32> {
    let taken = gpu.taken.saturating_add(bytes);
    if room().is_some_and(|room| taken > room) {
        return Err(OUT_OF_MEMORY);
    }
    gpu.taken = taken;
    Ok(())
}

/// Gives back what was allocated, and returns of how many bytes it was.
fn free(gpu: &mut Gpu, address: u64) -> Result<usize, i32> {
    let at = gpu.memory.iter().position(|buffer| buffer.address == address).ok_or(INVALID_VALUE)?;
    let size = gpu.memory.swap_remove(at).memory.size();
    gpu.soft.release(address);
    Ok(size)
}

/// The memory of the device that so many bytes at this address lie in, and where.
fn found(gpu: &Gpu, at: u64, len: usize) -> Result<(&Buffer, usize), i32> {
    let offset = |buffer: &Buffer| {
        let offset = usize::try_from(at.checked_sub(buffer.address)?).ok()?;
        (offset.checked_add(len)? <= buffer.memory.size()).then_some(offset)
    };
    gpu.memory.iter().find_map(|buffer| Some((buffer, offset(buffer)?))).ok_or(INVALID_VALUE)
}

fn write(device: u64, bytes: &[u8]) -> Result<(), i32> {
    idle(|gpu| {
        let (buffer, at) = found(gpu, device, bytes.len())?;
        buffer.memory.write_at(at, bytes);
        Ok(())
    })
}

fn read(device: u64, into: &mut [u8]) -> Result<(), i32> {
    idle(|gpu| {
        let (buffer, at) = found(gpu, device, into.len())?;
        buffer.memory.read_at(at, into);
        Ok(())
    })
}

export! {
    fn cuMemHostAlloc(host: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        idle(|gpu| {
            let address = allocate(gpu, bytes)?;
            // SAFETY: the caller's place.
            unsafe { put(host, found(gpu, address, bytes)?.0.memory.base().as_ptr().cast()) }
        })
    }

    fn cuMemFreeHost(host: *mut c_void) {
        idle(|gpu| free(gpu, host.addr() as u64).map(drop))
    }

    fn cuMemHostRegister_v2(host: *mut c_void, bytes: usize, flags: c_uint) {
        let base = NonNull::new(host.cast::<u8>()).filter(|_| bytes > 0).ok_or(INVALID_VALUE)?;
        idle(|gpu| {
            let memory = Arc::new(Mapped { base, size: bytes });
            let registered = match flags & READ_ONLY {
                0 => gpu.soft.register(memory),
                _ => gpu.soft.register_to_read(memory),
            };
            registered.map_err(|e| e.code)?;
            if flags & MAPPED != 0 {
                gpu.registered.push(host.addr() as u64);
            }
            Ok(())
        })
    }

    fn cuMemHostGetDevicePointer_v2(device: *mut u64, host: *mut c_void, _flags: c_uint) {
        let at = host.addr() as u64;
        within(|gpu| {
            if !gpu.registered.contains(&at) {
                found(gpu, at, 1)?;
            }
            // SAFETY: the caller's place.
            unsafe { put(device, at) }
        })
    }

    fn cuMemAlloc_v2(device: *mut u64, bytes: usize) {
        idle(|gpu| {
            take(gpu, bytes)?;
            let address = allocate(gpu, bytes)?;
            // The driver zeroes nothing.
            let (buffer, at) = found(gpu, address, bytes)?;
            buffer.memory.write_at(at, &vec![0xA5; bytes]);
            // SAFETY: the caller's place.
            unsafe { put(device, address) }
        })
    }

    fn cuMemFree_v2(device: u64) {
        idle(|gpu| {
            gpu.taken = gpu.taken.saturating_sub(free(gpu, device)?);
            Ok(())
        })
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        initialised(|gpu| {
            let left = room().map_or(FREE, |room| room.saturating_sub(gpu.taken));
            // SAFETY: the caller's places.
            unsafe { put(free, left).and_then(|()| put(total, TOTAL)) }
        })
    }

    fn cuMemsetD8Async(device: u64, byte: u8, bytes: usize, _stream: Handle) {
        if env::var_os("CUDA_SOFT_TELLS").is_some() {
            eprintln!("cuda-soft: {bytes} bytes from {device:#x} set to {byte}");
        }
        write(device, &vec![byte; bytes])
    }

    fn cuMemcpyHtoDAsync_v2(device: u64, host: *const c_void, bytes: usize, _stream: Handle) {
        // SAFETY: the caller has so many bytes.
        write(device, unsafe { std::slice::from_raw_parts(host.cast(), bytes) })
    }

    fn cuMemcpyDtoHAsync_v2(host: *mut c_void, device: u64, bytes: usize, _stream: Handle) {
        // SAFETY: the caller has room for so many bytes.
        read(device, unsafe { std::slice::from_raw_parts_mut(host.cast(), bytes) })
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: Handle) {
        idle(|gpu| {
            if to.abs_diff(from) < bytes as u64 {
                eprintln!("cuda-soft: a copy whose ranges overlap");
                return Err(UNKNOWN);
            }
            let mut copied = vec![0; bytes];
            let (buffer, at) = found(gpu, from, bytes)?;
            buffer.memory.read_at(at, &mut copied);
            let (buffer, at) = found(gpu, to, bytes)?;
            buffer.memory.write_at(at, &copied);
            Ok(())
        })
    }
}
