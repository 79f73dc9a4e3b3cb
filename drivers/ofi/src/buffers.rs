//! Memory of the frames that libfabric receives and sends.

use std::{ffi::c_void, mem::size_of, ptr::NonNull};

use berth_libfabric_sys as sys;
use berth_memory::{Heap, Memory as _};

const CACHE_LINE: usize = 64;

/// Header in front of each frame's memory.
#[repr(C, align(64))]
struct Meta {
    /// Belongs to the provider while an operation is under way (`FI_CONTEXT`, `FI_CONTEXT2`). First field, because its
    /// address is the context.
    context: sys::fi_context2,
    capacity: usize,
    /// The operation under way, or the last one.
    operation: Operation,
}

/// The provider's operation on a buffer. Peers are numbered by the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// None: the buffer is ours.
    None,
    /// A send to this peer.
    Send(u32),
    /// A receive, from this peer alone if there is one.
    Receive(Option<u32>),
}

/// A buffer, and the only way to its memory. During an operation the provider has it, and nobody else.
#[derive(Debug)]
pub(crate) struct Buffer(NonNull<Meta>);

// SAFETY: a buffer owns its memory, as a box would.
unsafe impl Send for Buffer {}

/// Memory of all buffers of an endpoint: one allocation, with each frame on cache lines of its own.
#[derive(Debug)]
pub(crate) struct Arena {
    memory: Heap,
    stride: usize,
}

impl Arena {
    /// Allocates and touches `count` buffers of `capacity` bytes. They must not be used after the arena is dropped.
    pub(crate) fn new(count: usize, capacity: usize) -> (Self, Vec<Buffer>) {
        let stride = size_of::<Meta>() + capacity.next_multiple_of(CACHE_LINE);
        let memory = Heap::new(count * stride);
        // Faults every page in now, not under load.
        memory.zero_at(0, memory.size());
        let buffers = (0..count).map(|index| {
            // SAFETY: each buffer gets its own `stride` bytes of the memory; `stride` keeps `Meta` aligned.
            let meta = unsafe { memory.base().add(index * stride) }.cast::<Meta>();
            // SAFETY: as above, and all zeros are a valid context.
            unsafe { meta.write(Meta { context: sys::fi_context2::default(), capacity, operation: Operation::None }) };
            Buffer(meta)
        });
        let buffers = buffers.collect();
        (Self { memory, stride }, buffers)
    }

    /// Contexts of the buffers that are under way with `operation`.
    pub(crate) fn contexts(&self, operation: Operation) -> impl Iterator<Item = *mut c_void> {
        let metas = (0..self.memory.size() / self.stride).map(|index| {
            // SAFETY: the start of a buffer, as in `new`.
            unsafe { self.memory.base().add(index * self.stride) }.cast::<Meta>()
        });
        // SAFETY: every `Meta` was initialised. Providers write to its context alone; the port, whose thread this is, to the
        // rest.
        metas.filter(move |meta| unsafe { (*meta.as_ptr()).operation } == operation).map(|meta| meta.as_ptr().cast())
    }

    /// Address and length of the allocation, for its registration.
    pub(crate) fn memory(&self) -> (*mut c_void, usize) {
        (self.memory.base().as_ptr().cast(), self.memory.size())
    }
}

impl Buffer {
    /// All bytes of the frame's memory.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `capacity` initialised bytes follow the `Meta`, and both are this buffer's alone.
        unsafe {
            let capacity = (*self.0.as_ptr()).capacity;
            std::slice::from_raw_parts_mut(self.0.as_ptr().add(1).cast(), capacity)
        }
    }

    /// Address of the frame.
    #[inline]
    pub(crate) fn data(&self) -> *mut c_void {
        // SAFETY: the frame follows the `Meta` in the same allocation.
        unsafe { self.0.as_ptr().add(1) }.cast()
    }

    /// Hands the buffer to an operation. Returns the operation's context, from which [`Buffer::from_context`] restores
    /// the buffer.
    #[inline]
    pub(crate) fn into_context(self, operation: Operation) -> *mut c_void {
        // SAFETY: the buffer's own `Meta`.
        unsafe { (*self.0.as_ptr()).operation = operation };
        self.0.as_ptr().cast()
    }

    /// The buffer of an operation that has ended or was not started, and the operation.
    ///
    /// # Safety
    /// `context` must come from [`Buffer::into_context`], be passed only once per call of that, and the provider must
    /// be done with it.
    #[inline]
    pub(crate) unsafe fn from_context(context: NonNull<c_void>) -> (Self, Operation) {
        let meta = context.cast::<Meta>();
        // SAFETY: the caller vouches that it is a buffer's `Meta`, and that nobody else has it.
        let operation = unsafe { std::mem::replace(&mut (*meta.as_ptr()).operation, Operation::None) };
        (Self(meta), operation)
    }
}
