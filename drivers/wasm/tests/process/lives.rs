//! What becomes of executors: whom they serve, how they end, and what that costs.

use std::{
    fs,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use berth_tasklet::{
    hostcall::{Call, Hostcalls},
    run::{Executor, Limits, Module, Processes, Status},
};
use berth_wasm::{Compiler, Isolated, Isolation, Starter};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{PLENTY, isolated, tasklet};

/// Tests of this file look at executors as a process sees them: one at a time. Those of other files give every turn at once.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) const SPIN: &str = "(loop (br 0)) (unreachable)";

pub(crate) fn compile(of: &Isolated, body: &str) -> Arc<dyn Module> {
    of.compile(&wat::parse_str(tasklet(body)).unwrap()).unwrap()
}

/// A presenter, and what happens to its run at its first call or turn.
pub(crate) struct Host<F>(pub(crate) u128, pub(crate) F);

impl<F: FnMut() -> bool> Hostcalls for Host<F> {
    fn call(&mut self, _: Call<'_>) -> i64 {
        i64::from(!self.1())
    }

    fn turn(&mut self) -> bool {
        self.1()
    }

    fn presenter(&self) -> u128 {
        self.0
    }
}

pub(crate) fn run(module: &dyn Module, presenter: u128) -> (Status, Option<String>) {
    let outcome = module.run(&[], &PLENTY, &mut Host(presenter, || true));
    (outcome.status, outcome.reason)
}

fn standing() -> Option<Pid> {
    standing_of(std::process::id())
}

/// The executor that stands still while its run has no turn. Those of other tests stand for moments, perhaps before this one does.
pub(crate) fn standing_of(parent: u32) -> Option<Pid> {
    let stands = |pid: &Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.contains(") T "))
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    let (mut alone, mut since) = (None, Instant::now());
    while Instant::now() < deadline {
        let found: Vec<_> = executors_of(parent).into_iter().filter(stands).collect();
        let found = <[Pid; 1]>::try_from(found).ok().map(|[one]| one);
        if found != alone {
            (alone, since) = (found, Instant::now());
        }
        if alone.is_some() && since.elapsed() > Duration::from_millis(20) {
            return alone;
        }
        thread::sleep(Duration::from_millis(1));
    }
    None
}

fn executors() -> Vec<Pid> {
    executors_of(std::process::id())
}

