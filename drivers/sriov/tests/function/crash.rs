//! What a start finds after the last process was killed.

use std::{
    io,
    sync::{
        Mutex,
        atomic::{AtomicI32, Ordering},
    },
};

use berth_fabric::{Binding as _, TeardownFailed};
use berth_sriov::{Files, Record, Records, Step};

use crate::{ANN, BOB, Pool, assert_clean, config, fake::Machine, files, host, records};

/// Records that fail at one write: then what is to be done is not, as if the process had been killed there.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) files: Files,
    pub(crate) left: AtomicI32,
    /// The write itself is still done.
    pub(crate) after: bool,
    pub(crate) steps: &'static Mutex<Vec<Step>>,
}

impl Records for Failing {
    fn read(&self) -> io::Result<Vec<Record>> {
        self.files.read()
    }
    fn write(&self, record: &Record) -> io::Result<()> {
        let fails = self.left.fetch_sub(1, Ordering::Relaxed) <= 0;
        if !fails || self.after {
            self.files.write(record)?;
            self.steps.lock().unwrap().push(record.step);
        }
        if fails { Err(io::Error::other("killed")) } else { Ok(()) }
    }
    fn remove(&self, record: &Record) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            Err(io::Error::other("killed"))
        } else {
            self.files.remove(record)
        }
    }
}

/// A crash before and after each step of a hand-over and of taking back: the next start finds what was done, and the pool
/// is whole.
#[test]
fn a_crash_between_any_two_steps_leaves_the_pool_whole() {
    static STEPS: Mutex<Vec<Step>> = Mutex::new(Vec::new());
    let machine = Machine::new();
    let mut kept = 0;
    for left in 0..11 {
        for after in [false, true] {
            let failing = Failing { files: files(&machine), left: left.into(), after, steps: &STEPS };
            let mut pool = Pool::with(host(&machine, false, Box::new(failing)), config()).unwrap();
            let unit = pool.resource.grant(ANN, &[]).unwrap();
            let bound = pool.bind(ANN, &[]);
            let back = bound.is_ok().then(|| pool.teardown(ANN));
            assert!(left == 10 || bound.is_err() || back == Some(Err(TeardownFailed)), "{left} {after}");
            drop(pool);

            let mut pool = Pool::open(&machine);
            // As `Starting` asks, then `Node::start`.
            if pool.binding.outlives(ANN) {
                kept += 1;
                assert_eq!(machine.driver(0).as_deref(), Some("vfio-pci"));
            } else {
                pool.teardown(ANN).unwrap();
                assert_eq!((machine.driver(0), records(&machine)), (None, 0), "{left} {after}");
            }
            assert!(pool.resource.recover(ANN, &unit));
            pool.teardown(ANN).unwrap();
            pool.end(ANN).unwrap();
            assert_eq!((pool.free(), records(&machine)), (2, 0), "{left} {after}");
            if machine.switch.inside().log.is_empty() {
                continue;
            }
            let has = machine.switch.of(0);
            assert_eq!((has.trust, has.spoofchk, has.vlan, has.link_state), (Some(false), Some(true), 0, 0));
            pool.resource.grant(BOB, &[]).unwrap();
            pool.bind(BOB, &[]).unwrap();
            pool.teardown(BOB).unwrap();
            pool.end(BOB).unwrap();
        }
    }
    let steps = STEPS.lock().unwrap();
    let all = [
        Step::Unbind,
        Step::Reset,
        Step::Configure,
        Step::Open,
        Step::Given,
        Step::Cut,
        Step::TakeBack,
        Step::Clean,
        Step::Restore,
    ];
    assert!(all.iter().all(|step| steps.contains(step)), "{steps:?}");
    assert_eq!(kept, 2, "what was handed over and not called back goes on: killed after `given`, and before `cut`");
}

/// A holder that clings over a restart of the node.
#[test]
fn a_fence_outlives_a_restart() {
    let machine = Machine::new();
    let mut pool = Pool::open(&machine);
    let unit = pool.resource.grant(ANN, &[]).unwrap();
    pool.bind(ANN, &[]).unwrap();
    machine.hold(0, true);
    assert_eq!(pool.teardown(ANN), Err(TeardownFailed));
    drop(pool);

    let mut pool = Pool::open(&machine);
    assert!(!pool.binding.outlives(ANN), "it was called back");
    assert_eq!(pool.teardown(ANN), Err(TeardownFailed));
    assert_eq!(pool.free(), 1);
    assert!(!pool.resource.recover(BOB, &unit), "it is another's");
    machine.hold(0, false);
    assert_eq!(pool.lost(), [ANN]);
    assert_eq!(pool.free(), 2);
    assert_clean(&machine, 0);
}
