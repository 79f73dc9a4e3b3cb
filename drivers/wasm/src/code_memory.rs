//! Executable code where `mprotect` may not make any: a sealed memfd, mapped read-execute over the pages.
//!
//! systemd's `MemoryDenyWriteExecute` and `PR_SET_MDWE` refuse to make a page executable that was writable. The bytes of a
//! sealed memfd never are again, so nothing is lost by them.

use std::{ffi::c_void, os::fd::OwnedFd};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    io::write,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous},
    param::page_size,
};
use wasmtime::{CustomCodeMemory, Result};

#[derive(Debug)]
pub(crate) struct ReadExecute;

impl CustomCodeMemory for ReadExecute {
    fn required_alignment(&self) -> usize {
        page_size()
    }

    fn publish_executable(&self, start: *const u8, len: usize) -> Result<()> {
        // SAFETY: wasmtime hands over readable pages of its own, which nobody writes meanwhile.
        let code = unsafe { std::slice::from_raw_parts(start, len) };
        let sealed = sealed(code)?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the pages are wasmtime's, aligned and as long, nothing refers to them but `code`, which is not used any more, and the
        // new mapping has the same bytes.
        unsafe { mmap(start.cast_mut().cast::<c_void>(), len, ProtFlags::READ | ProtFlags::EXEC, flags, &sealed, 0)? };
        Ok(())
    }

    fn unpublish_executable(&self, start: *const u8, len: usize) -> Result<()> {
        // SAFETY: as in `publish_executable`.
        let code = unsafe { std::slice::from_raw_parts(start, len) }.to_vec();
        let (flags, start) = (MapFlags::PRIVATE | MapFlags::FIXED, start.cast_mut());
        // SAFETY: the pages are wasmtime's, and no code of them runs any more; they become writable ones, which get the same bytes.
        unsafe {
            mmap_anonymous(start.cast::<c_void>(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?;
            start.copy_from_nonoverlapping(code.as_ptr(), len);
        }
        Ok(())
    }
}

/// A file in memory with these bytes, which nobody can change any more.
pub(crate) fn sealed(mut bytes: &[u8]) -> rustix::io::Result<OwnedFd> {
    let file = memfd_create(c"berth-wasm-code", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    while !bytes.is_empty() {
        bytes = &bytes[write(&file, bytes)?..];
    }
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
