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

use crate::{
    Address, Attributes, Record, Records, Setting, Step, Switch,
    holder::holders,
    state::Slot,
    sysfs::{Sysfs, VFIO},
};

/// A VLAN that no network has: it is reserved. Where the driver refuses it, the last one is taken.
const DEAD_VLAN: u16 = 4095;

/// `IFLA_VF_LINK_STATE_AUTO` and `_DISABLE`.
const LINK_AUTO: u32 = 0;
const LINK_DOWN: u32 = 2;

/// How long the kernel may take to do what it does at once.
const AT_ONCE: Duration = Duration::from_secs(1);

/// How often is looked whether something has happened.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What all functions need of the host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) sysfs: Sysfs,
    pub(crate) switch: Box<dyn Switch>,
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
    pub(crate) mac: [u8; 6],
    pub(crate) vlan: u16,
    pub(crate) rate: u32,
    pub(crate) trust: bool,
    pub(crate) spoofchk: bool,
    /// The user and group that own the node; `None`: the node's own.
    pub(crate) owner: Option<(u32, u32)>,
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

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
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
        let interface = self.check(host)?;
        let get = |interface: &u32| host.switch.get(*interface, self.index).map_err(io_error("reading its attributes"));
        let was = interface.as_ref().map(get).transpose()?;
        let driver = host.sysfs.driver(self.address);
        let (pf, index, function) = (self.pf, self.index, self.address);
        let mut record =
            Record { pf, index, function, lease, step: Step::Unbind, was, driver: driver.filter(|had| had != VFIO) };
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
        if let Some(interface) = interface {
            self.configure(host, interface, wanted)?;
        }
        step(Step::Open)?;
        self.open(host, wanted)?;
        step(Step::Given)?;
        host.counts.given.add(1);
        Ok(())
    }

    /// What must hold before a function is anybody's; the index of the physical function's interface.
    fn check(&self, host: &Host) -> Result<Option<u32>, Failure> {
        if !self.is_there(host) {
            return Err(Failure::Gone);
        }
        let (group, alone) = host.sysfs.group(self.address).ok_or(Failure::NoGroup)?;
        if !alone {
            return Err(Failure::Group(group));
        }
        let methods = host.sysfs.read(self.address, "reset_method").unwrap_or_default();
        if !methods.split_whitespace().any(|method| method == "flr") {
            return Err(Failure::NoReset);
        }
        let held = || !holders(&host.sysfs.path("/proc"), &host.sysfs.node(&group)).is_empty();
        if host.sysfs.driver(self.address).as_deref() == Some(VFIO) && held() {
            return Err(Failure::Held);
        }
        match host.sysfs.interface(self.pf) {
            Some(interface) if !interface.up => Err(Failure::Down(interface.name)),
            interface => Ok(interface.map(|interface| interface.index)),
        }
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

    fn configure(&self, host: &Host, interface: u32, wanted: &Wanted) -> Result<(), Failure> {
        let Wanted { mac, vlan, rate, trust, spoofchk, owner: _ } = *wanted;
        let (spoofchk, trust) = (Some(spoofchk), Some(trust));
        self.adjust(
            host,
            interface,
            &Attributes { mac, vlan, qos: 0, min_rate: 0, max_rate: rate, spoofchk, trust, link_state: LINK_AUTO },
        )
    }

    /// Sets attributes where they differ, and the address and VLAN always, and looks whether they are what was set.
    fn adjust(&self, host: &Host, interface: u32, wanted: &Attributes) -> Result<(), Failure> {
        let get = || host.switch.get(interface, self.index).map_err(io_error("reading its attributes"));
        let Attributes { mac, vlan, qos, min_rate: min, max_rate: max, spoofchk, trust, link_state } = *wanted;
        let has = get()?;
        let mut settings = vec![Setting::Mac(mac), Setting::Vlan { vlan, qos }];
        // A driver that does not know of spoofed addresses lets them pass, and one that knows no trust trusts nobody.
        settings.extend(spoofchk.filter(|on| has.spoofchk.unwrap_or(false) != *on).map(Setting::SpoofChk));
        settings.extend(trust.filter(|on| has.trust.unwrap_or(false) != *on).map(Setting::Trust));
        if (has.min_rate, has.max_rate) != (min, max) {
            settings.push(Setting::Rate { min, max });
        }
        if has.link_state != link_state {
            settings.push(Setting::LinkState(link_state));
        }
        for setting in &settings {
            host.switch.set(interface, self.index, *setting).map_err(io_error("setting its attributes"))?;
        }
        let is = get()?;
        let wrong = settings.into_iter().find(|set| match *set {
            Setting::Mac(mac) => is.mac != mac,
            Setting::Vlan { vlan, qos } => (is.vlan, is.qos) != (vlan, qos),
            Setting::Rate { min, max } => (is.min_rate, is.max_rate) != (min, max),
            Setting::SpoofChk(on) => is.spoofchk.unwrap_or(false) != on,
            Setting::Trust(on) => is.trust.unwrap_or(false) != on,
            Setting::LinkState(state) => is.link_state != state,
        });
        wrong.map_or(Ok(()), |set| Err(Failure::NotSet { set, is }))
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
                match self.cut(host) {
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
        }
        host.records.remove(&record).map_err(io_error("writing down what is done"))?;
        hands.record = None;
        host.counts.taken_back.add(1);
        Ok(())
    }

    /// From now on no frame of it passes.
    fn cut(&self, host: &Host) -> Result<(), Failure> {
        let Some(interface) = host.sysfs.interface(self.pf) else { return Ok(()) };
        let set = |setting| host.switch.set(interface.index, self.index, setting);
        let down = set(Setting::LinkState(LINK_DOWN));
        // Not every driver can take the link down, and on some a function that is deaf still sends.
        let vlan = |vlan| set(Setting::Vlan { vlan, qos: 0 });
        let dead = vlan(DEAD_VLAN).or_else(|_| vlan(DEAD_VLAN - 1));
        down.or(dead).map_err(io_error("link state and VLAN"))
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

    /// Its attributes and driver become what they were, but that it is not trusted, and its address is checked.
    fn restore(&self, host: &Host, record: &Record) -> Result<(), Failure> {
        if let (Some(interface), Some(was)) = (host.sysfs.interface(self.pf), record.was) {
            let is = host.switch.get(interface.index, self.index).map_err(io_error("reading its attributes"))?;
            // An address that is zero would leave it unchecked.
            let mac = if was.mac == [0; 6] { is.mac } else { was.mac };
            let spoofchk = is.spoofchk.map(|_| true);
            self.adjust(host, interface.index, &Attributes { mac, spoofchk, trust: Some(false), ..was })?;
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
