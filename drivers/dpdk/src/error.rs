//! Errors of starting EAL and ports.

use std::{ffi::CStr, net::IpAddr};

use berth_dpdk_sys as sys;

/// An error number of DPDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Checks the result of a call that returns a negative error number, or -1 with the number in `rte_errno`.
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

/// Why EAL or a port could not be started. The text says how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// EAL was initialised before; it can be only once per process.
    #[error("DPDK is initialised once per process, and it already was")]
    AlreadyInitialised,
    /// No huge page is free.
    #[error(
        "no free huge pages: reserve some (echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages) or \
         configure memory without huge pages"
    )]
    NoHugePages,
    /// `rte_eal_init` failed; DPDK's messages on standard error say why.
    #[error("DPDK could not be initialised: {0}; its own message is above")]
    Eal(Errno),
    /// This string has a NUL byte.
    #[error("{0:?} contains a NUL byte")]
    Nul(String),
    /// No driver accepts the device.
    #[error(
        "no DPDK driver took {device:?}: {errno}; a device is a PCI address bound to vfio-pci such as \
         \"0000:3b:00.0\", or a software device such as \"net_memif0,role=server,socket=/run/berth/a.sock\"; \
         packet sockets, AF_XDP and TAP need CAP_NET_RAW and CAP_NET_ADMIN, and an interface that exists"
    )]
    Probe {
        /// As configured.
        device: String,
        /// DPDK's error.
        errno: Errno,
    },
    /// This device is already open in this process.
    #[error("device {0:?} is already in use by this process; a device serves one port with as many queues as wanted")]
    InUse(String),
    /// A step of starting the device failed.
    #[error("{device}: {step} failed: {errno}")]
    Setup {
        /// Name of the device.
        device: String,
        /// The step.
        step: &'static str,
        /// DPDK's error.
        errno: Errno,
    },
    /// The device has fewer queues than asked for.
    #[error("{device}: {asked} queues asked, the device has 1 to {most}")]
    Queues {
        /// Name of the device.
        device: String,
        /// As configured.
        asked: u16,
        /// Limit of the device.
        most: u16,
    },
    /// The device, or IP, does not support this MTU.
    #[error("{device}: an MTU of {asked} is outside what the device carries, {least} to {most} bytes")]
    Mtu {
        /// Name of the device.
        device: String,
        /// As configured.
        asked: u16,
        /// Lower limit of the device, or 1280 (RFC 8200 section 5) if an IPv6 address is configured.
        least: u16,
        /// Upper limit of the device.
        most: u16,
    },
    /// The peer of this memif could rewrite frames while they are read.
    #[error("{0}: zero-copy=yes lets the peer rewrite what was already checked; leave it out, frames are copied then")]
    SharedBuffers(String),
    /// This port has no address.
    #[error("{0}: at least one address with its prefix is needed, such as 10.0.0.2/24")]
    NoAddress(String),
    /// The address is not that of a single host, or the prefix is longer than the address.
    #[error("{device}: {address}/{prefix} is not a host's address with its prefix length")]
    Address {
        /// Name of the device.
        device: String,
        /// As configured.
        address: IpAddr,
        /// As configured.
        prefix: u8,
    },
    /// The VLAN identifier is out of range.
    #[error("{device}: VLAN {vlan} does not exist; identifiers are 1 to 4094")]
    Vlan {
        /// Name of the device.
        device: String,
        /// As configured.
        vlan: u16,
    },
    /// The link of this device did not come up in time.
    #[error("{0}: the link is still down; is the cable in, or the peer running?")]
    LinkDown(String),
}
