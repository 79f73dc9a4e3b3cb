//! `LEASE_BIND`, kind 3: a lease of blocks becomes a subsystem for one host.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use berth_fabric::{Binding, BlockingWork, BoundLease, Reach, TeardownFailed};
use berth_lease::{LeaseId, Regions, Table};
use berth_nvme::{
    BindError, Client, Target, Unbound,
    auth::{Machine, Secret},
    requested_host,
};
use berth_port::Nanos;
use berth_wire::fabric::{BindKind, BindingTlv, NvmeTransport, Status, Tlvs};

use crate::{Later, arithmetic::Arithmetic, core::Counts};

/// How long accesses that are under way may take to end once their lease has.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often they are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

type Make = Box<dyn Fn(&Table, &Regions) -> Target + Send>;

/// Lets hosts connect to leases over NVMe/TCP.
pub struct NvmeBinding {
    name: String,
    address: SocketAddr,
    later: Later,
    make: Make,
    regions: Option<Regions>,
    /// Where hosts authenticate.
    arithmetic: Option<Arc<Arithmetic>>,
    /// Leases that were unbound, with accesses under way.
    ending: BTreeMap<LeaseId, Arc<Mutex<Unbound>>>,
    now: Nanos,
    counts: Arc<Counts>,
}

impl fmt::Debug for NvmeBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvmeBinding({})", self.address)
    }
}

impl NvmeBinding {
    pub(crate) fn new(
        name: String,
        address: SocketAddr,
        later: Later,
        make: Make,
        arithmetic: Option<Arc<Arithmetic>>,
        counts: Arc<Counts>,
    ) -> Self {
        let (regions, ending, now) = (None, BTreeMap::new(), Nanos(0));
        Self { name, address, later, make, regions, arithmetic, ending, now, counts }
    }

    fn target(&self) -> Result<&Target, Status> {
        self.later.get().ok_or(Status::InternalError)
    }
}

impl Binding for NvmeBinding {
    fn kind(&self) -> BindKind {
        BindKind::NvmeOf
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn attach(&mut self, table: &Table, regions: &Regions) {
        self.regions = Some(regions.clone());
        // It is told once.
        let _ = self.later.set((self.make)(table, regions));
    }

    /// Hosts connect again by themselves.
    fn resumes(&self) -> bool {
        true
    }

    fn answers_secrets(&self) -> bool {
        self.arithmetic.is_some()
    }

    /// Every command is checked against the table; multipath hosts queue what fails, until the lease is renewed.
    fn outlasts_expiry(&self) -> bool {
        true
    }

    fn bind(&mut self, lease: &BoundLease, client: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let Reach::Bytes { span, .. } = lease.reach else { return Err(Status::UnsupportedOp) };
        let region = self.regions.as_ref().and_then(|regions| regions.get(span.region));
        if region.is_none_or(|region| region.kind.is_memory()) {
            return Err(Status::UnsupportedOp);
        }
        let host = requested_host(client, NvmeTransport::Tcp)?;
        let secret = match &self.arithmetic {
            // None where the node kept none: of a binding from before it asked for authentication.
            Some(arithmetic) => {
                Some((Secret::new(&lease.secret.ok_or(Status::InsufficientPerm)?.0), arithmetic.clone()))
            }
            None => None,
        };
        let text = secret.as_ref().map(|(secret, _)| secret.text());
        let secret = secret.map(|(secret, arithmetic)| (secret, arithmetic as Arc<dyn Machine>));
        let client = Client { nqn: host, secret };
        let bound = self.target()?.bind(lease.id, lease.generation, client, self.now);
        let nqn = bound.map_err(|error| match error {
            BindError::Lease(_) => Status::LeaseExpired,
            BindError::TooSmall | BindError::HostNqn => Status::InvalidParams,
            BindError::Bound => Status::ResourceBusy,
            BindError::Full => Status::CapacityExceeded,
        })?;
        let ip = self.address.ip().to_string();
        for tlv in [
            BindingTlv::NvmeNqn(&nqn),
            BindingTlv::NvmeTrAddr(&ip),
            BindingTlv::NvmeTrSvcId(self.address.port()),
            BindingTlv::NvmeTrType(NvmeTransport::Tcp),
        ] {
            tlv.write(out);
        }
        if let Some(text) = text {
            BindingTlv::NvmeDhChapSecret(&text).write(out);
        }
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let unbound = self.later.get().and_then(|target| target.unbind(lease));
        if let Some(unbound) = unbound {
            self.ending.insert(lease, Arc::new(Mutex::new(unbound)));
        }
        // Those of an attempt that failed too.
        let Some(unbound) = self.ending.get(&lease).cloned() else { return Ok(None) };
        if is_over(&unbound) {
            self.ending.remove(&lease);
            return Ok(None);
        }
        Ok(Some(BlockingWork::new(move || {
            let until = Instant::now() + PATIENCE;
            while !is_over(&unbound) && Instant::now() < until {
                thread::sleep(LOOK_EVERY);
            }
        })))
    }

    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        let Some(unbound) = self.ending.get(&lease) else { return Ok(()) };
        if !is_over(unbound) {
            return Err(TeardownFailed);
        }
        self.ending.remove(&lease);
        Ok(())
    }

    fn tick(&mut self, now: Nanos, _: &mut Vec<LeaseId>) {
        self.now = now;
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        self.counts.report(visit);
        if let Some(target) = self.later.get() {
            target.report(&mut |name, count| visit(name, count));
        }
    }
}

fn is_over(unbound: &Mutex<Unbound>) -> bool {
    unbound.lock().unwrap_or_else(PoisonError::into_inner).is_over()
}
