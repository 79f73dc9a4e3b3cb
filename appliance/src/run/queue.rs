//! One queue of one port on one CPU: opens the driver, puts the layers around it, joins it to its service.

use std::{fs::File, net::SocketAddr};

use anyhow::Context as _;
use berth_admission::Admission;
use berth_control::{POLLED, Polled};
use berth_engine::{Lane, Lcore, Recorder};
use berth_fabric::Binding;
use berth_host::{BindError, UdpConfig, UdpSocket};
use berth_lease_io::Stream;
use berth_port::{Fault, FaultSpec, Faults, Mailbox, Pcap, Port, mailbox};
use berth_ring::Producer;
use berth_rpc::Stage;
use berth_stream::Listener;
use berth_udp::UdpPort;
use berth_uring::{Connection, UringSocket, UringStreams};
use tracing::warn;

use super::{Shared, service};
#[cfg(feature = "dpdk")]
use berth_ports::Transport;
use berth_ports::{Driver, Tcp, Udp, Uring};

use crate::config::{self, Runtime, Service};

/// What a socket port asks the kernel to hold for it, in bytes as the kernel accounts for them: a burst of some 5,000
/// short requests.
const SOCKET_BUFFER: usize = 4 << 20;

/// What the kernel accounts for the least datagram, in bytes: its descriptor and data. Frames of many drivers lie in
/// buffers of 2 to 4 KiB, and fewer of them fit.
const LEAST_DATAGRAM: usize = 768;

/// One queue, not joined to its service yet.
pub(super) struct Queue {
    /// Position in the configuration.
    pub(super) port: usize,
    /// Which of the port's queues this is.
    pub(super) number: usize,
    /// Where its frames come from.
    pub(super) source: Source,
    /// Leads to the queue's worker.
    pub(super) ring: Option<Producer>,
    /// Brings new functions, where it has any.
    pub(super) updates: Option<service::Updates>,
    /// What it admits, where that is limited.
    pub(super) admission: Option<Admission>,
}

/// Where frames come from: a device that is open, or what its thread opens.
pub(super) enum Source {
    Udp(SocketAddr),
    Uring(SocketAddr),
    Tcp(Box<Streams>),
    #[cfg(feature = "dpdk")]
    Dpdk(Box<berth_dpdk::DpdkPort>),
    #[cfg(feature = "dpdk")]
    Roce(Box<super::roce::RocePort>),
    #[cfg(feature = "ofi")]
    Ofi(Box<super::ofi::Endpoint>),
    #[cfg(feature = "verbs")]
    Verbs(Box<berth_verbs::VerbsPort>),
}

/// The byte streams of a port: what the poll core serves, and who hands connections to it.
pub(super) struct Streams {
    bind: SocketAddr,
    mailbox: Mailbox<Box<Connection<Stream>>, Box<Connection<Stream>>>,
    /// Taken by the control plane.
    polled: Option<Polled>,
}

impl Streams {
    fn bind(bind: SocketAddr) -> anyhow::Result<Self> {
        let listener = Listener::bind(bind).with_context(|| format!("binding {bind}"))?;
        let bind = listener.local_addr()?;
        let (core, mailbox) = mailbox(POLLED.0, POLLED.0);
        Ok(Self { bind, mailbox, polled: Some(Polled { listener, core }) })
    }
}

/// What the ready line tells of a port beside its address.
pub(super) type Facts = serde_json::Map<String, serde_json::Value>;

