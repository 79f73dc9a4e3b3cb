//! Owned packet buffers.

use std::ptr::NonNull;

use berth_dpdk_sys as sys;
use berth_net::{Sealed, Verified};

/// A packet buffer that this process owns.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Mbuf(NonNull<sys::rte_mbuf>);

impl Mbuf {
    /// Takes ownership of a buffer that a driver handed over.
    ///
    /// # Safety
    /// `mbuf` must be a live buffer that nothing else in this process will use or free.
    #[inline]
    pub(crate) unsafe fn from_raw(mbuf: NonNull<sys::rte_mbuf>) -> Self {
        Self(mbuf)
    }

    /// Gives up ownership, so that the buffer can be sent or freed.
    #[inline]
    pub(crate) fn into_raw(self) -> *mut sys::rte_mbuf {
        self.0.as_ptr()
    }

    /// Takes an empty buffer from a pool; `None` if the pool has none left.
    ///
    /// # Safety
    /// `pool` must be a live pool of packet buffers.
    #[inline]
    pub(crate) unsafe fn alloc(pool: *mut sys::rte_mempool) -> Option<Self> {
        // SAFETY: the caller's promise.
        NonNull::new(unsafe { sys::rte_pktmbuf_alloc(pool) }).map(Self)
    }

    #[inline]
    fn get(&self) -> &sys::rte_mbuf {
        // SAFETY: an Mbuf points to a live buffer that nobody else writes.
        unsafe { self.0.as_ref() }
    }

    /// Whether the whole frame is in this buffer.
    #[inline]
    pub(crate) fn is_single(&self) -> bool {
        self.get().nb_segs == 1
    }

    /// Whether nothing else refers to the buffer. A software device may hand out clones.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.get().refcnt == 1
    }

    /// The checksums that the device vouches for: verified, or, between virtual machines, not filled in but intact
    /// ("none", which also has the bit of "good" set).
    #[inline]
    pub(crate) fn verified(&self) -> Verified {
        let flags = self.get().ol_flags;
        Verified {
            ip: flags & sys::BERTH_MBUF_RX_IP_CKSUM_GOOD != 0,
            udp: flags & sys::BERTH_MBUF_RX_L4_CKSUM_GOOD != 0,
        }
    }

    /// Length of the frame in this buffer, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.get().data_len)
    }

    /// The frame and the free room behind it.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let mbuf = self.get();
        let (start, end) = (usize::from(mbuf.data_off), usize::from(mbuf.buf_len));
        let len = end.saturating_sub(start);
        // SAFETY: a buffer is buf_len bytes at buf_addr, initialised when its pool was (pool memory is mapped zeroed),
        // and written by this process alone: `&mut self` is the only way to it. Another process may read it. `start` is at most `end` where `len` is not 0.
        unsafe { std::slice::from_raw_parts_mut(mbuf.buf_addr.cast::<u8>().add(start.min(end)), len) }
    }

    /// Sets the length of the frame, which is to be sent as it is.
    ///
    /// # Panics
    /// If the buffer is shorter.
    #[inline]
    pub(crate) fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes().len(), "frame longer than its buffer");
        // SAFETY: an Mbuf points to a live buffer that nobody else uses.
        let mbuf = unsafe { self.0.as_mut() };
        mbuf.data_len = len as u16;
        mbuf.pkt_len = len as u32;
        // A buffer stays one outside of its pool, if it was.
        mbuf.ol_flags &= sys::BERTH_MBUF_EXTERNAL;
    }

    /// Sets the length and offloads of a frame that the host sealed. With `offload`, the device completes its UDP
    /// checksum.
    #[inline]
    pub(crate) fn seal(&mut self, sealed: Sealed, offload: bool) {
        self.set_len(sealed.len);
        if offload {
            // SAFETY: an Mbuf points to a live buffer that nobody else uses.
            let mbuf = unsafe { self.0.as_mut() };
            let family = if sealed.ipv6 { sys::BERTH_MBUF_TX_IPV6 } else { sys::BERTH_MBUF_TX_IPV4 };
            mbuf.ol_flags |= family | sys::BERTH_MBUF_TX_UDP_CKSUM;
            mbuf.__bindgen_anon_3.tx_offload = sealed.link_len as u64 | (sealed.ip_len as u64) << L2_LEN_BITS;
        }
    }

    /// Prefetches the buffer's frame into the processor's cache.
    #[inline]
    pub(crate) fn prefetch(mbuf: *const sys::rte_mbuf) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the driver just handed the buffer over, so its descriptor is readable; a prefetch of any address is
        // harmless.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>((*mbuf).buf_addr.cast::<i8>().add(usize::from((*mbuf).data_off)));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = mbuf;
    }
}

/// Width in bits of `l2_len`, the lowest field of `tx_offload`.
const L2_LEN_BITS: u32 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_outside_of_its_pool_stays_one_whatever_is_sent_in_it() {
        let mut room = [0u8; 256];
        for external in [0, sys::BERTH_MBUF_EXTERNAL] {
            let received = sys::BERTH_MBUF_RX_L4_CKSUM_GOOD | external;
            let mut raw = sys::rte_mbuf { buf_addr: room.as_mut_ptr().cast(), buf_len: 256, ..Default::default() };
            (raw.ol_flags, raw.data_off) = (received, 128);
            // SAFETY: the descriptor and its buffer outlive this, and nothing else uses them meanwhile.
            let mut mbuf = unsafe { Mbuf::from_raw(NonNull::from(&mut raw)) };
            mbuf.set_len(60);
            assert_eq!(mbuf.get().ol_flags, external);
            let sealed = Sealed { len: 80, ipv6: false, link_len: 14, ip_len: 20 };
            mbuf.seal(sealed, true);
            let asked = sys::BERTH_MBUF_TX_IPV4 | sys::BERTH_MBUF_TX_UDP_CKSUM;
            assert_eq!(mbuf.get().ol_flags, external | asked);
        }
    }
}
