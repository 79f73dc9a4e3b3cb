//! Opening the port that the command line names.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use anyhow::Context;
use berth_host::{BindError, TscClock, UdpConfig};
use berth_port::{Fault, Loopback, Peer, Port};
use berth_udp::UdpPort;
use berth_uring::UringSocket;

use crate::{
    args::{LoadArgs, PortDriver},
    server::Serve,
};

/// What is done with a port of whatever type.
pub(crate) trait PortUser {
    /// Uses the port on the calling thread, which is the one that opened it, to ask `peer`.
    fn run<P: Port>(self, port: P, peer: Peer);
}

/// The CPUs of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpus {
    /// The client's.
    pub(crate) client: usize,
    /// The other one of the bounce: the server's. `None` where there is a single one.
    pub(crate) other: Option<usize>,
}

impl Cpus {
    /// Those given, or the first that this process may run on and the last.
    pub(crate) fn choose(client: Option<usize>, other: Option<usize>) -> anyhow::Result<Self> {
        let allowed = core_affinity::get_core_ids().context("cannot read which CPUs this process may run on")?;
        let client = client.or(allowed.first().map(|core| core.id)).context("this process may run on no CPU")?;
        let other = other.or(allowed.iter().rev().map(|core| core.id).find(|cpu| *cpu != client));
        Ok(Self { client, other })
    }
}

/// What a port is opened with.
pub(crate) struct Opening<'a> {
    /// The command line.
    pub(crate) args: &'a LoadArgs,
    /// The longest frame of the run, or the usual one's, in bytes.
    pub(crate) max_frame: usize,
    /// The longest frame of the run, in bytes.
    #[cfg_attr(
        not(any(feature = "dpdk", feature = "verbs")),
        expect(dead_code, reason = "what packets of RoCE must hold")
    )]
    pub(crate) longest: usize,
    /// Times the delays of `--fault`.
    pub(crate) clock: &'a TscClock,
    /// The run's CPUs.
    pub(crate) cpus: Cpus,
    /// Starts the server of a loopback.
    pub(crate) serve: &'a Serve,
    /// Finds the server's libfabric endpoint or queue pair, given our own; without it the server's rendezvous does.
    #[cfg_attr(not(any(feature = "ofi", feature = "verbs")), expect(dead_code, reason = "what leases are bound by"))]
    pub(crate) meet: Option<&'a Meet>,
}

/// Exchanges the address of our libfabric endpoint for the server's.
pub(crate) type Meet = dyn Fn(&[u8]) -> anyhow::Result<Vec<u8>> + Send + Sync;

/// Ports are opened for frames of this many bytes at least: what a server's slot usually holds.
pub(crate) const USUAL_FRAME: usize = 2048;

/// Frames that IPv4 over UDP can carry, in bytes.
const LONGEST_UDP: usize = 65_507;

/// Buffers on each side of a loopback.
const LOOPBACK_DEPTH: usize = 1024;

/// Addresses of a loopback's two sides. They name the sides and are used by nothing else.
const LOOPBACK: [SocketAddr; 2] = [
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4701)),
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4700)),
];

/// Whom the client asks, as the report says it.
pub(crate) fn peer(args: &LoadArgs) -> SocketAddr {
    match args.port {
        PortDriver::Loopback => LOOPBACK[1],
        PortDriver::Roce | PortDriver::Ofi | PortDriver::Verbs => args.rendezvous.unwrap_or(args.peer()),
        _ => args.peer(),
    }
}

