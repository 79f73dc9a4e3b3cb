//! Devices: how they are started, shared by their queues, and stopped.

use std::{
    ffi::{CStr, CString},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_dpdk_sys as sys;
use berth_memory::Memory as _;
use berth_net::{Host, HostConfig, Interface, SharedNeighbours, Transport, Udp};
use berth_port::{BURST, Kept};
use berth_wire::net::{EthernetHeader, Ipv4Header, MacAddr, UdpHeader, VlanTag};

use crate::{
    eal::Eal,
    error::{Errno, Error},
    pool::{self, Access, Pool, Readable, Sizes},
    port::DpdkPort,
    rings::Rings,
    unmap::{Bursts, Registered},
};

/// Settings of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// A PCI address, or the name of a software device, with the driver's arguments after commas.
    pub device: String,
    /// Our addresses with their prefix lengths in bits. The first one is the port's local address.
    pub addresses: Vec<(IpAddr, u8)>,
    /// UDP port; 0 takes one from the dynamic range (RFC 6335 section 6).
    pub udp_port: u16,
    /// 802.1Q VLAN, 1 to 4094; `None` for untagged frames.
    pub vlan: Option<u16>,
    /// Number of queue pairs, each of which becomes a port. The device spreads flows over them if it can (RSS).
    pub queues: u16,
    /// Receive descriptors per queue; adjusted to the device's limits.
    pub rx_desc: u16,
    /// Transmit descriptors per queue; adjusted to the device's limits.
    pub tx_desc: u16,
    /// Longest IP packet in bytes.
    pub mtu: u16,
    /// Received frames of each queue that may be kept in their buffers at once ([`Verdict::Keep`]). If not 0, the buffers
    /// lie in memory that other processes can read, where the device's driver takes that: [`DpdkPort::frames`].
    ///
    /// [`Verdict::Keep`]: berth_port::Verdict::Keep
    pub kept: u32,
    /// Neighbours that need not, or cannot, be resolved by ARP and NDP.
    pub neighbours: Vec<(IpAddr, MacAddr)>,
}

impl Default for PortConfig {
    /// One queue of 1024 descriptors each way, an MTU of 1500, and no kept frames; device and addresses are still
    /// missing.
    fn default() -> Self {
        Self {
            device: String::new(),
            addresses: Vec::new(),
            udp_port: 0,
            vlan: None,
            queues: 1,
            rx_desc: 1024,
            tx_desc: 1024,
            mtu: 1500,
            kept: 0,
            neighbours: Vec::new(),
        }
    }
}

/// Serialises DPDK's control functions, which are not thread-safe.
pub(crate) static CONTROL: Mutex<()> = Mutex::new(());

/// Smallest MTU of a link that carries IPv6 (RFC 8200 section 5).
const IPV6_MIN_MTU: u16 = 1280;
/// Buffers of a pool in addition to those for descriptors: AF_XDP has 2048 in its fill ring and as many in flight.
const POOL_SPARE: u32 = 4096 + 2 * pool::CACHE + 4 * BURST as u32;
/// Smallest data room of a buffer: every driver accepts 2 KiB.
const MIN_ROOM: u32 = 2048;
/// Time to wait for an AF_XDP binding. The kernel frees one some time after its socket is closed; until then a new one
/// is refused as busy.
const XDP_REBIND: Duration = Duration::from_secs(2);

/// Opens a device. Returns its ports, one per queue, which speak UDP.
///
/// See [`open_speaking`].
pub fn open(eal: Eal, config: &PortConfig) -> Result<Vec<DpdkPort>, Error> {
    open_speaking(eal, config, || Udp)
}

/// Opens a device. Returns its ports, one per queue, each with the protocol over UDP that `transport` makes for it.
///
/// The link need not be up yet: a memif server's comes up with its client. See [`DpdkPort::wait_link`].
///
/// If another process has just stopped using a queue over AF_XDP, this waits for the kernel to release it. If this
/// process closed it, it stays bound until the process ends: DPDK 22.11's driver does not close its socket.
pub fn open_speaking<T: Transport>(
    _eal: Eal,
    config: &PortConfig,
    mut transport: impl FnMut() -> T,
) -> Result<Vec<DpdkPort<T>>, Error> {
    check(config)?;
    let started = Instant::now();
    loop {
        match open_once(config, &mut transport) {
            Err(Error::Setup { .. }) if config.device.starts_with("net_af_xdp") && started.elapsed() < XDP_REBIND => {
                std::thread::sleep(Duration::from_millis(100));
            }
            result => return result,
        }
    }
}

