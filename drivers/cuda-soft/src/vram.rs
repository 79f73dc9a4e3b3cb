//! Memory of the device that other processes map: files without a name, mapped where the device sees them.
//!
//! With `CUDA_SOFT_DMA_BUF` set to `none` no dma-buf is exported, with `device` a CPU cannot map it, and with `stale` what it maps
//! is other memory; with `elsewhere` no address can be chosen, and with `forgets` memory does not outlive its process.

use std::{
    env,
    ffi::{c_int, c_void},
    fs::File,
    ops::Range,
    os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _},
    ptr::{self, NonNull},
    sync::Arc,
};

use berth_gpu::{Buffer, Device as _};
use berth_memory::Memory;

use crate::{
    memory::{Mapped, take},
    state::{Gpu, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, export, handle, idle, put},
};

const NOT_SUPPORTED: c_int = 801;

/// What the driver takes for itself, as some do.
const OWN: Range<u64> = 1 << 40..0x102 << 32;

/// As a GPU has it: 2 MiB.
const GRANULE: usize = 2 << 20;

/// What `CUmemAllocationProp` begins with: pinned, exported as a file, on a device, which one.
type Properties = [c_int; 4];

/// Whether the variable says so.
fn dma_buf(word: &str) -> bool {
    env::var("CUDA_SOFT_DMA_BUF").is_ok_and(|said| said == word)
}

fn new_file(bytes: usize) -> Result<File, c_int> {
    // SAFETY: a text that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"vram".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: it was just made.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file)
}

/// Whether so many bytes at this address were reserved.
fn is_reserved(gpu: &Gpu, at: u64, bytes: usize) -> bool {
    gpu.reserved.iter().any(|&(from, len)| at >= from && at.saturating_add(bytes as u64) <= from + len as u64)
}

/// Whether allocations that were mapped there one behind the other are exactly these bytes.
fn is_placed(gpu: &Gpu, at: u64, bytes: usize) -> bool {
    let (mut next, end) = (at, at.saturating_add(bytes as u64));
    while next < end
        && let Some((_, len, _)) = gpu.placed.iter().find(|(place, ..)| *place == next)
    {
        next += *len as u64;
    }
    bytes > 0 && next == end
}

fn map(at: u64, bytes: usize, rights: c_int, flags: c_int, fd: c_int) -> Result<u64, c_int> {
    let wanted = ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: at a place of the kernel's choice, one where nothing lies, or one that was reserved.
    let base = unsafe { libc::mmap(wanted, bytes, rights, flags, fd, 0) };
    if base == libc::MAP_FAILED { Err(INVALID_VALUE) } else { Ok(base.expose_provenance() as u64) }
}