/// Opens the port on the calling thread and hands it to `user`.
pub(crate) fn open(opening: &Opening<'_>, user: impl PortUser) -> anyhow::Result<()> {
    let Opening { args, max_frame, clock, cpus, serve, .. } = *opening;
    let peer = peer(args).into();
    match args.port {
        PortDriver::Udp => hand_over(opening, with_socket(opening, UdpPort::open)?, peer, user),
        PortDriver::Uring => hand_over(opening, with_socket(opening, UringSocket::bind)?.into_port()?, peer, user),
        PortDriver::Dpdk | PortDriver::Roce => dpdk(opening, user)?,
        PortDriver::Ofi => ofi(opening, user)?,
        PortDriver::Verbs => verbs(opening, user)?,
        PortDriver::OneSided => one_sided(opening, user)?,
        PortDriver::Loopback => {
            let (ours, theirs) = Loopback::pair(LOOPBACK, LOOPBACK_DEPTH, max_frame);
            let cpu = cpus.other.context("a loopback needs two CPUs, one for its server")?;
            let server = serve(theirs, cpu, clock)?;
            hand_over(opening, ours, peer, user);
            server.stop()?;
        }
    }
    Ok(())
}

/// Opens a socket with room for a whole window of answers, or with what the kernel grants.
fn with_socket<P>(opening: &Opening<'_>, open: impl Fn(&UdpConfig) -> Result<P, BindError>) -> Result<P, BindError> {
    let max_frame = opening.max_frame.min(LONGEST_UDP);
    let socket = UdpConfig { max_frame, rcvbuf: Some(SOCKET_BUFFER), ..UdpConfig::new(opening.args.bind()) };
    match open(&socket) {
        Err(e @ BindError::Buffer { .. }) => {
            eprintln!("bursts of answers may be lost: {e}");
            open(&UdpConfig { rcvbuf: None, ..socket })
        }
        opened => opened,
    }
}

/// What a socket asks the kernel to hold for it, in bytes as the kernel accounts for them: some 5,000 short answers.
const SOCKET_BUFFER: usize = 4 << 20;

/// Puts the faults of the command line in between, if any.
pub(crate) fn hand_over<P: Port>(opening: &Opening<'_>, port: P, peer: Peer, user: impl PortUser) {
    match &opening.args.fault {
        Some(fault) => user.run(Fault::new(port, fault.spec, opening.clock.clone()), peer),
        None => user.run(port, peer),
    }
}

#[cfg(not(feature = "ofi"))]
fn ofi(_: &Opening<'_>, _: impl PortUser) -> anyhow::Result<()> {
    anyhow::bail!("this program was built without libfabric; build it with --features ofi")
}

#[cfg(feature = "ofi")]
fn ofi(opening: &Opening<'_>, user: impl PortUser) -> anyhow::Result<()> {
    use berth_ofi::{OfiPort, Place};

    let LoadArgs { provider, fabric, domain, bind, .. } = opening.args;
    let provider = provider.clone().context("--port ofi needs --provider")?;
    let place = Place { provider, fabric: fabric.clone(), domain: domain.clone(), bind: *bind };
    let (server, max_frame) = (peer(opening.args), opening.max_frame);
    let (port, peer) = match (opening.meet, opening.args.rendezvous) {
        (Some(meet), _) => OfiPort::join(&place, max_frame, server, meet)?,
        (None, Some(rendezvous)) => OfiPort::connect(&place, max_frame, rendezvous)?,
        (None, None) => anyhow::bail!("--port ofi needs --rendezvous"),
    };
    hand_over(opening, port, peer, user);
    Ok(())
}

#[cfg(not(feature = "verbs"))]
fn verbs(_: &Opening<'_>, _: impl PortUser) -> anyhow::Result<()> {
    anyhow::bail!("this program was built without RDMA; build it with --features verbs")
}

#[cfg(feature = "verbs")]
fn verbs(opening: &Opening<'_>, user: impl PortUser) -> anyhow::Result<()> {
    let args = opening.args;
    let config = berth_verbs::PortConfig {
        device: args.device.clone().context("this port needs --device")?,
        port: 1,
        gid_index: args.gid_index,
        rendezvous: args.rendezvous.context("this port needs --rendezvous")?,
        form: args.rendezvous_form.form(),
        immediate: args.immediate.form(),
        slots: args.slots,
        max_frame: opening.max_frame.min(args.stride as usize),
        peers: 1,
    };
    let (port, peer) = berth_verbs::VerbsPort::connect(&config, args.requests.kind())?;
    hand_over(opening, port, peer, user);
    Ok(())
}

