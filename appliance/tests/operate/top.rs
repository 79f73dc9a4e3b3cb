//! `berth top`: one frame as text, and live in a pseudo-terminal.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::common::{ADMIN, Berth, INCREMENT, RPC_INCREMENT, admin, port, request};

fn appliance() -> Berth {
    let lease = "[[region]]\nname = \"scratch\"\nkind = \"memory\"\nsize = \"64 MiB\"\n[node]\nstate_dir = \"state\"\n\
                 [control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
                 [[binding]]\nkind = \"nvme\"\nlisten = \"127.0.0.1:0\"\ncpus = [0]\nidle = \"wait\"\n";
    let ring = "[port.rpc]\ndispatch = \"ring\"\nworker_cpus = [0]";
    Berth::start(&format!("{ADMIN}{lease}{}{}{INCREMENT}", port("fpga0", ring), port("fpga1", "")))
}

/// Calls while `f` runs.
fn under_traffic<T>(berth: &Berth, f: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let client = berth.client("fpga0");
            while !done.load(Relaxed) {
                client.call(RPC_INCREMENT, &[1]);
                client.send(&request(1, &[], 1, 0));
                client.receive();
            }
        });
        let result = f();
        done.store(true, Relaxed);
        result
    })
}

#[test]
fn one_frame_shows_rates_latencies_losses_and_leases() {
    let berth = appliance();
    let top = || {
        let mut top = Command::new(env!("CARGO_BIN_EXE_berth"));
        top.args(["top", "--once", "--admin", &admin(&berth).to_string()]).output().unwrap()
    };
    let out = under_traffic(&berth, top);
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    let said = String::from_utf8(out.stdout).unwrap();
    let cells = |head: &[&str]| -> Vec<&str> {
        let mut lines =
            said.lines().map(|line| line.split(['│', ' ']).filter(|word| !word.is_empty()).collect::<Vec<_>>());
        lines.find(|line| line.starts_with(head)).unwrap_or_else(|| panic!("no {head:?} in\n{said}"))
    };
    assert!(said.starts_with("berth 0.1.0 serving, up "), "{said}");
    let fpga0 = cells(&["fpga0", "cpu0"]);
    assert!(fpga0[2] != "0" && fpga0.contains(&"us"), "{said}");
    assert_eq!(cells(&["fpga1", "cpu0"])[2..], ["0", "0", "-", "-", "-", "-", "-"]);
    cells(&["service", "time", "fpga0", "cpu0"]);
    cells(&["ring", "wait", "fpga0", "cpu0"]);
    cells(&["worker", "time", "fpga0", "worker0"]);
    assert!(said.contains("fpga0      refused        unknown function"), "{said}");
    assert!(said.contains("Leases: 0 of 0 B"), "{said}");
    assert_eq!(cells(&["berth", "0"])[1..], ["0", "0", "0", "0", "0", "0", "0", "B", "0", "B"]);
    let status =
        Command::new(env!("CARGO_BIN_EXE_berth")).args(["status", "--admin", &admin(&berth).to_string()]).output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    let rows: Vec<Vec<_>> = status.lines().map(|line| line.split_whitespace().collect()).collect();
    let head =
        rows.iter().position(|row| row.first() == Some(&"nvme")).unwrap_or_else(|| panic!("no nvme in\n{status}"));
    assert_eq!(rows[head][..5], ["nvme", "leases", "hosts", "controllers", "queues"]);
    assert_eq!(rows[head + 1], [&["berth"][..], &["0"; 8]].concat(), "{status}");
    assert_eq!(cells(&["scratch"])[1..], ["░░░░░░", "0.0%", "0", "B", "64", "MiB"]);
    berth.stop();
}

#[test]
fn it_lives_in_a_terminal_until_q() {
    let berth = appliance();
    let live = || {
        // The pseudo-terminal of util-linux, as large as is said.
        let command = format!("stty cols 120 rows 45; {} top --admin {}", env!("CARGO_BIN_EXE_berth"), admin(&berth));
        let mut script = Command::new("script");
        let script = script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm-256color");
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let reader = thread::spawn({
            let mut stdout = child.stdout.take().unwrap();
            move || {
                let mut out = Vec::new();
                stdout.read_to_end(&mut out).unwrap();
                String::from_utf8_lossy(&out).into_owned()
            }
        });
        thread::sleep(Duration::from_millis(2500));
        assert_eq!(child.try_wait().unwrap(), None, "it goes on by itself");
        let asked = Instant::now();
        stdin.write_all(b"q").unwrap();
        let status = child.wait().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2));
        (status.code(), reader.join().unwrap())
    };
    let (status, screen) = under_traffic(&berth, live);
    assert_eq!(status, Some(0), "{screen}");
    // The screen of its own is entered, drawn more than once, and left.
    let [enter, leave] = ["\x1b[?1049h", "\x1b[?1049l"].map(|code| screen.find(code).expect(code));
    let drawn = &screen[enter..leave];
    assert!(drawn.contains("fpga0") && drawn.contains("Latency by stage") && drawn.contains("q quits"), "{screen}");
    assert!(drawn.matches("up ").count() >= 1 && drawn.len() > 3000, "{screen}");
    let updates = drawn.matches("\x1b[1;").count();
    assert!(updates > 1, "the first line is drawn again as time goes: {updates}");
    berth.stop();
}

#[test]
fn without_an_appliance_it_says_so() {
    let top = Command::new(env!("CARGO_BIN_EXE_berth")).args(["top", "--admin", "127.0.0.1:9"]).output().unwrap();
    assert_eq!(top.status.code(), Some(1));
    let said = String::from_utf8(top.stderr).unwrap();
    assert!(said.contains("127.0.0.1:9 does not tell; is [admin] configured?"), "{said}");
}
