//! Slots in huge pages: few TLB misses, and physically contiguous for devices.

use std::{fs, io, ptr, ptr::NonNull};

use berth_ring::Region;

/// The huge page sizes of x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePage {
    /// 2 MiB
    Size2M,
    /// 1 GiB
    Size1G,
}

impl HugePage {
    /// The page size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Size2M => 2 << 20,
            Self::Size1G => 1 << 30,
        }
    }

    const fn map_flag(self) -> libc::c_int {
        match self {
            Self::Size2M => libc::MAP_HUGE_2MB,
            Self::Size1G => libc::MAP_HUGE_1GB,
        }
    }

    const fn sysfs(self) -> &'static str {
        match self {
            Self::Size2M => "/sys/kernel/mm/hugepages/hugepages-2048kB",
            Self::Size1G => "/sys/kernel/mm/hugepages/hugepages-1048576kB",
        }
    }

    fn count(self, file: &str) -> Option<usize> {
        fs::read_to_string(format!("{}/{file}", self.sysfs())).ok()?.trim().parse().ok()
    }
}

impl std::fmt::Display for HugePage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Size2M => "2 MiB",
            Self::Size1G => "1 GiB",
        })
    }
}

/// Zeroed memory in huge pages, all of it resident from the start.
#[derive(Debug)]
pub struct HugeRegion {
    ptr: NonNull<u8>,
    len: usize,
}

/// Why huge pages could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HugeRegionError {
    /// Too few pages are reserved and free.
    #[error(
        "{need} huge pages of {page} are needed and {free} are free; reserve them with: echo {reserve} > {}/nr_hugepages",
        page.sysfs()
    )]
    NotReserved {
        /// The page size.
        page: HugePage,
        /// Pages that the region needs.
        need: usize,
        /// Pages that are free.
        free: usize,
        /// The number of reserved pages that would do.
        reserve: usize,
    },
    /// The kernel has no pages of this size.
    #[error("this machine has no huge pages of {0}; use the other size or ordinary memory")]
    Unsupported(HugePage),
    /// The mapping failed for another reason.
    #[error("cannot map {need} huge pages of {page}: {error}")]
    Map {
        /// The page size.
        page: HugePage,
        /// Pages that the region needs.
        need: usize,
        /// What the kernel said.
        error: io::Error,
    },
}

impl HugeRegion {
    /// Maps at least `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// Too few pages are reserved, or the kernel has none of this size.
    pub fn new(len: usize, page: HugePage) -> Result<Self, HugeRegionError> {
        let need = len.max(1).div_ceil(page.bytes());
        let Some(reserved) = page.count("nr_hugepages") else {
            return Err(HugeRegionError::Unsupported(page));
        };
        // A length beyond the address space is refused by mmap like any other that does not fit.
        let len = need.saturating_mul(page.bytes());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_POPULATE | page.map_flag();
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            let free = page.count("free_hugepages").unwrap_or(0);
            return Err(if error.raw_os_error() == Some(libc::ENOMEM) && free < need {
                HugeRegionError::NotReserved { page, need, free, reserve: reserved + need - free }
            } else {
                HugeRegionError::Map { page, need, error }
            });
        }
        let ptr = NonNull::new(at.cast()).expect("a mapping of the kernel's choice is not at address 0");
        Ok(Self { ptr, len })
    }
}

impl Drop for HugeRegion {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, unmapped once.
        let unmapped = unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, 0, "munmap of a whole mapping");
    }
}

// SAFETY: the mapping is owned, is only ever handed out as a raw pointer, and has no thread affinity.
unsafe impl Send for HugeRegion {}
// SAFETY: as above; `&HugeRegion` gives out the pointer only.
unsafe impl Sync for HugeRegion {}

// SAFETY: the mapping is zeroed by the kernel, lives until drop, and never moves.
unsafe impl Region for HugeRegion {
    fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use berth_ring::{Geometry, Ring};

    use super::*;

    /// Works where pages are reserved, and says how to reserve them where not.
    #[test]
    fn holds_a_ring_or_says_what_to_reserve() {
        for page in [HugePage::Size2M, HugePage::Size1G] {
            match HugeRegion::new(page.bytes(), page) {
                Ok(region) => {
                    assert_eq!(region.len(), page.bytes());
                    assert!(region.as_ptr().addr().get().is_multiple_of(page.bytes()));
                    let mut ring = Ring::new(region, Geometry::new(64, 8192).unwrap()).unwrap();
                    let (mut producer, mut dispatcher) = (ring.producer().unwrap(), ring.dispatcher().unwrap());
                    let fill = |slot: &mut [u8]| {
                        slot.fill(7);
                        slot.len()
                    };
                    producer.push(fill).unwrap();
                    dispatcher.poll(1, |rx, tx| {
                        tx.copy_from_slice(rx);
                        Ok(tx.len())
                    });
                    assert_eq!(producer.collect(1, |_, answer| assert_eq!(answer, Ok(&[7; 8192][..]))), 1);
                }
                Err(HugeRegionError::NotReserved { need, free, .. }) => assert_eq!((need, free), (1, 0)),
                Err(HugeRegionError::Unsupported(unsupported)) => assert_eq!(unsupported, page),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn names_the_pages_that_are_missing_and_the_command() {
        let page = HugePage::Size2M;
        let error = HugeRegion::new(3 << 40, page).unwrap_err();
        let HugeRegionError::NotReserved { need, free, reserve, .. } = error else { panic!("{error}") };
        assert_eq!(need, 3 << 19);
        assert_eq!(
            error.to_string(),
            format!(
                "1572864 huge pages of 2 MiB are needed and {free} are free; reserve them with: \
                 echo {reserve} > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
            )
        );
        assert!(reserve >= need);
    }
}
