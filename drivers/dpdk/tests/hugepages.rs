//! Packet memory in huge pages, which vhost shares with its peer. Needs root, and 512 MiB for 2 MiB pages.

mod common;

use std::{fs, time::Duration};

use berth_dpdk::{Eal, EalConfig, Error, Memory, open, ring_pair};
use common::{child_argument, config, counter, serve, serve_until, spawn, v4, v6, verified_round_trips};

const PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Reserves huge pages, and returns them on drop.
struct Reservation(String);

impl Reservation {
    fn of(pages: u32) -> Self {
        let before = fs::read_to_string(PAGES).unwrap();
        fs::write(PAGES, pages.to_string()).unwrap();
        Self(before)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _ = fs::write(PAGES, self.0.trim());
    }
}

#[test]
fn frames_in_huge_pages() {
    if child_argument().is_some() {
        return;
    }
    let config_of = EalConfig { cpus: vec![0], memory: Memory::HugePages };
    {
        let _none = Reservation::of(0);
        let error = Eal::init(&config_of).unwrap_err();
        assert!(matches!(error, Error::NoHugePages), "{error}");
        assert!(error.to_string().contains("nr_hugepages"));
    }
    let _pages = Reservation::of(256);
    let eal = Eal::init(&config_of).unwrap();

    let (mut client, mut server) = ring_pair(eal, &config("", 1), &config("", 2)).unwrap();
    verified_round_trips(&mut client, v4(2), 10_000, || {
        serve(&mut server);
    });
    drop((client, server));

    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("vhost.sock").display().to_string();
    let mut server = open(eal, &config(&format!("net_vhost0,iface={socket}"), 2)).unwrap().remove(0);
    let mut client = spawn("client_process", &socket);
    let mut status = None;
    serve_until(&mut server, |_| {
        status = client.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    assert!(counter(&server, "rx_frames") >= 40_000);
}

/// The second process: a virtio-user client of the vhost port.
#[test]
fn client_process() {
    let Some(socket) = child_argument() else { return };
    let eal = Eal::init(&EalConfig { cpus: vec![0], memory: Memory::HugePages }).unwrap();
    let mut client = open(eal, &config(&format!("net_virtio_user0,path={socket}"), 1)).unwrap().remove(0);
    client.wait_link(Duration::from_secs(5)).unwrap();
    for peer in [v4(2), v6(2)] {
        verified_round_trips(&mut client, peer, 20_000, || {});
    }
}
