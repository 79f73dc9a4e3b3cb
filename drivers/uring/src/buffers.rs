//! The memory that the ring receives into and sends from.
//!
//! Each buffer lies so that what a multishot receive writes (a header, the sender's address, packet information, the
//! frame) ends with the frame on a cache line of its own, and the address can be the destination of the answer as is:
//!
//! ```text
//! Meta | padding | io_uring_recvmsg_out | address | packet information | frame, max_frame bytes | padding
//!                ^ what the kernel is given                            ^ cache line
//! ```

use std::{
    mem::{size_of, zeroed},
    net::SocketAddr,
    slice,
    sync::atomic::{AtomicU16, Ordering::Release},
};

use berth_host::{PACKET_INFO, RawAddr, answer_from_destination};
use berth_memory::{Heap, Memory as _};
use io_uring::types::{BufRingEntry, RecvMsgOut};

const CACHE_LINE: usize = 64;
const PAGE: usize = 4096;

/// Bytes of `struct io_uring_recvmsg_out`: four 32-bit fields.
const RECEIVE_HEADER: usize = 16;

/// What a request needs to stay in place until it was submitted.
#[repr(C, align(64))]
struct Meta {
    iov: libc::iovec,
    message: libc::msghdr,
}

/// A buffer by its index, and the right to use it: neither the kernel nor a request has it.
#[derive(Debug)]
pub(crate) struct Slot(u16);

impl Slot {
    /// The index, giving the right away: to a request, or to the ring.
    pub(crate) fn release(self) -> u16 {
        self.0
    }

    /// The right to buffer `index`.
    ///
    /// # Safety
    /// The buffer exists, and what it was released to has ended.
    pub(crate) unsafe fn claim(index: u16) -> Self {
        Self(index)
    }
}

/// All buffers, and the ring that lends the first of them to the kernel.
pub(crate) struct Buffers {
    /// The port ends all requests before it is freed.
    memory: Heap,
    ring_entries: u16,
    ring_tail: u16,
    /// From a buffer's start to its frame, and to the next buffer.
    frame_at: usize,
    stride: usize,
    max_frame: usize,
    /// What a multishot receive is to ask for; the kernel reads it when the request is submitted.
    template: libc::msghdr,
}

impl Buffers {
    /// Allocates `ring_entries` buffers (a power of two), to be lent, and `others`, for a socket bound to `addr`. Returns
    /// the rights to all of them, in order.
    pub(crate) fn new(ring_entries: u16, others: u16, max_frame: usize, addr: SocketAddr) -> (Self, Vec<Slot>) {
        // SAFETY: an all-zero header is a valid one.
        let mut template: libc::msghdr = unsafe { zeroed() };
        template.msg_namelen = RawAddr::len_for(addr) as u32;
        template.msg_controllen = if addr.ip().is_unspecified() { PACKET_INFO as _ } else { 0 };
        let head = RECEIVE_HEADER + template.msg_namelen as usize + template.msg_controllen;
        let frame_at = size_of::<Meta>() + head.next_multiple_of(CACHE_LINE);
        let stride = frame_at + max_frame.next_multiple_of(CACHE_LINE);
        let count = ring_entries + others;
        let ring_size = ring_bytes(ring_entries);
        let memory = Heap::new(ring_size + usize::from(count) * stride);
        // Faults every page in now, not under load.
        memory.zero_at(0, memory.size());
        let buffers = Self { memory, ring_entries, ring_tail: 0, frame_at, stride, max_frame, template };
        // SAFETY: nobody else has these yet.
        let slots = (0..count).map(|index| unsafe { Slot::claim(index) }).collect();
        (buffers, slots)
    }

    /// The buffer ring's address, for its registration.
    pub(crate) fn ring(&self) -> u64 {
        self.memory.base().as_ptr() as u64
    }

    /// What a multishot receive asks for.
    pub(crate) fn template(&self) -> *const libc::msghdr {
        &raw const self.template
    }

    /// Lends a buffer to the kernel, once [`Buffers::publish`] is called.
    ///
    /// # Panics
    /// If the buffer is not one of those for the ring.
    #[inline]
    pub(crate) fn provide(&mut self, slot: Slot) {
        let (addr, len) = (self.received_at(&slot) as u64, self.head() + self.max_frame);
        assert!(self.is_for_ring(&slot), "a buffer that is not for the ring");
        let bid = slot.release();
        let index = self.ring_tail & (self.ring_entries - 1);
        // SAFETY: the index is within the ring; each buffer is in it at most once, so the kernel is done with the entry.
        let entry = unsafe { &mut *self.memory.base().cast::<BufRingEntry>().add(index.into()).as_ptr() };
        entry.set_addr(addr);
        entry.set_len(len as u32);
        entry.set_bid(bid);
        self.ring_tail = self.ring_tail.wrapping_add(1);
    }

    /// Whether the buffer is one of those to be lent.
    #[inline]
    pub(crate) fn is_for_ring(&self, slot: &Slot) -> bool {
        slot.0 < self.ring_entries
    }

    /// Shows the kernel what was provided.
    #[inline]
    pub(crate) fn publish(&mut self) {
        // SAFETY: the ring is zeroed memory of its full size, and its tail an aligned u16 that only this thread writes.
        unsafe {
            let tail = BufRingEntry::tail(self.memory.base().cast::<BufRingEntry>().as_ptr());
            AtomicU16::from_ptr(tail.cast_mut()).store(self.ring_tail, Release);
        }
    }

