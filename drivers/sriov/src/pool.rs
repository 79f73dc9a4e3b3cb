//! Pools: the virtual functions of a physical one, as the kernel has them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use berth_fabric::{BlockingWork, Resource, Stock, TeardownFailed};
use berth_lease::{Item, LeaseId, Leases};
use berth_port::Tables;
use berth_wire::{
    fabric::{ResourceType, Status},
    net::MacAddr,
};

use crate::{
    Address, Admin, Driver, Files, Record, Records, Rtnetlink, State, Switch,
    binding::SriovBinding,
    function::{Counts, Failure, Function, Host, until},
    nvme,
    sysfs::Sysfs,
};

/// What a pool consists of, and what its functions are let do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// Its name, as of other regions.
    pub name: String,
    /// The physical function.
    pub pf: Address,
    /// How many virtual functions; `None`: as many as there are.
    pub count: Option<u16>,
    /// The user that gets their nodes, by name or number; `None`: the node's own.
    pub owner: Option<String>,
    /// What their card is.
    pub card: Card,
}

/// What the functions of a pool are of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Card {
    /// A network card.
    Network(Network),
    /// An NVMe controller.
    Nvme {
        /// The namespace of the first; each further one has the next.
        namespace: u32,
    },
}

/// What functions of a network card are let do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// The address of the first; each further one has the next. `None`: one is drawn for each holder.
    pub mac: Option<MacAddr>,
    /// Their VLAN; 0 is none.
    pub vlan: u16,
    /// What each may send, in Mbit/s; 0 is without limit.
    pub rate: u32,
    /// Whether they may change their address and listen to everything.
    pub trust: bool,
    /// Whether only frames of their own address leave.
    pub spoofchk: bool,
    /// What holders may say themselves.
    pub client: ClientSets,
}

/// What holders of functions may choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientSets {
    /// Their MAC address; without this a LEASE_BIND that names one is refused.
    pub mac: bool,
    /// Their VLAN, 4094 at most; without this a LEASE_BIND that names one is refused.
    pub vlan: bool,
}

/// How functions are taken back, and where the machine is: what tests replace.
#[derive(Debug)]
pub struct HostConfig {
    /// Below this are `/sys`, `/dev`, `/proc` and `/etc`; `/` on a real machine.
    pub root: PathBuf,
    /// What reads and sets attributes of functions.
    pub switch: Box<dyn Switch>,
    /// What tells NVMe controllers what to do with functions.
    pub admin: Box<dyn Admin>,
    /// Where is kept what was done to functions.
    pub records: Box<dyn Records>,
    /// Whether holders that do not let go within `patience` get SIGKILL.
    pub kill: bool,
    /// How long a holder may take to let go when it is asked, and again when it is killed.
    pub patience: Duration,
    /// How long a function takes to reset: 100 ms by the PCIe base specification, 6.6.2.
    pub reset: Duration,
}

impl HostConfig {
    /// This machine: records in `sriov` below `state_dir`, which is made where it is not there, 2 s of patience.
    pub fn new(state_dir: &Path, kill: bool) -> io::Result<Self> {
        Ok(Self {
            root: "/".into(),
            switch: Box::new(Rtnetlink),
            admin: Box::new(Driver),
            records: Box::new(Files::open(state_dir.join("sriov"))?),
            kill,
            patience: Duration::from_secs(2),
            // PCIe base specification, 6.6.2.
            reset: Duration::from_millis(100),
        })
    }
}

/// Why a pool cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The physical function is not there, or has no virtual ones (`sriov_totalvfs`).
    #[error("region {0}: {1} has no sriov_totalvfs: it is not there, or has no virtual functions")]
    NoSriov(String, Address),
    /// More functions are asked for than `sriov_totalvfs` says, which is the last field.
    #[error("region {0}: {1} has {2} virtual functions at most")]
    TooMany(String, Address, u32),
    /// There are none, and the pool does not say how many are wanted.
    #[error("region {0}: {1} has no virtual functions now; give the region a count")]
    None(String, Address),
    /// There is another number of them, and some are in use.
    #[error("region {name}: {pf} has {has} virtual functions, and {user} is in use; let it go, or set count = {has}")]
    InUse {
        /// The pool's name.
        name: String,
        /// The physical function.
        pf: Address,
        /// How many there are.
        has: u32,
        /// One that is in use: a driver has it.
        user: Address,
    },
    /// A pool of a network card's functions whose card is none.
    #[error("region {0}: {1} is an NVMe controller; give the region namespace = N, that of its first function")]
    IsNvme(String, Address),
    /// A pool of an NVMe controller's functions whose card is none.
    #[error("region {0}: {1} is no NVMe controller; leave namespace out")]
    NoNvme(String, Address),
    /// The controller cannot be shared as it has to be.
    #[error("region {0}: {1}: {2}")]
    Controller(String, Address, String),
    /// There is no such user in `/etc/passwd`.
    #[error("region {0}: there is no user {1:?}")]
    Owner(String, String),
    /// The kernel did not do something.
    #[error("region {0}: {1}")]
    Io(String, io::Error),
    /// The records cannot be read.
    #[error("records of virtual functions: {0}")]
    Records(io::Error),
}

