//! Pools and bindings, against a tree like a card's and a thread that does what the kernel does to it.

#[path = "function/controller.rs"]
mod controller;
#[path = "function/crash.rs"]
mod crash;
#[path = "function/fake.rs"]
mod fake;
#[path = "function/nvme.rs"]
mod nvme;

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    process::{Child, Command},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use berth_fabric::{Binding as _, BlockingWork, BoundLease, Reach, Resource, TeardownFailed};
use berth_lease::{Config, Generation, LeaseId, Leases, Regions, Rights};
use berth_port::Nanos;
use berth_sriov::{
    Card, ClientSets, Files, HostConfig, Network, OpenError, PoolConfig, Records, Setting, SriovBinding, open,
};
use berth_wire::{
    fabric::{BindingTlv, ClientTlv, Status, Tlvs, Wire as _},
    net::MacAddr,
};
use fake::{Machine, fresh, pf, vf, wait};

const ANN: LeaseId = LeaseId(1);
const BOB: LeaseId = LeaseId(2);

fn config() -> PoolConfig {
    PoolConfig { name: "vfs".into(), pf: pf(), count: Some(2), owner: None, card: Card::Network(network()) }
}

fn network() -> Network {
    let client = ClientSets { mac: true, vlan: true };
    Network { mac: None, vlan: 0, rate: 0, trust: false, spoofchk: true, client }
}

/// A node of one pool, without the node.
struct Pool {
    resource: Box<dyn Resource>,
    binding: SriovBinding,
    leases: Leases,
    now: u64,
}

fn host(machine: &Machine, kill: bool, records: Box<dyn Records>) -> HostConfig {
    HostConfig {
        root: machine.root().into(),
        switch: Box::new(machine.switch.clone()),
        admin: Box::new(machine.controller.clone()),
        records,
        kill,
        patience: Duration::from_millis(300),
        reset: Duration::ZERO,
    }
}

fn files(machine: &Machine) -> Files {
    Files::open(machine.root().join("state")).unwrap()
}

impl Pool {
    fn try_open(machine: &Machine, config: PoolConfig, kill: bool) -> Result<Self, OpenError> {
        Self::with(host(machine, kill, Box::new(files(machine))), config)
    }

    fn with(host: HostConfig, config: PoolConfig) -> Result<Self, OpenError> {
        let mut opened = open(vec![config], host)?;
        let leases = Leases::new(Config::default(), Regions::new(Vec::new()));
        Ok(Self { resource: opened.pools.remove(0), binding: opened.binding, leases, now: 0 })
    }

    fn open(machine: &Machine) -> Self {
        Self::try_open(machine, config(), false).unwrap()
    }

    fn free(&self) -> u64 {
        self.resource.stock(&self.leases).available
    }

    fn bind(&mut self, lease: LeaseId, client: &[ClientTlv<'_>]) -> Result<Vec<u8>, Status> {
        let mut tlvs = Vec::new();
        for tlv in client {
            tlv.write(&mut tlvs);
        }
        let client = Tlvs::parse(&tlvs).unwrap();
        let bound = BoundLease {
            id: lease,
            generation: Generation::FIRST,
            rights: Rights::NONE,
            reach: Reach::Unit,
            secret: None,
        };
        self.binding.prepare(&bound, client)?.expect("it takes time").run();
        let mut out = Vec::new();
        self.binding.bind(&bound, client, &mut out).map(|()| out)
    }

    /// As the node does it: work, and then what follows.
    fn teardown(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        self.binding.teardown(lease)?.into_iter().for_each(BlockingWork::run);
        self.binding.torn_down(lease)
    }

    fn end(&mut self, lease: LeaseId) -> Result<(), TeardownFailed> {
        match self.resource.end(lease)? {
            Some(work) => {
                work.run();
                self.resource.ended(lease)
            }
            None => Ok(()),
        }
    }

    /// Ticks until the leases of functions that were taken back, or are lost, are told.
    fn lost(&mut self) -> Vec<LeaseId> {
        let mut lost = Vec::new();
        for _ in 0..100 {
            self.now += 1_000_000_000;
            self.binding.tick(Nanos(self.now), &mut lost);
            if !lost.is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(30));
        }
        lost
    }

