//! Pools of packet buffers: in DPDK's memory, or in memory that another process can read.

use std::{
    ffi::CStr,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use berth_dpdk_sys as sys;
use berth_memory::Memory as _;
use berth_pages::{Backing, HugePage, Pages};
use berth_port::Place;

use crate::error::Errno;

/// Numbers pools, so that the name of one that outlives its device does not clash with the next.
static POOLS: AtomicU32 = AtomicU32::new(0);

/// Limit on the buffers of a pool that each thread may keep in its cache.
pub(crate) const CACHE: u32 = 256;
/// Payloads begin at a multiple of this many bytes: what a GPU reads at once.
const ALIGN: usize = 64;
/// Size of an ordinary page.
const PAGE: usize = 4096;

/// `RTE_BAD_IOVA`, a macro that bindgen cannot evaluate: there is no address for devices.
const BAD_IOVA: sys::rte_iova_t = sys::rte_iova_t::MAX;

/// The buffers of a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Number of buffers.
    pub(crate) buffers: u32,
    /// Bytes of each, with its headroom.
    pub(crate) room: u16,
    /// NUMA node; -1 for any.
    pub(crate) socket: i32,
}

/// Buffers in memory that others can read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readable {
    /// How the device gets at them.
    pub(crate) access: Access,
    /// Number of buffers besides those of [`Sizes`].
    pub(crate) more: u32,
    /// Bytes of a frame in front of its payload.
    pub(crate) headers: usize,
}

/// How a device gets at buffers outside of DPDK's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    /// Its driver copies.
    Copies,
    /// By the addresses of this process, once they are mapped for it. Its buffers lie in huge pages, none across two:
    /// fewer pages for the IOMMU to translate, and each buffer in one piece of physical memory.
    Dma(NonNull<sys::rte_device>),
}

impl Access {
    /// The pages that buffers lie in; `None`: ordinary ones.
    const fn pages(self) -> Option<HugePage> {
        match self {
            Self::Copies => None,
            Self::Dma(_) => Some(HugePage::Size2M),
        }
    }

    /// That of a device; the error says why its buffers cannot be outside.
    pub(crate) fn of(name: &str, device: *mut sys::rte_device) -> Result<Self, String> {
        if name.starts_with("net_memif") {
            return Ok(Self::Copies);
        }
        let on_pci = NonNull::new(device).filter(|device| {
            // SAFETY: the device exists while its port does, and has a bus, whose name is a C string.
            let bus = unsafe { CStr::from_ptr(sys::rte_bus_name(sys::rte_dev_bus(device.as_ptr()))) };
            bus == c"pci"
        });
        let Some(device) = on_pci else {
            return Err(format!("{name} cannot leave frames where they lie: a network card or a memif can"));
        };
        // SAFETY: EAL is initialised.
        if unsafe { sys::rte_eal_iova_mode() } != sys::rte_iova_mode_RTE_IOVA_VA {
            return Err(format!("{name} cannot leave frames where they lie without an IOMMU"));
        }
        Ok(Self::Dma(device))
    }
}

/// A pool of packet buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    pool: NonNull<sys::rte_mempool>,
    /// The memory of the buffers, or why nobody else can read it.
    frames: Result<External, String>,
}

