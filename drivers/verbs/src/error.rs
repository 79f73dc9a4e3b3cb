//! What can go wrong, apart from work that completes with an error.

use std::io;

use crate::{QpKind, State};

/// Why a device, or something of it, cannot be had or changed. The text says what would be right.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel, or this host's libraries, know no RDMA.
    #[error(
        "this host has no RDMA: {0}; it wants the libraries (Debian: libibverbs1, ibverbs-providers) and the kernel's \
         ib_uverbs, and where there is no card: modprobe rdma_rxe, rdma link add rxe0 type rxe netdev eth0"
    )]
    NoRdma(#[source] io::Error),
    /// No device of that name.
    #[error("there is no RDMA device {name:?}; {}", devices(.have))]
    NoDevice {
        /// As configured.
        name: String,
        /// The devices that there are.
        have: Vec<String>,
    },
    /// A step failed.
    #[error("{device}: {step} failed: {error}")]
    Failed {
        /// The device's name.
        device: String,
        /// The call.
        step: &'static str,
        /// What it said.
        #[source]
        error: io::Error,
    },
    /// A port that the device has not.
    #[error("{device} has ports 1 to {most}, not {port}")]
    Port {
        /// The device's name.
        device: String,
        /// As configured.
        port: u8,
        /// The last port.
        most: u8,
    },
    /// A GID that is not there.
    #[error("{device} has no GID with index {index} on port {port}; `berth doctor` lists the GIDs")]
    Gid {
        /// The device's name.
        device: String,
        /// The port.
        port: u8,
        /// As configured.
        index: u8,
    },
    /// A change of state that does not exist.
    #[error(
        "a {kind} queue pair in {from} does not become {to}: the way is RESET, INIT, RTR, RTS, and from any ERROR or RESET"
    )]
    State {
        /// The queue pair's type.
        kind: QpKind,
        /// Its state.
        from: State,
        /// What was asked.
        to: State,
    },
    /// Work in a state that takes none.
    #[error("a queue pair in {0} takes no such work: receives want INIT or later, sends want RTS")]
    NotReady(State),
    /// Bytes beyond what is registered.
    #[error("{len} bytes at {at} are not within a registration of {registered}")]
    Range {
        /// The first byte, from the registration's beginning.
        at: usize,
        /// How many.
        len: usize,
        /// Bytes of the registration.
        registered: usize,
    },
    /// Work of another queue pair, type or domain.
    #[error("{0}")]
    Misuse(&'static str),
    /// The queue has as much work as it holds.
    #[error("the queue is full: ring the doorbell, or wait for completions")]
    Full,
}

fn devices(have: &[String]) -> String {
    if have.is_empty() { "there is none".to_string() } else { format!("there is {}", have.join(", ")) }
}

impl Error {
    /// The error number of a failed call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NoRdma(error) | Self::Failed { error, .. } => error.raw_os_error(),
            _ => None,
        }
    }
}