    fn count(&self, wanted: &str) -> u64 {
        let mut found = None;
        self.binding.counters(&mut |name, count| {
            if name == wanted {
                found = Some(count);
            }
        });
        found.expect("a counter")
    }
}

/// A process that has a function open.
fn holder(machine: &Machine, index: u16) -> Child {
    let child = Command::new("sleep").arg("1000").stdin(File::open(machine.node(index)).unwrap()).spawn().unwrap();
    machine.kernel.openers.lock().unwrap().push(child.id());
    child
}

fn records(machine: &Machine) -> usize {
    fs::read_dir(machine.root().join("state")).unwrap().count()
}

/// What a function is that nobody has.
fn assert_clean(machine: &Machine, index: u16) {
    let has = machine.switch.of(index);
    assert_eq!((has.trust, has.spoofchk, has.vlan, has.link_state), (Some(false), Some(true), 0, 0));
    assert_eq!(machine.driver(index), None);
    assert_eq!(fs::read_to_string(machine.device(index, "driver_override")).unwrap(), "\n");
    assert!(!machine.node(index).exists());
}

#[test]
fn a_function_is_granted_handed_over_and_taken_back() {
    let machine = Machine::new();
    let card = Card::Network(Network { rate: 500, trust: true, vlan: 7, ..network() });
    let config = PoolConfig { owner: Some("tenant".into()), card, ..config() };
    let mut pool = Pool::try_open(&machine, config, false).unwrap();
    assert_eq!(*machine.kernel.log.lock().unwrap(), ["numvfs 2 autoprobe 0"]);
    assert_eq!(pool.resource.stock(&pool.leases).capacity, 2);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.resource.grant(BOB, &[]).unwrap();
    assert_eq!(pool.resource.grant(LeaseId(3), &[]), Err(Status::CapacityExceeded));
    assert_eq!((pool.free(), machine.driver(0)), (0, None), "nobody has it before LEASE_BIND");

    let mac = [2, 0, 0, 0, 0x10, 1];
    let tlvs = pool.bind(ANN, &[ClientTlv::VfMac(mac), ClientTlv::VfVlan(42)]).unwrap();
    let mut wanted = Vec::new();
    BindingTlv::SrIovVf(vf(0).into()).write(&mut wanted);
    BindingTlv::SrIovVfIndex(0).write(&mut wanted);
    BindingTlv::SrIovPf(pf().into()).write(&mut wanted);
    assert_eq!(tlvs, wanted);
    let has = machine.switch.of(0);
    assert_eq!((has.mac, has.vlan, has.max_rate, has.trust, has.spoofchk), (mac, 42, 500, Some(true), Some(true)));
    assert_eq!((machine.driver(0).as_deref(), machine.resets(0)), (Some("vfio-pci"), 1));
    let node = fs::metadata(machine.node(0)).unwrap();
    assert_eq!((node.uid(), node.gid(), node.permissions().mode() & 0o777), (1234, 1235, 0o600));
    assert_eq!((records(&machine), pool.count("sriov_bound"), pool.count("sriov_leased")), (1, 1, 1));

    let log = machine.switch.inside().log.len();
    pool.teardown(ANN).unwrap();
    let cut = machine.switch.inside().log[log..log + 2].to_vec();
    assert_eq!(cut, [(0, Setting::LinkState(2)), (0, Setting::Vlan { vlan: 4095, qos: 0 })], "first it is cut off");
    assert_clean(&machine, 0);
    assert_eq!(machine.switch.of(0).mac, mac, "an address of zero would leave it unchecked");
    assert_eq!((machine.resets(0), records(&machine), pool.free()), (2, 0, 0), "its lease still has it");
    pool.end(ANN).unwrap();
    pool.end(BOB).unwrap();
    assert_eq!((pool.free(), pool.count("sriov_taken_back"), machine.resets(1)), (2, 1, 0));
}

