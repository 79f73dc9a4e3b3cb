//! `berth perf nvme` against our own target on sockets of this process: every byte is compared, and a wrong one is told.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use berth_lease::{
    Bytes, Entry, Generation, LeaseId, Region, RegionId, RegionKind, Regions, Rights, State, Storage, Table,
};
use berth_lease_io::{CHUNK, Pool};
use berth_memory::Heap;
use berth_nvme::{Connection, Limits, Target};
use berth_port::{Nanos, Next, Progress, Session as _};

use crate::common::run_suite;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:test";
const LEN: u64 = 1 << 20;
const LEASE: LeaseId = LeaseId(0xAB);

/// Memory that forgets what is written, if told to.
struct Disk {
    bytes: Mutex<Vec<u8>>,
    forgets: bool,
}

impl Bytes for Disk {
    fn len(&self) -> u64 {
        LEN
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..into.len()]);
    }

    fn write(&self, at: u64, from: &[u8]) {
        if !self.forgets {
            self.bytes.lock().unwrap()[at as usize..][..from.len()].copy_from_slice(from);
        }
    }

    fn zero(&self, at: u64, len: u64) {
        self.write(at, &vec![0; len as usize]);
    }
}

/// A lease of [`LEN`] bytes on a socket: where, and by which name; what stops it.
struct Served {
    address: SocketAddr,
    nqn: String,
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Served {
    fn new(rights: Rights, forgets: bool) -> Self {
        let disk = Disk { bytes: Mutex::new(vec![0; LEN as usize]), forgets };
        let storage = Storage::Bytes(Arc::new(disk));
        let regions = Regions::new(vec![Region { name: "d".into(), kind: RegionKind::Memory, numa: None, storage }]);
        let (table, mut writer) = Table::new(1);
        let entry = Entry {
            id: LEASE,
            generation: Generation(1),
            rights,
            region: RegionId(0),
            base: 0,
            len: LEN,
            first: 0,
            max_io: 128 << 10,
            expires: Nanos(u64::MAX),
            state: State::Active,
        };
        writer.insert(&entry).unwrap();
        let pool = Pool::new(Arc::new(Heap::new(64 * CHUNK)));
        let target = Target::new(&table, &regions, pool, Limits::default());
        let nqn = target.bind(LEASE, Generation(1), HOST, Nanos(1)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut lines: Vec<(TcpStream, Connection, Vec<u8>)> = Vec::new();
            while !stopped.load(Relaxed) {
                if let Ok((socket, _)) = listener.accept() {
                    socket.set_nonblocking(true).unwrap();
                    lines.push((socket, Connection::new(&target, address), Vec::new()));
                }
                lines.retain_mut(|(socket, connection, held)| serve(socket, connection, held));
                thread::yield_now();
            }
            drop(writer);
        });
        Self { address, nqn, stop, thread: Some(thread) }
    }

