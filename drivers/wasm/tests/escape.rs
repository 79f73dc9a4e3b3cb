//! Executors that were taken over: what they can reach from inside, and what they can tell their node. The program is its own
//! executor: it is started with the bytes of memory, which say what it is to do, and the parent's id.

#[path = "../../process/tests/attempts/mod.rs"]
mod attempts;

use std::{
    env, fs,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::PathBuf,
    ptr::{null, null_mut},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use attempts::{attempts, descriptors, made};
use berth_tasklet::{
    channel::{Asked, Command, HEAD, Walls},
    hostcall::{Call, Hostcalls, Kind},
    run::{Executor, Limits, Outcome, Status},
};
use berth_wasm::{Compiler, Isolated, Isolation, Starter};
use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap},
};

/// What an executor is to do, by the pages of memory that its runs may have.
const ESCAPE: u64 = 1;
const GARBAGE: u64 = 2;
const LONG: u64 = 3;
const FLOOD: u64 = 4;
const SHRINK: u64 = 5;
const SILENT: u64 = 6;
const EXITS: u64 = 7;
const ASKS: u64 = 8;
const WAKES: u64 = 9;

const PAGE: u64 = 64 << 10;
const LIMITS: Limits = Limits { fuel: 1000, memory: PAGE, output: 4096, hostcalls: 10 };

fn main() {
    let args: Vec<u64> = env::args().skip(1).map_while(|arg| arg.parse().ok()).collect();
    if let [memory, parent] = args[..] {
        hostile(memory / PAGE, parent);
    }
    let tests: &[(&str, fn())] = &[
        ("nothing_is_in_reach_from_inside", nothing_is_in_reach_from_inside),
        ("what_is_no_message_ends_the_executor", what_is_no_message_ends_the_executor),
        ("a_slot_cannot_be_cut_off_below_its_node", a_slot_cannot_be_cut_off_below_its_node),
        ("one_that_says_nothing_is_stopped", one_that_says_nothing_is_stopped),
        ("its_calls_are_its_runs", its_calls_are_its_runs),
    ];
    println!("running {} tests", tests.len());
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    println!("\ntest result: ok. {} passed; 0 failed", tests.len());
}

/// A slot as somebody sees it who has read the documents only.
struct Slot(*mut u8);

impl Slot {
    fn open(file: &OwnedFd) -> Self {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let len = 4096 + (1 << 20) + (64 << 10);
        // SAFETY: at a place of the kernel's choice.
        Self(unsafe { mmap(null_mut(), len, rights, MapFlags::SHARED, file, 0).unwrap() }.cast())
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the mapping.
        unsafe { AtomicU32::from_ptr(self.0.add(at).cast()) }
    }