impl Source {
    /// One for each CPU of a port, and what is known of it.
    pub(super) fn of(port: &config::Port, runtime: &Runtime) -> anyhow::Result<(Vec<Self>, Facts)> {
        let (bind, source): (_, fn(_) -> _) = match &port.driver {
            Driver::Udp(Udp { bind }) => (*bind, Self::Udp),
            Driver::Uring(Uring { bind }) => (*bind, Self::Uring),
            Driver::Tcp(Tcp { bind }) => {
                let streams = Streams::bind(*bind)?;
                return Ok((vec![Self::Tcp(Box::new(streams))], Facts::new()));
            }
            #[cfg(feature = "dpdk")]
            Driver::Dpdk(device) => match &device.transport {
                Transport::Udp => {
                    let ports =
                        super::dpdk::open(device, port.cpus.len(), port.limits.queue, runtime, || berth_net::Udp)?;
                    return Ok((ports.into_iter().map(|port| Self::Dpdk(Box::new(port))).collect(), Facts::new()));
                }
                Transport::Roce(roce) => {
                    let (port, facts) = super::roce::open(roce, device, runtime)?;
                    return Ok((vec![Self::Roce(Box::new(port))], facts));
                }
            },
            #[cfg(feature = "verbs")]
            Driver::Verbs(verbs) => {
                let config = berth_verbs::PortConfig {
                    device: verbs.device.clone(),
                    port: verbs.port,
                    gid_index: verbs.gid_index,
                    rendezvous: verbs.rendezvous.bind,
                    form: verbs.rendezvous.form,
                    immediate: verbs.immediate,
                    slots: verbs.slots,
                    max_frame: port.max_frame(),
                    peers: verbs.peers,
                };
                let ports = berth_verbs::open(&config, port.cpus.len())?;
                return Ok((ports.into_iter().map(|port| Self::Verbs(Box::new(port))).collect(), Facts::new()));
            }
            #[cfg(not(feature = "verbs"))]
            Driver::Verbs(_) => anyhow::bail!("this berth was built without RDMA"),
            #[cfg(not(feature = "dpdk"))]
            Driver::Dpdk(_) => {
                let Runtime { .. } = runtime;
                anyhow::bail!("this berth was built without DPDK")
            }
            #[cfg(feature = "ofi")]
            Driver::Ofi(ofi) => {
                let endpoint = super::ofi::Endpoint::new(ofi)?;
                let facts = Facts::from_iter([("rendezvous".into(), endpoint.rendezvous().to_string().into())]);
                return Ok((vec![Self::Ofi(Box::new(endpoint))], facts));
            }
            #[cfg(not(feature = "ofi"))]
            Driver::Ofi(_) => anyhow::bail!("this berth was built without libfabric"),
        };
        // Several sockets share one address, which is settled here: a port number that the kernel is to choose is
        // chosen, and one that another program holds is refused, which the kernel would not do for the same user.
        let bind = if port.cpus.len() > 1 { UdpSocket::bind(&UdpConfig::new(bind))?.local_addr() } else { bind };
        Ok((port.cpus.iter().map(|_| source(bind)).collect(), Facts::new()))
    }

    /// Who hands connections to this queue, where its port has connections.
    pub(super) fn polled(&mut self) -> Option<Polled> {
        match self {
            Self::Tcp(streams) => streams.polled.take(),
            _ => None,
        }
    }

    /// What connects leases to this queue's peers, where the driver has it.
    pub(super) fn binding(&self, port: &str) -> Option<Box<dyn Binding>> {
        match self {
            #[cfg(feature = "ofi")]
            Self::Ofi(endpoint) => Some(Box::new(endpoint.binding(port))),
            _ => {
                let _ = port;
                None
            }
        }
    }
}

impl Queue {
    /// Opens the queue on the thread of its CPU, adds it to the lcore, and returns where peers reach it.
    pub(super) fn open(self, lcore: &mut Lcore, shared: &Shared) -> anyhow::Result<SocketAddr> {
        let config = &shared.config.ports[self.port];
        let Self { port, number, source, ring, updates, admission } = self;
        let layers = Layers { port, number, ring, updates, admission };
        let result = match source {
            Source::Udp(bind) => {
                with_socket(config, bind, UdpPort::open).and_then(|port| layers.add(lcore, shared, port))
            }
            Source::Uring(bind) => with_socket(config, bind, UringSocket::bind).and_then(|socket| {
                // On this thread: the ring belongs to the one that makes it.
                layers.add(lcore, shared, socket.into_port()?)
            }),
            Source::Tcp(streams) => UringStreams::new(streams.mailbox, POLLED.0).map_err(Into::into).map(|task| {
                lcore.add(berth_engine::Polled::port(&config.name, task).weight(config.weight));
                streams.bind
            }),
            #[cfg(feature = "dpdk")]
            Source::Dpdk(port) => layers.add(lcore, shared, *port),
            #[cfg(feature = "dpdk")]
            Source::Roce(port) => layers.add(lcore, shared, *port),
            #[cfg(feature = "ofi")]
            Source::Ofi(endpoint) => {
                endpoint.open(config.max_frame()).map_err(Into::into).and_then(|port| layers.add(lcore, shared, port))
            }
            #[cfg(feature = "verbs")]
            Source::Verbs(port) => layers.add(lcore, shared, *port),
        };
        result.with_context(|| format!("port {}", config.name))
    }
}

