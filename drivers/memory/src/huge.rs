//! Sizes of huge pages.

use std::{fmt, fs};

use crate::PagesError;

/// The huge page sizes of x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HugePage {
    /// 2 MiB.
    Size2M,
    /// 1 GiB.
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

    /// Bytes of the pages that hold `len` bytes; more than there can be if those exceed the address space.
    pub(crate) fn whole(self, len: usize) -> usize {
        len.div_ceil(self.bytes()).saturating_mul(self.bytes())
    }

    /// That `len` bytes of pages cannot be had because too few are free, or none are supported.
    pub(crate) fn missing(self, len: usize) -> Option<PagesError> {
        let Some(reserved) = self.count("nr_hugepages") else { return Some(PagesError::Unsupported(self)) };
        let (need, free) = (len / self.bytes(), self.count("free_hugepages").unwrap_or(0));
        let reserve = reserved + need.checked_sub(free).filter(|&more| more > 0)?;
        Some(PagesError::NotReserved { page: self, need, free, reserve })
    }

    /// What says to `mmap` which pages are meant; the same bits do to `memfd_create`.
    pub(crate) const fn flag(self) -> libc::c_int {
        match self {
            Self::Size2M => libc::MAP_HUGE_2MB,
            Self::Size1G => libc::MAP_HUGE_1GB,
        }
    }

    pub(crate) const fn sysfs(self) -> &'static str {
        match self {
            Self::Size2M => "/sys/kernel/mm/hugepages/hugepages-2048kB",
            Self::Size1G => "/sys/kernel/mm/hugepages/hugepages-1048576kB",
        }
    }

    /// The number in a file of sysfs about pages of this size; `None` if the kernel has no such pages.
    pub(crate) fn count(self, file: &str) -> Option<usize> {
        fs::read_to_string(format!("{}/{file}", self.sysfs())).ok()?.trim().parse().ok()
    }
}

impl fmt::Display for HugePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size2M => "2 MiB",
            Self::Size1G => "1 GiB",
        })
    }
}
