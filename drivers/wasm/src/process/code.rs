//! Code in an executor: a sealed file that the node sent, mapped, and executable where it lies. No page of it can be written.

use std::{
    ffi::c_void,
    io,
    os::fd::OwnedFd,
    ptr::{self, NonNull},
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::fstat,
    mm::{MapFlags, ProtFlags, mmap, munmap},
};
use wasmtime::{CustomCodeMemory, Engine, Module, Result};

/// A file, mapped.
#[derive(Debug)]
struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

impl Mapped {
    fn new(file: &OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(file)?.st_size).map_err(io::Error::other)?;
        // SAFETY: at a place of the kernel's choice.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE, file, 0)? };
        Ok(Self { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; its module is gone.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping");
    }
}

/// Makes code executable by mapping its file over it once more: of the file that is being loaded.
#[derive(Debug)]
pub(super) struct OfFile {
    /// Asked for while it may be asked for.
    page: usize,
    loading: Mutex<Option<(usize, OwnedFd)>>,
}

impl OfFile {
    pub(super) fn new() -> Self {
        Self { page: rustix::param::page_size(), loading: Mutex::default() }
    }

    fn is_loading(&self, file: Option<(usize, OwnedFd)>) {
        *self.loading.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }
}

impl CustomCodeMemory for OfFile {
    fn required_alignment(&self) -> usize {
        self.page
    }

    fn publish_executable(&self, start: *const u8, len: usize) -> Result<()> {
        let loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let found = loading.as_ref().and_then(|(base, file)| Some((start.addr().checked_sub(*base)?, file)));
        let (at, file) = found.ok_or_else(|| wasmtime::Error::msg("no file has this code"))?;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let rights = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: the pages are of a mapping of this file, begin at a page's border, and get the bytes that they had: nobody could
        // write them.
        unsafe { mmap(start.cast_mut().cast::<c_void>(), len, rights, flags, file, at as u64)? };
        Ok(())
    }

    fn unpublish_executable(&self, _: *const u8, _: usize) -> Result<()> {
        // They are unmapped with the file.
        Ok(())
    }
}

/// A module, and the mapping that it lies in.
#[derive(Debug)]
pub(super) struct Loaded<T> {
    /// Goes first.
    pub(super) module: T,
    _mapped: Mapped,
}

/// Loads the module of a file, whose bytes never change.
///
/// # Safety
/// The bytes are what [`crate::Compiler`] wrote, and `make` keeps the module in what it returns alone.
pub(super) unsafe fn load<T>(
    engine: &Engine,
    code: &OfFile,
    file: OwnedFd,
    make: impl FnOnce(Module) -> Result<T>,
) -> Result<Loaded<T>> {
    let mapped = Mapped::new(&file)?;
    code.is_loading(Some((mapped.base.addr().get(), file)));
    // SAFETY: compiled code by the caller's word, mapped for longer than the module is there.
    let module = unsafe { Module::deserialize_raw(engine, NonNull::slice_from_raw_parts(mapped.base, mapped.len)) };
    code.is_loading(None);
    Ok(Loaded { module: make(module?)?, _mapped: mapped })
}
