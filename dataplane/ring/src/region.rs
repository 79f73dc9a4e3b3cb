//! Memory that slots can live in.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
};

/// A stretch of memory at an address that stays put.
///
/// # Safety
/// For as long as the value lives, `len` bytes at `as_ptr` must be mapped, initialised, readable and writable from any
/// thread, and referred to by no Rust reference; both methods must always answer the same.
pub unsafe trait Region: Send + Sync {
    /// The first byte.
    fn as_ptr(&self) -> NonNull<u8>;

    /// The size in bytes.
    fn len(&self) -> usize;

    /// Whether the region has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Zeroed memory from the global allocator, page-aligned.
#[derive(Debug)]
pub struct HeapRegion {
    ptr: NonNull<u8>,
    layout: Layout,
}

impl HeapRegion {
    const ALIGN: usize = 4096;

    /// Allocates at least `len` zeroed bytes, aligned to 4096.
    ///
    /// # Panics
    /// If `len` is beyond the address space.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), Self::ALIGN).expect("region size within the address space");
        // SAFETY: the layout's size is not zero.
        let ptr = unsafe { alloc_zeroed(layout) };
        let ptr = NonNull::new(ptr).unwrap_or_else(|| handle_alloc_error(layout));
        Self { ptr, layout }
    }
}

impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: `ptr` came from `alloc_zeroed` with this very layout, and is freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation is owned, is only ever handed out as a raw pointer, and has no thread affinity.
unsafe impl Send for HeapRegion {}
// SAFETY: as above; `&HeapRegion` gives out the pointer only.
unsafe impl Sync for HeapRegion {}

// SAFETY: the allocation is zeroed, lives until drop, and never moves.
unsafe impl Region for HeapRegion {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len(&self) -> usize {
        self.layout.size()
    }
}

/// Memory that someone else mapped and registered: a NIC's buffer, a shared mapping, GPU memory.
#[derive(Debug)]
pub struct ExternalRegion {
    ptr: NonNull<u8>,
    len: usize,
}

impl ExternalRegion {
    /// Describes `len` bytes at `ptr`. Dropping the value releases nothing.
    ///
    /// # Safety
    /// The conditions of [`Region`] must hold for the stretch until the value and all that was made from it are gone.
    pub const unsafe fn new(ptr: NonNull<u8>, len: usize) -> Self {
        Self { ptr, len }
    }
}

// SAFETY: the caller of `new` vouched for access from any thread.
unsafe impl Send for ExternalRegion {}
// SAFETY: as above; `&ExternalRegion` gives out the pointer only.
unsafe impl Sync for ExternalRegion {}

// SAFETY: the caller of `new` vouched for the conditions.
unsafe impl Region for ExternalRegion {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len(&self) -> usize {
        self.len
    }
}