export! {
    fn cuMemGetAllocationGranularity(granule: *mut usize, properties: *const Properties, _option: c_int) {
        if properties.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's place.
        unsafe { put(granule, GRANULE) }
    }

    fn cuMemCreate(made: *mut u64, bytes: usize, properties: *const Properties, flags: u64) {
        // SAFETY: the caller's description, or null.
        let wanted = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        if wanted[..3] != [1; 3] || flags != 0 || bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(INVALID_VALUE);
        }
        idle(|gpu| {
            // What maps it keeps it for as long as the process lives.
            take(gpu, bytes)?;
            let file = new_file(bytes)?;
            let allocation = gpu.add(|gpu| &mut gpu.allocations, file).addr() as u64;
            // SAFETY: the caller's place.
            unsafe { put(made, allocation) }
        })
    }

    fn cuMemRelease(allocation: u64) {
        idle(|gpu| gpu.allocations.take(handle(allocation as u32)).map(drop))
    }

    fn cuMemExportToShareableHandle(fd: *mut c_int, allocation: u64, kind: c_int, _flags: u64) {
        idle(|gpu| {
            let file = gpu.allocations.get(handle(allocation as u32))?;
            if kind != 1 {
                return Err(INVALID_VALUE);
            }
            let exported = file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
            // SAFETY: the caller's place, which gets the descriptor.
            unsafe { put(fd, exported.into_raw_fd()) }
        })
    }

    fn cuMemImportFromShareableHandle(made: *mut u64, file: *mut c_void, kind: c_int) {
        idle(|gpu| {
            // SAFETY: a number is passed, which may be no file's.
            let fd = unsafe { libc::fcntl(file.addr() as c_int, libc::F_DUPFD_CLOEXEC, 3) };
            if fd < 0 || kind != 1 {
                return Err(INVALID_HANDLE);
            }
            // SAFETY: it was just made.
            let mut file = unsafe { File::from_raw_fd(fd) };
            if dma_buf("forgets") {
                file = new_file(file.metadata().map_err(|_| INVALID_HANDLE)?.len() as usize)?;
            }
            let allocation = gpu.add(|gpu| &mut gpu.allocations, file).addr() as u64;
            // SAFETY: the caller's place.
            unsafe { put(made, allocation) }
        })
    }

    fn cuMemAddressReserve(at: *mut u64, bytes: usize, _alignment: usize, wanted: u64, _flags: u64) {
        let wanted = if dma_buf("elsewhere") || OWN.contains(&wanted) { 0 } else { wanted };
        idle(|gpu| {
            // Where it is asked to, if nothing lies there.
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            let fixed = if wanted == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
            let reserved = map(wanted, bytes, libc::PROT_NONE, kind | fixed, -1);
            let reserved = reserved.or_else(|_| map(0, bytes, libc::PROT_NONE, kind, -1))?;
            gpu.reserved.push((reserved, bytes));
            // SAFETY: the caller's place.
            unsafe { put(at, reserved) }
        })
    }

    fn cuMemMap(at: u64, bytes: usize, offset: usize, allocation: u64, _flags: u64) {
        idle(|gpu| {
            let is_whole = |file: &File| file.metadata().is_ok_and(|file| file.len() == bytes as u64);
            let is_right = is_reserved(gpu, at, bytes) && offset == 0;
            let file = gpu.allocations.get(handle(allocation as u32))?;
            if !is_right || !is_whole(file) {
                return Err(INVALID_VALUE);
            }
            map(at, bytes, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd())?;
            let file = file.try_clone().map_err(|_| OUT_OF_MEMORY)?;
            gpu.placed.push((at, bytes, file));
            Ok(())
        })
    }

    fn cuMemSetAccess(at: u64, bytes: usize, access: *const [c_int; 3], count: usize) {
        // SAFETY: the caller's description, or null.
        let wanted = unsafe { access.as_ref() }.ok_or(INVALID_VALUE)?;
        idle(|gpu| {
            if !is_placed(gpu, at, bytes) || (wanted[0], wanted[2], count) != (1, 3, 1) {
                return Err(INVALID_VALUE);
            }
            let base = NonNull::new(ptr::with_exposed_provenance_mut::<u8>(at as usize)).ok_or(INVALID_VALUE)?;
            // SAFETY: mapped above.
            if unsafe { libc::mprotect(base.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
                return Err(INVALID_VALUE);
            }
            let memory: Arc<dyn Memory> = Arc::new(Mapped { base, size: bytes });
            gpu.soft.register(memory.clone()).map_err(|e| e.code)?;
            gpu.memory.push(Buffer { memory, address: at });
            Ok(())
        })
    }

    fn cuMemGetHandleForAddressRange(fd: *mut c_int, at: u64, bytes: usize, kind: c_int, _flags: u64) {
        idle(|gpu| {
            let placed = gpu.placed.iter().find(|(place, len, _)| (*place, *len) == (at, bytes));
            let (_, _, file) = placed.filter(|_| kind == 1).ok_or(INVALID_VALUE)?;
            let exported = match env::var("CUDA_SOFT_DMA_BUF").as_deref() {
                Ok("none") => return Err(NOT_SUPPORTED),
                Ok("device") => File::open("/dev/null").map_err(|_| OUT_OF_MEMORY)?,
                Ok("stale") => {
                    let other = new_file(bytes)?;
                    std::io::copy(&mut file.try_clone().map_err(|_| OUT_OF_MEMORY)?, &mut &other)
                        .map_err(|_| OUT_OF_MEMORY)?;
                    other
                }
                _ => file.try_clone().map_err(|_| OUT_OF_MEMORY)?,
            };
            // SAFETY: the caller's place, which gets the descriptor.
            unsafe { put(fd, exported.into_raw_fd()) }
        })
    }
}