#[test]
fn what_a_client_may_ask_for_is_the_pools() {
    let machine = Machine::new();
    let first = [2, 0, 0, 0, 0, 0xFF];
    let (client, first) = (ClientSets::default(), Some(MacAddr(first)));
    let strict = PoolConfig { card: Card::Network(Network { client, mac: first, vlan: 9, ..network() }), ..config() };
    let mut pool = Pool::try_open(&machine, strict, false).unwrap();
    for lease in [ANN, BOB] {
        pool.resource.grant(lease, &[]).unwrap();
    }
    for tlv in [ClientTlv::VfMac([2; 6]), ClientTlv::VfVlan(0)] {
        assert_eq!(pool.bind(BOB, &[tlv]), Err(Status::InsufficientPerm));
    }
    pool.bind(BOB, &[]).unwrap();
    assert_eq!((machine.switch.of(1).mac, machine.switch.of(1).vlan), ([2, 0, 0, 0, 1, 0], 9));
    assert_eq!(pool.bind(BOB, &[]), Err(Status::ResourceBusy), "it is torn down first");
    assert_eq!(pool.bind(LeaseId(3), &[]), Err(Status::UnsupportedOp), "a lease of something else");
    pool.teardown(BOB).unwrap();
    drop(pool);

    let mut pool = Pool::open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    for tlv in [ClientTlv::VfMac([0; 6]), ClientTlv::VfMac([1, 0, 0, 0, 0, 1]), ClientTlv::VfVlan(4095)] {
        assert_eq!(pool.bind(ANN, &[tlv]), Err(Status::InvalidParams));
    }
    pool.bind(ANN, &[]).unwrap();
    let mac = machine.switch.of(0).mac;
    assert_eq!((mac[0] & 3, mac[1..] == [0; 5]), (2, false), "one is drawn, of this site's own: {mac:x?}");
}

#[test]
fn a_pool_makes_its_functions_or_says_why_not() {
    let machine = Machine::new();
    let open = |count| Pool::try_open(&machine, PoolConfig { count, ..config() }, false).map(|pool| pool.free());
    assert!(matches!(open(None), Err(OpenError::None(..))));
    assert!(matches!(open(Some(8)), Err(OpenError::TooMany(_, _, 7))));
    assert_eq!(open(Some(2)).unwrap(), 2);
    assert_eq!(open(None).unwrap(), 2, "as many as there are");
    assert_eq!(open(Some(3)).unwrap(), 3);
    let log = machine.kernel.log.lock().unwrap().clone();
    assert_eq!(log.last().unwrap(), "numvfs 3 autoprobe 0");
    machine.bind_igbvf(1);
    let Err(OpenError::InUse { has, user, .. }) = open(Some(2)) else { panic!("it is in use") };
    assert_eq!((has, user), (3, vf(1)));
    let unknown = PoolConfig { owner: Some("nobody-here".into()), ..config() };
    assert!(matches!(Pool::try_open(&machine, unknown, false), Err(OpenError::Owner(..))));
    let elsewhere = PoolConfig { pf: vf(6), ..config() };
    assert!(matches!(Pool::try_open(&machine, elsewhere, false), Err(OpenError::NoSriov(..))));
}