impl Pool {
    /// Makes a pool whose buffers others can read if `readable` says how, and if that can be had; the usual pool
    /// otherwise.
    pub(crate) fn new(sizes: Sizes, readable: Result<Readable, String>) -> Result<Self, Errno> {
        let name = format!("berth-{}\0", POOLS.fetch_add(1, Ordering::Relaxed));
        let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("one NUL, at the end");
        match readable.and_then(|readable| External::pool(name, sizes, readable)) {
            Ok((pool, memory)) => Ok(Self { pool, frames: Ok(memory) }),
            Err(reason) => {
                let Sizes { buffers, room, socket } = sizes;
                // SAFETY: EAL is initialised; the name is copied.
                let pool = unsafe { sys::rte_pktmbuf_pool_create(name.as_ptr(), buffers, CACHE, 0, room, socket) };
                Ok(Self { pool: NonNull::new(pool).ok_or_else(Errno::last)?, frames: Err(reason) })
            }
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rte_mempool {
        self.pool.as_ptr()
    }

    /// The memory of the buffers, or why nobody else can read it.
    pub(crate) fn frames(&self) -> Result<Arc<Pages>, &str> {
        self.frames.as_ref().map(|memory| memory.pages.clone()).map_err(String::as_str)
    }

    /// Takes the buffers away from the device, which is closed and not yet removed.
    pub(crate) fn unmap(&mut self) {
        if let Ok(memory) = &mut self.frames {
            memory.unmap();
        }
    }
}

impl Drop for Pool {
    /// Frees the pool together with buffers that drivers kept (such as those of AF_XDP's fill ring).
    fn drop(&mut self) {
        // SAFETY: made in `new`; every device and port that took buffers from it is gone.
        unsafe { sys::rte_mempool_free(self.pool.as_ptr()) };
    }
}

/// Memory of ours that DPDK knows of. It must outlive its pool.
#[derive(Debug)]
struct External {
    pages: Arc<Pages>,
    /// The device that it is mapped for.
    mapped: Option<NonNull<sys::rte_device>>,
}

impl External {
    /// Makes memory, and a pool whose buffers lie in it.
    fn pool(name: &CStr, sizes: Sizes, readable: Readable) -> Result<(NonNull<sys::rte_mempool>, Self), String> {
        let Sizes { buffers, room, socket } = sizes;
        let page = readable.access.pages();
        let layout = buffers
            .checked_add(readable.more)
            .and_then(|buffers| Layout::new(buffers, room, readable.headers, page))
            .ok_or("buffers of this number and size are more than DPDK takes")?;
        let mut memory = Self::new(layout.size, page, u32::try_from(socket).ok())?;
        if let Access::Dma(device) = readable.access {
            memory.map(device)?;
        }
        let areas: Vec<_> = layout.areas().map(|(at, len)| memory.area(at, len, layout.stride)).collect();
        // SAFETY: EAL is initialised; name and descriptions are copied. The memory is that long, and the pool's alone
        // but for readers.
        let pool = unsafe {
            sys::rte_pktmbuf_pool_create_extbuf(
                name.as_ptr(),
                layout.buffers,
                CACHE,
                0,
                room,
                socket,
                areas.as_ptr(),
                areas.len() as u32,
            )
        };
        match NonNull::new(pool) {
            Some(pool) => Ok((pool, memory)),
            None => Err(format!("no packet buffers in memory that others can read: {}", Errno::last())),
        }
    }

    /// Makes the memory and tells DPDK of it.
    fn new(size: usize, page: Option<HugePage>, numa: Option<u32>) -> Result<Self, String> {
        let pages = Pages::new(size as u64, &Backing::Readable(page), numa).map_err(|error| error.to_string())?;
        let base = pages.base().as_ptr().cast();
        let page = page.map_or(PAGE, HugePage::bytes);
        // SAFETY: whole pages, which stay mapped until they are unregistered; without addresses none are read.
        Errno::check(unsafe { sys::rte_extmem_register(base, size, std::ptr::null_mut(), 0, page) })
            .map_err(|errno| format!("DPDK takes no memory that others can read: {errno}"))?;
        Ok(Self { pages: Arc::new(pages), mapped: None })
    }

    fn base(&self) -> *mut u8 {
        self.pages.base().as_ptr()
    }

    /// The part for buffers of `stride` bytes from `at` on.
    fn area(&self, at: usize, len: usize, stride: u16) -> sys::rte_pktmbuf_extmem {
        let first = self.base().wrapping_add(at);
        let iova = if self.mapped.is_some() { first as u64 } else { BAD_IOVA };
        sys::rte_pktmbuf_extmem { buf_ptr: first.cast(), buf_iova: iova, buf_len: len, elt_size: stride }
    }

    /// Maps the memory for a device, at the addresses that it has in this process.
    fn map(&mut self, device: NonNull<sys::rte_device>) -> Result<(), String> {
        let (base, size) = (self.base(), self.pages.size());
        // SAFETY: the device exists; the memory is registered, and mapped until `unmap`.
        Errno::check(unsafe { sys::rte_dev_dma_map(device.as_ptr(), base.cast(), base as u64, size) })
            .map_err(|errno| format!("the device cannot be given memory that others can read: {errno}"))?;
        self.mapped = Some(device);
        Ok(())
    }

    fn unmap(&mut self) {
        let Some(device) = self.mapped.take() else { return };
        let (base, size) = (self.base(), self.pages.size());
        // SAFETY: exactly what `map` mapped. The device is still there: its owner calls this before it removes it.
        unsafe { sys::rte_dev_dma_unmap(device.as_ptr(), base.cast(), base as u64, size) };
    }
}

impl Drop for External {
    fn drop(&mut self) {
        // A pool that could not be made leaves it mapped.
        self.unmap();
        // SAFETY: exactly what `new` registered; no pool has its buffers there any more.
        unsafe { sys::rte_extmem_unregister(self.base().cast(), self.pages.size()) };
    }
}

/// Where buffers lie in memory.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    buffers: u32,
    /// Offset of the first buffer in an area.
    first: usize,
    /// Distance of two.
    stride: u16,
    /// Most buffers of an area.
    each: u32,
    /// Distance of two areas.
    area: usize,
    /// Whole pages.
    size: usize,
}

impl Layout {
    /// That of `buffers` of `room` bytes each, none of which lies across two huge pages. What follows headroom and
    /// `headers` is aligned. `None` if a buffer is too long for that.
    fn new(buffers: u32, room: u16, headers: usize, page: Option<HugePage>) -> Option<Self> {
        let payload = sys::RTE_PKTMBUF_HEADROOM as usize + headers;
        let first = payload.next_multiple_of(ALIGN) - payload;
        let stride = u16::try_from(usize::from(room).next_multiple_of(ALIGN)).ok()?;
        let span = |buffers: u32| first + usize::from(stride) * buffers as usize;
        let (each, area, page) = match page.map(HugePage::bytes) {
            Some(page) => (((page - first) / usize::from(stride)) as u32, page, page),
            None => (buffers, span(buffers), PAGE),
        };
        let last = buffers.checked_sub(1)? / each;
        let end = area * last as usize + span(buffers - each * last);
        Some(Self { buffers, first, stride, each, area, size: (end + Place::BEHIND).next_multiple_of(page) })
    }

