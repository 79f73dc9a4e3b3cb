//! Which lease is whose subsystem, and which controllers there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use berth_lease::{Generation, LeaseId, Op, Quiescence, Refusal, Regions, Storage, Table};
use berth_lease_io::{Gate, Pool};
use berth_port::Nanos;

use crate::{
    auth::{Chap, Machine, Secret},
    controller::Controller,
    counts::{Present, Totals},
    exclusive::Exclusive,
    names::{is_host_nqn, lease_of, nqn},
    namespace::{BLOCK, Namespace},
    queue::DEPTH_MAX,
};

/// Limits of a [`Target`]; [`Target::new`] clamps those that are out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most leases that are bound at once.
    pub leases: usize,
    /// Controllers of one lease, which are the associations of its host.
    pub controllers: usize,
    /// Controllers of all leases at once; up to 0xFFEF with those of discovery.
    pub all_controllers: usize,
    /// Controllers of discovery, which whoever reaches the node may have; at most 4096.
    pub discoveries: usize,
    /// Most I/O queues of a controller.
    pub io_queues: u16,
    /// Commands of an I/O queue at once, from 2 to 256.
    pub depth: u16,
    /// Bytes of data that an I/O capsule may bring, a multiple of 16 from 4096 on.
    pub in_capsule: u32,
    /// Bytes of the longest transfer, whatever a lease's `max_io`; clamped to a quarter of the pool, at least 4096.
    pub longest: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            leases: 1024,
            controllers: 8,
            all_controllers: 1024,
            discoveries: 128,
            io_queues: 64,
            depth: 128,
            in_capsule: 16 << 10,
            longest: 1 << 20,
        }
    }
}

/// What all connections to a node's leases over NVMe share: cheap to clone.
#[derive(Debug, Clone)]
pub struct Target(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Table,
    regions: Regions,
    pool: Arc<Pool>,
    limits: Limits,
    totals: Totals,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    subsystems: BTreeMap<LeaseId, Arc<Subsystem>>,
    controllers: BTreeMap<u16, Arc<Controller>>,
    last_id: u16,
    /// When the leases of each host changed last, by the number of the change.
    changes: BTreeMap<String, u64>,
    last_change: u64,
}

/// A lease that is bound: an NVM subsystem with one namespace, for one host.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    /// The NQN of the host that may connect.
    pub(crate) host: String,
    /// How that proves who it is; `None`: it is whom its NQN says.
    pub(crate) chap: Option<Arc<Chap>>,
    pub(crate) namespace: Namespace,
    /// For fused commands.
    pub(crate) fused: Exclusive,
    /// Set when it is unbound, and never cleared.
    ended: AtomicBool,
}

impl Subsystem {
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(SeqCst)
    }
}

/// The host that a lease is bound for.
pub struct Client<'a> {
    /// Its NQN: `nqn.`, at most 223 bytes, no control characters.
    pub nqn: &'a str,
    /// What it has to prove to know, by DH-HMAC-CHAP on each of its queues, and what that takes.
    pub secret: Option<(Secret, Arc<dyn Machine>)>,
}

impl<'a> From<&'a str> for Client<'a> {
    fn from(nqn: &'a str) -> Self {
        Self { nqn, secret: None }
    }
}

/// Why a lease is not bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The lease takes no accesses.
    #[error("the lease takes no accesses: {0}")]
    Lease(Refusal),
    /// It has less than a block of 512 bytes, or its accesses are shorter than 4096 bytes.
    #[error("the lease is too small for a namespace")]
    TooSmall,
    /// The host's name does not begin with `nqn.`, is longer than 223 bytes, or has control characters.
    #[error("the host's NQN is none")]
    HostNqn,
    /// It is bound already.
    #[error("the lease is bound already")]
    Bound,
    /// [`Limits::leases`] leases are bound already.
    #[error("as many leases are bound as may be")]
    Full,
}

/// A lease was unbound; the accesses that its connections have under way end one after the other.
#[derive(Debug)]
pub struct Unbound(Quiescence);

