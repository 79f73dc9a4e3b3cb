//! The list of port drivers.
//!
//! A driver is one file here, with its keys, their reader, and a description of the driver; plus one line in the list
//! below. With a line in the second list, clients can send from it, too. Code that configures, opens or describes ports
//! uses these lists and names no driver.
#![forbid(unsafe_code)]

mod client;
mod common;
mod dpdk;
pub mod nvme;
pub mod nvmet;
mod ofi;
mod rdma;
mod roce;
mod roster;
mod sockets;
pub mod sriov;
mod tcp;
mod udp;
mod uring;
mod verbs;

use std::{fmt::Display, net::SocketAddr, sync::Arc};

use berth_control::Polled;
use berth_fabric::Binding;
use berth_keys::{Binds, Owned, Owner, Table};
use berth_pages::Pages;
use berth_port::{Port, Tables, Task};

pub use client::{Client, Connect, Meet, PortUser};
pub use dpdk::{Dpdk, Transport};
pub use nvme::Nvme;
pub use nvmet::KernelNvme;
pub use ofi::{Ofi, prepare_process, providers};
pub use rdma::{Rdma, Windows};
pub use roce::{Peer, Rendezvous, Roce};
pub use sriov::Sriov;
pub use tcp::Tcp;
pub use udp::Udp;
pub use uring::Uring;
pub use verbs::Verbs;

use roster::{clients, roster};

roster! {
    Udp,
    Uring,
    Tcp,
    Dpdk if "dpdk",
    Ofi if "ofi",
    Verbs if "verbs",
}

clients! {
    Udp "udp": "spinning non-blocking kernel sockets",
    Uring "uring": "`io_uring`: multishot receive into provided buffers",
    Dpdk "dpdk" if "dpdk" "DPDK": "DPDK: a network card, or a software device such as memif",
    Roce "roce" if "dpdk" "DPDK": "`RoCEv2` in software over a DPDK device: an FPGA that writes into slots",
    Ofi "ofi" if "ofi" "libfabric": "an endpoint of libfabric",
    Verbs "verbs" if "verbs" "RDMA": "a queue pair of an RDMA device",
}

/// The values of a driver's keys. Displayed as `berth check` shows them, after the driver's word.
pub trait Settings: Display + Sized {
    /// Name of the driver in the configuration and in the ready line.
    const WORD: &'static str;
    /// Where its frames come from, as a phrase.
    const DOC: &'static str;
    /// What it needs at build time, if its line in the list has a feature.
    const LIBRARY: &'static str = "";
    /// Its keys in `[[port]]`.
    const KEYS: &'static [Owned];
    /// Its keys in `[port.limits]`.
    const LIMITS: &'static [Owned] = &[];

    /// Reads its keys and notes mistakes; `None` if there were any.
    fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self>;

    /// Properties that matter outside of the driver.
    fn traits(&self) -> Traits {
        Traits::default()
    }
}

/// Context for reading the keys of a port.
#[derive(Debug)]
pub struct Reading<'a> {
    /// Name of the port in mistakes.
    pub label: &'a str,
    /// Addresses that are bound so far, with their users.
    pub binds: &'a mut Binds,
    /// Whether the program was built with this feature.
    pub has_feature: fn(&str) -> bool,
}

/// Properties of a driver that matter outside of it. The default is that of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Why a port can have only one CPU, and what to do instead. `None` if it has a queue per CPU.
    pub one_cpu: Option<&'static str>,
    /// Whether it carries frames. Byte streams do not: they serve leases only, and have no limits, faults or captures.
    pub has_frames: bool,
    /// Whether peers tell answers apart by their slots, so that the order of answers is not a setting.
    pub has_slots: bool,
    /// Whether its datagrams are frames, as with plain UDP.
    pub speaks_udp: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self { one_cpu: None, has_frames: true, has_slots: false, speaks_udp: true }
    }
}

/// How the queues of a driver's ports are opened.
pub trait Open: Settings {
    /// One queue: of an open device, or settings for the queue's thread to open it with.
    type Queue: OpenQueue;

    /// Declarations of the counters of its ports.
    const COUNTERS: &'static [Tables];

    /// A queue for each CPU of the port, and entries of the ready line besides its address.
    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Self::Queue>, Facts)>;
}

/// A queue to be opened on the thread that will poll it.
pub trait OpenQueue: Send {
    /// Opens the queue and passes it to `user`.
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output>;

    /// What hands connections to this queue, if the port has connections.
    fn polled(&mut self) -> Option<Polled> {
        None
    }

    /// What connects leases to this queue's peers, if the driver supports that.
    fn binding(&self, _port: &str) -> Option<Box<dyn Binding>> {
        None
    }

    /// The memory that frames are received into, for others to read those that are kept ([`Opening::kept`]), or why none
    /// can be; `None` if the driver knows no such thing.
    fn frames(&self) -> Option<Result<Arc<Pages>, String>> {
        None
    }
}

/// The use of a queue, whatever its type.
pub trait QueueUser {
    /// Result of the use.
    type Output;

    /// Uses a queue that carries frames.
    fn port<P: Port + 'static>(self, port: P) -> anyhow::Result<Self::Output>;

    /// Uses a queue that serves byte streams by itself. Peers connect to `addr`.
    fn streams<T: Task + 'static>(self, task: T, addr: SocketAddr) -> anyhow::Result<Self::Output>;
}

/// Settings for opening the queues of a port.
#[derive(Debug)]
pub struct Opening<'a> {
    /// Number of queues.
    pub queues: usize,
    /// Longest frame in bytes.
    pub max_frame: usize,
    /// Number of frames that may wait in front of each queue; `None` for the driver's default.
    pub waiting: Option<u32>,
    /// Number of frames of each queue that a GPU may read where they lie; 0 for none.
    pub kept: u32,
    /// Settings that all ports share.
    pub runtime: &'a Runtime,
}

/// Entries of a port in the ready line, besides its address.
pub type Facts = serde_json::Map<String, serde_json::Value>;

/// Values of `[runtime]` that all ports share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// CPUs of everything except the poll loops.
    pub housekeeping_cpus: Vec<usize>,
    /// Whether DPDK takes its memory from huge pages.
    pub hugepages: Hugepages,
    /// Ordinary memory that DPDK takes at start, in MiB.
    pub memory_mb: u32,
}

/// Values of `runtime.dpdk.hugepages`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hugepages {
    /// Start only with huge pages.
    Always,
    /// Use ordinary pages.
    Never,
    /// Use huge pages if enough are free.
    Auto,
}

/// Message about a driver that needs a library without which the program was built.
pub fn not_built(library: &str, feature: &str) -> String {
    format!("this berth was built without {library}; build it with `cargo build --release --features {feature}`")
}

/// Keys that belong to a driver.
const fn of_driver(word: &'static str, keys: &'static [berth_keys::Key]) -> Owned {
    Owned { by: Owner { key: "driver", word }, keys }
}