#[test]
fn a_holder_that_clings_fences_the_function_until_it_lets_go() {
    let machine = Machine::new();
    let mut pool = Pool::open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    machine.hold(0, true);
    let begun = Instant::now();
    assert_eq!(pool.teardown(ANN), Err(TeardownFailed));
    assert!(begun.elapsed() < Duration::from_secs(2), "nobody waits for it");
    let has = machine.switch.of(0);
    assert_eq!((has.link_state, has.vlan), (2, 4095), "it is cut off");
    assert_eq!(pool.end(ANN), Err(TeardownFailed));
    assert_eq!((pool.free(), pool.count("sriov_fenced_now"), machine.resets(0)), (1, 1, 1));
    pool.resource.grant(BOB, &[]).unwrap();
    assert_eq!(pool.resource.grant(LeaseId(3), &[]), Err(Status::CapacityExceeded));
    assert_eq!(pool.lost(), [], "and stays fenced while it is held");

    machine.hold(0, false);
    assert_eq!(pool.lost(), [ANN]);
    assert_clean(&machine, 0);
    assert_eq!((pool.teardown(ANN), pool.end(ANN), pool.free(), machine.resets(0)), (Ok(()), Ok(()), 1, 2));
}

#[test]
fn a_holder_is_ended_where_that_is_the_policy() {
    let machine = Machine::new();
    let mut pool = Pool::try_open(&machine, config(), true).unwrap();
    for lease in [ANN, BOB] {
        pool.resource.grant(lease, &[]).unwrap();
    }
    for lease in [ANN, BOB] {
        pool.bind(lease, &[]).unwrap();
    }
    let (mut ann, mut bob) = (holder(&machine, 0), holder(&machine, 1));
    let reaped = thread::spawn(move || ann.wait().unwrap());
    pool.teardown(ANN).unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&reaped.join().unwrap()), Some(9));
    assert_eq!(pool.count("sriov_killed"), 1);
    assert!(bob.try_wait().unwrap().is_none(), "another function's holder is let alone");
    assert_clean(&machine, 0);
    bob.kill().unwrap();
    bob.wait().unwrap();
    pool.teardown(BOB).unwrap();
}