impl Unbound {
    /// Whether they all have ended: then no connection reads or writes a byte of the lease any more. Once true, always
    /// true. Never wait for it on a thread that polls connections.
    pub fn is_over(&mut self) -> bool {
        self.0.is_over()
    }
}

impl Target {
    /// For the leases of `table`, whose bytes lie in `regions`. Data that cannot be moved between a connection's buffers
    /// and a lease lies in `pool`, which must have room for 4 of the longest transfers.
    pub fn new(table: &Table, regions: &Regions, pool: Arc<Pool>, limits: Limits) -> Self {
        for (_, region) in regions.iter().filter(|(_, region)| !region.kind.is_memory()) {
            if let Storage::Blocks(blocks) = &region.storage {
                blocks.register(pool.memory());
            }
        }
        let longest = (pool.size() / 4).min(limits.longest as usize).max(4096) as u32;
        let depth = limits.depth.clamp(2, DEPTH_MAX);
        let in_capsule = limits.in_capsule.max(4096) / 16 * 16;
        let discoveries = limits.discoveries.min(0x1000);
        let all_controllers = limits.all_controllers.min(0xFFEF - discoveries);
        let limits = Limits { all_controllers, discoveries, depth, in_capsule, longest, ..limits };
        let (table, regions, totals) = (table.clone(), regions.clone(), Totals::default());
        Self(Arc::new(Shared { table, regions, pool, limits, totals, state: Mutex::default() }))
    }