    /// The bytes ahead of the frame that a receive writes.
    fn head(&self) -> usize {
        RECEIVE_HEADER + self.template.msg_namelen as usize + self.template.msg_controllen
    }

    fn start(&self, slot: &Slot) -> *mut u8 {
        let offset = ring_bytes(self.ring_entries) + usize::from(slot.0) * self.stride;
        // SAFETY: slots are only claimed of buffers that exist, so the offset is within the memory.
        unsafe { self.memory.base().add(offset).as_ptr() }
    }

    fn meta(&self, slot: &Slot) -> *mut Meta {
        self.start(slot).cast()
    }

    fn frame_of(&self, slot: &Slot) -> *mut u8 {
        // SAFETY: the frame is part of the buffer.
        unsafe { self.start(slot).add(self.frame_at) }
    }

    fn received_at(&self, slot: &Slot) -> *mut u8 {
        // SAFETY: `frame_at` leaves room for the head before the frame.
        unsafe { self.frame_of(slot).sub(self.head()) }
    }

    fn address_of(&self, slot: &Slot) -> *mut RawAddr {
        // SAFETY: the address follows the header, within the buffer, and is aligned; see the layout above.
        unsafe { self.received_at(slot).add(RECEIVE_HEADER).cast() }
    }

    /// Reads what a receive of `len` bytes wrote: the frame's length in the buffer, the length sent, and the sender.
    #[inline]
    pub(crate) fn received(&self, slot: &Slot, len: usize) -> Option<(usize, usize, SocketAddr)> {
        let len = len.min(self.head() + self.max_frame);
        // SAFETY: the slot's holder alone has the buffer, which is initialised memory of at least `len` bytes here.
        let bytes = unsafe { slice::from_raw_parts(self.received_at(slot), len) };
        let out = RecvMsgOut::parse(bytes, &self.template).ok()?;
        // SAFETY: the address lies within the buffer, aligned. It may be 16 bytes of the union only, where the family
        // says so; what follows is part of the buffer too.
        let peer = unsafe { (*self.address_of(slot)).get() };
        Some((out.payload_data().len(), out.incoming_payload_len() as usize, peer))
    }

    /// The frame's bytes, `max_frame` of them.
    #[inline]
    pub(crate) fn frame(&mut self, slot: &mut Slot) -> &mut [u8] {
        // SAFETY: the slot's holder alone has the buffer, whose frame is `max_frame` initialised bytes.
        unsafe { slice::from_raw_parts_mut(self.frame_of(slot), self.max_frame) }
    }

    /// Addresses the frame to `peer`, from the socket's own address.
    pub(crate) fn set_peer(&mut self, slot: &mut Slot, peer: SocketAddr) {
        let (raw, len) = (RawAddr::from(peer), RawAddr::len_for(peer));
        // SAFETY: as in `received`. Only the family's own length is room for an address: the frame may follow at once.
        unsafe { self.address_of(slot).cast::<u8>().copy_from_nonoverlapping((&raw const raw).cast(), len) };
    }

    /// Readies the first `len` bytes of the frame to be sent to its address; `answer`: from the address that the
    /// received frame was sent to.
    #[inline]
    pub(crate) fn prepare(&mut self, slot: &mut Slot, len: usize, answer: bool) {
        assert!(len <= self.max_frame, "frame longer than its buffer");
        let (frame, name) = (self.frame_of(slot), self.address_of(slot));
        let control_len = self.template.msg_controllen;
        // SAFETY: the slot's holder alone has the buffer; `Meta` is at its start, aligned, and control at the end of
        // the head.
        unsafe {
            let meta = &mut *self.meta(slot);
            meta.iov = libc::iovec { iov_base: frame.cast(), iov_len: len };
            if control_len > 0 {
                let control = slice::from_raw_parts_mut(frame.sub(control_len), control_len);
                meta.message.msg_name = name.cast();
                meta.message.msg_namelen = self.template.msg_namelen;
                meta.message.msg_iov = &raw mut meta.iov;
                meta.message.msg_iovlen = 1;
                meta.message.msg_control = control.as_mut_ptr().cast();
                meta.message.msg_controllen = if answer { answer_from_destination(control) as _ } else { 0 };
            }
        }
    }

    /// What [`Buffers::prepare`] has readied.
    #[inline]
    pub(crate) fn message(&self, slot: &Slot) -> Message {
        // SAFETY: as in `prepare`, without writing.
        let meta = unsafe { &*self.meta(slot) };
        if self.template.msg_controllen > 0 {
            Message::WithControl(&raw const meta.message)
        } else {
            let (addr, addr_len) = (self.address_of(slot).cast(), self.template.msg_namelen);
            Message::Plain { data: meta.iov.iov_base.cast(), len: meta.iov.iov_len as u32, addr, addr_len }
        }
    }
}

/// A frame to send, as pointers into its buffer.
pub(crate) enum Message {
    Plain { data: *const u8, len: u32, addr: *const libc::sockaddr, addr_len: u32 },
    WithControl(*const libc::msghdr),
}

fn ring_bytes(entries: u16) -> usize {
    (usize::from(entries) * size_of::<BufRingEntry>()).next_multiple_of(PAGE)
}
