//! Executors that their unit keeps: the same runs, and ends of the executor, of its keeper and of the node.

use std::{
    env, fs,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use berth_tasklet::run::{Executor as _, Limits, Status};
use berth_wasm::{Isolated, Isolation, Parent, Starter};
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    common::{PLENTY, compiler},
    lives::{Host, SPIN, alone, compile, executors_of, run, standing_of},
};

/// The unit, as systemd starts it: its standard input listens.
struct Unit {
    child: Child,
    socket: PathBuf,
}

impl Unit {
    fn start(name: &str) -> Self {
        let socket = env::temp_dir().join(format!("berth-executor-{}-{name}.sock", std::process::id()));
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth-wasm-executor"));
        let child = command.arg("serve").stdin(OwnedFd::from(listener)).stderr(Stdio::null()).spawn().unwrap();
        Self { child, socket }
    }

    fn node(&self) -> Isolated {
        let starter = Starter::Unit(self.socket.clone());
        Isolated::new(Isolation { starter, cpus: vec![0], memory: 512 << 20 }, compiler()).unwrap()
    }

    fn executors(&self) -> Vec<Pid> {
        executors_of(self.child.id())
    }

    fn until_there_are(&self, count: usize) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.executors().len() != count {
            assert!(Instant::now() < deadline, "{:?}, not {count}", self.executors());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_file(&self.socket);
    }
}

#[test]
fn a_unit_keeps_executors_for_as_long_as_their_node_wants_them() {
    let _alone = alone();
    let unit = Unit::start("keeps");
    let of = unit.node();
    assert!(matches!(of.parent(), Parent::Unit { .. }), "{:?}", of.parent());
    let module = compile(&of, "(i64.const 0)");
    assert_eq!(run(&*module, 1).0, Status::Ok);
    let pid = unit.executors()[0];
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "Cpus_allowed_list:\t0"] {
        assert!(status.contains(&format!("{line}\n")), "{line} in {status}");
    }
    // One that is ready, and one that has run.
    unit.until_there_are(2);
    drop((module, of));
    unit.until_there_are(0);
}

#[test]
fn a_run_of_a_unit_stands_while_it_has_no_turn_and_is_stopped_in_time() {
    let _alone = alone();
    let unit = Unit::start("stands");
    let of = unit.node();
    let mut turns = 0;
    let limits = Limits { fuel: u64::MAX, memory: 512 << 20, ..PLENTY };
    let outcome = compile(&of, SPIN).run(
        &[],
        &limits,
        &mut Host(1, || {
            assert!(standing_of(unit.child.id()).is_some(), "it stands while its turn is another's");
            turns += 1;
            turns < 5
        }),
    );
    assert_eq!((outcome.status, turns), (Status::ExecFailed, 5));
    // It says itself that it stops, if it is asked at one of its own turns.
    let killed = of.processes().killed;
    // One long operation on memory that nothing touched.
    let text = "(memory.fill (i32.const 0) (i32.const 1) (i32.const 536870912)) (i64.const 0)";
    let text = crate::common::tasklet(text).replace(r#""memory") 1)"#, r#""memory") 8192)"#);
    let fill = of.compile(&wat::parse_str(text).unwrap()).unwrap();
    let stopped_in_time = || {
        let mut asked = None;
        let outcome = fill.run(
            &[],
            &limits,
            &mut Host(1, || {
                asked = Some(Instant::now());
                false
            }),
        );
        let killed = of.processes().killed - killed;
        outcome.status == Status::ExecFailed && killed > 0 && asked.unwrap().elapsed() < Duration::from_millis(50)
    };
    // A machine that is shared takes some at times.
    assert!((0..3).any(|_| stopped_in_time()));
}

#[test]
fn an_executor_that_is_killed_costs_its_run_and_a_keeper_all_of_its() {
    let _alone = alone();
    let mut unit = Unit::start("killed");
    let of = unit.node();
    let spin = compile(&of, SPIN);
    let limits = Limits { fuel: u64::MAX, ..PLENTY };
    let outcome = spin.run(
        &[],
        &limits,
        &mut Host(1, || {
            if let Some(pid) = standing_of(unit.child.id()) {
                kill_process(pid, Signal::KILL).unwrap();
            }
            true
        }),
    );
    assert_eq!(outcome.status, Status::ExecFailed);
    let reason = outcome.reason.unwrap();
    assert!(reason.contains("signal: 9"), "{reason}");
    assert_eq!((of.processes().lost, of.processes().killed), (1, 0));
    let fine = compile(&of, "(i64.const 0)");
    assert_eq!(run(&*fine, 1).0, Status::Ok);

    let mut killed = false;
    let outcome = spin.run(
        &[],
        &limits,
        &mut Host(1, || {
            if !killed {
                unit.child.kill().unwrap();
                unit.child.wait().unwrap();
                killed = true;
            }
            true
        }),
    );
    let reason = outcome.reason.unwrap();
    assert!(reason.contains("its unit keeps it no more"), "{reason}");
    let reason = run(&*fine, 1).1.unwrap();
    assert!(reason.starts_with("no executor: ") && reason.contains("Connection refused"), "{reason}");
}

#[test]
fn who_says_nothing_or_nonsense_to_a_unit_gets_nothing() {
    use std::io::{Read as _, Write as _};

    let _alone = alone();
    let unit = Unit::start("nonsense");
    let mut peer = UnixStream::connect(&unit.socket).unwrap();
    peer.write_all(&[b'S'; 1000]).unwrap();
    let mut answer = Vec::new();
    // What was not read when the other end closed makes a reset of it.
    let _ = peer.read_to_end(&mut answer);
    assert_eq!((answer, unit.executors()), (Vec::new(), Vec::new()));
    let of = unit.node();
    assert_eq!(run(&*compile(&of, "(i64.const 0)"), 1).0, Status::Ok);
}