    /// Lets a host connect to a lease, its NQN alone or with a secret; returns the NQN of the lease's subsystem.
    ///
    /// # Errors
    /// As [`BindError`] says; nothing is bound then.
    pub fn bind<'a>(
        &self,
        lease: LeaseId,
        generation: Generation,
        host: impl Into<Client<'a>>,
        now: Nanos,
    ) -> Result<String, BindError> {
        let Client { nqn: host, secret } = host.into();
        if !is_host_nqn(host) {
            return Err(BindError::HostNqn);
        }
        let ask = Namespace::access(lease, generation, Op::Read, 0, 0);
        let entry = self.gate().look(&ask, now).map_err(BindError::Lease)?;
        let region = self.0.regions.get(entry.region).ok_or(BindError::Lease(Refusal::Unknown))?;
        if entry.len < BLOCK || entry.max_io < 4096 {
            return Err(BindError::TooSmall);
        }
        let namespace = Namespace::new(&entry, region, self.0.limits.longest);
        let mut state = self.state();
        if state.subsystems.contains_key(&lease) {
            return Err(BindError::Bound);
        }
        if state.subsystems.len() >= self.0.limits.leases {
            return Err(BindError::Full);
        }
        let nqn = nqn(lease);
        let chap = secret.map(|(secret, machine)| Arc::new(Chap::new(host, &nqn, secret, machine)));
        let (host, ended) = (host.to_owned(), AtomicBool::new(false));
        state.changed(&host);
        let subsystem = Subsystem { nqn: nqn.clone(), host, chap, namespace, fused: Exclusive::default(), ended };
        state.subsystems.insert(lease, Arc::new(subsystem));
        Ok(nqn)
    }

    /// Ends a lease's subsystem: from now on every command is refused, and its connections close within a second. `None`
    /// where it was not bound.
    pub fn unbind(&self, lease: LeaseId) -> Option<Unbound> {
        let mut state = self.state();
        let subsystem = state.subsystems.remove(&lease)?;
        subsystem.ended.store(true, SeqCst);
        let of_it = |controller: &&Arc<Controller>| controller.is_of(&subsystem);
        state.controllers.values().filter(of_it).for_each(|controller| controller.lease_ended());
        state.changed(&subsystem.host);
        drop(state);
        Some(Unbound(self.0.table.quiescence()))
    }

    /// Reports every counter under its name.
    pub fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let state = self.state();
        let (leases, all) = (state.subsystems.len() as u64, state.controllers.values().cloned().collect::<Vec<_>>());
        drop(state);
        let of_leases = all.iter().filter(|controller| controller.subsystem.is_some());
        let hosts: BTreeSet<&str> = of_leases.map(|controller| controller.host.as_str()).collect();
        let queues = all.iter().map(|controller| controller.queues()).sum();
        Present { leases, controllers: all.len() as u64, hosts: hosts.len() as u64, queues }.report(visit);
        self.0.totals.report(visit);
    }

    pub(crate) fn gate(&self) -> Gate {
        Gate::new(&self.0.table, &self.0.regions)
    }

    pub(crate) fn table(&self) -> &Table {
        &self.0.table
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.0.pool
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn totals(&self) -> &Totals {
        &self.0.totals
    }

    /// The subsystem of this NQN, while its lease is bound.
    pub(crate) fn subsystem(&self, nqn: &[u8]) -> Option<Arc<Subsystem>> {
        let lease = lease_of(nqn)?;
        self.state().subsystems.get(&lease).filter(|found| found.nqn.as_bytes() == nqn).cloned()
    }

    /// The leases of a host, and when they changed last.
    pub(crate) fn leases_of(&self, host: &str) -> (u64, Vec<String>) {
        let state = self.state();
        let theirs = state.subsystems.values().filter(|subsystem| subsystem.host == host);
        let names = theirs.map(|subsystem| subsystem.nqn.clone()).collect();
        (state.changes.get(host).copied().unwrap_or(0), names)
    }

    /// The id of a new controller, which is not taken yet; `None` where there are as many as may be, or its subsystem has
    /// ended.
    pub(crate) fn controller_id(&self, subsystem: Option<&Arc<Subsystem>>) -> Option<u16> {
        let mut state = self.state();
        if !state.has_room(&self.0.limits, subsystem) {
            return None;
        }
        let ids = (state.last_id.wrapping_add(1)..=0xFFEF).chain(1..=0xFFEF);
        let id = ids.into_iter().find(|id| *id > 0 && !state.controllers.contains_key(id))?;
        state.last_id = id;
        Some(id)
    }

    /// Enters a new controller; `None` where [`Target::controller_id`] would say so now, or its id has been taken.
    pub(crate) fn enter(&self, controller: Controller) -> Option<Arc<Controller>> {
        let mut state = self.state();
        if state.controllers.contains_key(&controller.id)
            || !state.has_room(&self.0.limits, controller.subsystem.as_ref())
        {
            return None;
        }
        let controller = Arc::new(controller);
        state.controllers.insert(controller.id, controller.clone());
        Some(controller)
    }

    /// The controller with this CNTLID, until it is removed.
    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.state().controllers.get(&id).cloned()
    }

    /// A controller is over: its queues end.
    pub(crate) fn remove(&self, controller: &Controller) {
        controller.end();
        self.state().controllers.remove(&controller.id);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether there may be one more controller.
    fn has_room(&self, limits: &Limits, subsystem: Option<&Arc<Subsystem>>) -> bool {
        let of_leases = self.controllers.values().filter(|controller| controller.subsystem.is_some()).count();
        let Some(subsystem) = subsystem else { return self.controllers.len() - of_leases < limits.discoveries };
        let theirs = self.controllers.values().filter(|controller| controller.is_of(subsystem));
        of_leases < limits.all_controllers && !subsystem.has_ended() && theirs.count() < limits.controllers
    }

    /// The leases of a host are others than before.
    fn changed(&mut self, host: &str) {
        self.last_change += 1;
        let has_leases = self.subsystems.values().any(|subsystem| subsystem.host == host);
        if has_leases || !self.changes.contains_key(host) {
            self.changes.insert(host.to_owned(), self.last_change);
        } else {
            self.changes.remove(host);
        }
        let discovers = |controller: &&Arc<Controller>| controller.subsystem.is_none() && controller.host == host;
        self.controllers.values().filter(discovers).for_each(|controller| controller.leases_changed());
    }
}
