//! `LEASE_BIND`, kind 3: a lease of blocks becomes a subsystem of the kernel's for one host.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use berth_fabric::{Binding, BlockingWork, BoundLease, OncePerSecond, Reach, TeardownFailed};
use berth_lease::{LeaseId, Rights};
use berth_nvme::{nqn, requested_host};
use berth_port::{Family, Nanos};
use berth_wire::fabric::{BindKind, BindingTlv, NvmeTransport, Status, Tlvs};

use crate::{
    nvmet::{Address, Disk, Nvmet, Port},
    system::{Linux, System},
};

/// Bytes of a block.
const BLOCK: u64 = 512;

/// What a binding is set up with.
#[derive(Debug)]
pub struct Settings {
    /// Where hosts connect, all of one transport. At least one.
    pub addresses: Vec<Address>,
    /// Most leases at once: bound, or being bound or unbound.
    pub max_leases: usize,
    /// The file or device of each region, in the order of the regions; `None` for memory.
    pub backings: Vec<Option<PathBuf>>,
}

/// What work leaves.
type Place = Arc<Mutex<Option<io::Result<()>>>>;

enum State {
    /// It is being offered.
    Offering { host: String, place: Place },
    /// Its host may connect.
    Bound,
    /// It is being withdrawn.
    Ending(Place),
    /// Its host may still reach it.
    Stuck,
}

berth_port::counters! {
    #[derive(Clone, Copy)]
    pub(crate) struct Counts {
        /// Set as it is reported.
        leases = nvme_kernel_leases: gauge "leases that are bound over NVMe by the kernel's target",
        binds = nvme_kernel_binds: "leases that were bound over NVMe by the kernel's target",
        failed = nvme_kernel_binds_failed: REFUSED { reason: "failed" },
        full = nvme_kernel_binds_full: REFUSED { reason: "full" },
        /// Set as it is reported.
        stuck = nvme_kernel_stuck: gauge "leases that the kernel's NVMe target could not be made to let go of",
    }
}

const REFUSED: Family =
    Family::counter("nvme_kernel_binds_refused", "leases that were not bound over NVMe by the kernel's target");

/// Lets hosts connect to leases by the kernel's target.
pub struct KernelBinding<S: System = Linux> {
    name: String,
    nvmet: Arc<Nvmet<S>>,
    addresses: Vec<Address>,
    ports: Vec<Port>,
    max_leases: usize,
    backings: Vec<Option<PathBuf>>,
    leases: BTreeMap<LeaseId, State>,
    now: Nanos,
    refusals: OncePerSecond,
    counts: Counts,
}

impl<S: System> fmt::Debug for KernelBinding<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelBinding({})", self.name)
    }
}

impl<S: System> KernelBinding<S> {
    /// Makes the ports; they listen from the first lease on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new(nvmet: Arc<Nvmet<S>>, settings: Settings) -> io::Result<Self> {
        let Settings { addresses, max_leases, backings } = settings;
        let ports = addresses.iter().map(|address| nvmet.port(*address)).collect::<io::Result<_>>()?;
        let name = addresses.first().map_or_else(String::new, |first| format!("kernel {first}"));
        Ok(Self {
            name,
            nvmet,
            addresses,
            ports,
            max_leases,
            backings,
            leases: BTreeMap::new(),
            now: Nanos(0),
            refusals: OncePerSecond::default(),
            counts: Counts::default(),
        })
    }

    fn transport(&self) -> NvmeTransport {
        self.addresses.first().map_or(NvmeTransport::Loop, |first| first.transport())
    }

    /// What is to be served of a lease.
    fn disk(&self, lease: &BoundLease) -> Result<Disk, Status> {
        let Reach::Bytes { span, .. } = lease.reach else { return Err(Status::UnsupportedOp) };
        let backing = self.backings.get(usize::from(span.region.0)).and_then(Option::as_ref);
        let backing = backing.ok_or(Status::UnsupportedOp)?.clone();
        // The kernel has no namespace that a host may only read, or only write.
        if lease.rights != Rights::ALL {
            return Err(Status::UnsupportedOp);
        }
        let len = span.len - span.len % BLOCK;
        // Loop devices begin at a block.
        if len == 0 || span.at % BLOCK != 0 {
            return Err(Status::InvalidParams);
        }
        Ok(Disk { lease: lease.id, backing, at: span.at, len })
    }

    fn refuse(&mut self, lease: LeaseId, error: &io::Error) -> Status {
        if self.refusals.is_due(self.now) {
            tracing::warn!("lease {lease} is not bound to {}: {error}", self.name);
        }
        self.counts.failed += 1;
        Status::InternalError
    }

    /// Work on the target, and where it says how that went.
    fn work(&self, f: impl FnOnce(&Nvmet<S>) -> io::Result<()> + Send + 'static) -> (Place, BlockingWork) {
        let (place, nvmet) = (Place::default(), Arc::clone(&self.nvmet));
        let result = Arc::clone(&place);
        let work = BlockingWork::new(move || {
            let done = f(&nvmet);
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        });
        (place, work)
    }
}

