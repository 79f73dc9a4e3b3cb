//! Opening the port that the command line names.

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
};

use anyhow::Context;
use berth_host::TscClock;
use berth_port::{Fault, FaultSpec, Loopback, Peer, Port};
use berth_ports::{Hugepages, Meet, PortUser, Runtime};

use crate::{
    args::{FaultArg, LoadArgs, PortDriver},
    calls::Calls,
    disk::Disk,
    server::Serve,
};

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

/// By what requests go out.
#[derive(Clone)]
pub(crate) enum Way {
    /// A port.
    Port {
        /// The command line.
        args: Box<LoadArgs>,
        /// Starts the server of a loopback.
        serve: Arc<Serve>,
        /// Finds the server's libfabric endpoint or queue pair, given our own; without it the server's rendezvous does.
        meet: Option<Arc<Meet>>,
    },
    /// Connections to an NVMe/TCP controller.
    Nvme(Box<Disk>),
    /// A session of HIP Remote.
    Hip(Box<Calls>),
}

impl Way {
    /// As the report has it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Port { args, .. } => args.port.name(),
            Self::Nvme(_) => "nvme-tcp",
            Self::Hip(_) => "hip",
        }
    }

    /// Whom the client asks, as the report says it.
    pub(crate) fn peer(&self) -> SocketAddr {
        match self {
            Self::Port { args, .. } => peer(args),
            Self::Nvme(disk) => disk.address,
            Self::Hip(calls) => calls.address,
        }
    }

    /// The faults of the command line.
    pub(crate) fn fault(&self) -> Option<&FaultArg> {
        match self {
            Self::Port { args, .. } => args.fault.as_ref(),
            Self::Nvme(_) | Self::Hip(_) => None,
        }
    }
}

/// What a port is opened with.
pub(crate) struct Opening<'a> {
    /// By what requests go out.
    pub(crate) way: &'a Way,
    /// The longest frame of the run, or the usual one's, in bytes.
    pub(crate) max_frame: usize,
    /// The longest frame of the run, in bytes.
    pub(crate) longest: usize,
    /// Times the delays of `--fault`.
    pub(crate) clock: &'a TscClock,
    /// The run's CPUs.
    pub(crate) cpus: Cpus,
}

/// Ports are opened for frames of this many bytes at least: what a server's slot usually holds.
pub(crate) const USUAL_FRAME: usize = 2048;

/// Buffers on each side of a loopback.
const LOOPBACK_DEPTH: usize = 1024;

/// Addresses of a loopback's two sides. They name the sides and are used by nothing else.
const LOOPBACK: [SocketAddr; 2] = [
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4701)),
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 4700)),
];

/// Memory that DPDK takes where there are no huge pages, in MiB: one port's buffers and its own.
const ORDINARY_MB: u32 = 256;

fn peer(args: &LoadArgs) -> SocketAddr {
    match args.port {
        PortDriver::Loopback => LOOPBACK[1],
        PortDriver::OneSided => args.peer(),
        PortDriver::Driver(_) => args.rendezvous.unwrap_or(args.peer()),
    }
}

/// Opens the port on the calling thread and hands it to `user`.
pub(crate) fn open(opening: &Opening<'_>, user: impl PortUser) -> anyhow::Result<()> {
    let Opening { way, max_frame, longest, clock, cpus } = *opening;
    let (args, serve, meet) = match way {
        Way::Port { args, serve, meet } => (args, serve, meet.as_deref()),
        Way::Nvme(disk) => return disk.open(longest, clock, user),
        Way::Hip(calls) => return calls.open(longest, user),
    };
    let user = Faulty { fault: args.fault.as_ref().map(|fault| fault.spec), clock, user };
    let housekeeping_cpus = cpus.other.into_iter().collect();
    let runtime = Runtime { housekeeping_cpus, hugepages: Hugepages::Auto, memory_mb: ORDINARY_MB };
    match args.port {
        PortDriver::Driver(driver) => driver.connect(&args.client(&runtime, max_frame, longest, meet), user),
        PortDriver::OneSided => one_sided(&args.client(&runtime, max_frame, longest, meet), user),
        PortDriver::Loopback => {
            let (ours, theirs) = Loopback::pair(LOOPBACK, LOOPBACK_DEPTH, max_frame);
            let cpu = cpus.other.context("a loopback needs two CPUs, one for its server")?;
            let server = serve(theirs, cpu, clock)?;
            user.run(ours, LOOPBACK[1].into());
            server.stop()
        }
    }
}

/// Puts the faults of the command line in between, if any.
struct Faulty<'a, U> {
    fault: Option<FaultSpec>,
    clock: &'a TscClock,
    user: U,
}

impl<U: PortUser> PortUser for Faulty<'_, U> {
    fn run<P: Port>(self, port: P, peer: Peer) {
        match self.fault {
            Some(spec) => self.user.run(Fault::new(port, spec, self.clock.clone()), peer),
            None => self.user.run(port, peer),
        }
    }
}

#[cfg(feature = "verbs")]
use crate::one_sided::open as one_sided;

#[cfg(not(feature = "verbs"))]
fn one_sided(_: &berth_ports::Client<'_>, _: impl PortUser) -> anyhow::Result<()> {
    anyhow::bail!(berth_ports::not_built("RDMA", "verbs"))
}
