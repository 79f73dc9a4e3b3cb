//! Memory from the global allocator.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error},
    ptr::NonNull,
    slice,
};

use crate::Memory;

/// Zeroed memory from the global allocator, in pages that it shares with no other allocation.
#[derive(Debug)]
pub struct Heap {
    base: NonNull<u8>,
    layout: Layout,
    size: usize,
}

impl Heap {
    const PAGE: usize = 4096;

    /// Allocates `size` bytes, but at least one.
    ///
    /// # Panics
    /// If `size` exceeds the address space.
    pub fn new(size: usize) -> Self {
        let size = size.max(1);
        let pages = size.checked_next_multiple_of(Self::PAGE);
        let layout = pages.and_then(|pages| Layout::from_size_align(pages, Self::PAGE).ok());
        let layout = layout.expect("a size within the address space");
        // SAFETY: the layout's size is not zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { base, layout, size }
    }
}

impl From<&[u8]> for Heap {
    fn from(bytes: &[u8]) -> Self {
        let mut heap = Self::new(bytes.len());
        heap.as_mut()[..bytes.len()].copy_from_slice(bytes);
        heap
    }
}

impl AsMut<[u8]> for Heap {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation is initialised and that long; whoever has the heap alone has its bytes alone.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.size) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this very layout, and is freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: the allocation is owned, is only ever handed out as a raw pointer, and has no thread affinity.
unsafe impl Send for Heap {}
// SAFETY: as above; `&Heap` gives out the pointer only.
unsafe impl Sync for Heap {}

// SAFETY: the allocation is zeroed, lives until drop, and never moves.
unsafe impl Memory for Heap {
    #[inline]
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    fn size(&self) -> usize {
        self.size
    }
}
