//! Shared by the tests: EAL, a verifying client, a second process.
#![allow(dead_code, reason = "each test crate uses its part")]

use std::{
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use berth_dpdk::{DpdkPort, Eal, EalConfig, Memory, PortConfig};
use berth_port::{Port, PostError, Verdict};

/// EAL for this test process, on ordinary pages, because tests must not depend on reserved huge pages.
pub(crate) fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    *EAL.get_or_init(|| {
        Eal::init(&EalConfig { cpus: Vec::new(), memory: Memory::OrdinaryPages { mib: 256 } }).expect("EAL")
    })
}

/// A configuration with IPv4 and IPv6 addresses that end in `host`, on UDP port 4700.
pub(crate) fn config(device: &str, host: u8) -> PortConfig {
    PortConfig {
        device: device.into(),
        addresses: vec![([10, 77, 0, host].into(), 24), ([0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)].into(), 64)],
        udp_port: 4700,
        ..PortConfig::default()
    }
}

pub(crate) fn v4(host: u8) -> SocketAddr {
    ([10, 77, 0, host], 4700).into()
}

pub(crate) fn v6(host: u8) -> SocketAddr {
    ([0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)], 4700).into()
}

/// Payload of request `n`. That of its answer has every byte inverted.
pub(crate) fn payload(n: u64, longest: usize) -> Vec<u8> {
    let len = 8 + (n as usize * 37) % (longest - 8 + 1);
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.extend((8..len).map(|i| (n as usize + i) as u8));
    bytes
}

/// Polls once, and answers every frame with its bytes inverted.
pub(crate) fn serve(port: &mut impl Port) -> usize {
    let served = port.rx(|frame| {
        let len = frame.len();
        for byte in &mut frame.buf_mut()[..len] {
            *byte = !*byte;
        }
        Verdict::Reply
    });
    port.tx();
    served
}

/// Sends requests `0..count` to `peer`, at most 32 at a time, and verifies every answer. Repeats them after a second of
/// silence. `between` runs at every poll.
pub(crate) fn verified_round_trips(port: &mut impl Port, peer: SocketAddr, count: u64, mut between: impl FnMut()) {
    const WINDOW: u64 = 32;
    let longest = port.max_frame();
    let (mut sent, mut answered, mut progress) = (0, 0, Instant::now());
    let start = Instant::now();
    while answered < count {
        assert!(start.elapsed() < Duration::from_mins(1), "{answered} of {count} answers after a minute");
        while sent < count && sent < answered + WINDOW {
            let bytes = payload(sent, longest);
            match port.post(peer.into(), |buf| {
                buf[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            }) {
                Ok(()) => sent += 1,
                Err(PostError::Full | PostError::Unreachable) => break,
            }
        }
        port.tx();
        between();
        let got = port.rx(|frame| {
            assert_eq!(frame.peer(), peer.into());
            let answer: Vec<u8> = frame.data().iter().map(|b| !b).collect();
            let n = u64::from_le_bytes(answer[..8].try_into().unwrap());
            assert_eq!(answer, payload(n, longest), "answer {n}");
            // In order, unless it answers a request that was sent again.
            assert!(n <= answered, "answer {n} came while {answered} was awaited");
            answered += u64::from(n == answered);
            Verdict::Drop
        });
        if got > 0 {
            progress = Instant::now();
        } else if progress.elapsed() > Duration::from_secs(1) {
            (sent, progress) = (answered, Instant::now());
        }
    }
}

pub(crate) fn counter(port: &impl Port, name: &str) -> u64 {
    let mut found = None;
    port.counters(&mut |n, value| {
        if n == name {
            found = Some(value);
        }
    });
    found.unwrap_or_else(|| panic!("no counter {name}"))
}

/// Runs one test of this binary in a second process, which recognises that by [`child_argument`].
pub(crate) fn spawn(test: &str, argument: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("BERTH_TEST_CHILD", argument)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

pub(crate) fn child_argument() -> Option<String> {
    std::env::var("BERTH_TEST_CHILD").ok()
}

/// Serves until `done`; fails after half a minute.
pub(crate) fn serve_until(port: &mut DpdkPort, mut done: impl FnMut(&DpdkPort) -> bool) {
    let start = Instant::now();
    while !done(port) {
        assert!(start.elapsed() < Duration::from_secs(30), "served for half a minute in vain");
        serve(port);
    }
}
