//! `berth perf lease`: two-sided messages that read or write a lease.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    sync::Arc,
    time::Instant,
};

use anyhow::{Context as _, bail};
use berth_client::{Alloc, Client};
use berth_identity::Identity;
use berth_lease::{
    Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table as Leases,
};
use berth_lease_io::{LeaseService, TwoSided};
use berth_pages::{Backing, Pages};
use berth_port::Nanos;
use berth_ports::{ClientDriver, Meet};
use berth_tls::key_file;
use berth_wire::fabric::{
    BindKind, BindingTlv, EndpointKind, Perms, Tlvs, Wire as _,
    data::two_sided::{Opcode, Request},
};
use zerocopy::IntoBytes;

use crate::{
    args::{
        LoadArgs, PortDriver,
        lease::{BindingArg, LeaseArgs, OpArg},
    },
    job::{Chore, Job, Plan, Spoken},
    measure::{case_name, measure},
    mix::Script,
    ports::Way,
    server::{Serve, Server},
    verify::{Expect, Protocol, Step, Table},
};

/// Where two-sided messages are served unless somebody chose otherwise.
const PORT: u16 = 5702;

/// Places in the lease that are read and written in turn, at most.
const PLACES: u64 = 1024;

/// Runs the command line on the lease that it names, or on one that it gets for itself and frees afterwards.
pub(crate) fn run(args: &LeaseArgs) -> anyhow::Result<ExitCode> {
    let mut load = args.load.clone();
    let (Some(control), Some(identity)) = (args.control, &args.identity) else {
        load.peer.get_or_insert(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        let key = args.key.context("--key is missing")?;
        return measure(&job(args, load, Lease { key, generation: args.generation, len: args.len }, None)?);
    };
    let identity = Arc::new(key_file::read(identity)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (client, grant) = runtime.block_on(async {
        let client = Client::quic(identity.clone(), control, None).await?;
        let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, TOKEN_SECS, 0, None).await?;
        let grant = client.lease_alloc(&token, &Alloc::memory(args.len, LEASE_SECS)).await?;
        Ok::<_, berth_client::Error>((client, grant))
    })?;
    let mut meet = None;
    if let Some(binding) = args.binding {
        // A name for the answers' sender: the lease is bound to an endpoint or a queue pair, not to an address.
        load.peer = Some(control);
        let (port, kind) = match binding {
            BindingArg::Ofi => (PortDriver::Driver(ClientDriver::Ofi), BindKind::Ofi),
            BindingArg::Rdma => (PortDriver::OneSided, BindKind::Rdma),
        };
        load.port = port;
        meet = Some(bind(identity, control, grant.lease_id, kind));
    }
    load.peer = load.peer.or(load.rendezvous);
    let served = grant.endpoints.iter().find(|(kind, _)| *kind == EndpointKind::TwoSidedUdp);
    // A port that is reached by rendezvous is no endpoint that a node tells of.
    let peer = load.peer.or(load.rendezvous).or(served.map(|(_, addr)| *addr));
    load.peer =
        Some(peer.context("the node serves no two-sided messages; give it a port with service = \"lease-io\"")?);
    let lease = Lease { key: grant.key, generation: grant.generation, len: args.len };
    let result = job(args, load, lease, meet).and_then(|job| measure(&job));
    runtime.block_on(async {
        client.lease_free(grant.lease_id).await?;
        client.close().await;
        Ok::<_, berth_client::Error>(())
    })?;
    result
}

/// Binds a lease to what `own` describes, on the thread that has it: the address of a libfabric endpoint, for which there is
/// the node's, or a queue pair's TLVs, for which there are the node's.
fn bind(identity: Arc<Identity>, control: SocketAddr, lease_id: u128, kind: BindKind) -> Arc<Meet> {
    Arc::new(move |own| {
        let mut peer = Vec::new();
        match kind {
            BindKind::Ofi => BindingTlv::OfiAddr(own).write(&mut peer),
            _ => peer.extend_from_slice(own),
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let bound = runtime.block_on(async {
            let client = Client::quic(identity.clone(), control, None).await?;
            let token = client.cap_request(Perms::ALLOC, TOKEN_SECS, 0, None).await?;
            let begun = Instant::now();
            let bound = client.lease_bind(&token, lease_id, kind, &peer).await?;
            eprintln!("LEASE_BIND took {:.1} us", begun.elapsed().as_secs_f64() * 1e6);
            client.close().await;
            Ok::<_, berth_client::Error>(bound)
        })?;
        if kind != BindKind::Ofi {
            return Ok(bound);
        }
        let facts = Tlvs::parse(&bound)?;
        let address = facts.iter().find_map(|tlv| match BindingTlv::read(tlv) {
            Ok(Some(BindingTlv::OfiAddr(address))) => Some(address.to_vec()),
            _ => None,
        });
        address.context("the node's answer names no libfabric endpoint")
    })
}

/// How long the token is good for, in seconds: it is used at once.
const TOKEN_SECS: u32 = 60;

/// How long memory is leased at most, in seconds: it is freed after the run, unless the run is killed.
const LEASE_SECS: u32 = 24 * 3600;

/// The cases of the command line, on this lease.
fn job(args: &LeaseArgs, load: LoadArgs, lease: Lease, meet: Option<Arc<Meet>>) -> anyhow::Result<Job> {
    let mut plans = Vec::new();
    for &size in &args.sizes {
        if u64::from(size) > lease.len {
            bail!("--size {size} does not fit into --len {}", lease.len);
        }
        let (writes, reads) = (lease.step(Opcode::Write, size), lease.step(Opcode::Read, size));
        let places = writes.payloads.rows() as u64;
        let plan = |step: &Step, chore: Option<Chore>| {
            let scripts = vec![Script { steps: vec![step.clone()], weight: 1 }];
            let payload = Some(size as usize);
            let name = match chore {
                Some(Chore::Before(_)) => "filling the lease".into(),
                Some(Chore::After(..)) => "reading back the lease".into(),
                None => case_name(&scripts, payload, load.pacing()),
            };
            Plan { name, payload, scripts, chore }
        };
        match args.op {
            OpArg::Read => plans.extend([plan(&writes, Some(Chore::Before(places))), plan(&reads, None)]),
            OpArg::Write => plans.extend([plan(&writes, None), plan(&reads, Some(Chore::After(writes.name, places)))]),
        }
    }
    let spoken = Spoken { header: "two-sided".into(), ptp: "off", echo: false, shots: None };
    let (pace, pacing) = (load.pace.clone(), load.pacing());
    let way = Way::Port { args: Box::new(load), serve: serve(lease), meet };
    Ok(Job { pace, pacing, way, protocol: Protocol::TwoSided, spoken, plans })
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    key: u64,
    generation: u64,
    len: u64,
}

impl Lease {
    /// Accesses of `size` bytes, place after place; what is at a place depends on the place and on the size.
    fn step(&self, opcode: Opcode, size: u32) -> Step {
        let (len, places) = (size as usize, (self.len / u64::from(size)).min(PLACES) as usize);
        let mut rng = fastrand::Rng::with_seed(size.into());
        let data = Table::build(len, places, |_, bytes| rng.fill(bytes));
        let header = |place: usize, bytes: &mut [u8]| {
            let offset = (place * len) as u64;
            let request = Request::new(opcode, self.key, self.generation, offset, len as u64);
            bytes[..Request::LEN].copy_from_slice(request.as_bytes());
        };
        let (name, payloads, expect) = match opcode {
            Opcode::Read => ("read", Table::build(Request::LEN, places, header), data),
            Opcode::Write => {
                let whole = Table::build(Request::LEN + len, places, |place, bytes| {
                    header(place, bytes);
                    bytes[Request::LEN..].copy_from_slice(data.row(place));
                });
                ("write", whole, Table::new(Vec::new(), 0, places))
            }
        };
        Step { name, function_id: 0, payloads, expect: Expect::Bytes(expect) }
    }
}

/// Serves such a lease on a second core of this process, for a loopback.
fn serve(lease: Lease) -> Arc<Serve> {
    Arc::new(move |port, cpu, clock| {
        Server::start(port, cpu, clock, move |_, _| {
            let bytes = Pages::new(lease.len, &Backing::Ordinary, None)?;
            let storage = Storage::Bytes(Arc::new(bytes));
            let region = Region { name: "loopback".into(), kind: RegionKind::Memory, numa: None, storage };
            let entry = Entry {
                id: LeaseId(lease.key.into()),
                generation: Generation(lease.generation),
                rights: Rights::ALL,
                region: RegionId(0),
                base: 0,
                len: lease.len,
                first: 0,
                max_io: u32::MAX,
                expires: Nanos(u64::MAX),
                state: State::Active,
            };
            let (table, mut writer) = Leases::new(1);
            writer.insert(&entry).context("--key 0 is no lease")?;
            Ok(LeaseService::<TwoSided>::new(&table, &Regions::new(vec![region]), 0))
        })
    })
}
