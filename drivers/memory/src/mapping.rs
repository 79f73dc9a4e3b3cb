//! Mappings of the kernel.

use std::{
    fs::File,
    io,
    os::fd::AsRawFd,
    ptr::{self, NonNull},
};

use crate::{HugePage, PagesError};

/// Flags for pages of this process alone.
const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Mapped pages, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned, is only ever handed out as a raw pointer, and has no thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out the pointer only.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of ordinary private pages; they are not resident yet.
    pub(crate) fn ordinary(len: usize) -> Result<Self, PagesError> {
        let mapping =
            Self::map(len, PRIVATE | libc::MAP_NORESERVE, -1).map_err(|error| PagesError::Map { len, error })?;
        // SAFETY: advice about the mapping just made: a wish, which a kernel without such pages refuses.
        unsafe { libc::madvise(mapping.base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        mapping.populate().map_err(|error| PagesError::Map { len, error })?;
        Ok(mapping)
    }

    /// Maps whole huge pages, at least `len` bytes.
    pub(crate) fn huge(len: usize, page: HugePage) -> Result<Self, PagesError> {
        let len = page.whole(len);
        let flags = PRIVATE | libc::MAP_HUGETLB | libc::MAP_POPULATE | page.flag();
        Self::map(len, flags, -1).map_err(|error| page.missing(len).unwrap_or(PagesError::Map { len, error }))
    }

    /// Maps the first `len` bytes of a file, shared with everyone who maps it. The file must be that long.
    pub(crate) fn shared(len: usize, file: &File) -> Result<Self, PagesError> {
        let mapped = Self::of(len, file).and_then(|mapping| {
            mapping.populate()?;
            Ok(mapping)
        });
        mapped.map_err(|error| PagesError::Map { len, error })
    }

    /// As [`shared`](Self::shared), without a wait for pages.
    pub(crate) fn of(len: usize, file: &File) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).expect("a mapping of the kernel's choice is not at address 0");
        Ok(Self { base, len })
    }

    /// Makes every page resident.
    fn populate(&self) -> io::Result<()> {
        // SAFETY: advice about a mapping of this length.
        if unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_POPULATE_WRITE) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // Before Linux 5.14 writing is how pages become resident.
        // SAFETY: the mapping is that long, and nobody else has it yet.
        unsafe { self.base.write_bytes(0, self.len) };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`, unmapped once.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, 0, "munmap of a whole mapping");
    }
}
