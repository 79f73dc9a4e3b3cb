//! What becomes of functions of an NVMe controller.

use std::{fs, sync::Mutex};

use berth_fabric::{Binding as _, TeardownFailed};
use berth_sriov::{Card, OpenError, PoolConfig, Step};
use berth_wire::fabric::{BindingTlv, ClientTlv, Status};

use crate::{
    ANN, BOB, Pool, config,
    controller::{PRIMARY, secondary},
    crash::Failing,
    fake::{Machine, PF, pf, vf},
    files, host, records,
};

fn nvme() -> PoolConfig {
    PoolConfig { card: Card::Nvme { namespace: 5 }, ..config() }
}

fn open(machine: &Machine) -> Pool {
    Pool::try_open(machine, nvme(), false).unwrap()
}

/// What a function is that nobody has.
fn assert_clean(machine: &Machine, index: u16) {
    let inside = machine.controller.inside();
    assert_eq!(inside.secondaries[&index], (false, [0, 0]));
    assert!(inside.attached[&(5 + u32::from(index))].is_empty(), "{:?}", inside.attached);
    assert_eq!((machine.driver(index), machine.node(index).exists()), (None, false));
}

#[test]
fn a_function_is_handed_over_with_its_namespace_and_taken_back_erased() {
    let machine = Machine::with_controller();
    let mut pool = open(&machine);
    assert_eq!(machine.kernel.log.lock().unwrap().join(", "), format!("reset {PF}, numvfs 2 autoprobe 0"));
    assert_eq!(machine.controller.done(), ["primary 0 0", "primary 1 0"]);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.resource.grant(BOB, &[]).unwrap();
    for tlv in [ClientTlv::VfMac([2, 0, 0, 0, 0, 1]), ClientTlv::VfVlan(1)] {
        assert_eq!(pool.bind(BOB, &[tlv]), Err(Status::InvalidParams), "a controller has neither");
    }
    let tlvs = pool.bind(BOB, &[]).unwrap();
    let mut wanted = Vec::new();
    BindingTlv::SrIovVf(vf(1).into()).write(&mut wanted);
    BindingTlv::SrIovVfIndex(1).write(&mut wanted);
    BindingTlv::SrIovPf(pf().into()).write(&mut wanted);
    assert_eq!(tlvs, wanted);
    // The second one's controller is known by the function's number; it has what there is for one of two, up to its limit.
    assert_eq!(machine.controller.done(), ["offline 19", "assign 19 0 3", "assign 19 1 2", "online 19", "Attach 6 19"]);
    assert_eq!((machine.driver(1).as_deref(), machine.resets(1)), (Some("vfio-pci"), 1));
    pool.bind(ANN, &[]).unwrap();
    assert_eq!(machine.controller.inside().attached[&5], [20].into());
    machine.controller.done();

    pool.teardown(BOB).unwrap();
    let taken = ["offline 19", "offline 19", "Detach 6 19", "Attach 6 3", "erase 6", "Detach 6 3"];
    assert_eq!((machine.controller.done(), machine.resets(1)), (taken.map(str::to_owned).to_vec(), 2));
    assert_clean(&machine, 1);
    assert_eq!(machine.controller.inside().secondaries[&0], (true, [3, 2]), "the other is as it was");
    pool.end(BOB).unwrap();
    pool.teardown(ANN).unwrap();
    pool.end(ANN).unwrap();
    assert_eq!((pool.free(), records(&machine)), (2, 0));
}

#[test]
fn what_the_host_uses_is_not_handed_over() {
    let machine = Machine::with_controller();
    let mut pool = open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    machine.controller.done();
    let refused = |pool: &mut Pool| {
        assert_eq!(pool.bind(ANN, &[]), Err(Status::ResourceBusy));
        pool.teardown(ANN).unwrap();
        assert_eq!((machine.controller.done(), records(&machine)), (vec![], 0), "and is left as it is");
    };
    machine.controller.inside().secondaries.insert(0, (true, [2, 1]));
    refused(&mut pool);
    machine.controller.inside().secondaries.insert(0, (false, [0, 0]));
    for other in [PRIMARY, secondary(1)] {
        machine.controller.inside().attached.insert(5, [other].into());
        refused(&mut pool);
    }
    machine.controller.inside().attached.insert(5, [].into());
    // It has another namespace, which its holder would have.
    for other in [4, 1099] {
        machine.controller.inside().attached.insert(other, [PRIMARY, secondary(0)].into());
        refused(&mut pool);
        machine.controller.inside().attached.insert(other, [PRIMARY, secondary(1)].into());
    }
    // A namespace that it has already is its own.
    machine.controller.inside().attached.insert(5, [secondary(0)].into());
    pool.bind(ANN, &[]).unwrap();
    pool.teardown(ANN).unwrap();
    assert_clean(&machine, 0);
    // The controller of the physical function is gone.
    let state = machine.root().join("sys/bus/pci/devices").join(PF).join("nvme/nvme0/state");
    machine.controller.done();
    fs::write(&state, "dead\n").unwrap();
    refused(&mut pool);
}