/// Opens a socket port with a large buffer, or with the kernel's own where it grants no more.
fn with_socket<P>(
    port: &config::Port,
    bind: SocketAddr,
    open: impl Fn(&UdpConfig) -> Result<P, BindError>,
) -> anyhow::Result<P> {
    let mut config = UdpConfig::new(bind);
    config.max_frame = port.max_frame();
    config.reuse_port = port.cpus.len() > 1;
    config.rcvbuf = Some(port.limits.queue.map_or(SOCKET_BUFFER, |frames| frames as usize * LEAST_DATAGRAM));
    match open(&config) {
        Err(e @ BindError::Buffer { .. }) => {
            warn!(port = port.name, "bursts may be lost: {e}");
            config.rcvbuf = None;
            Ok(open(&config)?)
        }
        opened => Ok(opened?),
    }
}

/// What a queue gets around its port.
struct Layers {
    port: usize,
    number: usize,
    ring: Option<Producer>,
    updates: Option<service::Updates>,
    admission: Option<Admission>,
}

impl Layers {
    /// Puts the fault layer around `port`, if there is one.
    fn add<P: Port + 'static>(self, lcore: &mut Lcore, shared: &Shared, port: P) -> anyhow::Result<SocketAddr> {
        let Some(fault) = shared.config.ports[self.port].fault else { return self.capture(lcore, shared, port) };
        let faults = Faults {
            drop: fault.drop,
            corrupt: fault.corrupt,
            duplicate: fault.duplicate,
            reorder: fault.reorder,
            delay: if fault.delay_us > 0 { 1.0 } else { 0.0 },
            delay_us: [fault.delay_us; 2],
        };
        // Queues of one port draw different faults.
        let spec = FaultSpec { seed: fault.seed.wrapping_add(self.number as u64), rx: faults, tx: faults };
        self.capture(lcore, shared, Fault::new(port, spec, shared.clock.clone()))
    }

    /// Puts the capture layer around `port`, if there is one.
    fn capture<P: Port + 'static>(self, lcore: &mut Lcore, shared: &Shared, port: P) -> anyhow::Result<SocketAddr> {
        let Some(pcap) = &shared.config.ports[self.port].pcap else { return self.join(lcore, shared, port) };
        let path = match self.number {
            0 => pcap.file.clone(),
            queue => pcap.file.with_extension(format!("{queue}.pcap")),
        };
        let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
        self.join(lcore, shared, Pcap::new(port, file, pcap.max_bytes, shared.clock.clone()))
    }

    /// Joins `port` to its service.
    fn join<P: Port + 'static>(self, lcore: &mut Lcore, shared: &Shared, port: P) -> anyhow::Result<SocketAddr> {
        let addr = port.local_addr();
        let config = &shared.config.ports[self.port];
        match &config.service {
            Service::Rpc(rpc) => {
                let updates = self.updates.context("RPC has functions")?;
                let [wire_time, ring_wait, ring_time] = [(); 3].map(|()| Recorder::default());
                let named = [("wire_time", &wire_time), ("ring_wait", &ring_wait), ("ring_time", &ring_time)];
                // The ring's are shown where there is one.
                let shown = if self.ring.is_some() { &named[..] } else { &named[..1] };
                let record = {
                    let [wire_time, ring_wait, ring_time] = named.map(|(_, recorder)| recorder.clone());
                    move |stage, nanos| match stage {
                        Stage::Wire => wire_time.record(nanos),
                        Stage::RingWait => ring_wait.record(nanos),
                        Stage::RingTime => ring_time.record(nanos),
                    }
                };
                let service = service::service(shared, rpc, self.ring, updates, self.admission, record)?;
                let lane = Lane::new(&config.name, port, service).weight(config.weight).timed(shared.clock.clone());
                lcore.add(shown.iter().fold(lane, |lane, (name, recorder)| lane.histogram(name, recorder)));
            }
            Service::LeaseIo => {
                let lane = Lane::new(&config.name, port, service::lease_io(shared, self.admission)?);
                lcore.add(lane.weight(config.weight).timed(shared.clock.clone()));
            }
        }
        Ok(addr)
    }
}
