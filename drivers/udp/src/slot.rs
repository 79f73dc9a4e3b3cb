//! Frame buffers and the message headers that describe them to the kernel.

use std::{
    mem::{offset_of, size_of, zeroed},
    net::SocketAddr,
    ptr::NonNull,
};

use berth_host::{PACKET_INFO, RawAddr, answer_from_destination};
use berth_memory::{Heap, Memory as _};

const CACHE_LINE: usize = 64;

/// What a message header points to, in front of the frame itself.
#[repr(C, align(64))]
struct Meta {
    name: RawAddr,
    iov: libc::iovec,
    control: [u64; PACKET_INFO / 8],
}

/// A frame buffer with its message header, in the layout of `recvmmsg` and `sendmmsg`.
///
/// A slot is the only owner of the memory that its header points to, so slots can be swapped freely between queues.
#[repr(transparent)]
pub(crate) struct Slot(libc::mmsghdr);

/// Memory of all slots of a port: one allocation, with each frame on cache lines of its own.
pub(crate) struct Arena {
    _memory: Heap,
}

// SAFETY: a slot owns the memory it points to, as a box would; see `Slot`.
unsafe impl Send for Slot {}

impl Arena {
    /// Allocates and touches `count` slots of `max_frame` bytes.
    pub(crate) fn new(count: usize, max_frame: usize) -> (Self, Vec<Slot>) {
        let stride = size_of::<Meta>() + max_frame.next_multiple_of(CACHE_LINE);
        let memory = Heap::new(count * stride);
        // Faults every page in now, not under load.
        memory.zero_at(0, memory.size());
        let slots = (0..count)
            // SAFETY: each slot gets its own `stride` bytes of the memory; `stride` keeps `Meta` aligned.
            .map(|index| unsafe { Slot::new(memory.base().add(index * stride).cast(), max_frame) })
            .collect();
        (Self { _memory: memory }, slots)
    }
}

impl Slot {
    /// # Safety
    /// `meta` must start a `Meta` followed by `max_frame` bytes, all initialised, which nobody else owns.
    unsafe fn new(meta: NonNull<Meta>, max_frame: usize) -> Self {
        let meta = meta.as_ptr();
        // SAFETY: an all-zero mmsghdr is a valid one, and the caller vouches for `meta` and what follows it.
        unsafe {
            let mut header: libc::mmsghdr = zeroed();
            (*meta).iov = libc::iovec { iov_base: meta.add(1).cast(), iov_len: max_frame };
            header.msg_hdr.msg_name = meta.byte_add(offset_of!(Meta, name)).cast();
            header.msg_hdr.msg_iov = &raw mut (*meta).iov;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = meta.byte_add(offset_of!(Meta, control)).cast();
            Self(header)
        }
    }

    /// The header, for a system call.
    #[inline]
    pub(crate) fn header(&mut self) -> &mut libc::msghdr {
        &mut self.0.msg_hdr
    }

    /// The headers of several slots, for a system call.
    #[inline]
    pub(crate) fn headers(slots: &mut [Slot]) -> *mut libc::mmsghdr {
        slots.as_mut_ptr().cast()
    }

    #[inline]
    fn meta(&mut self) -> &mut Meta {
        // SAFETY: `msg_name` points to the start of the `Meta` that this slot alone owns.
        unsafe { &mut *self.0.msg_hdr.msg_name.cast::<Meta>() }
    }

    /// Prepares the slot to receive a frame of up to `max_frame` bytes, with control messages if `control` is set.
    #[inline]
    pub(crate) fn arm(&mut self, max_frame: usize, control: bool) {
        self.0.msg_hdr.msg_namelen = size_of::<RawAddr>() as u32;
        self.0.msg_hdr.msg_controllen = if control { PACKET_INFO as _ } else { 0 };
        self.0.msg_hdr.msg_flags = 0;
        self.meta().iov.iov_len = max_frame;
    }

    /// Sets the length that a system call for this slot alone returned.
    #[inline]
    pub(crate) fn set_received(&mut self, wire_len: usize) {
        self.0.msg_len = wire_len as u32;
    }

    /// Length that was sent, in bytes; valid after a receive.
    #[inline]
    pub(crate) fn wire_len(&self) -> usize {
        self.0.msg_len as usize
    }

    /// The bytes that the header describes: the whole buffer after [`Slot::arm`], the frame after [`Slot::set_len`].
    #[inline]
    pub(crate) fn buf(&mut self) -> &mut [u8] {
        let iov = self.meta().iov;
        // SAFETY: the slot alone owns the `iov_len` initialised bytes at `iov_base`; `set_len` never exceeds them.
        unsafe { std::slice::from_raw_parts_mut(iov.iov_base.cast(), iov.iov_len) }
    }

    /// Sets the slot to the `len` bytes to send.
    ///
    /// # Panics
    /// If `len` exceeds the buffer of an armed slot.
    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) {
        let iov = &mut self.meta().iov;
        assert!(len <= iov.iov_len, "frame longer than its buffer");
        iov.iov_len = len;
    }

    /// Sender or receiver of the frame.
    #[inline]
    pub(crate) fn peer(&mut self) -> SocketAddr {
        self.meta().name.get()
    }

    /// Addresses the slot to `peer`, from the socket's own address.
    pub(crate) fn set_peer(&mut self, peer: SocketAddr) {
        self.meta().name = peer.into();
        self.0.msg_hdr.msg_namelen = RawAddr::len_for(peer) as u32;
        self.0.msg_hdr.msg_controllen = 0;
    }

    /// Makes the answer leave from the address that the frame was sent to, if packet information came with it.
    #[inline]
    pub(crate) fn answer_from_destination(&mut self) {
        let len = self.0.msg_hdr.msg_controllen.min(PACKET_INFO);
        if len == 0 {
            return;
        }
        let control = self.meta().control.as_mut_ptr().cast();
        // SAFETY: the control buffer is this slot's, initialised, and `PACKET_INFO` bytes long.
        let control = unsafe { std::slice::from_raw_parts_mut(control, len) };
        self.0.msg_hdr.msg_controllen = answer_from_destination(control) as _;
    }
}
