//! Rings in memory that the configuration chooses. One in shared memory is served by a process that is written in C and
//! shares nothing with Berth but its header.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::common::{Berth, INCREMENT, RPC_INCREMENT, fails, port, request};

/// The status of a request that its handler did not answer properly.
const HANDLER_FAILED: i32 = -6;

/// What the program does wrong, by the first byte of a request: each a constant of `dispatcher.c`.
const WRONG: std::ops::RangeInclusive<u8> = 0xF0..=0xF7;
const DEATH: u8 = 0xF8;

/// A running dispatcher.
struct Dispatcher(Child);

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // It may have died.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program, and a ring's name that no other test has.
struct Ring {
    folder: TempDir,
    name: String,
}

impl Ring {
    fn new(test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let compiled = Command::new("cc")
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(here.join("../dataplane/ring/include"))
            .arg(here.join("tests/dispatcher.c"))
            .arg("-o")
            .arg(folder.path().join("dispatcher"))
            .status();
        assert!(compiled.unwrap().success());
        Self { folder, name: format!("test-{test}-{}", std::process::id()) }
    }

    fn config(&self) -> String {
        let rpc = format!(
            "[port.rpc]\ndispatch = \"ring\"\nslots = 4\nmemory = \"shared\"\nunanswered_ms = 0\nshared_name = \"{}\"",
            self.name
        );
        let function =
            "[[function]]\nname = \"rpc_increment\"\nhandler = \"builtin:rpc_increment\"\nbudget_us = 20000\n";
        format!("{}{function}", port("a", &rpc))
    }

    fn file(&self) -> PathBuf {
        Path::new("/dev/shm").join(format!("berth-{}", self.name))
    }

    /// Starts a dispatcher with these arguments, and waits until it serves.
    fn serve(&self, more: &[&str]) -> Dispatcher {
        self.serve_file(&self.file(), more)
    }

    fn serve_file(&self, file: &Path, more: &[&str]) -> Dispatcher {
        let mut command = Command::new(self.folder.path().join("dispatcher"));
        let mut child = command.arg(file).args(more).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "attached\n");
        Dispatcher(child)
    }
}

#[test]
fn another_process_serves_the_ring() {
    let ring = Ring::new("serves");
    let berth = Berth::start(&ring.config());
    assert_eq!(fs::metadata(ring.file()).unwrap().permissions().mode() & 0o777, 0o600);
    let (status, stderr) = fails(&ring.config());
    let wanted = format!("port a: {} is in use by another process", ring.file().display());
    assert!(status == Some(1) && stderr.contains(&wanted), "{status:?} {stderr}");

    let _dispatcher = ring.serve(&[]);
    let client = berth.client("a");
    for n in 0..1000u32 {
        let args = [&[0; 4][..], &n.to_le_bytes(), &vec![7; n as usize]].concat();
        let wanted: Vec<_> = args.iter().map(|byte| byte.wrapping_add(1)).collect();
        assert_eq!(client.call(RPC_INCREMENT, &args).result, wanted);
    }
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.sum("a", "service", "ring_collected"), 1000);
    assert!(!ring.file().exists());
}

#[test]
fn a_process_that_breaks_the_protocol_is_answered_for() {
    let ring = Ring::new("wrong");
    let berth = Berth::start(&ring.config());
    let _dispatcher = ring.serve(&[]);
    let client = berth.client("a");
    for wrong in WRONG {
        let answer = client.call(RPC_INCREMENT, &[wrong, 1, 2]);
        assert_eq!((answer.status, answer.result), (HANDLER_FAILED, vec![]), "{wrong:#x}");
        assert_eq!(client.call(RPC_INCREMENT, &[1, 2, 3]).result, [2, 3, 4], "after {wrong:#x}");
    }
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.sum("a", "service", "ring_bad_tx_flags"), 2);
    assert_eq!(stopped.sum("a", "service", "ring_unanswered"), 1);
}

/// A dispatcher that launches graphs: it frees requests at their launch, and the graphs answer later, the last one first.
#[test]
fn a_process_may_free_requests_and_answer_later() {
    let ring = Ring::new("graphs");
    let config = ring.config().replace("unanswered_ms = 0\n", "").replace("budget_us = 20000", "budget_us = 2000000");
    let berth = Berth::start(&config);
    let _dispatcher = ring.serve(&["graphs"]);
    let client = berth.client("a");
    for lap in 0..10u32 {
        for id in 0..4 {
            client.send(&request(RPC_INCREMENT, &[id as u8, lap as u8], 4 * lap + id, 0));
        }
        for id in 0..4 {
            let answer = client.response();
            let found = (answer.request_id, answer.status, answer.result);
            assert_eq!(found, (4 * lap + id, 0, vec![id as u8 + 1, lap as u8 + 1]));
        }
    }
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.sum("a", "service", "ring_unanswered"), 0);
    assert_eq!(stopped.sum("a", "service", "ring_late_answers"), 0);
}