fn open_once<T: Transport>(config: &PortConfig, transport: &mut impl FnMut() -> T) -> Result<Vec<DpdkPort<T>>, Error> {
    // Declared before the lock, so dropped after it: taking a device down takes the lock again.
    let mut device;
    let _control = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
    let name = config.device.split(',').next().unwrap_or_default();
    let (c_name, arguments) = (c_string(name)?, c_string(&config.device)?);
    if port_id(&c_name).is_some() {
        return Err(Error::InUse(name.to_owned()));
    }
    // SAFETY: EAL is initialised (`open` takes its proof); the string is NUL-terminated and only read.
    Errno::check(unsafe { sys::rte_dev_probe(arguments.as_ptr()) })
        .map_err(|errno| Error::Probe { device: config.device.clone(), errno })?;
    let port = port_id(&c_name).ok_or(Error::Probe { device: config.device.clone(), errno: Errno(libc::ENODEV) })?;
    device = Device::new(port, name);
    let host = start(&mut device, config, T::UDP_CHECKSUMS)?;
    Ok(ports(device, config, &host, transport))
}

pub(crate) fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::Nul(text.to_owned()))
}

fn port_id(name: &CStr) -> Option<u16> {
    let mut port = 0;
    // SAFETY: EAL is initialised; the name is read, the number written.
    (unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut port) } == 0).then_some(port)
}

/// Checks everything that does not need the device.
pub(crate) fn check(config: &PortConfig) -> Result<(), Error> {
    let device = || config.device.clone();
    let shared = |argument: &str| argument == "zero-copy=yes";
    if config.device.starts_with("net_memif") && config.device.split(',').any(shared) {
        return Err(Error::SharedBuffers(device()));
    }
    if config.addresses.is_empty() {
        return Err(Error::NoAddress(device()));
    }
    for &(address, prefix) in &config.addresses {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let broadcast = matches!(address, IpAddr::V4(a) if a.is_broadcast());
        if prefix > width || address.is_unspecified() || address.is_multicast() || broadcast {
            return Err(Error::Address { device: device(), address, prefix });
        }
    }
    match config.vlan {
        Some(vlan) if !(1..=4094).contains(&vlan) => Err(Error::Vlan { device: device(), vlan }),
        _ => Ok(()),
    }
}

/// A started device, which its ports own together.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) port: u16,
    pub(crate) name: String,
    started: bool,
    /// Whether the device completes UDP checksums.
    pub(crate) completes_checksums: bool,
    pub(crate) pools: Vec<Pool>,
    /// Keeps the buffers of a device that is made of rings.
    pub(crate) rings: Option<Arc<Rings>>,
}

// SAFETY: the pointers are used while the device is set up and taken down only, by one thread.
unsafe impl Send for Device {}
// SAFETY: as above; ports only read the numbers, the name, and which memory their buffers are in.
unsafe impl Sync for Device {}

impl Device {
    pub(crate) fn new(port: u16, name: &str) -> Self {
        Self { port, name: name.to_owned(), started: false, completes_checksums: false, pools: Vec::new(), rings: None }
    }

    fn error(&self, step: &'static str) -> impl Fn(Errno) -> Error {
        let device = self.name.clone();
        move |errno| Error::Setup { device: device.clone(), step, errno }
    }

    fn info(&self) -> Result<sys::rte_eth_dev_info, Error> {
        let mut info = sys::rte_eth_dev_info::default();
        // SAFETY: the port exists as long as the device; `info` is written whole.
        Errno::check(unsafe { sys::rte_eth_dev_info_get(self.port, &raw mut info) })
            .map_err(self.error("reading its capabilities"))?;
        Ok(info)
    }

    /// Whether the link is up, as last seen by the driver.
    pub(crate) fn link_is_up(&self) -> bool {
        /// DPDK writes the state of a link as one aligned 64-bit word.
        #[repr(align(8))]
        #[derive(Default)]
        struct Aligned(sys::rte_eth_link);
        let mut link = Aligned::default();
        // SAFETY: the port exists as long as the device; the link's state is written whole.
        let result = unsafe { sys::rte_eth_link_get_nowait(self.port, &raw mut link.0) };
        result == 0 && u32::from(link.0.link_status()) == sys::RTE_ETH_LINK_UP
    }

