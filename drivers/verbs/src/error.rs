//! Errors, except for work that completes with one.

use std::io;

use crate::{QpKind, State};

/// Why a device or an object of it cannot be made or changed. The text says how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or the libraries of this host do not support RDMA.
    #[error(
        "this host has no RDMA: {0}; it wants the libraries (Debian: libibverbs1, ibverbs-providers) and the kernel's \
         ib_uverbs, and where there is no card: modprobe rdma_rxe, rdma link add rxe0 type rxe netdev eth0"
    )]
    NoRdma(#[source] io::Error),
    /// There is no device with that name.
    #[error("there is no RDMA device {name:?}; {}", devices(.have))]
    NoDevice {
        /// As configured.
        name: String,
        /// Names of the devices that exist.
        have: Vec<String>,
    },
    /// A call of the library failed.
    #[error("{device}: {step} failed: {error}")]
    Failed {
        /// Name of the device.
        device: String,
        /// The call.
        step: &'static str,
        /// Its error.
        #[source]
        error: io::Error,
    },
    /// A DMA buffer was refused: the device, its library or its driver in the kernel takes none, or not this one.
    #[error("{device} or its driver in the kernel takes no dma-bufs of that memory: {error}")]
    NoDmaBufs {
        /// Name of the device.
        device: String,
        /// The error of `ibv_reg_dmabuf_mr`.
        #[source]
        error: io::Error,
    },
    /// The device does not have this port.
    #[error("{device} has ports 1 to {most}, not {port}")]
    Port {
        /// Name of the device.
        device: String,
        /// As configured.
        port: u8,
        /// The highest port number.
        most: u8,
    },
    /// The GID table has no such entry.
    #[error("{device} has no GID with index {index} on port {port}; `berth doctor` lists the GIDs")]
    Gid {
        /// Name of the device.
        device: String,
        /// Port number, from 1.
        port: u8,
        /// As configured.
        index: u8,
    },
    /// A change of state that queue pairs cannot make.
    #[error(
        "a {kind} queue pair in {from} does not become {to}: the way is RESET, INIT, RTR, RTS, and from any ERROR or RESET"
    )]
    State {
        /// Type of the queue pair.
        kind: QpKind,
        /// Its present state.
        from: State,
        /// The state asked for.
        to: State,
    },
    /// Work was posted in this state, which accepts none.
    #[error("a queue pair in {0} takes no such work: receives want INIT or later, sends want RTS")]
    NotReady(State),
    /// Bytes beyond the registered memory.
    #[error("{len} bytes at {at} are not within a registration of {registered}")]
    Range {
        /// Offset of the first byte from the start of the registration.
        at: usize,
        /// Number of bytes.
        len: usize,
        /// Size of the registration in bytes.
        registered: usize,
    },
    /// Something of another queue pair, type or domain was used.
    #[error("{0}")]
    Misuse(&'static str),
    /// The queue is full.
    #[error("the queue is full: ring the doorbell, or wait for completions")]
    Full,
}

fn devices(have: &[String]) -> String {
    if have.is_empty() { "there is none".to_string() } else { format!("there is {}", have.join(", ")) }
}

impl Error {
    /// Error number of a failed call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NoRdma(error) | Self::Failed { error, .. } | Self::NoDmaBufs { error, .. } => error.raw_os_error(),
            _ => None,
        }
    }
}