/// Pools, and what connects leases of them.
#[derive(Debug)]
pub struct Opened {
    /// The pools, as resources of the node.
    pub pools: Vec<Box<dyn Resource>>,
    /// LEASE_BIND of all of them.
    pub binding: SriovBinding,
}

/// Opens pools: makes their functions where they are not there.
pub fn open(pools: Vec<PoolConfig>, host: HostConfig) -> Result<Opened, OpenError> {
    let HostConfig { root, switch, admin, records, kill, patience, reset } = host;
    let mut known = records.read().map_err(OpenError::Records)?;
    let (sysfs, counts) = (Sysfs::new(&root), Counts::default());
    let host = Arc::new(Host { sysfs, switch, admin, records, kill, patience, reset, counts });
    let pools = pools.into_iter().map(|config| Pool::open(config, &host, &mut known).map(Arc::new));
    let pools = pools.collect::<Result<Vec<_>, _>>()?;
    for record in known {
        tracing::warn!("virtual function {} is of no region any more, and stays as it is", record.function);
    }
    let resource = |pool: &Arc<Pool>| Box::new(Leased(pool.clone())) as Box<dyn Resource>;
    Ok(Opened { pools: pools.iter().map(resource).collect(), binding: SriovBinding::new(pools, host) })
}

/// The functions of one physical function.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) config: PoolConfig,
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) functions: Vec<Arc<Function>>,
    pub(crate) host: Arc<Host>,
}

impl Pool {
    fn open(config: PoolConfig, host: &Arc<Host>, known: &mut Vec<Record>) -> Result<Self, OpenError> {
        let (name, pf) = (config.name.clone(), config.pf);
        let user = |user: &String| host.sysfs.user(user).ok_or_else(|| OpenError::Owner(name.clone(), user.clone()));
        let owner = config.owner.as_ref().map(user).transpose()?;
        let total = host.sysfs.number(pf, "sriov_totalvfs").filter(|total| *total > 0);
        let total = total.ok_or_else(|| OpenError::NoSriov(name.clone(), pf))?;
        let has = host.sysfs.number(pf, "sriov_numvfs").unwrap_or(0);
        let count = config.count.map_or(has, u32::from);
        match (count, config.count) {
            (0, _) => return Err(OpenError::None(name, pf)),
            (count, _) if count > total => return Err(OpenError::TooMany(name, pf, total)),
            _ => {}
        }
        let is_nvme = host.sysfs.is_nvme(pf);
        match (&config.card, is_nvme) {
            (Card::Network(_), true) => return Err(OpenError::IsNvme(name, pf)),
            (Card::Nvme { .. }, false) => return Err(OpenError::NoNvme(name, pf)),
            (Card::Network(_), false) => {}
            (Card::Nvme { .. }, true) => nvme::unfit(host, pf).map_err(unfit(&name, pf))?,
        }
        if count != has {
            make(host, &name, pf, has, count, is_nvme)?;
        }
        let function = |index| {
            let address = host.sysfs.virtual_function(pf, index);
            let record = known.iter().position(|record| (record.pf, record.index) == (pf, index));
            let record = record.map(|at| known.swap_remove(at));
            // One that is not there is listed where it was; it may come back.
            let address = address.or(record.as_ref().map(|record| record.function))?;
            Some(Arc::new(Function::new(pf, index, address, record)))
        };
        let functions: Vec<_> = (0..count as u16).filter_map(function).collect();
        Ok(Self { config, owner, functions, host: host.clone() })
    }

    /// The function that a lease has.
    pub(crate) fn of(&self, lease: LeaseId) -> Option<&Arc<Function>> {
        self.functions.iter().find(|function| function.slot().is_of(lease))
    }