#[cfg(not(feature = "verbs"))]
fn one_sided(_: &Opening<'_>, _: impl PortUser) -> anyhow::Result<()> {
    anyhow::bail!("this program was built without RDMA; build it with --features verbs")
}

#[cfg(feature = "verbs")]
fn one_sided(opening: &Opening<'_>, user: impl PortUser) -> anyhow::Result<()> {
    use berth_client::RdmaBinding;
    use berth_rdma_lease::{Local, OneSided, Peer};
    use berth_wire::fabric::ClientTlv;

    let device = opening.args.device.as_ref().context("--binding rdma needs --device")?;
    let mut port = OneSided::open(device, 1, opening.args.gid_index, opening.longest)?;
    let Peer { qp_num, gid, psn, mtu } = port.describe();
    let mut own = Vec::new();
    ClientTlv::RdmaPeer { qp_num, gid, psn, mtu }.write(&mut own);
    let bound = RdmaBinding::parse(&opening.meet.context("no lease is bound")?(&own)?)?;
    let RdmaBinding { rkey, remote_addr, qp_num, gid, port: number, psn } = bound;
    let node = Local { qp_num, gid, port: number as u8, psn };
    let begun = std::time::Instant::now();
    port.connect(node, rkey, remote_addr)?;
    port.read_byte()?;
    eprintln!("connecting and the first read took {:.1} us", begun.elapsed().as_secs_f64() * 1e6);
    let peer = port.peer();
    hand_over(opening, port, peer, user);
    Ok(())
}

#[cfg(not(feature = "dpdk"))]
fn dpdk(_: &Opening<'_>, _: impl PortUser) -> anyhow::Result<()> {
    anyhow::bail!("this program was built without DPDK; build it with --features dpdk")
}

/// How long a link may take to come up: a memif client retries once a second.
#[cfg(feature = "dpdk")]
pub(crate) const LINK: std::time::Duration = std::time::Duration::from_secs(10);

#[cfg(feature = "dpdk")]
fn dpdk(opening: &Opening<'_>, user: impl PortUser) -> anyhow::Result<()> {
    use berth_dpdk::{Eal, EalConfig, Error, Memory, PortConfig};

    let args = opening.args;
    let config = EalConfig { cpus: opening.cpus.other.into_iter().collect(), memory: Memory::HugePages };
    let eal = match Eal::init(&config) {
        Err(Error::NoHugePages) => {
            eprintln!("no huge pages are free: using ordinary ones, which software devices can do with");
            Eal::init(&EalConfig { memory: Memory::OrdinaryPages { mib: ORDINARY_MIB }, ..config })?
        }
        result => result?,
    };
    let port = PortConfig {
        device: args.device.clone().context("this port needs --device")?,
        addresses: vec![args.address.context("this port needs --address")?],
        neighbours: args.neighbours.clone(),
        mtu: mtu(opening.max_frame)?,
        ..PortConfig::default()
    };
    if args.port == PortDriver::Roce {
        return crate::roce::open(opening, eal, port, user);
    }
    let port = berth_dpdk::open(eal, &port)?.pop().context("a device has a queue")?;
    port.wait_link(LINK)?;
    hand_over(opening, port, peer(args).into(), user);
    Ok(())
}

/// The usual MTU, or the one that the longest frame takes with its headers.
#[cfg(feature = "dpdk")]
fn mtu(max_frame: usize) -> anyhow::Result<u16> {
    const USUAL: usize = 1500;
    /// IPv6 and UDP.
    const HEADERS: usize = 48;
    let needed = if max_frame > USUAL_FRAME { max_frame + HEADERS } else { USUAL };
    u16::try_from(needed).context("no IP packet holds such a frame")
}

/// Memory taken where there are no huge pages: one port's buffers and DPDK's own.
#[cfg(feature = "dpdk")]
const ORDINARY_MIB: u32 = 256;