#[test]
fn a_command_that_is_refused_leaves_nothing_done() {
    let machine = Machine::with_controller();
    let mut pool = open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    let refuse = |what| machine.controller.inside().refuses = what;
    for what in ["offline", "assign 20 0", "assign 20 1", "online", "Attach 5 20"] {
        refuse(Some(what));
        assert_eq!(pool.bind(ANN, &[]), Err(Status::InternalError), "{what}");
        refuse(None);
        pool.teardown(ANN).unwrap();
        assert_clean(&machine, 0);
    }
    for what in ["offline", "Detach 5 20", "Attach 5 3", "erase", "Detach 5 3"] {
        pool.bind(ANN, &[]).unwrap();
        refuse(Some(what));
        assert_eq!(pool.teardown(ANN), Err(TeardownFailed), "{what}");
        assert_eq!((pool.count("sriov_fenced_now"), pool.free()), (1, 1));
        refuse(None);
        assert_eq!(pool.lost(), [ANN], "tried again");
        assert_clean(&machine, 0);
    }
    assert_eq!(pool.count("sriov_cut_failed"), 1);
}

#[test]
fn a_holder_that_clings_has_a_controller_that_is_offline() {
    let machine = Machine::with_controller();
    let mut pool = open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    machine.hold(0, true);
    assert_eq!(pool.teardown(ANN), Err(TeardownFailed));
    assert_eq!(machine.controller.inside().secondaries[&0], (false, [0, 0]), "it serves nobody");
    assert_eq!((pool.free(), pool.count("sriov_fenced_now"), pool.lost()), (1, 1, vec![]));
    machine.hold(0, false);
    assert_eq!(pool.lost(), [ANN]);
    assert_clean(&machine, 0);
}

#[test]
fn a_function_that_is_gone_leaves_no_namespace_behind() {
    let machine = Machine::with_controller();
    let mut pool = open(&machine);
    pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    machine.numvfs(0);
    assert_eq!(pool.lost(), [ANN]);
    machine.controller.done();
    pool.teardown(ANN).unwrap();
    assert!(machine.controller.done().contains(&"erase 5".to_owned()));
    assert_clean(&machine, 0);
}

#[test]
fn a_pool_says_what_is_wrong_with_its_card() {
    let network = Machine::new();
    assert!(matches!(Pool::try_open(&network, nvme(), false), Err(OpenError::NoNvme(..))));
    let machine = Machine::with_controller();
    assert!(matches!(Pool::try_open(&machine, config(), false), Err(OpenError::IsNvme(..))));
    machine.controller.inside().fna = 2;
    let Err(error) = Pool::try_open(&machine, nvme(), false) else { panic!("it would erase all namespaces") };
    assert_eq!(error.to_string(), format!("region vfs: {PF}: the controller has no Format NVM of one namespace alone"));
    machine.controller.inside().fna = 0;
    machine.controller.inside().refuses = Some("primary 1");
    assert!(matches!(Pool::try_open(&machine, nvme(), false), Err(OpenError::Controller(..))));
    machine.controller.inside().refuses = None;
    assert_eq!(open(&machine).free(), 2);
}

/// Killed at each command and at each record of a hand-over and of taking back: the next start takes it back whole.
#[test]
fn a_crash_between_any_two_commands_leaves_the_pool_whole() {
    static STEPS: Mutex<Vec<Step>> = Mutex::new(Vec::new());
    let machine = Machine::with_controller();
    let (mut kept, mut ended) = (0, 0);
    // 5 commands of a hand-over, 6 of taking back; 10 records.
    for (commands, left) in (1..12).map(|n| (Some(n), 100)).chain((0..10).map(|n| (None, n))) {
        let failing = Failing { files: files(&machine), left: left.into(), after: true, steps: &STEPS };
        let mut pool = Pool::with(host(&machine, false, Box::new(failing)), nvme()).unwrap();
        machine.controller.inside().left = commands;
        let unit = pool.resource.grant(ANN, &[]).unwrap();
        let whole = pool.bind(ANN, &[]).is_ok() && pool.teardown(ANN).is_ok();
        assert!(!whole, "{commands:?} {left}");
        ended += 1;
        drop(pool);

        machine.controller.inside().left = None;
        let mut pool = open(&machine);
        if pool.binding.outlives(ANN) {
            kept += 1;
            assert!(machine.controller.inside().secondaries[&0].0, "its holder has it");
        } else {
            pool.teardown(ANN).unwrap();
            assert_clean(&machine, 0);
        }
        assert!(pool.resource.recover(ANN, &unit));
        pool.teardown(ANN).unwrap();
        pool.end(ANN).unwrap();
        assert_eq!((pool.free(), records(&machine)), (2, 0), "{commands:?} {left}");
        assert_clean(&machine, 0);
    }
    assert_eq!((kept, ended), (1, 21), "only what was written down as given goes on");
}