    fn run(&self, args: &str) -> anyhow::Result<(ExitCode, berth_perf::report::Report)> {
        let Self { address, nqn, .. } = self;
        run_suite("nvme", &format!("--to {address} --nqn {nqn} --host-nqn {HOST} --timeout 10000 {args}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Serves what has come on a connection; whether it goes on.
fn serve(socket: &mut TcpStream, connection: &mut Connection, held: &mut Vec<u8>) -> bool {
    let mut room = vec![0; 64 << 10];
    match socket.read(&mut room) {
        Ok(0) => return false,
        Ok(bytes) => held.extend_from_slice(&room[..bytes]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(_) => return false,
    }
    loop {
        let Progress { consumed, written, next } = connection.advance(held, &mut room, Nanos(1));
        held.drain(..consumed);
        socket.set_nonblocking(false).unwrap();
        let sent = socket.write_all(&room[..written]);
        socket.set_nonblocking(true).unwrap();
        match next {
            Next::Output(_) => {}
            Next::Close => return false,
            Next::Input(_) | Next::Completion => return sent.is_ok(),
        }
    }
}

#[test]
fn reads_and_writes_are_compared() {
    let served = Served::new(Rights::ALL, false);
    for (mix, digests, functions) in [
        ("read=1", "", vec!["read"]),
        ("write=1", "--digests header,data", vec!["write"]),
        ("read=70,write=30", "--digests data --queues 2", vec!["read", "write"]),
    ] {
        let args = format!("--mix {mix} {digests} --size 512,16384 --depth 4 --count 400 --verify");
        let (code, report) = served.run(&args).unwrap();
        assert_eq!(code, ExitCode::SUCCESS, "{mix}");
        let setup = report.setup.unwrap();
        assert_eq!((&*setup.port, setup.header.contains("digest")), ("nvme-tcp", !digests.is_empty()));
        assert_eq!(report.cases.len(), 2);
        for (case, size) in report.cases.iter().zip([512, 16384]) {
            assert_eq!((case.payload_bytes, case.counts.answered, case.latency.n), (Some(size), 400, 400));
            assert_eq!(case.functions.iter().map(|function| &*function.name).collect::<Vec<_>>(), functions);
            assert_eq!((case.port_counters["failed"], case.port_counters["connections_lost"]), (0, 0));
        }
    }
}

#[test]
fn a_disk_that_forgets_fails_the_run() {
    let served = Served::new(Rights::ALL, true);
    let (code, report) = served.run("--depth 4 --count 100 --verify").unwrap();
    assert_eq!((code, report.cases[0].counts.wrong), (ExitCode::FAILURE, 100));
    let error = served.run("--mix write=1 --depth 4 --count 100 --verify").unwrap_err();
    assert!(error.to_string().contains("reading back the disk"), "{error}");
    // Nobody looks at what is not to be compared.
    assert_eq!(served.run("--count 100").unwrap().0, ExitCode::SUCCESS);
}

#[test]
fn refusals_have_their_status() {
    let served = Served::new(Rights::WRITE, false);
    let (code, report) = served.run("--count 20 --sequential").unwrap();
    let case = &report.cases[0];
    assert_eq!((code, case.counts.refused), (ExitCode::FAILURE, 20));
    assert_eq!((case.refusals[0].status, case.port_counters["failed"]), (Some(0x286), 20));
}

#[test]
fn an_open_loop_keeps_its_schedule() {
    let served = Served::new(Rights::ALL, false);
    let (code, report) = served.run("--rate 500 --depth 64 --count 200").unwrap();
    assert_eq!((code, report.cases[0].counts.answered), (ExitCode::SUCCESS, 200));
    assert_eq!(report.cases[0].schedule.as_ref().unwrap().lag.n, 200);
    assert_eq!(report.setup.unwrap().pacing, "open");
}

#[test]
fn what_cannot_be_is_told_before_anything_runs() {
    let served = Served::new(Rights::READ, false);
    for (args, told) in [
        ("--size 1000", "whole blocks"),
        ("--size 262144", "more than a command transfers"),
        ("--queues 100", "fewer than --queues"),
        ("--depth 1000", "fewer than --depth"),
        ("--verify", "takes no writes"),
    ] {
        let error = format!("{:#}", served.run(args).unwrap_err());
        assert!(error.contains(told), "{args}: {error}");
    }
    let stranger = run_suite("nvme", &format!("--to {} --nqn {} --host-nqn nqn.other", served.address, served.nqn));
    let error = format!("{:#}", stranger.unwrap_err());
    assert!(error.contains("Connect was refused") && error.contains("0x184"), "{error}");
}

/// A server that answers with as many bytes as a read and its response have.
#[test]
fn a_baseline_is_asked_by_the_same_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut requests = 0;
        let mut request = [0; 72];
        while socket.read_exact(&mut request).is_ok() {
            assert_eq!((request[0], request[4]), (4, 72), "a command capsule");
            socket.write_all(&[0; 4144]).unwrap();
            requests += 1;
        }
        requests
    });
    let args = format!("--to {address} --echo --count 50 --depth 4 --timeout 10000");
    let (code, report) = run_suite("nvme", &args).unwrap();
    assert_eq!((code, report.cases[0].counts.answered), (ExitCode::SUCCESS, 50));
    assert!(report.setup.unwrap().echo);
    assert_eq!(server.join().unwrap(), 50);
}