#[test]
fn what_is_not_sound_is_not_handed_over_and_nothing_stays_done() {
    let machine = Machine::new();
    let mut pool = Pool::open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    let fails = |status, pool: &mut Pool| {
        assert_eq!(pool.bind(ANN, &[]), Err(status));
        pool.teardown(ANN).unwrap();
        assert_eq!((machine.driver(0), records(&machine)), (None, 0));
    };
    fs::write(machine.device(0, "reset_method"), "bus\n").unwrap();
    fails(Status::InternalError, &mut pool);
    fs::write(machine.device(0, "reset_method"), "flr bus\n").unwrap();
    let members = machine.root().join("sys/kernel/iommu_groups/20/devices");
    fs::write(members.join("0000:03:10.7"), "").unwrap();
    fails(Status::InternalError, &mut pool);
    fs::remove_file(members.join("0000:03:10.7")).unwrap();
    let flags = machine.root().join("sys/class/net/enp3s0/flags");
    fs::write(&flags, "0x1002\n").unwrap();
    fails(Status::ResourceBusy, &mut pool);
    fs::write(&flags, "0x1003\n").unwrap();
    // A driver that says that it did what it did not.
    machine.switch.inside().lies = true;
    assert_eq!(pool.bind(ANN, &[]), Err(Status::InternalError));
    machine.switch.inside().lies = false;
    pool.teardown(ANN).unwrap();
    machine.kernel.refuses.store(true, Ordering::Relaxed);
    fails(Status::InternalError, &mut pool);
    machine.kernel.refuses.store(false, Ordering::Relaxed);
    assert_eq!(pool.count("sriov_give_failed"), 5);
    pool.bind(ANN, &[]).unwrap();
    // Another's, whom the pool does not know.
    drop(pool);
    fs::remove_dir_all(machine.root().join("state")).unwrap();
    let mut pool = Pool::open(&machine);
    let mut child = holder(&machine, 0);
    pool.resource.grant(BOB, &[]).unwrap();
    assert_eq!(pool.bind(BOB, &[]), Err(Status::ResourceBusy));
    assert_eq!(machine.driver(0).as_deref(), Some("vfio-pci"));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_reset_that_fails_fences() {
    let machine = Machine::new();
    let mut pool = Pool::open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    let reset = machine.device(0, "reset");
    fs::remove_file(&reset).unwrap();
    fs::create_dir(&reset).unwrap();
    assert_eq!(pool.teardown(ANN), Err(TeardownFailed));
    assert_eq!((pool.count("sriov_reset_failed"), pool.count("sriov_fenced"), pool.free()), (1, 1, 1));
    fs::remove_dir(&reset).unwrap();
    fs::write(&reset, "").unwrap();
    assert_eq!(pool.lost(), [ANN]);
    assert_clean(&machine, 0);
}

/// igb has no link state to set: the VLAN cuts its functions off.
#[test]
fn a_card_without_link_states_is_cut_off_by_vlan() {
    let machine = Machine::new();
    machine.switch.inside().refuses = Some(|setting| match *setting {
        Setting::LinkState(_) => true,
        Setting::Vlan { vlan, .. } => vlan == 4095,
        _ => false,
    });
    let mut pool = Pool::open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    machine.hold(0, true);
    assert_eq!(pool.teardown(ANN), Err(TeardownFailed));
    assert_eq!((machine.switch.of(0).vlan, pool.count("sriov_cut_failed")), (4094, 0));
    machine.hold(0, false);
    assert_eq!(pool.lost(), [ANN]);
    assert_clean(&machine, 0);
}

#[test]
fn the_kernels_driver_gets_its_function_back() {
    let machine = Machine::new();
    let mut pool = Pool::open(&machine);
    let was = berth_sriov::Attributes { mac: [6; 6], vlan: 3, trust: Some(true), spoofchk: Some(false), ..fresh() };
    machine.switch.inside().functions.insert(0, was);
    machine.bind_igbvf(0);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    assert_eq!(machine.driver(0).as_deref(), Some("vfio-pci"));
    pool.teardown(ANN).unwrap();
    wait(|| machine.driver(0).as_deref() == Some("igbvf"));
    let restored = berth_sriov::Attributes { trust: Some(false), spoofchk: Some(true), ..was };
    assert_eq!(machine.switch.of(0), restored, "but that nobody is trusted, and everybody is checked");
}

#[test]
fn a_function_that_is_gone_is_told_and_not_granted() {
    let machine = Machine::new();
    let mut pool = Pool::open(&machine);
    for lease in [ANN, BOB] {
        pool.resource.grant(lease, &[]).unwrap();
    }
    pool.bind(ANN, &[]).unwrap();
    machine.numvfs(0);
    assert_eq!(pool.lost(), [ANN]);
    assert!(pool.count("sriov_lost") >= 1);
    assert_eq!((pool.teardown(ANN), pool.end(ANN)), (Ok(()), Ok(())));
    assert_eq!(pool.bind(BOB, &[]), Err(Status::ResourceBusy));
    pool.teardown(BOB).unwrap();
    assert_eq!(pool.resource.grant(ANN, &[]), Err(Status::CapacityExceeded));
    machine.numvfs(2);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
}

/// The lease ends while its function is being handed over: whichever work runs first, nobody has it in the end.
#[test]
fn an_end_overtakes_a_hand_over() {
    for end_first in [false, true] {
        let machine = Machine::new();
        let mut pool = Pool::open(&machine);
        pool.resource.grant(ANN, &[]).unwrap();
        let bound = BoundLease {
            id: ANN,
            generation: Generation::FIRST,
            rights: Rights::NONE,
            reach: Reach::Unit,
            secret: None,
        };
        let give = pool.binding.prepare(&bound, Tlvs::default()).unwrap().unwrap();
        let end = pool.resource.end(ANN).unwrap().expect("it is being handed over");
        assert_eq!(pool.free(), 1);
        let works = if end_first { [end, give] } else { [give, end] };
        works.into_iter().for_each(BlockingWork::run);
        pool.resource.ended(ANN).unwrap();
        assert_eq!(pool.binding.bind(&bound, Tlvs::default(), &mut Vec::new()), Err(Status::LeaseExpired));
        assert_eq!((pool.free(), machine.driver(0), records(&machine)), (2, None, 0));
    }
}