    fn say(&self, head: &[u8; HEAD]) {
        // SAFETY: within the mapping.
        unsafe { self.0.add(64).copy_from(head.as_ptr(), HEAD) };
        self.flag(0).store(1, SeqCst);
        // SAFETY: a futex of the mapping.
        unsafe { libc::syscall(libc::SYS_futex, self.flag(0).as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    fn hear(&self) -> Command {
        while self.flag(256).load(SeqCst) == 0 {
            // SAFETY: a futex of the mapping.
            unsafe { libc::syscall(libc::SYS_futex, self.flag(256).as_ptr(), libc::FUTEX_WAIT, 0, null::<u8>()) };
        }
        let mut head = [0; HEAD];
        // SAFETY: within the mapping.
        unsafe { self.0.add(256 + 64).copy_to(head.as_mut_ptr(), HEAD) };
        self.flag(256).store(0, SeqCst);
        Command::parse(&head).unwrap()
    }

    /// Ends the run with this output.
    fn end(&self, output: &[u8]) {
        // SAFETY: within the mapping.
        unsafe { self.0.add(4096).copy_from(output.as_ptr(), output.len()) };
        let (status, output) = (Status::Ok, output.len() as u32);
        self.say(&Asked::Ended { status, fuel: 0, hostcalls: 0, output, reason: 0 }.head());
    }
}

fn hostile(what: u64, parent: u64) -> ! {
    // SAFETY: the slot's file; nothing of this process writes to standard output.
    let file = unsafe { OwnedFd::from_raw_fd(1) };
    let slot = Slot::open(&file);
    let walls = match what {
        ESCAPE => berth_wasm::shut_in(parent, PAGE).unwrap(),
        _ => Walls::default(),
    };
    slot.say(&Asked::Ready(walls).head());
    loop {
        match slot.hear() {
            // The file stays in the socket.
            Command::Load { .. } => slot.say(&Asked::Loaded.head()),
            Command::Answer(_) => unreachable!("nothing was asked"),
            Command::Run { .. } => match what {
                ESCAPE => slot.end(told(parent).join("\n").as_bytes()),
                GARBAGE => slot.say(&[0xFF; HEAD]),
                LONG => slot.end(&[0; 5000]),
                FLOOD => loop {
                    slot.say(&Asked::Hello(Kind::Memory).head());
                    slot.hear();
                },
                SHRINK => {
                    let cut = ftruncate(&file, 0).is_ok() || ftruncate(&file, 1 << 30).is_ok();
                    slot.end(&[u8::from(cut)]);
                }
                SILENT => thread::sleep(Duration::from_mins(1)),
                EXITS => std::process::exit(3),
                ASKS => {
                    let (kind, lease, at) = (Kind::Memory, Some(99), u64::MAX);
                    slot.say(&Asked::Read { kind, lease, at, len: 1 << 20 }.head());
                    let Command::Answer(code) = slot.hear() else { panic!("no answer") };
                    slot.end(&code.to_le_bytes());
                }
                // It wakes its node for nothing, again and again.
                _ => loop {
                    // SAFETY: a futex of the mapping.
                    unsafe { libc::syscall(libc::SYS_futex, slot.flag(0).as_ptr(), libc::FUTEX_WAKE, 1) };
                },
            },
        }
    }
}

/// Where the test's secret lies.
fn secret(parent: u64) -> PathBuf {
    env::temp_dir().join(format!("berth-escape-{parent}"))
}

/// What is tried from inside, and what came of it.
fn told(parent: u64) -> Vec<String> {
    let mut all = attempts(&secret(parent), parent);
    all.push(("read", libc::SYS_read, [0, (&raw const parent) as i64, 1, 0, 0, 0]));
    let told = all.iter().map(|attempt| format!("{} {}", attempt.0, made(attempt)));
    // What was inherited beside standard input, output and error: the socket, the slot and /dev/null.
    told.chain(descriptors().into_iter().map(|fd| format!("descriptor {fd}"))).collect()
}

struct Host {
    calls: Vec<String>,
    on: bool,
    began: Instant,
    asked: Option<Duration>,
}

impl Hostcalls for Host {
    fn call(&mut self, call: Call<'_>) -> i64 {
        self.calls.push(match call {
            Call::Read { kind, lease, at, out } => format!("{kind:?} {lease:?} {at} {}", out.len()),
            other => format!("{other:?}"),
        });
        -8
    }

    fn turn(&mut self) -> bool {
        self.asked.get_or_insert(self.began.elapsed());
        self.on
    }
}

/// A run by an executor that does this.
fn run(what: u64, on: bool) -> (Outcome, Host, Isolated) {
    let compiler = Compiler { program: env!("CARGO_BIN_EXE_berth-wasm-compile").into(), args: Vec::new() };
    let isolation =
        Isolation { starter: Starter::Child(env::current_exe().unwrap()), cpus: Vec::new(), memory: what * PAGE };
    let of = Isolated::new(isolation, compiler).unwrap();
    let text = r#"(module (memory (export "memory") 1) (func (export "tasklet_run") (param i32 i32) (result i64) (i64.const 0)))"#;
    let module = of.compile(&wat::parse_str(text).unwrap()).unwrap();
    let mut host = Host { calls: Vec::new(), on, began: Instant::now(), asked: None };
    let outcome = module.run(b"", &LIMITS, &mut host);
    (outcome, host, of)
}

fn nothing_is_in_reach_from_inside() {
    let secret = secret(std::process::id().into());
    fs::write(&secret, "key").unwrap();
    // A region that a library has left open to children.
    let region = memfd_create(c"region", MemfdFlags::empty()).unwrap();
    ftruncate(&region, 4096).unwrap();
    assert!(region.as_raw_fd() >= 3);
    let (outcome, ..) = run(ESCAPE, true);
    fs::remove_file(&secret).unwrap();
    assert_eq!(outcome.status, Status::Ok, "{:?}", outcome.reason);
    let told = String::from_utf8(outcome.output).unwrap();
    assert_eq!(told.lines().count(), 51, "{told}");
    for line in told.lines() {
        let refused = if line.starts_with("memfd") { libc::ENOSYS } else { libc::EPERM };
        assert!(line.ends_with(&format!(" {refused}")), "{line}");
    }
}

fn what_is_no_message_ends_the_executor() {
    for (what, why) in [
        (GARBAGE, "its executor was killed: what it said is no message"),
        (LONG, "its executor was killed: an output that the run may not have"),
        (FLOOD, "its executor was killed: a hostcall too many"),
        (EXITS, "its executor ended: exit status: 3"),
    ] {
        let (outcome, host, of) = run(what, true);
        assert_eq!(
            (outcome.status, outcome.reason.as_deref(), outcome.output.len()),
            (Status::ExecFailed, Some(why), 0)
        );
        let processes = of.processes();
        assert_eq!((processes.lost, processes.killed), if what == EXITS { (1, 0) } else { (0, 1) });
        assert_eq!(host.calls.len() as u64, if what == FLOOD { LIMITS.hostcalls } else { 0 });
    }
}

fn a_slot_cannot_be_cut_off_below_its_node() {
    let (outcome, ..) = run(SHRINK, true);
    assert_eq!((outcome.status, outcome.output), (Status::Ok, vec![0]));
}

fn one_that_says_nothing_is_stopped() {
    let stopped_in_time = |what| {
        let (outcome, host, of) = run(what, false);
        assert_eq!((outcome.status, outcome.reason), (Status::ExecFailed, None));
        let (asked, ended) = (host.asked.unwrap(), host.began.elapsed());
        println!("{what}: asked after {asked:?}, ended after {ended:?}");
        assert_eq!(of.processes().killed, 1);
        ended < asked + Duration::from_millis(50)
    };
    for what in [SILENT, WAKES] {
        // A machine that is shared takes some at times.
        assert!((0..3).any(|_| stopped_in_time(what)));
    }
}

/// Whatever it names, its host sees it, and answers for its own run.
fn its_calls_are_its_runs() {
    let (outcome, host, _) = run(ASKS, true);
    assert_eq!((outcome.status, outcome.output), (Status::Ok, (-8_i64).to_le_bytes().to_vec()));
    assert_eq!(host.calls, ["Memory Some(99) 18446744073709551615 1048576"]);
    assert_eq!(outcome.hostcalls, 1);
}
