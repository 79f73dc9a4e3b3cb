//! DPDK, started once in the life of the process, and only where a port needs it.

use std::sync::{Mutex, PoisonError};

use berth_dpdk::{DpdkPort, Eal, EalConfig, Error, Memory, PortConfig};
use berth_net::Transport;
use tracing::warn;

use crate::config::{Dpdk, Hugepages, Runtime};

static EAL: Mutex<Option<Eal>> = Mutex::new(None);

/// Opens a device with this many queues, each with the protocol that `transport` makes for it.
pub(super) fn open<T: Transport>(
    device: &Dpdk,
    queues: usize,
    runtime: &Runtime,
    transport: impl FnMut() -> T,
) -> Result<Vec<DpdkPort<T>>, Error> {
    let mut started = EAL.lock().unwrap_or_else(PoisonError::into_inner);
    let eal = match *started {
        Some(eal) => eal,
        None => *started.insert(start(runtime)?),
    };
    let config = PortConfig {
        device: device.device.clone(),
        addresses: device.addresses.clone(),
        udp_port: device.udp_port,
        vlan: device.vlan,
        queues: queues as u16,
        mtu: device.mtu,
        neighbours: device.neighbours.clone(),
        ..PortConfig::default()
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
