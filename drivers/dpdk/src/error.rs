//! What can go wrong before frames flow.

use std::{ffi::CStr, net::IpAddr};

use berth_dpdk_sys as sys;

/// A failure of DPDK, as its error number tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The result of a call that returns a negative error number, or -1 with the number in `rte_errno`.
    pub(crate) fn check(result: i32) -> Result<i32, Self> {
        match result {
            0.. => Ok(result),
            -1 => Err(Self::last()),
            negative => Err(Self(-negative)),
        }
    }

    /// This thread's `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local variable.
        Self(unsafe { sys::berth_rte_errno() })
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: returns a NUL-terminated string that lives until this thread's next call.
        let text = unsafe { CStr::from_ptr(sys::rte_strerror(self.0)) };
        write!(f, "{}", text.to_string_lossy())
    }
}

/// Why EAL or a port could not be brought up. The text says what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// EAL can be initialised once in the life of a process.
    #[error("DPDK is initialised once per process, and it already was")]
    AlreadyInitialised,
    /// There is no free huge page.
    #[error(
        "no free huge pages: reserve some (echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages) or \
         configure memory without huge pages"
    )]
    NoHugePages,
    /// `rte_eal_init` failed; DPDK's own lines on standard error say where.
    #[error("DPDK could not be initialised: {0}; its own message is above")]
    Eal(Errno),
    /// A string with a NUL byte.
    #[error("{0:?} contains a NUL byte")]
    Nul(String),
    /// No driver takes the device.
    #[error(
        "no DPDK driver took {device:?}: {errno}; a device is a PCI address bound to vfio-pci such as \
         \"0000:3b:00.0\", or a software device such as \"net_memif0,role=server,socket=/run/berth/a.sock\"; \
         packet sockets, AF_XDP and TAP need CAP_NET_RAW and CAP_NET_ADMIN, and an interface that exists"
    )]
    Probe {
        /// As configured.
        device: String,
        /// What DPDK said.
        errno: Errno,
    },
    /// The device is open in this process.
    #[error("device {0:?} is already in use by this process; a device serves one port with as many queues as wanted")]
    InUse(String),
    /// A step of the device's set-up failed.
    #[error("{device}: {step} failed: {errno}")]
    Setup {
        /// The device's name.
        device: String,
        /// What was tried.
        step: &'static str,
        /// What DPDK said.
        errno: Errno,
    },
    /// More queues than the device has.
    #[error("{device}: {asked} queues asked, the device has 1 to {most}")]
    Queues {
        /// The device's name.
        device: String,
        /// As configured.
        asked: u16,
        /// The device's limit.
        most: u16,
    },
    /// An MTU the device, or IP, cannot carry.
    #[error("{device}: an MTU of {asked} is outside what the device carries, {least} to {most} bytes")]
    Mtu {
        /// The device's name.
        device: String,
        /// As configured.
        asked: u16,
        /// The device's lower limit, or 1280 (RFC 8200 section 5) where an IPv6 address is configured.
        least: u16,
        /// The device's upper limit.
        most: u16,
    },
    /// A memif whose peer could rewrite frames while they are read.
    #[error("{0}: zero-copy=yes lets the peer rewrite what was already checked; leave it out, frames are copied then")]
    SharedBuffers(String),
    /// A port without an address.
    #[error("{0}: at least one address with its prefix is needed, such as 10.0.0.2/24")]
    NoAddress(String),
    /// Not the address of one host, or a prefix beyond the address's width.
    #[error("{device}: {address}/{prefix} is not a host's address with its prefix length")]
    Address {
        /// The device's name.
        device: String,
        /// As configured.
        address: IpAddr,
        /// As configured.
        prefix: u8,
    },
    /// A VLAN identifier out of range.
    #[error("{device}: VLAN {vlan} does not exist; identifiers are 1 to 4094")]
    Vlan {
        /// The device's name.
        device: String,
        /// As configured.
        vlan: u16,
    },
    /// The link did not come up in time.
    #[error("{0}: the link is still down; is the cable in, or the peer running?")]
    LinkDown(String),
}