    /// What takes back what was handed over for a lease; `None` where it is clean.
    pub(crate) fn take_back(
        &self,
        function: &Arc<Function>,
        patient: bool,
    ) -> Result<Option<BlockingWork>, TeardownFailed> {
        let mut slot = function.slot();
        let Some(turn) = slot.end() else {
            return if slot.state() == State::Ending { Err(TeardownFailed) } else { Ok(None) };
        };
        let (function, host) = (function.clone(), self.host.clone());
        Ok(Some(BlockingWork::new(move || take_back(&function, &host, turn, patient))))
    }
}

/// Takes a function back, and says how that ended.
pub(crate) fn take_back(function: &Function, host: &Host, turn: u64, patient: bool) {
    let taken = function.take_back(host, patient);
    if let Err(error) = &taken {
        host.counts.fenced.add(u64::from(patient));
        if patient {
            tracing::error!("virtual function {} is fenced: {error}", function.address);
        }
    }
    function.slot().ended(turn, taken.is_ok());
}

fn unfit(name: &str, pf: Address) -> impl FnOnce(Failure) -> OpenError {
    move |failure| OpenError::Controller(name.to_owned(), pf, failure.to_string())
}

/// Makes `count` functions where there are `has`, of which none may be in use.
fn make(host: &Host, name: &str, pf: Address, has: u32, count: u32, is_nvme: bool) -> Result<(), OpenError> {
    let functions = (0..has as u16).filter_map(|index| host.sysfs.virtual_function(pf, index));
    let user = functions.into_iter().find(|function| host.sysfs.driver(*function).is_some());
    if let Some(user) = user {
        return Err(OpenError::InUse { name: name.to_owned(), pf, has, user });
    }
    let write =
        |file, value: &str| host.sysfs.write(pf, file, value).map_err(|error| OpenError::Io(name.to_owned(), error));
    // Before there are any, or drivers of this host take them.
    write("sriov_drivers_autoprobe", "0")?;
    if has > 0 {
        write("sriov_numvfs", "0")?;
    }
    if is_nvme {
        nvme::share_out(host, pf).map_err(unfit(name, pf))?;
    }
    write("sriov_numvfs", &count.to_string())?;
    let all = || (0..count as u16).all(|index| host.sysfs.virtual_function(pf, index).is_some());
    if until(Duration::from_secs(5), all) {
        return Ok(());
    }
    let missing = io::Error::new(io::ErrorKind::NotFound, format!("{pf} did not make {count} virtual functions"));
    Err(OpenError::Io(name.to_owned(), missing))
}

/// A pool as a resource of units.
#[derive(Debug)]
struct Leased(Arc<Pool>);

impl Resource for Leased {
    fn kind(&self) -> ResourceType {
        ResourceType::Net
    }

    fn name(&self) -> &str {
        &self.0.config.name
    }

    /// In functions.
    fn stock(&self, _: &Leases) -> Stock {
        let of = |wanted| self.0.functions.iter().filter(move |function| function.slot().state() == wanted);
        let free = of(State::Free).filter(|function| function.is_there(&self.0.host)).count();
        let (fenced, capacity) = (of(State::Fenced).count(), self.0.functions.len());
        Stock { capacity: capacity as u64, available: free as u64, fenced: capacity > 0 && fenced == capacity }
    }

    fn counts_as(&self) -> Option<Item> {
        Some(Item::Functions)
    }

    /// The unit is the function's index, as u16, and its address as text.
    fn grant(&mut self, lease: LeaseId, _: &[u8]) -> Result<Vec<u8>, Status> {
        let there = |function: &&Arc<Function>| function.is_there(&self.0.host);
        let granted = self.0.functions.iter().filter(there).find(|function| function.slot().grant(lease));
        granted.map(|function| unit(function)).ok_or(Status::CapacityExceeded)
    }

    fn end(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let Some(function) = self.0.of(lease) else { return Ok(None) };
        // One whose binding was torn down is clean.
        let work = self.0.take_back(function, true)?;
        if work.is_none() {
            function.slot().release();
        }
        Ok(work)
    }

    fn ended(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        let function = self.0.of(lease);
        if function.is_none_or(|function| function.slot().release()) { Ok(()) } else { Err(TeardownFailed) }
    }

    fn recover(&mut self, lease: LeaseId, its: &[u8]) -> bool {
        let function = self.0.functions.iter().find(|function| unit(function) == its);
        function.is_some_and(|function| function.slot().recover(lease))
    }
}

fn unit(function: &Function) -> Vec<u8> {
    [&function.index.to_be_bytes()[..], function.address.to_string().as_bytes()].concat()
}

/// What bindings of functions count.
pub const COUNTERS: Tables = &[Counts::TABLE, crate::binding::STATES];
