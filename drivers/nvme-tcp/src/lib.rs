//! Leases of blocks over NVMe/TCP, as the binding `nvme` of a node.
//!
//! ```text
//! LEASE_BIND  -> NvmeBinding -> Target: a subsystem for the lease, for one host
//! connections -> Acceptor, on threads that sleep, until Connect -> NvmeCore: a task of a poll core, for each its share
//!                and the host has proved who it is (Arithmetic, a thread)
//! ```
//!
//! The queue of a connection stays on its core to the end. The target itself is `berth_nvme`.
#![forbid(unsafe_code)]

mod arithmetic;
mod binding;
mod core;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use berth_lease::{Regions, Table};
use berth_lease_io::{CHUNK, Pool};
use berth_memory::Memory;
use berth_nvme::Target;
use berth_port::Tables;
use berth_stream::Listener;
use berth_uring::handover;

use self::arithmetic::Arithmetic;
pub use self::{
    binding::NvmeBinding,
    core::{Acceptor, NvmeCore},
};

/// What a binding is set up with.
#[derive(Debug)]
pub struct Settings {
    /// Where hosts connect; port 0 takes a free one. At least one.
    pub listen: Vec<SocketAddr>,
    /// Poll cores; at least one.
    pub cores: usize,
    /// Most leases that are bound at once.
    pub max_leases: usize,
    /// Most controllers at once, those of discovery included.
    pub max_hosts: usize,
    /// Most I/O queues of a controller, beside its admin queue.
    pub io_queues: u16,
    /// Most commands of an I/O queue at once.
    pub queue_depth: u16,
    /// Bytes of data that an I/O capsule may bring: a multiple of 16, in [`IN_CAPSULE`].
    pub in_capsule: u32,
    /// Memory for data under way, of all connections; [`BUFFERS_MIN`] bytes at least.
    pub buffers: Arc<dyn Memory>,
    /// How hosts of leases prove who they are.
    pub auth: Auth,
}

/// How hosts of leases prove who they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auth {
    /// Not: a host is whom its NQN says.
    None,
    /// By DH-HMAC-CHAP on each queue, with a secret of each `LEASE_BIND`.
    DhChap,
}

/// A binding whose sockets are bound.
#[derive(Debug)]
pub struct Opened {
    /// For the node, which asks it to bind and unbind leases.
    pub binding: NvmeBinding,
    /// Accepts connections, on threads that sleep.
    pub acceptor: Acceptor,
    /// One for each poll core, as many as [`Settings::cores`].
    pub cores: Vec<NvmeCore>,
    /// The bound addresses, in the order of [`Settings::listen`], with the ports that the kernel chose.
    pub addresses: Vec<SocketAddr>,
}

/// What a binding counts.
pub const COUNTERS: &[Tables] = &[&[core::Counts::TABLE], berth_nvme::COUNTERS];

/// The target, once the node has said where accesses are checked.
type Later = Arc<OnceLock<Target>>;

/// Binds the sockets.
///
/// # Errors
/// What the system said of an address.
pub fn open(settings: Settings) -> io::Result<Opened> {
    let Settings { listen, cores, max_leases, max_hosts, io_queues, queue_depth, in_capsule, buffers, auth } = settings;
    let name = listen.first().map_or_else(String::new, SocketAddr::to_string);
    let listeners = listen.into_iter().map(Listener::bind).collect::<io::Result<Vec<_>>>()?;
    let addresses = listeners.iter().map(Listener::local_addr).collect::<io::Result<Vec<_>>>()?;
    let most = max_hosts * (1 + usize::from(io_queues));
    let (mut to_cores, mut polled) = (Vec::new(), Vec::new());
    for _ in 0..cores {
        let (to_core, from) = handover(most)?;
        to_cores.push(to_core);
        polled.push(NvmeCore::new(from, most));
    }
    let limits = berth_nvme::Limits {
        leases: max_leases,
        controllers: max_hosts,
        all_controllers: max_hosts,
        io_queues,
        depth: queue_depth,
        in_capsule,
        ..berth_nvme::Limits::default()
    };
    let pool = Pool::new(buffers);
    let (later, counts) = (Later::default(), Arc::default());
    let arithmetic = (auth == Auth::DhChap).then(Arc::<Arithmetic>::default);
    let make = move |table: &Table, regions: &Regions| Target::new(table, regions, pool.clone(), limits);
    Ok(Opened {
        binding: NvmeBinding::new(
            name,
            addresses[0],
            later.clone(),
            Box::new(make),
            arithmetic.clone(),
            Arc::clone(&counts),
        ),
        acceptor: Acceptor::new(listeners, to_cores, most, later, arithmetic, counts),
        cores: polled,
        addresses,
    })
}

/// Range of [`Settings::in_capsule`], in bytes.
pub const IN_CAPSULE: std::ops::RangeInclusive<u64> = 4096..=64 << 10;

/// The fewest bytes for [`Settings::buffers`].
pub const BUFFERS_MIN: u64 = 4 * CHUNK as u64;
