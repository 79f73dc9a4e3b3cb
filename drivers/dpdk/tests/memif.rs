//! Two processes over memif.

mod common;

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use berth_dpdk::open;
use common::{child_argument, config, counter, eal, serve_until, spawn, v4, v6, verified_round_trips};

/// Held by one test at a time, because two processes that spin need the whole machine.
static MACHINE: Mutex<()> = Mutex::new(());

fn device(name: &str, role: &str, socket: &str) -> String {
    format!("{name},role={role},socket={socket},socket-abstract=no")
}

/// The second process, which sends requests until its work is done, or it is killed.
#[test]
fn client_process() {
    let Some(argument) = child_argument() else { return };
    let (socket, count) = argument.split_once(' ').unwrap();
    let mut port = open(eal(), &config(&device("net_memif0", "client", socket), 1)).unwrap().remove(0);
    port.wait_link(Duration::from_secs(5)).unwrap();
    for peer in [v4(2), v6(2)] {
        verified_round_trips(&mut port, peer, count.parse().unwrap(), || {});
    }
}

#[test]
fn two_processes_echo_and_verify() {
    if child_argument().is_some() {
        return;
    }
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock").display().to_string();
    let mut server = open(eal(), &config(&device("net_memif0", "server", &socket), 2)).unwrap().remove(0);
    assert!(!server.link_is_up());
    let mut client = spawn("client_process", &format!("{socket} 100000"));
    let mut status = None;
    serve_until(&mut server, |_| {
        status = client.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    assert!(counter(&server, "rx_frames") >= 200_000);
}

#[test]
fn a_killed_client_does_not_take_the_server_down() {
    if child_argument().is_some() {
        return;
    }
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif.sock").display().to_string();
    let mut server = open(eal(), &config(&device("net_memif1", "server", &socket), 2)).unwrap().remove(0);
    for round in 0..20 {
        let mut client = spawn("client_process", &format!("{socket} 1000000000"));
        // Mid-burst, while both sides poll at full speed.
        let goal = counter(&server, "rx_frames") + 2000 + 97 * round;
        serve_until(&mut server, |server| counter(server, "rx_frames") >= goal);
        client.kill().unwrap();
        client.wait().unwrap();
        serve_until(&mut server, |server| !server.link_is_up());
    }
    let mut client = spawn("client_process", &format!("{socket} 10000"));
    let mut status = None;
    serve_until(&mut server, |_| {
        status = client.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
}
