//! One virtual function: handing it over, step by step, and taking it back.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt as _, chown},
    process::Child,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use berth_lease::LeaseId;

use berth_wire::nvme;

use crate::{
    Address, Admin, Attributes, Record, Records, Setting, Step, Switch,
    holder::holders,
    net, nvme as controller,
    state::Slot,
    sysfs::{Sysfs, VFIO},
};

/// How long the kernel may take to do what it does at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How often is looked whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What all functions need of the host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) sysfs: Sysfs,
    pub(crate) switch: Box<dyn Switch>,
    pub(crate) admin: Box<dyn Admin>,
    pub(crate) records: Box<dyn Records>,
    /// Whether holders that do not let go are ended.
    pub(crate) kill: bool,
    /// How long a holder may take to let go when it is asked, or ended.
    pub(crate) patience: Duration,
    /// How long a function takes to reset.
    pub(crate) reset: Duration,
    pub(crate) counts: Counts,
}

berth_port::counters! {
    pub(crate) struct Counts of Count {
        given = sriov_given: "virtual functions that were handed over",
        taken_back = sriov_taken_back: "virtual functions that were taken back, reset and restored",
        give_failed = sriov_give_failed: "virtual functions that could not be handed over",
        fenced = sriov_fenced: "times that a virtual function could not be taken back in time",
        cut_failed = sriov_cut_failed: "times that a virtual function could not be cut off at its physical one",
        reset_failed = sriov_reset_failed: "resets of virtual functions that failed",
        killed = sriov_killed: "processes that were ended because they held a virtual function",
        lost = sriov_lost: "virtual functions that were gone while somebody had them",
    }
}

/// What a holder gets.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) setup: Setup,
    /// The user and group that own the node; `None`: the node's own.
    pub(crate) owner: Option<(u32, u32)>,
}

/// How a function is set up at its physical one.
#[derive(Debug, Clone)]
pub(crate) enum Setup {
    Net(net::Wanted),
    Nvme(controller::Wanted),
}

/// Why a function was not handed over or taken back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("it is not there any more")]
    Gone,
    #[error("IOMMU group {0} has other devices too")]
    Group(String),
    #[error("it is in no IOMMU group")]
    NoGroup,
    #[error("its reset_method has no flr")]
    NoReset,
    #[error("interface {0} of its physical function is down: ip link set {0} up")]
    Down(String),
    #[error("a process outside of Berth has it open")]
    Held,
    #[error("no driver has the controller of its physical function")]
    NoController,
    #[error("the controller has no secondary one for it")]
    NoSecondary,
    #[error("the controller has no {0}")]
    Lacks(&'static str),
    #[error("controller {0} is online, and not by Berth: nvme virt-mgmt -c {0} -a 7 takes it offline")]
    Online(u16),
    #[error("namespace {namespace} is attached to controller {controller}, too")]
    Attached { namespace: u32, controller: u16 },
    #[error(
        "its controller {controller} has namespace {namespace}, too, which its holder would have: nvme detach-ns -n {namespace} \
         -c {controller}"
    )]
    Has { controller: u16, namespace: u32 },
    #[error("{what}: {status:?}")]
    Refuses { what: &'static str, status: nvme::Status },
    #[error("it is being taken back")]
    Overtaken,
    #[error("{driver} does not let it go")]
    Clinging { driver: &'static str },
    #[error("vfio-pci does not take it")]
    Refused,
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    #[error("set {set:?}, and the driver says {is:?}")]
    NotSet { set: Setting, is: Attributes },
}

pub(crate) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |source| Failure::Io { what, source }
}

/// A virtual function of a pool.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) pf: Address,
    pub(crate) index: u16,
    pub(crate) address: Address,
    slot: Mutex<Slot>,
    /// What whoever works on the hardware knows; one at a time.
    hands: Mutex<Hands>,
}

#[derive(Debug, Default)]
struct Hands {
    record: Option<Record>,
    /// What takes it from vfio-pci, and waits for the holder.
    unbinding: Option<Child>,
    /// It was cut off since it was handed over.
    cut: bool,
}

impl Function {
    /// A function, and what was known of it when the last process ended.
    pub(crate) fn new(pf: Address, index: u16, address: Address, record: Option<Record>) -> Self {
        let slot = record.as_ref().map_or_else(Slot::default, |record| Slot::unclean(record.lease));
        let hands = Hands { record, ..Hands::default() };
        Self { pf, index, address, slot: Mutex::new(slot), hands: Mutex::new(hands) }
    }

