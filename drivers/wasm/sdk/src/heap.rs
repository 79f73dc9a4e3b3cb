//! An allocator for short runs: it takes from the end of memory, and gives back the last piece only.

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ptr,
};

struct Heap {
    next: Cell<usize>,
    end: Cell<usize>,
}

// SAFETY: a guest has one thread.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap { next: Cell::new(0), end: Cell::new(0) };

/// Bytes of a page of linear memory.
const PAGE: usize = 64 << 10;

// SAFETY: pieces lie in pages that `memory.grow` gave to this heap alone, aligned, one behind the other.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(start) = self.next.get().checked_next_multiple_of(layout.align()) else { return ptr::null_mut() };
        let Some(end) = start.checked_add(layout.size()) else { return ptr::null_mut() };
        if end <= self.end.get() {
            self.next.set(end);
            return start as *mut u8;
        }
        let pages = (layout.size() + layout.align()).div_ceil(PAGE);
        let old = core::arch::wasm32::memory_grow(0, pages);
        if old == usize::MAX {
            return ptr::null_mut();
        }
        // Pages that follow the last ones join them.
        if old * PAGE != self.end.get() || self.end.get() == 0 {
            self.next.set(old * PAGE);
        }
        self.end.set((old + pages) * PAGE);
        // SAFETY: as this function's own.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if start as usize + layout.size() == self.next.get() {
            self.next.set(start as usize);
        }
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    crate::log(crate::Level::Error, &alloc::format!("{info}"));
    core::arch::wasm32::unreachable()
}