    /// Offset and length of each area.
    fn areas(&self) -> impl Iterator<Item = (usize, usize)> {
        let starts = (0..self.buffers).step_by(self.each as usize);
        starts.zip(0..).map(|(start, area)| {
            let buffers = self.each.min(self.buffers - start) as usize;
            (self.area * area + self.first, usize::from(self.stride) * buffers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_aligned_and_readers_may_round_up() {
        for (headers, first) in [(42, 22), (46, 18)] {
            let layout = Layout::new(1000, 2176, headers, None).unwrap();
            assert_eq!((layout.first, layout.stride), (first, 2176));
            assert_eq!((layout.first + 128 + headers) % ALIGN, 0);
            assert_eq!(layout.size % PAGE, 0);
            assert!(layout.size >= first + 1000 * 2176 + Place::BEHIND);
            assert_eq!(layout.areas().collect::<Vec<_>>(), [(first, 1000 * 2176)]);
        }
        assert_eq!(Layout::new(1, 2177, 42, None).unwrap().stride, 2240);
        assert_eq!(Layout::new(1, u16::MAX, 42, None), None);
        assert_eq!(Layout::new(0, 2176, 42, None), None);
    }

    #[test]
    fn no_buffer_lies_across_two_huge_pages() {
        const HUGE: usize = HugePage::Size2M.bytes();
        for (buffers, room, pages) in [
            (1, 2176, 1),
            (933, 2176, 1),
            (963, 2176, 2),
            (964, 2176, 2),
            (5000, 2176, 6),
            (700, 9344, 4),
            (33, 65472, 2),
        ] {
            let layout = Layout::new(buffers, room, 42, Some(HugePage::Size2M)).unwrap();
            assert_eq!(layout.size, pages * HUGE, "{buffers} of {room}");
            let mut all = 0;
            for (at, len) in layout.areas() {
                assert_eq!((at % HUGE, len % usize::from(room)), (22, 0));
                assert!(at % HUGE + len <= HUGE);
                assert!(at + len + Place::BEHIND <= layout.size);
                all += len / usize::from(room);
            }
            assert_eq!(all, buffers as usize);
        }
    }
}