impl<S: System> Binding for KernelBinding<S> {
    fn kind(&self) -> BindKind {
        BindKind::NvmeOf
    }

    fn name(&self) -> &str {
        &self.name
    }

    /// Hosts connect again by themselves.
    fn resumes(&self) -> bool {
        true
    }

    fn prepare(&mut self, lease: &BoundLease, client: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        let host = requested_host(client, self.transport())?.to_owned();
        // It becomes the name of a folder.
        if host.contains('/') {
            return Err(Status::InvalidParams);
        }
        let disk = self.disk(lease)?;
        if self.leases.len() >= self.max_leases {
            self.counts.full += 1;
            return Err(Status::CapacityExceeded);
        }
        let ports = self.ports.clone();
        let (place, work) = self.work(move |nvmet| nvmet.offer(&disk, &ports));
        self.leases.insert(lease.id, State::Offering { host, place });
        Ok(Some(work))
    }

    /// The host is let in last: the lease may have ended while it was offered.
    fn bind(&mut self, lease: &BoundLease, _: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status> {
        let Some(State::Offering { host, place }) = self.leases.remove(&lease.id) else {
            return Err(Status::InternalError);
        };
        let offered = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let admitted = offered.ok_or(Status::InternalError)?.and_then(|()| self.nvmet.admit(lease.id, &host));
        admitted.map_err(|error| self.refuse(lease.id, &error))?;
        BindingTlv::NvmeNqn(&nqn(lease.id)).write(out);
        if let Some(Address::Rdma(address)) = self.addresses.first() {
            BindingTlv::NvmeTrAddr(&address.ip().to_string()).write(out);
            BindingTlv::NvmeTrSvcId(address.port()).write(out);
        }
        BindingTlv::NvmeTrType(self.transport()).write(out);
        self.counts.binds += 1;
        self.leases.insert(lease.id, State::Bound);
        Ok(())
    }

    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        match self.leases.remove(&lease) {
            // Its end has panicked.
            Some(ending @ State::Ending(_)) => {
                self.leases.insert(lease, ending);
                return Err(TeardownFailed);
            }
            None if !self.nvmet.has(lease) => return Ok(None),
            _ => {}
        }
        let (place, work) = self.work(move |nvmet| nvmet.withdraw(lease));
        self.leases.insert(lease, State::Ending(place));
        Ok(Some(work))
    }

    fn torn_down(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        let Some(State::Ending(place)) = self.leases.get(&lease) else { return Ok(()) };
        let done = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        match done {
            Some(Ok(())) => {
                self.leases.remove(&lease);
                Ok(())
            }
            Some(Err(error)) => {
                tracing::error!("lease {lease} may still be reached over {}: {error}", self.name);
                self.leases.insert(lease, State::Stuck);
                Err(TeardownFailed)
            }
            None => Err(TeardownFailed),
        }
    }

    fn tick(&mut self, now: Nanos, _: &mut Vec<LeaseId>) {
        self.now = now;
    }

    fn counters(&self, visit: &mut dyn FnMut(&str, u64)) {
        let count = |is: fn(&State) -> bool| self.leases.values().filter(|state| is(state)).count() as u64;
        let leases = count(|state| matches!(state, State::Bound));
        let stuck = count(|state| matches!(state, State::Stuck));
        Counts { leases, stuck, ..self.counts }.report(&mut |name, value| visit(name, value));
    }
}

/// Nobody's clock would end them once the process is gone.
impl<S: System> Drop for KernelBinding<S> {
    fn drop(&mut self) {
        for lease in self.leases.keys() {
            if let Err(error) = self.nvmet.withdraw(*lease) {
                tracing::error!("lease {lease} may still be reached over {}: {error}", self.name);
            }
        }
    }
}
