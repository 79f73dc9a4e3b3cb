//! A worker on loopback, and a client in Python that was written from docs/hip-remote.md alone.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    ops::Deref,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use berth_engine::{Idle, Lcore, Step, Telemetry};
use berth_hip_worker::{SessionSettings, Settings, Worker};
use berth_host::{Sleeper, TscClock};
use berth_port::Clock as _;
use berth_wire::hip::{Header, Op};

fn settings() -> Settings {
    Settings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        cores: 2,
        kernels: Vec::new(),
        max_sessions: 16,
        per_peer: 16,
        session: SessionSettings { max_payload: 64 << 20, handles: 1000, idle: None },
        memory: 64 << 20,
        kernel_timeout: Duration::from_secs(3),
        devices: vec![96 << 20, 96 << 20],
    }
}

/// A worker, and the threads that poll its cores until it is dropped.
struct Served {
    worker: Worker,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Deref for Served {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn start(settings: Settings) -> Served {
    let clock = TscClock::calibrate(Duration::from_millis(5));
    let mono = clock.clone();
    let (worker, cores) = Worker::start(settings, move || mono.now().mono).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads = cores.into_iter().map(|core| {
        let (stop, clock) = (stop.clone(), clock.clone());
        thread::spawn(move || {
            let mut lcore = Lcore::new("test", Idle::Wait, &Telemetry::default());
            lcore.add(core.open("hip").unwrap());
            let mut sleeper = Sleeper::new(lcore.wait_fds()).unwrap();
            while !stop.load(Relaxed) {
                if let Step::Sleep(most) = lcore.poll(clock.now()) {
                    sleeper.sleep(Some(most));
                }
            }
        })
    });
    Served { worker, threads: threads.collect(), stop }
}

fn count(worker: &Served, counter: &str) -> u64 {
    let mut found = None;
    worker.monitor().report(&mut |name, value| {
        if name == counter {
            found = Some(value);
        }
    });
    found.unwrap()
}

#[test]
fn a_stranger_in_python_finds_every_rule_kept() {
    let worker = start(settings());
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py");
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dataplane/ptx/tests/kernels");
    let python = Command::new("python3").args([tests, &worker.local_addr().to_string(), kernels]).status().unwrap();
    assert!(python.success());
    let deadline = Instant::now() + Duration::from_secs(1);
    while worker.monitor().used() != [0, 0] {
        assert!(Instant::now() < deadline, "{:?} bytes are still used", worker.monitor().used());
    }
    for reason in ["bad_magic", "bad_version", "bad_length"] {
        assert_eq!(count(&worker, reason), 1, "{reason}");
    }
}

/// Sends a PING, and whether it is answered.
fn ping(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let header = Header::request(Op::Ping, 7, 0, 0);
    let mut answer = [0; 28];
    stream.write_all(zerocopy_bytes(&header)).is_ok() && stream.read_exact(&mut answer).is_ok()
}

fn zerocopy_bytes(header: &Header) -> &[u8] {
    zerocopy::IntoBytes::as_bytes(header)
}

#[test]
fn silent_clients_keep_nobody_out_and_the_limits_hold() {
    let worker = start(Settings { max_sessions: 3, per_peer: 2, ..settings() });
    let silent: Vec<_> = (0..600).map(|_| TcpStream::connect(worker.local_addr()).unwrap()).collect();
    let connect = || TcpStream::connect(worker.local_addr()).unwrap();
    let (mut one, mut two, mut three) = (connect(), connect(), connect());
    assert!(ping(&mut one) && ping(&mut two));
    assert!(!ping(&mut three) || !ping(&mut three), "one more than an address may have");
    assert!(ping(&mut one) && ping(&mut two));
    drop(one);
    let deadline = Instant::now() + Duration::from_secs(5);
    while !{
        let mut again = connect();
        ping(&mut again) && ping(&mut again)
    } {
        assert!(Instant::now() < deadline);
    }
    assert!(count(&worker, "displaced") >= 88 && count(&worker, "refused") >= 1);
    drop(silent);
}

#[test]
fn a_session_that_is_silent_for_too_long_ends() {
    let session = SessionSettings { idle: Some(Duration::from_millis(300)), ..settings().session };
    let worker = start(Settings { session, ..settings() });
    let mut stream = TcpStream::connect(worker.local_addr()).unwrap();
    assert!(ping(&mut stream));
    let begin = Instant::now();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    assert!((Duration::from_millis(250)..Duration::from_secs(3)).contains(&begin.elapsed()));
}