#[test]
fn a_process_that_dies_holds_up_nothing_and_another_one_goes_on() {
    let ring = Ring::new("dies");
    let berth = Berth::start(&ring.config());
    let client = berth.client("a");
    let mortal = ring.serve(&[]);
    assert_eq!(client.call(RPC_INCREMENT, &[1]).result, [2]);
    assert_eq!(client.call(RPC_INCREMENT, &[DEATH]).status, HANDLER_FAILED, "after its budget");
    assert_eq!(client.call(RPC_INCREMENT, &[1]).status, HANDLER_FAILED);
    drop(mortal);
    // It begins with what the other one left.
    let immune = ring.serve(&["immune"]);
    for n in 0..100 {
        assert_eq!(client.call(RPC_INCREMENT, &[n]).result, [n + 1]);
    }
    drop(immune);
    for id in 0..8 {
        client.send(&request(RPC_INCREMENT, &[1], id, 0));
    }
    let begun = Instant::now();
    let stopped = berth.stop();
    assert!(stopped.status.success());
    assert_eq!(stopped.sum("a", "service", "late_answers"), 2);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(!ring.file().exists());
}

/// Two rings of one port, and processes of their own: each serves its functions, whether the other one is there or not.
#[test]
fn each_ring_of_a_port_is_served_by_a_process_of_its_own() {
    let ring = Ring::new("rings");
    let second = format!(
        "[[port.rpc.ring]]\nname = \"second\"\nslots = 8\nmemory = \"shared\"\nshared_name = \"{0}-b\"\n[[function]]\nname = \
         \"second\"\nhandler = \"builtin:rpc_increment\"\ndispatch = \"ring\"\nring = \"second\"\nbudget_us = 500000\n",
        ring.name
    );
    let config = ring.config().replace("budget_us = 20000", "budget_us = 500000");
    let berth = Berth::start(&config.replace("[[function]]", &format!("{second}[[function]]")));
    let second = fnv1a("second");
    let files = [ring.file(), PathBuf::from(format!("{}-b", ring.file().display()))];
    let [first_at, second_at] = files.each_ref().map(|file| {
        let front = fs::read(file).unwrap();
        let word = |at: usize| u64::from_le_bytes(front[at..at + 8].try_into().unwrap());
        word(40)..word(40) + word(32)
    });
    assert!(first_at.end <= second_at.start, "one process can map both: {first_at:x?} {second_at:x?}");

    let client = berth.client("a");
    let dispatcher = ring.serve_file(&files[1], &[]);
    assert_eq!(client.call(second, &[1]).result, [2]);
    assert_eq!(client.call(RPC_INCREMENT, &[1]).status, HANDLER_FAILED, "nobody serves it");
    assert_eq!(client.call(second, &[3]).result, [4]);
    let _first = ring.serve(&[]);
    assert_eq!(client.call(RPC_INCREMENT, &[5]).result, [6]);
    drop(dispatcher);
    assert_eq!(client.call(RPC_INCREMENT, &[7]).result, [8]);
    assert_eq!(client.call(second, &[7]).status, HANDLER_FAILED, "nobody serves it any more");
    let stopped = berth.stop();
    assert!(stopped.status.success());
    // What nobody took is in no ring's answers.
    assert_eq!(stopped.sum("a", "service", "ring_pushed"), 6);
    assert!(files.iter().all(|file| !file.exists()));
}

fn fnv1a(name: &str) -> u32 {
    name.bytes().fold(2_166_136_261, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

#[test]
fn slots_in_huge_pages_or_what_to_reserve() {
    let rpc = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]\nmemory = \"hugepages\"";
    let config = format!("{}{INCREMENT}", port("a", rpc));
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if free.is_ok_and(|free| free.trim() != "0") {
        assert_eq!(Berth::start(&config).client("a").call(RPC_INCREMENT, &[1]).result, [2]);
    } else {
        let (status, stderr) = fails(&config);
        assert_eq!(status, Some(1));
        assert!(stderr.contains("port a: ") && stderr.contains("huge pages"), "{stderr}");
    }
}