    /// The device's own counters. Reads registers, or asks the kernel.
    pub(crate) fn stats(&self) -> sys::rte_eth_stats {
        let _control = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: the port exists as long as the device; a driver without counters leaves the zeros.
        unsafe { sys::rte_eth_stats_get(self.port, &raw mut stats) };
        stats
    }

    /// The device's link-layer address, or one of our own making if it has none.
    fn mac(&self) -> Result<MacAddr, Error> {
        let mut mac = MacAddr::ZERO;
        // SAFETY: an rte_ether_addr is six bytes, as a MacAddr is.
        Errno::check(unsafe { sys::rte_eth_macaddr_get(self.port, (&raw mut mac).cast()) })
            .map_err(self.error("reading its MAC address"))?;
        if mac == MacAddr::ZERO {
            let [a, b, c, d] = std::process::id().to_be_bytes();
            // Locally administered (bit 1 of the first byte), unique among the devices of this host.
            mac = MacAddr([0x02 | (a & 0xf0), b, c, d, (self.port >> 8) as u8, self.port as u8]);
        }
        Ok(mac)
    }
}

/// Longest IP packet in a usual Ethernet frame, in bytes.
const USUAL_MTU: u32 = 1500;

/// Configures and starts a device. The caller must hold CONTROL.
///
/// Without `udp_checksums` the device is not asked to compute or verify any.
pub(crate) fn start(device: &mut Device, config: &PortConfig, udp_checksums: bool) -> Result<HostConfig, Error> {
    let info = device.info()?;
    let most = info.max_rx_queues.min(info.max_tx_queues);
    if config.queues == 0 || config.queues > most {
        return Err(Error::Queues { device: device.name.clone(), asked: config.queues, most });
    }
    let v6 = config.addresses.iter().any(|(address, _)| address.is_ipv6());
    let least = info.min_mtu.max(if v6 { IPV6_MIN_MTU } else { 0 });
    if config.mtu < least || config.mtu > info.max_mtu {
        return Err(Error::Mtu { device: device.name.clone(), asked: config.mtu, least, most: info.max_mtu });
    }

    let mut conf = sys::rte_eth_conf::default();
    conf.rxmode.mtu = u32::from(config.mtu);
    if device.name.starts_with("net_memif") {
        // Its driver says 1518 and carries whatever its buffers hold, in several of them where it must.
        conf.rxmode.mtu = conf.rxmode.mtu.min(USUAL_MTU);
    }
    conf.rxmode.offloads = info.rx_offload_capa & (sys::BERTH_RX_OFFLOAD_IPV4_CKSUM | sys::BERTH_RX_OFFLOAD_UDP_CKSUM);
    let udp = if udp_checksums { sys::BERTH_TX_OFFLOAD_UDP_CKSUM } else { 0 };
    conf.txmode.offloads = info.tx_offload_capa & (udp | sys::BERTH_TX_OFFLOAD_MBUF_FAST_FREE);
    let rss = info.flow_type_rss_offloads & sys::BERTH_RSS_IP_UDP;
    if config.queues > 1 && rss != 0 {
        conf.rxmode.mq_mode = sys::rte_eth_rx_mq_mode_RTE_ETH_MQ_RX_RSS;
        conf.rx_adv_conf.rss_conf.rss_hf = rss;
    }
    let (port, queues) = (device.port, config.queues);
    // SAFETY: the port exists and is stopped; the configuration is read.
    Errno::check(unsafe { sys::rte_eth_dev_configure(port, queues, queues, &raw const conf) })
        .map_err(device.error("configuring its queues"))?;
    let (mut rx_desc, mut tx_desc) = (config.rx_desc, config.tx_desc);
    // SAFETY: the port exists; both numbers are read and written.
    Errno::check(unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(port, &raw mut rx_desc, &raw mut tx_desc) })
        .map_err(device.error("adjusting its descriptors"))?;
    // SAFETY: the port exists. A device without a NUMA node gives -1, which asks for any.
    let socket = unsafe { sys::rte_eth_dev_socket_id(port) };
    let buffers = (u32::from(rx_desc) + u32::from(tx_desc) + POOL_SPARE).next_power_of_two() - 1;
    let frame = u32::from(config.mtu) + (EthernetHeader::LEN + VlanTag::LEN) as u32;
    let room = (frame.max(MIN_ROOM) + sys::RTE_PKTMBUF_HEADROOM) as u16;
    for queue in 0..queues {
        let readable = readable(&device.name, info.device, config);
        let pool = Pool::new(Sizes { buffers, room, socket }, readable)
            .map_err(device.error("allocating its packet buffers"))?;
        let pool = device.pools.push_mut(pool).as_ptr();
        // SAFETY: queue and port exist; no configuration means the driver's default; the pool outlives the port.
        Errno::check(unsafe {
            sys::rte_eth_rx_queue_setup(port, queue, rx_desc, socket as u32, std::ptr::null(), pool)
        })
        .map_err(device.error("setting up a receive queue"))?;
        // SAFETY: as above.
        Errno::check(unsafe { sys::rte_eth_tx_queue_setup(port, queue, tx_desc, socket as u32, std::ptr::null()) })
            .map_err(device.error("setting up a transmit queue"))?;
    }
    // SAFETY: every queue of the port is set up.
    Errno::check(unsafe { sys::rte_eth_dev_start(port) }).map_err(device.error("starting"))?;
    device.started = true;
    // SAFETY: the port exists. Software devices have no filters to set, and say so: those results do not matter.
    unsafe {
        sys::rte_eth_promiscuous_disable(port);
        // Neighbour discovery comes by multicast.
        if v6 {
            sys::rte_eth_allmulticast_enable(port);
        }
    }

    device.completes_checksums = conf.txmode.offloads & sys::BERTH_TX_OFFLOAD_UDP_CKSUM != 0;
    Ok(HostConfig {
        mac: device.mac()?,
        interfaces: config.addresses.iter().map(|&(address, prefix)| Interface { address, prefix }).collect(),
        vlan: config.vlan,
        udp_port: if config.udp_port == 0 { dynamic_port(port) } else { config.udp_port },
        udp_checksums,
        mtu: usize::from(config.mtu),
        neighbours: config.neighbours.clone(),
    })
}

