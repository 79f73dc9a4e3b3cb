//! Ports of DPDK, which is started once in the life of the process, and only if a port needs it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use berth_dpdk::{DpdkPort, Eal, EalConfig, Error, Memory, PortConfig};
use berth_net::{Transport as Protocol, Udp};
use berth_pages::Pages;
use berth_port::Tables;
use tracing::warn;

use super::{Dpdk, Transport};
use crate::{
    Client, Connect, Facts, Hugepages, Open, OpenQueue, Opening, PortUser, QueueUser, Runtime, roce::open::RocePort,
};

static EAL: Mutex<Option<Eal>> = Mutex::new(None);

/// A queue of an open device.
#[derive(Debug)]
pub enum Queue {
    /// Its datagrams are frames.
    Udp(Box<DpdkPort>),
    /// It has an endpoint of software RoCE.
    Roce(Box<RocePort>),
}

impl Open for Dpdk {
    type Queue = Queue;
    const COUNTERS: &'static [Tables] =
        &[berth_dpdk::COUNTERS, berth_net::COUNTERS, berth_roce::COUNTERS, berth_rendezvous::COUNTERS];

    fn queues(&self, opening: &Opening<'_>) -> anyhow::Result<(Vec<Queue>, Facts)> {
        Ok(match &self.transport {
            Transport::Udp => {
                let ports = device(self, opening, || Udp)?;
                (ports.into_iter().map(|port| Queue::Udp(Box::new(port))).collect(), Facts::new())
            }
            Transport::Roce(roce) => {
                let (port, facts) = roce.open(self, opening)?;
                (vec![Queue::Roce(Box::new(port))], facts)
            }
        })
    }
}

impl OpenQueue for Queue {
    fn open<U: QueueUser>(self, user: U) -> anyhow::Result<U::Output> {
        match self {
            Self::Udp(port) => user.port(*port),
            Self::Roce(port) => user.port(*port),
        }
    }

    fn frames(&self) -> Option<Result<Arc<Pages>, String>> {
        match self {
            Self::Udp(port) => Some(port.frames().map_err(str::to_owned)),
            // Messages lie in slots.
            Self::Roce(_) => None,
        }
    }
}

/// Opens a device; each of its queues gets the protocol that `transport` makes for it.
pub(crate) fn device<T: Protocol>(
    device: &Dpdk,
    opening: &Opening<'_>,
    transport: impl FnMut() -> T,
) -> Result<Vec<DpdkPort<T>>, Error> {
    let eal = eal(opening.runtime)?;
    let defaults = PortConfig::default();
    let frames = opening.waiting;
    let config = PortConfig {
        device: frames.map_or_else(|| device.device.clone(), |frames| sized(&device.device, frames)),
        addresses: device.addresses.clone(),
        udp_port: device.udp_port,
        vlan: device.vlan,
        queues: opening.queues as u16,
        mtu: device.mtu,
        kept: if device.transport == Transport::Udp { opening.kept } else { 0 },
        neighbours: device.neighbours.clone(),
        rx_desc: frames.map_or(defaults.rx_desc, |frames| frames as u16),
        ..defaults
    };
    berth_dpdk::open_speaking(eal, &config, transport)
}

/// Time limit for a link to come up. A memif client retries once a second.
const LINK: Duration = Duration::from_secs(10);

impl Connect for Dpdk {
    fn connect<U: PortUser>(client: &Client<'_>, user: U) -> anyhow::Result<()> {
        let config = PortConfig { mtu: mtu(client.longest)?, ..client_config(client)? };
        user.run(client_port(client, &config, || Udp)?, client.peer.into());
        Ok(())
    }
}

/// Settings of a client's device, except for what depends on the transport.
pub(crate) fn client_config(client: &Client<'_>) -> anyhow::Result<PortConfig> {
    Ok(PortConfig {
        device: client.device()?,
        addresses: vec![client.address.context("this port needs --address")?],
        neighbours: client.neighbours.to_vec(),
        ..PortConfig::default()
    })
}

/// Opens a client's device with one queue, and waits for its link.
pub(crate) fn client_port<T: Protocol>(
    client: &Client<'_>,
    config: &PortConfig,
    transport: impl FnMut() -> T,
) -> anyhow::Result<DpdkPort<T>> {
    let ports = berth_dpdk::open_speaking(eal(client.runtime)?, config, transport)?;
    let port = ports.into_iter().next().context("a device has a queue")?;
    port.wait_link(LINK)?;
    Ok(port)
}

/// The usual MTU, or a larger one if the longest frame with its headers needs that.
fn mtu(longest: usize) -> anyhow::Result<u16> {
    const USUAL: usize = 1500;
    /// Headers of IPv6 and UDP, in bytes.
    const HEADERS: usize = 48;
    u16::try_from(USUAL.max(longest + HEADERS)).context("no IP packet holds such a frame")
}

/// Adds the length of the rings, a power of two, to the arguments of a memif that do not have it.
fn sized(device: &str, frames: u32) -> String {
    let given = device.split(',').any(|argument| argument.starts_with("rsize="));
    if device.starts_with("net_memif") && !given {
        format!("{device},rsize={}", frames.ilog2())
    } else {
        device.to_owned()
    }
}

/// Starts DPDK, unless an earlier call has.
fn eal(runtime: &Runtime) -> Result<Eal, Error> {
    let mut started = EAL.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(match *started {
        Some(eal) => eal,
        None => *started.insert(start(runtime)?),
    })
}

fn start(runtime: &Runtime) -> Result<Eal, Error> {
    let start = |memory| Eal::init(&EalConfig { cpus: runtime.housekeeping_cpus.clone(), memory });
    let ordinary = Memory::OrdinaryPages { mib: runtime.memory_mb };
    match runtime.hugepages {
        Hugepages::Always => start(Memory::HugePages),
        Hugepages::Never => start(ordinary),
        Hugepages::Auto => match start(Memory::HugePages) {
            Err(Error::NoHugePages) => {
                warn!("no free huge pages, DPDK takes {} MiB of ordinary ones", runtime.memory_mb);
                start(ordinary)
            }
            started => started,
        },
    }
}