/// Executors that are there: children of a process by that name.
pub(crate) fn executors_of(parent: u32) -> Vec<Pid> {
    let parent = parent.to_string();
    let stat = |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ours = |pid: &i32| {
        let stat = stat(*pid);
        let rest: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        stat.contains("(berth-wasm-exec") && rest.first() != Some(&"Z") && rest.get(1) == Some(&parent.as_str())
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(ours);
    pids.filter_map(Pid::from_raw).collect()
}

#[test]
fn an_executor_serves_one_presenter_alone() {
    let _alone = alone();
    let of = isolated();
    let module = compile(&of, "(i64.const 0)");
    for _ in 0..20 {
        assert_eq!(run(&*module, 1).0, Status::Ok);
    }
    let started = of.processes().started;
    assert!(started <= 2, "one serves them all, and one is ready: {started}");
    for presenter in 2..8 {
        assert_eq!(run(&*module, presenter).0, Status::Ok);
    }
    assert!(of.processes().started >= started + 5, "each has its own");
    let all = of.processes().started;
    for presenter in 1..8 {
        assert_eq!(run(&*module, presenter).0, Status::Ok);
    }
    assert!(of.processes().started <= all + 1, "they are kept");
    assert_eq!((of.processes().lost, of.processes().killed), (0, 0));
}

#[test]
fn a_run_that_asks_for_no_turn_is_stopped_in_time() {
    let _alone = alone();
    let of = isolated();
    // A memory that nothing touched, in one operation: its page faults take long, and it looks at nothing meanwhile.
    let text = tasklet("(memory.fill (i32.const 0) (i32.const 1) (i32.const 67108864)) (i64.const 0)");
    let fill = of.compile(&wat::parse_str(text.replace(r#""memory") 1)"#, r#""memory") 1024)"#)).unwrap()).unwrap();
    let mut took = Vec::new();
    for round in 0..5 {
        let mut asked = None;
        let began = Instant::now();
        let outcome = fill.run(
            &[],
            &PLENTY,
            &mut Host(1, || {
                asked = Some(Instant::now());
                false
            }),
        );
        let Some(asked) = asked else {
            assert!(began.elapsed() < Duration::from_millis(50), "round {round}: it was not asked");
            continue;
        };
        assert_eq!((outcome.status, outcome.reason), (Status::ExecFailed, None));
        took.push(asked.elapsed());
    }
    took.sort();
    println!("stopped within {took:?}");
    // A machine that is shared takes some at times.
    assert!(took.get(took.len() / 2).is_none_or(|median| *median < Duration::from_millis(50)), "{took:?}");
    // Nobody else's run is touched by that.
    assert_eq!(run(&*compile(&of, "(i64.const 0)"), 1).0, Status::Ok);
}

/// While the host thinks about a turn, the process stands still.
#[test]
fn a_run_without_a_turn_uses_no_processor() {
    let _alone = alone();
    let of = isolated();
    let spin = compile(&of, SPIN);
    // Of user time: a tick is 10 ms.
    let ticks = |pid: Pid| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
        let after = stat.rsplit(") ").next().unwrap_or_default().to_owned();
        after.split(' ').nth(11).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap()
    };
    let mut turns = 0;
    // Its node is asked, and does not answer; then it asks by itself, in the midst of an operation.
    let text = tasklet("(loop (memory.fill (i32.const 0) (i32.const 1) (i32.const 67108864)) (br 0)) (i64.const 0)");
    let fills = of.compile(&wat::parse_str(text.replace(r#""memory") 1)"#, r#""memory") 1024)"#)).unwrap()).unwrap();
    let mut outcome = None;
    for module in [&spin, &fills] {
        let mut host = Host(1, || {
            turns += 1;
            let pid = standing().expect("it stands still");
            let before = ticks(pid);
            thread::sleep(Duration::from_millis(100));
            assert!(ticks(pid) <= before + 1);
            turns % 3 != 0
        });
        outcome = Some(module.run(&[], &Limits { fuel: u64::MAX, ..PLENTY }, &mut host));
    }
    let outcome = outcome.unwrap();
    assert_eq!(outcome.status, Status::ExecFailed);
    assert_eq!(of.processes().lost, 0);
}

#[test]
fn an_executor_that_is_killed_costs_its_run_and_nothing_else() {
    let _alone = alone();
    let of = isolated();
    let (spin, short) = (compile(&of, SPIN), compile(&of, "(i64.const 0)"));
    // At its first turn; and again, for it is started anew.
    for round in 1..4 {
        let mut killed = false;
        let outcome = spin.run(
            &[],
            &Limits { fuel: u64::MAX, ..PLENTY },
            &mut Host(1, || {
                // Killed once; if it is there at the next turn, the run is stopped.
                let first = !killed;
                if first {
                    let executor = standing().expect("one stands");
                    kill_process(executor, Signal::KILL).unwrap();
                    // A busy host takes its time, and a run has its turns by the clock.
                    while executors().contains(&executor) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    killed = true;
                }
                first
            }),
        );
        assert_eq!(outcome.status, Status::ExecFailed);
        assert_eq!(outcome.reason.as_deref(), Some("its executor ended: signal: 9 (SIGKILL)"));
        assert_eq!(of.processes().lost, round);
        assert_eq!(run(&*short, 1), (Status::Ok, None));
        assert_eq!(run(&*short, 2), (Status::Ok, None));
    }
}

#[test]
fn one_that_dies_without_a_run_costs_none() {
    let _alone = alone();
    let of = isolated();
    let short = compile(&of, "(i64.const 0)");
    assert_eq!(run(&*short, 77).0, Status::Ok);
    let mut pid = None;
    // It ends by its fuel: one whose run is stopped may have to be killed, on a busy host.
    let outcome = compile(&of, SPIN).run(
        &[],
        &Limits { fuel: 300_000_000, ..PLENTY },
        &mut Host(77, || {
            pid = pid.or_else(standing);
            true
        }),
    );
    assert_eq!(outcome.status, Status::FuelExhausted);
    let pid = pid.unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    while executors().contains(&pid) {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(run(&*short, 77), (Status::Ok, None));
    assert_eq!(of.processes().lost, 1);
}

/// Who stops an executor from outside stops it until its next turn.
#[test]
fn one_that_is_stopped_goes_on() {
    let _alone = alone();
    let of = isolated();
    let (spin, mut stopped) = (compile(&of, SPIN), false);
    let outcome = spin.run(
        &[],
        &Limits { fuel: 300_000_000, ..PLENTY },
        &mut Host(1, || {
            if !stopped {
                stopped = true;
                let all = executors();
                thread::spawn(move || {
                    for _ in 0..5 {
                        thread::sleep(Duration::from_millis(7));
                        for pid in &all {
                            // It may be another test's, and gone.
                            let _ = kill_process(*pid, Signal::STOP);
                        }
                    }
                });
            }
            true
        }),
    );
    assert_eq!(outcome.status, Status::FuelExhausted, "{:?}", outcome.reason);
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn books_are_back_where_they_were() {
    let _alone = alone();
    let count = |of: &Isolated| {
        let module = compile(of, "(i64.const 0)");
        for nth in 0..2000 {
            let presenter = nth % 3;
            assert_eq!(run(&*module, presenter).0, Status::Ok);
        }
    };
    let of = isolated();
    count(&of);
    // Other tests of this program come and go.
    let first = descriptors();
    count(&of);
    count(&of);
    let then = descriptors();
    assert!(then < first + 40, "{first} descriptors, then {then}");
    assert_eq!(of.processes(), Processes { started: of.processes().started, ..Processes::default() });
    assert!(of.processes().started < 6);
}

/// What the kernel says of one.
#[test]
fn an_executor_has_no_privileges_and_no_descriptors_but_its_socket() {
    let _alone = alone();
    let of = isolated();
    let inspect = || {
        let pid = standing().expect("one stands").as_raw_nonzero();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        for line in
            ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "Threads:\t1"]
        {
            assert!(status.contains(line), "{line} in {status}");
        }
        let files = fs::read_dir(format!("/proc/{pid}/fd")).map(|all| all.flatten().map(|fd| fd.file_name()).collect());
        // Who is not root may not look.
        let files: Vec<_> = files.unwrap_or_default();
        assert!(files.iter().all(|fd| fd == "0" || fd == "2"), "{files:?}");
        let net = |of: &str| fs::read_link(format!("/proc/{of}/ns/net"));
        if let (true, Ok(theirs)) = (of.walls().namespaces, net(&pid.to_string())) {
            assert_ne!(theirs, net("self").unwrap());
        }
    };
    compile(&of, SPIN).run(
        &[],
        &Limits { fuel: u64::MAX, ..PLENTY },
        &mut Host(1, || {
            inspect();
            false
        }),
    );
}

#[test]
fn a_program_that_is_none_is_said_so() {
    let _alone = alone();
    let compiler = || Compiler { program: "/bin/false".into(), args: Vec::new() };
    for (program, why) in [("/no/such/program", "No such file"), ("/bin/false", "exit status: 1")] {
        let isolation = Isolation { starter: Starter::Child(program.into()), cpus: Vec::new(), memory: 1 << 20 };
        let error = Isolated::new(isolation, compiler()).unwrap_err().to_string();
        assert!(error.contains(program) && error.contains(why), "{error}");
    }
}
