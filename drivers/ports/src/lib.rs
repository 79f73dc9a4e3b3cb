//! The roster of port drivers.
//!
//! A driver is one file here, which has its keys, reads them, and says what the driver is and does; and one line of the
//! roster below; with a line of the second list, clients can send from it too. Whoever configures, opens or describes ports
//! goes by the roster, and names no driver.
#![forbid(unsafe_code)]

mod client;
mod common;
mod dpdk;
pub mod nvme;
mod ofi;
mod rdma;
mod roce;
mod roster;
mod sockets;
mod tcp;
mod udp;
mod uring;
mod verbs;

use std::{fmt::Display, net::SocketAddr};

use berth_control::Polled;
use berth_fabric::Binding;
use berth_keys::{Binds, Owned, Owner, Table};
use berth_port::{Port, Tables, Task};

pub use client::{Client, Connect, Meet, PortUser};
pub use dpdk::{Dpdk, Transport};
pub use nvme::Nvme;
pub use ofi::{Ofi, prepare_process, providers};
pub use rdma::{Rdma, Windows};
pub use roce::{Peer, Rendezvous, Roce};
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

/// What a driver's keys say. Displayed as `berth check` shows it, after the driver's word.
pub trait Settings: Display + Sized {
    /// The driver's name in the configuration and in the ready line.
    const WORD: &'static str;
    /// Where its frames come from: a phrase.
    const DOC: &'static str;
    /// What it needs at build time, where its line of the roster names a feature.
    const LIBRARY: &'static str = "";
    /// Its keys of `[[port]]`.
    const KEYS: &'static [Owned];
    /// Its keys of `[port.limits]`.
    const LIMITS: &'static [Owned] = &[];

    /// Reads its keys; mistakes are noted.
    fn read(t: &mut Table<'_, '_>, reading: &mut Reading<'_>) -> Option<Self>;

    /// What others must know of it.
    fn traits(&self) -> Traits {
        Traits::default()
    }
}

/// What is known where the keys of a port are read.
#[derive(Debug)]
pub struct Reading<'a> {
    /// What mistakes call the port.
    pub label: &'a str,
    /// Who binds which address.
    pub binds: &'a mut Binds,
    /// Whether the program was built with a feature.
    pub has_feature: fn(&str) -> bool,
}

/// What of a driver matters beyond it. The default is that of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// Why a port has one CPU, and what to do instead; `None`: it has a queue for each of its CPUs.
    pub one_cpu: Option<&'static str>,
    /// It carries frames. Byte streams are none: they serve leases alone, and have no limits, faults or captures.
    pub has_frames: bool,
    /// Peers tell answers apart by the slots they come to, so that their order is no setting.
    pub has_slots: bool,
    /// Its datagrams are frames, as they are to everybody who speaks UDP.
    pub speaks_udp: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self { one_cpu: None, has_frames: true, has_slots: false, speaks_udp: true }
    }
}

/// How the queues of a driver's ports are opened.
pub trait Open: Settings {
    /// One queue: a device that is open, or what the queue's thread is to open.
    type Queue: OpenQueue;

    /// What its ports count.
    const COUNTERS: &'static [Tables];

    /// A queue for each CPU of the port, and what the ready line tells of it beside its address.
    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Self::Queue>, Facts)>;
}

/// A queue that is to be opened on the thread that will poll it.
pub trait OpenQueue: Send {
    /// Opens it and hands it over.
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output>;

    /// Who hands connections to this queue, where its port has connections.
    fn polled(&mut self) -> Option<Polled> {
        None
    }

    /// What connects leases to this queue's peers, where the driver has it.
    fn binding(&self, _port: &str) -> Option<Box<dyn Binding>> {
        None
    }
}

/// What is done with a queue, whatever its type.
pub trait QueueUser {
    /// What comes of it.
    type Output;

    /// Uses a queue that carries frames.
    fn port<P: Port + 'static>(self, port: P) -> anyhow::Result<Self::Output>;

    /// Uses a queue that serves byte streams by itself; peers connect to `addr`.
    fn streams<T: Task + 'static>(self, task: T, addr: SocketAddr) -> anyhow::Result<Self::Output>;
}

/// What the queues of a port are opened with.
#[derive(Debug)]
pub struct Opening<'a> {
    /// How many there are.
    pub queues: usize,
    /// The longest frame, in bytes.
    pub max_frame: usize,
    /// How many frames may wait before each queue; `None`: as many as the driver likes.
    pub waiting: Option<u32>,
    /// What all ports share.
    pub runtime: &'a Runtime,
}

/// What the ready line tells of a port beside its address.
pub type Facts = serde_json::Map<String, serde_json::Value>;

/// `[runtime]`: what all ports share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Where everything but the poll loops runs.
    pub housekeeping_cpus: Vec<usize>,
    /// Whether DPDK takes its memory from huge pages.
    pub hugepages: Hugepages,
    /// How much ordinary memory DPDK takes at start, in MiB.
    pub memory_mb: u32,
}

/// `runtime.dpdk.hugepages`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hugepages {
    /// Start only with huge pages.
    Always,
    /// Ordinary pages.
    Never,
    /// Huge pages where enough are free.
    Auto,
}

/// Why a driver cannot be chosen that needs a library which the program was built without.
pub fn not_built(library: &str, feature: &str) -> String {
    format!("this berth was built without {library}; build it with `cargo build --release --features {feature}`")
}

/// Keys that belong to a driver.
const fn of_driver(word: &'static str, keys: &'static [berth_keys::Key]) -> Owned {
    Owned { by: Owner { key: "driver", word }, keys }
}
