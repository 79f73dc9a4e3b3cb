//! DPDK, started once in the life of the process, and only where a port needs it.

use std::sync::{Mutex, PoisonError};

use berth_dpdk::{DpdkPort, Eal, EalConfig, Error, Memory, PortConfig};
use berth_net::Transport;
use berth_ports::Dpdk;
use tracing::warn;

use crate::config::{Hugepages, Runtime};

static EAL: Mutex<Option<Eal>> = Mutex::new(None);

/// A device's arguments with the length of its rings, where that is one of them: a memif's is a power of two.
fn sized(device: &str, frames: u32) -> String {
    let given = device.split(',').any(|argument| argument.starts_with("rsize="));
    if device.starts_with("net_memif") && !given {
        format!("{device},rsize={}", frames.ilog2())
    } else {
        device.to_owned()
    }
}

/// Opens a device with this many queues, before each of which so many frames may wait, each with the protocol that `transport` makes for it.
pub(super) fn open<T: Transport>(
    device: &Dpdk,
    queues: usize,
    frames: Option<u32>,
    runtime: &Runtime,
    transport: impl FnMut() -> T,
) -> Result<Vec<DpdkPort<T>>, Error> {
    let mut started = EAL.lock().unwrap_or_else(PoisonError::into_inner);
    let eal = match *started {
        Some(eal) => eal,
        None => *started.insert(start(runtime)?),
    };
    let defaults = PortConfig::default();
    let config = PortConfig {
        device: frames.map_or_else(|| device.device.clone(), |frames| sized(&device.device, frames)),
        addresses: device.addresses.clone(),
        udp_port: device.udp_port,
        vlan: device.vlan,
        queues: queues as u16,
        mtu: device.mtu,
        neighbours: device.neighbours.clone(),
        rx_desc: frames.map_or(defaults.rx_desc, |frames| frames as u16),
        ..defaults
    };
    berth_dpdk::open_speaking(eal, &config, transport)
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