/// Which of a device's buffers others can read, or why none.
fn readable(name: &str, device: *mut sys::rte_device, config: &PortConfig) -> Result<Readable, String> {
    if config.kept == 0 {
        return Err(format!("{name} is to keep no frames"));
    }
    let tag = if config.vlan.is_some() { VlanTag::LEN } else { 0 };
    let headers = EthernetHeader::LEN + tag + Ipv4Header::LEN + UdpHeader::LEN;
    Ok(Readable { access: Access::of(name, device)?, more: config.kept, headers })
}

/// One queue pair of a started device.
pub(crate) struct Queue {
    pub(crate) device: Arc<Device>,
    pub(crate) number: u16,
    pub(crate) bursts: Option<Registered>,
    pub(crate) pool: *mut sys::rte_mempool,
    /// Frames that nobody releases go with their pool.
    pub(crate) kept: Option<Kept<*mut sys::rte_mbuf>>,
}

/// Makes a port for each queue of a started device.
pub(crate) fn ports<T: Transport>(
    device: Device,
    config: &PortConfig,
    host: &HostConfig,
    transport: &mut impl FnMut() -> T,
) -> Vec<DpdkPort<T>> {
    let (device, shared) = (Arc::new(device), SharedNeighbours::default());
    let memif = device.name.starts_with("net_memif");
    let port = |number| {
        let pool = &device.pools[usize::from(number)];
        let frames = pool.frames().ok();
        let kept = frames.map(|pages| Kept::new(pages.base().addr().get(), pages.size(), config.kept));
        let (pool, bursts) = (pool.as_ptr(), memif.then(Bursts::register));
        let queue = Queue { device: device.clone(), number, bursts, pool, kept };
        DpdkPort::new(queue, Host::sharing(host, &shared), transport())
    };
    (0..config.queues).map(port).collect()
}

/// A port from the dynamic range, different for each process and device.
fn dynamic_port(port: u16) -> u16 {
    0xc000 | ((std::process::id() as u16).wrapping_mul(31).wrapping_add(port) & 0x3fff)
}

impl Drop for Device {
    fn drop(&mut self) {
        let _control = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.info().map(|info| info.device);
        // SAFETY: the last port is gone, so nothing polls the queues; the order is DPDK's: stop, close, remove. The
        // generic device outlives its port.
        unsafe {
            if self.started {
                sys::rte_eth_dev_stop(self.port);
            }
            sys::rte_eth_dev_close(self.port);
            self.pools.iter_mut().for_each(Pool::unmap);
            if let Ok(device) = device
                && !device.is_null()
            {
                sys::rte_dev_remove(device);
            }
        }
        match self.rings.take() {
            // The far end, and the rings, may hold this device's buffers.
            Some(rings) => rings.keep(std::mem::take(&mut self.pools)),
            None => self.pools.clear(),
        }
    }
}
