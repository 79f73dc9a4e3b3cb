//! Memory that somebody else has made: a driver, another process.

use std::ptr::NonNull;

use berth_memory::Memory;

/// Bytes that their owner keeps where they are, and frees when it is dropped, if anybody does.
#[derive(Debug)]
pub struct Foreign<O> {
    base: NonNull<u8>,
    size: usize,
    _owner: O,
}

// SAFETY: the bytes are only ever handed out as a pointer, and are their owner's, who may be sent.
unsafe impl<O: Send> Send for Foreign<O> {}
// SAFETY: as above.
unsafe impl<O: Sync> Sync for Foreign<O> {}

impl<O> Foreign<O> {
    /// Takes over `size` bytes at `base`.
    ///
    /// # Safety
    /// They are initialised, readable, writable and nobody else's until `owner` is dropped, by any thread.
    pub unsafe fn new(base: NonNull<u8>, size: usize, owner: O) -> Self {
        Self { base, size, _owner: owner }
    }
}

// SAFETY: as its maker says.
unsafe impl<O: Send + Sync + 'static> Memory for Foreign<O> {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn size(&self) -> usize {
        self.size
    }
}