    pub(crate) fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the kernel still has it where it was.
    pub(crate) fn is_there(&self, host: &Host) -> bool {
        host.sysfs.virtual_function(self.pf, self.index) == Some(self.address)
    }

    /// Whether a holder that had it before a restart has it still, untouched.
    pub(crate) fn is_given(&self, host: &Host) -> bool {
        let hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner);
        hands.record.as_ref().is_some_and(|record| record.step == Step::Given)
            && self.is_there(host)
            && host.sysfs.driver(self.address).as_deref() == Some(VFIO)
    }

    /// Hands it over, unless it was called back since `turn`. What it was is kept until it is taken back.
    pub(crate) fn give(&self, host: &Host, lease: LeaseId, turn: u64, wanted: &Wanted) -> Result<(), Failure> {
        let mut hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner);
        self.check(host)?;
        let (pf, index, function) = (self.pf, self.index, self.address);
        let (was, namespace) = match &wanted.setup {
            Setup::Net(_) => (net::check(host, pf, index)?, None),
            Setup::Nvme(wanted) => {
                controller::check(host, pf, index, *wanted)?;
                (None, Some(wanted.namespace))
            }
        };
        let driver = host.sysfs.driver(self.address).filter(|had| had != VFIO);
        let mut record = Record { pf, index, function, lease, step: Step::Unbind, was, namespace, driver };
        hands.cut = false;
        let mut step = |step| {
            if !self.slot().is_turn(turn) {
                return Err(Failure::Overtaken);
            }
            record.step = step;
            hands.record = Some(record.clone());
            host.records.write(&record).map_err(io_error("writing down what is done"))
        };
        step(Step::Unbind)?;
        self.write(host, "driver_override", VFIO)?;
        if host.sysfs.driver(self.address).is_some() {
            self.write(host, "driver/unbind", &self.address.to_string())?;
        }
        step(Step::Reset)?;
        self.reset(host)?;
        step(Step::Configure)?;
        match &wanted.setup {
            Setup::Net(wanted) => net::configure(host, pf, index, wanted)?,
            Setup::Nvme(wanted) => controller::configure(host, pf, index, *wanted)?,
        }
        step(Step::Open)?;
        self.open(host, wanted)?;
        step(Step::Given)?;
        host.counts.given.add(1);
        Ok(())
    }

    /// What must hold before a function is anybody's.
    fn check(&self, host: &Host) -> Result<(), Failure> {
        if !self.is_there(host) {
            return Err(Failure::Gone);
        }
        let (group, alone) = host.sysfs.group(self.address).ok_or(Failure::NoGroup)?;
        if !alone {
            return Err(Failure::Group(group));
        }
        if !host.sysfs.has_flr(self.address) {
            return Err(Failure::NoReset);
        }
        let held = || !holders(&host.sysfs.path("/proc"), &host.sysfs.node(&group)).is_empty();
        if host.sysfs.driver(self.address).as_deref() == Some(VFIO) && held() {
            return Err(Failure::Held);
        }
        Ok(())
    }

    fn write(&self, host: &Host, name: &'static str, value: &str) -> Result<(), Failure> {
        host.sysfs.write(self.address, name, value).map_err(io_error(name))
    }

    /// Stale state of queues and mailboxes would keep the next holder's link down.
    fn reset(&self, host: &Host) -> Result<(), Failure> {
        self.write(host, "reset", "1").inspect_err(|_| host.counts.reset_failed.add(1))?;
        thread::sleep(host.reset);
        Ok(())
    }

    /// Binds it to vfio-pci, and gives its node to the user.
    fn open(&self, host: &Host, wanted: &Wanted) -> Result<(), Failure> {
        host.sysfs.write_bus("drivers_probe", &self.address.to_string()).map_err(io_error("drivers_probe"))?;
        let (group, _) = host.sysfs.group(self.address).ok_or(Failure::NoGroup)?;
        let node = host.sysfs.node(&group);
        if !until(AT_ONCE, || host.sysfs.driver(self.address).as_deref() == Some(VFIO) && node.exists()) {
            return Err(Failure::Refused);
        }
        let (user, others) = (wanted.owner, Permissions::from_mode(0o600));
        let given = user.map_or(Ok(()), |(uid, gid)| chown(&node, Some(uid), Some(gid)));
        given.and_then(|()| fs::set_permissions(&node, others)).map_err(io_error("giving its node to its owner"))
    }

    /// Takes it back. `patient`: its holder gets the time to let go; otherwise it had it.
    pub(crate) fn take_back(&self, host: &Host, patient: bool) -> Result<(), Failure> {
        let mut hands = self.hands.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut record) = hands.record.clone() else { return Ok(()) };
        let step = |record: &mut Record, hands: &mut Hands, step| {
            record.step = step;
            hands.record = Some(record.clone());
            host.records.write(record).map_err(io_error("writing down what is done"))
        };
        if self.is_there(host) {
            if !hands.cut {
                step(&mut record, &mut hands, Step::Cut)?;
                match self.cut(host, &record) {
                    Ok(()) => hands.cut = true,
                    // Its holder is to lose it all the same.
                    Err(error) => {
                        host.counts.cut_failed.add(1);
                        tracing::warn!("virtual function {} is not cut off: {error}", self.address);
                    }
                }
                step(&mut record, &mut hands, Step::TakeBack)?;
            }
            self.unbind(host, &mut hands, patient)?;
            step(&mut record, &mut hands, Step::Clean)?;
            self.write(host, "driver_override", "\n")?;
            if host.sysfs.driver(self.address).is_none() {
                self.reset(host)?;
            }
            step(&mut record, &mut hands, Step::Restore)?;
            self.restore(host, &record)?;
        } else if let Some(namespace) = record.namespace {
            // The controller of a function that is gone still has it.
            controller::restore(host, self.pf, self.index, namespace)?;
        }
        host.records.remove(&record).map_err(io_error("writing down what is done"))?;
        hands.record = None;
        host.counts.taken_back.add(1);
        Ok(())
    }

    /// From now on it reaches nothing outside of its holder.
    fn cut(&self, host: &Host, record: &Record) -> Result<(), Failure> {
        match record.namespace {
            Some(_) => controller::cut(host, self.pf, self.index),
            None => net::cut(host, self.pf, self.index),
        }
    }

    /// Takes it from vfio-pci, which asks the holder for it; ends the holder where that is the policy.
    fn unbind(&self, host: &Host, hands: &mut Hands, patient: bool) -> Result<(), Failure> {
        let group = host.sysfs.group(self.address).map(|(group, _)| group);
        // The link to the driver goes at once, the group when the holder has let go.
        let bound = || {
            let registered =
                group.as_ref().is_some_and(|group| host.sysfs.path("/sys/class/vfio").join(group).exists());
            registered || host.sysfs.driver(self.address).as_deref() == Some(VFIO)
        };
        if hands.unbinding.is_none() && bound() {
            hands.unbinding = Some(host.sysfs.begin_unbind(self.address).map_err(io_error("unbind"))?);
        }
        let Some(unbinding) = &mut hands.unbinding else { return Ok(()) };
        let mut ended = |time| until(time, || !matches!(unbinding.try_wait(), Ok(None)));
        let patience = if patient { host.patience } else { Duration::ZERO };
        let mut over = ended(patience);
        if !over && host.kill {
            let node = group.as_ref().map(|group| host.sysfs.node(group));
            let holders = node.iter().flat_map(|node| {
                holders(&host.sysfs.path("/proc"), node).into_iter().filter(|holder| holder.kill(node))
            });
            for holder in holders {
                tracing::warn!("process {} is ended: it does not let go of {}", holder.pid, self.address);
                host.counts.killed.add(1);
            }
            over = ended(host.patience);
        }
        if over {
            hands.unbinding = None;
        }
        if over && until(AT_ONCE, || !bound()) { Ok(()) } else { Err(Failure::Clinging { driver: VFIO }) }
    }

    /// It becomes what it was. The controller of an NVMe function stays offline, and no driver gets it.
    fn restore(&self, host: &Host, record: &Record) -> Result<(), Failure> {
        if let Some(namespace) = record.namespace {
            return controller::restore(host, self.pf, self.index, namespace);
        }
        if let Some(was) = &record.was {
            net::restore(host, self.pf, self.index, was)?;
        }
        let driver = record.driver.as_ref().filter(|_| host.sysfs.driver(self.address).is_none());
        let Some(driver) = driver else { return Ok(()) };
        let bind = format!("drivers/{driver}/bind");
        host.sysfs.write_bus(&bind, &self.address.to_string()).map_err(io_error("giving it back to its driver"))
    }
}

/// Waits until something is so; false where it is not within this time.
pub(crate) fn until(time: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    loop {
        if is_so() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
}
