//! Two devices joined by rings within one process.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, Ordering},
};

use berth_dpdk_sys as sys;
use berth_net::{Transport as _, Udp};

use crate::{
    device::{CONTROL, Device, PortConfig, c_string, check, ports, start},
    eal::Eal,
    error::{Errno, Error},
    pool::Pool,
    port::DpdkPort,
};

/// Joins two ports by a pair of in-memory rings (DPDK's `net_ring`). Each side receives what the other sends, in the
/// same buffer.
///
/// `device` of each configuration is ignored, and each side has one queue. The depth of a ring is its sender's
/// `tx_desc`, rounded up to a power of two, minus one.
pub fn ring_pair(_eal: Eal, a: &PortConfig, b: &PortConfig) -> Result<(DpdkPort, DpdkPort), Error> {
    static PAIRS: AtomicU32 = AtomicU32::new(0);
    let pair = PAIRS.fetch_add(1, Ordering::Relaxed);
    check(a)?;
    check(b)?;
    let rings = Arc::new(Rings {
        ends: [ring(&format!("berth{pair}ab"), a.tx_desc)?, ring(&format!("berth{pair}ba"), b.tx_desc)?],
        pools: Mutex::default(),
    });
    let [ab, ba] = rings.ends;
    Ok((side(&format!("berth{pair}a"), &rings, ba, ab, a)?, side(&format!("berth{pair}b"), &rings, ab, ba, b)?))
}

fn ring(name: &str, depth: u16) -> Result<*mut sys::rte_ring, Error> {
    const ANY_SOCKET: i32 = -1;
    let _control = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
    let (c_name, flags) = (c_string(name)?, sys::RING_F_SP_ENQ | sys::RING_F_SC_DEQ);
    let depth = u32::from(depth).next_power_of_two();
    // SAFETY: EAL is initialised; the name is copied.
    let ring = unsafe { sys::rte_ring_create(c_name.as_ptr(), depth, ANY_SOCKET, flags) };
    if ring.is_null() {
        return Err(Error::Setup { device: name.into(), step: "creating a ring", errno: Errno::last() });
    }
    Ok(ring)
}

fn side(
    name: &str,
    rings: &Arc<Rings>,
    mut rx: *mut sys::rte_ring,
    mut tx: *mut sys::rte_ring,
    config: &PortConfig,
) -> Result<DpdkPort, Error> {
    let mut device;
    let _control = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
    let c_name = c_string(name)?;
    // SAFETY: EAL is initialised; name and arrays are copied, and the device keeps the rings alive.
    let port = unsafe { sys::rte_eth_from_rings(c_name.as_ptr(), &raw mut rx, 1, &raw mut tx, 1, 0) };
    let port = u16::try_from(port).map_err(|_| Error::Setup {
        device: name.into(),
        step: "making a device of rings",
        errno: Errno::last(),
    })?;
    device = Device::new(port, name);
    device.rings = Some(rings.clone());
    let config = PortConfig { queues: 1, ..config.clone() };
    let host = start(&mut device, &config, Udp::UDP_CHECKSUMS)?;
    Ok(ports(device, &config, &host, &mut || Udp).remove(0))
}

/// The rings of a pair, and the buffer pools of a side that was closed first, as the other may still hold its buffers.
#[derive(Debug)]
pub(crate) struct Rings {
    ends: [*mut sys::rte_ring; 2],
    /// Freed after the rings.
    pools: Mutex<Vec<Pool>>,
}

// SAFETY: the pointers are used when the devices are made and when the last one is gone, by one thread.
unsafe impl Send for Rings {}
// SAFETY: as above.
unsafe impl Sync for Rings {}

impl Rings {
    pub(crate) fn keep(&self, pools: Vec<Pool>) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).extend(pools);
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for ring in self.ends {
            let mut object = std::ptr::null_mut();
            // SAFETY: both devices are closed; what the ring still holds are packet buffers, which are ours.
            unsafe {
                while sys::rte_ring_dequeue(ring, &raw mut object) == 0 {
                    sys::rte_pktmbuf_free_bulk((&raw mut object).cast(), 1);
                }
                sys::rte_ring_free(ring);
            }
        }
    }
}
