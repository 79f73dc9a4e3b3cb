//! HIP Remote: from the configuration to a worker, its devices as what is leased, and its counters at the end.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, bail};
use berth_control::HipLeases;
use berth_fabric::{HipClaim, HipSession};
use berth_gpu::{Choice, SessionCounts, SessionSettings};
use berth_hip_worker::{Claim, Driven, HipCore, Leased, Leases, Occupant, Settings, Worker};
use berth_host::TscClock;
use berth_lease::{Bytes, GRANULE, Region, RegionKind, Storage};
use berth_port::Clock as _;
use berth_wire::{fabric::Status, hip::Code};

use crate::config::{Hip, HipLease};

/// The devices in their order: bytes of memory, and those of NVIDIA's and AMD's with their first workers.
pub(super) type Devices = Vec<(u64, Option<Driven>)>;

/// Binds the socket and accepts; the cores serve. `leases` are those of the node, where there is one.
pub(super) fn start(
    hip: &Hip,
    devices: Devices,
    housekeeping: &[usize],
    clock: &TscClock,
    leases: Option<HipLeases>,
) -> anyhow::Result<(Worker, Vec<HipCore>)> {
    let leases = leases.filter(|_| hip.lease != HipLease::Off);
    let settings = Settings {
        listen: hip.listen,
        cores: hip.cpus.len(),
        kernels: housekeeping.to_vec(),
        max_sessions: hip.max_sessions,
        per_peer: hip.per_peer,
        session: berth_hip_worker::SessionSettings {
            max_payload: hip.max_payload,
            handles: hip.handles,
            idle: hip.idle_timeout,
        },
        memory: hip.memory,
        kernel_timeout: hip.kernel_timeout,
        devices,
        leases: leases.map(|leases| (Arc::new(Node(leases)) as _, hip.lease == HipLease::Required)),
        tls: hip.tls.as_ref().map(|tls| tls.0.clone()),
    };
    let clock = clock.clone();
    Worker::start(settings, move || clock.now().mono).with_context(|| format!("hip.listen {}", hip.listen))
}

/// Names of the devices that are a card, each with its PCI address.
pub(super) fn addresses(hip: &Hip, devices: &[(u64, Option<Driven>)]) -> Vec<(String, String)> {
    let named = hip.devices.iter().zip(devices);
    named
        .filter_map(|((name, ..), (_, opened))| Some((name.clone(), opened.as_ref()?.facts().address.clone())))
        .collect()
}

/// Opens the devices.
pub(super) fn devices(hip: &Hip) -> anyhow::Result<Devices> {
    let mut devices = Vec::new();
    let mut known: BTreeMap<String, &str> = BTreeMap::new();
    for (name, bytes, device) in &hip.devices {
        if *device == Choice::Soft {
            devices.push((*bytes, None));
            continue;
        }
        let settings = SessionSettings {
            name: name.clone(),
            worker: super::gpus::worker()?,
            device: device.clone(),
            limit: hip.kernel_timeout,
            counts: SessionCounts::default(),
        };
        let opened = Driven::open(settings).with_context(|| format!("gpu {name}"))?;
        let address = opened.facts().address.clone();
        if let Some(other) = known.insert(address.clone(), name) {
            bail!("gpu {name} is the same as {other}, at {address}; name another one by its PCI address, or remove it");
        }
        devices.push((*bytes, Some(opened)));
    }
    Ok(devices)
}

/// Every counter, for the stopped line.
pub(super) fn stop(worker: &Worker) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    worker.monitor().report(&mut |name, value| {
        counters.insert(name.to_owned(), value);
    });
    counters
}

/// What the node leases of a device: its memory, by the byte.
pub(super) fn region(name: &str, bytes: u64) -> Region {
    let storage = Storage::Bytes(Arc::new(OfSessions(bytes - bytes % GRANULE)));
    Region { name: name.to_owned(), kind: RegionKind::Vram, numa: None, storage }
}

/// Memory that sessions allocate for themselves, and free with the lease. Its leases have no right to read or write by other
/// ways, which would find zeros.
struct OfSessions(u64);

impl Bytes for OfSessions {
    fn len(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, into: &mut [u8]) {
        into.fill(0);
    }

    fn write(&self, _: u64, _: &[u8]) {}

    fn zero(&self, _: u64, _: u64) {}
}

/// The node that grants the leases.
#[derive(Debug)]
struct Node(HipLeases);

/// A session, as the node ends it.
#[derive(Debug)]
struct Session(Arc<Occupant>);

impl HipSession for Session {
    fn end(&self) {
        self.0.end();
    }

    fn stop(&self) {
        self.0.stop();
    }
}

impl Leases for Node {
    fn bind(&self, claim: &Claim, source: IpAddr, session: Arc<Occupant>) -> Result<Leased, Code> {
        let Claim { lease, token, signature, signed } = claim;
        let source = SocketAddr::new(source, 0);
        let claim = HipClaim { lease: *lease, token, signature, signed, source };
        let (granted, is_live) = self.0.bind(&claim, Arc::new(Session(session))).map_err(|status| match status {
            Status::InternalError => Code::UNKNOWN,
            _ => Code::INVALID_CONTEXT,
        })?;
        if let Some(earlier) = granted.earlier {
            earlier.end();
        }
        Ok(Leased { device: granted.device, bytes: granted.bytes, is_live })
    }
}
