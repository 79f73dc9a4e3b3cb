//! Memory of the host and of the device.

use std::{
    ffi::{c_uint, c_void},
    ptr::NonNull,
    sync::Arc,
};

use berth_gpu::{Buffer, Device as _};
use berth_memory::Memory;

use crate::state::{Gpu, INVALID_VALUE, export, idle, put, within};

const OUT_OF_MEMORY: i32 = 2;

/// `CU_MEMHOSTALLOC_DEVICEMAP`
const MAPPED: c_uint = 2;

/// Memory of the caller's, which he unmaps after he unregistered it.
struct Registered {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: it is only ever handed out as a pointer.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

// SAFETY: mapped, readable and writable, as the caller of `cuMemHostRegister` promises.
unsafe impl Memory for Registered {
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

/// The memory of the device that so many bytes at this address lie in, and where.
fn found(gpu: &Gpu, at: u64, len: usize) -> Result<(&Buffer, usize), i32> {
    let offset = |buffer: &Buffer| {
        let offset = usize::try_from(at.checked_sub(buffer.address)?).ok()?;
        (offset.checked_add(len)? <= buffer.memory.size()).then_some(offset)
    };
    gpu.memory.iter().find_map(|buffer| Some((buffer, offset(buffer)?))).ok_or(INVALID_VALUE)
}

export! {
    fn cuMemHostAlloc(host: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        idle(|gpu| {
            let address = allocate(gpu, bytes)?;
            // SAFETY: the caller's place.
            unsafe { put(host, found(gpu, address, bytes)?.0.memory.base().as_ptr().cast()) }
        })
    }

    fn cuMemHostRegister_v2(host: *mut c_void, bytes: usize, flags: c_uint) {
        let base = NonNull::new(host.cast::<u8>()).filter(|_| bytes > 0).ok_or(INVALID_VALUE)?;
        idle(|gpu| {
            gpu.soft.register(Arc::new(Registered { base, size: bytes })).map_err(|e| e.code)?;
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
            let address = allocate(gpu, bytes)?;
            // The driver zeroes nothing.
            let (buffer, at) = found(gpu, address, bytes)?;
            buffer.memory.write_at(at, &vec![0xA5; bytes]);
            // SAFETY: the caller's place.
            unsafe { put(device, address) }
        })
    }

    fn cuMemsetD8_v2(device: u64, byte: u8, bytes: usize) {
        idle(|gpu| {
            let (buffer, at) = found(gpu, device, bytes)?;
            buffer.memory.write_at(at, &vec![byte; bytes]);
            Ok(())
        })
    }

    fn cuMemcpyHtoD_v2(device: u64, host: *const c_void, bytes: usize) {
        idle(|gpu| {
            let (buffer, at) = found(gpu, device, bytes)?;
            // SAFETY: the caller has so many bytes.
            buffer.memory.write_at(at, unsafe { std::slice::from_raw_parts(host.cast(), bytes) });
            Ok(())
        })
    }

    fn cuMemcpyDtoH_v2(host: *mut c_void, device: u64, bytes: usize) {
        idle(|gpu| {
            let (buffer, at) = found(gpu, device, bytes)?;
            // SAFETY: the caller has room for so many bytes.
            buffer.memory.read_at(at, unsafe { std::slice::from_raw_parts_mut(host.cast(), bytes) });
            Ok(())
        })
    }
}
