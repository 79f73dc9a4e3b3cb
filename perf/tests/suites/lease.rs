//! `berth perf lease` against Berth's own service: on a second core of this process, and on a socket.

use std::{
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use berth_lease::{Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table};
use berth_lease_io::{LeaseService, TwoSided};
use berth_pages::{Backing, Pages};
use berth_port::{Nanos, Now, Port as _, Service as _};
use berth_udp::{UdpConfig, UdpPort};

use crate::common::run_suite;

#[test]
fn reads_and_writes_of_every_size_are_verified() {
    for op in ["read", "write"] {
        let args = format!("--port loopback --key 7 --op {op} --size 1,64,4096 --count 3000 --window 8");
        let (code, report) = run_suite("lease", &args).unwrap();
        assert_eq!(code, ExitCode::SUCCESS);
        assert_eq!(report.setup.unwrap().header, "two-sided");
        let cases: Vec<_> =
            report.cases.iter().map(|case| (case.payload_bytes.unwrap(), case.counts.answered)).collect();
        assert_eq!(cases, [(1, 3000), (64, 3000), (4096, 3000)]);
        assert!(report.cases.iter().all(|case| case.functions[0].name == op && case.latency.n == 3000));
    }
}

/// A lease of 1 MiB on a socket: its address, and what stops it.
fn serve(rights: Rights) -> (std::net::SocketAddr, Arc<AtomicBool>, thread::JoinHandle<()>) {
    let config = UdpConfig { max_frame: 9000, ..UdpConfig::new("127.0.0.1:0".parse().unwrap()) };
    let mut port = UdpPort::open(&config).unwrap();
    let (addr, stop) = (port.local_addr(), Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let thread = thread::spawn(move || {
        let storage = Storage::Bytes(Arc::new(Pages::new(1 << 20, &Backing::Ordinary, None).unwrap()));
        let region = Region { name: "m".into(), kind: RegionKind::Memory, numa: None, storage };
        let (table, mut writer) = Table::new(1);
        let entry = Entry {
            id: LeaseId(9 << 64 | 0xAB),
            generation: Generation(3),
            rights,
            region: RegionId(0),
            base: 0,
            len: 1 << 20,
            first: 0,
            max_io: 8192,
            expires: Nanos(u64::MAX),
            state: State::Active,
        };
        writer.insert(&entry).unwrap();
        let mut service = LeaseService::<TwoSided>::new(&table, &Regions::new(vec![region]), 0);
        while !stopped.load(Relaxed) {
            port.rx(|frame| service.handle(frame, Now::default()));
            port.tx();
        }
    });
    (addr, stop, thread)
}

#[test]
fn over_a_socket_with_the_whole_id() {
    let (addr, stop, server) = serve(Rights::ALL);
    let args = format!("--peer {addr} --key 000000000000000900000000000000ab --generation 3 --size 64 --count 500");
    let (code, report) = run_suite("lease", &args).unwrap();
    assert_eq!((code, report.cases[0].counts.answered), (ExitCode::SUCCESS, 500));
    let stale = run_suite("lease", &format!("--peer {addr} --key ab --generation 2 --size 64 --count 5"));
    let error = format!("{:#}", stale.unwrap_err());
    assert!(error.contains("filling the lease: 0 of 1024") && error.contains("with status 18"), "{error}");
    stop.store(true, Relaxed);
    server.join().unwrap();
}

#[test]
fn a_lease_that_cannot_be_written_fails_the_run() {
    let (addr, stop, server) = serve(Rights::READ);
    let args = format!("--peer {addr} --key ab --generation 3 --op write --count 5");
    let (code, report) = run_suite("lease", &args).unwrap();
    assert_eq!((code, report.cases[0].counts.refused), (ExitCode::FAILURE, 5));
    assert_eq!(report.cases[0].refusals[0].status, Some(0x16));
    stop.store(true, Relaxed);
    server.join().unwrap();
}
