//! A worker on loopback, and a client in Python that was written from docs/hip-remote.md alone.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    ops::Deref,
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use berth_engine::{Idle, Lcore, Step, Telemetry};
use berth_hip_worker::{Claim, Leased, Leases, Occupant, SessionSettings, Settings, Worker};
use berth_host::{Sleeper, TscClock};
use berth_port::Clock as _;
use berth_wire::hip::{Code, Header, Op, request as q};

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
        devices: vec![(96 << 20, None), (96 << 20, None)],
        leases: None,
        tls: None,
    }
}

/// A worker, and the threads that poll its cores until it is dropped.
struct Served {
    worker: Worker,
    stop: Arc<AtomicBool>,
    /// Held while a core is polled.
    polling: Arc<Mutex<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Deref for Served {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl Served {
    /// No core is polled meanwhile.
    fn pause(&self) -> MutexGuard<'_, ()> {
        self.polling.lock().unwrap()
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
    let (stop, polling) = (Arc::new(AtomicBool::new(false)), Arc::<Mutex<()>>::default());
    let threads = cores.into_iter().map(|core| {
        let (stop, clock, polling) = (stop.clone(), clock.clone(), polling.clone());
        thread::spawn(move || {
            let mut lcore = Lcore::new("test", Idle::Wait, &Telemetry::default());
            lcore.add(core.open("hip").unwrap());
            let mut sleeper = Sleeper::new(lcore.wait_fds()).unwrap();
            while !stop.load(Relaxed) {
                let step = {
                    let _polling = polling.lock().unwrap_or_else(PoisonError::into_inner);
                    lcore.poll(clock.now())
                };
                if let Step::Sleep(most) = step {
                    sleeper.sleep(Some(most));
                }
            }
        })
    });
    Served { worker, threads: threads.collect(), stop, polling }
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

const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dataplane/ptx/tests/kernels");

/// Runs a script of the tests against a worker.
fn python(script: &str, worker: &Served, arguments: &[&str]) {
    let mut python = Command::new("python3");
    python.arg(format!("{TESTS}/{script}")).arg(worker.local_addr().to_string()).args(arguments);
    assert!(python.status().unwrap().success());
}

#[test]
fn a_stranger_in_python_finds_every_rule_kept() {
    keeps_every_rule(&start(settings()), &[KERNELS]);
}

/// Settings with TLS, and a file with the certificate.
fn with_tls(settings: Settings) -> (Settings, tempfile::NamedTempFile) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = berth_tls::stream::server(certificate.as_bytes(), key.as_bytes(), Vec::new()).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(certificate.as_bytes()).unwrap();
    (Settings { tls: Some(tls), ..settings }, file)
}

#[test]
fn a_stranger_in_python_finds_the_same_behind_tls() {
    let (settings, certificate) = with_tls(settings());
    keeps_every_rule(&start(settings), &[KERNELS, certificate.path().to_str().unwrap()]);
}

#[test]
fn whoever_breaks_tls_is_closed_and_counted() {
    let (settings, certificate) = with_tls(settings());
    let worker = start(settings);
    // The beginnings of handshakes, which keep nobody out.
    let halves = (0..600).map(|_| {
        let mut stream = TcpStream::connect(worker.local_addr()).unwrap();
        let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x01, 0x00, 0x01]);
        stream
    });
    let halves: Vec<_> = halves.collect();
    python("tls.py", &worker, &[certificate.path().to_str().unwrap()]);
    assert_eq!(count(&worker, "tls"), 3, "plain text, an older version, garbage");
    assert!(count(&worker, "displaced") >= 88);
    drop(halves);
}

fn keeps_every_rule(worker: &Served, arguments: &[&str]) {
    python("client.py", worker, arguments);
    let deadline = Instant::now() + Duration::from_secs(1);
    while worker.monitor().used() != [0, 0] {
        assert!(Instant::now() < deadline, "{:?} bytes are still used", worker.monitor().used());
    }
    for reason in ["bad_magic", "bad_version", "bad_length"] {
        assert_eq!(count(worker, reason), 1, "{reason}");
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

/// A node with leases of the second device, which live until it is told otherwise.
#[derive(Debug, Default)]
struct Node {
    is_over: Arc<AtomicBool>,
    sessions: Mutex<HashMap<u128, Arc<Occupant>>>,
    seen: Mutex<Vec<Claim>>,
}

/// The lease that the tests bind.
const LEASE: [u8; 16] = [7; 16];

impl Node {
    /// Forgets the session of the lease.
    fn take(&self) -> Arc<Occupant> {
        self.sessions.lock().unwrap().remove(&u128::from_be_bytes(LEASE)).unwrap()
    }

    /// Waits until so many claims were looked at.
    fn has_seen(&self, claims: usize) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.seen.lock().unwrap().len() < claims {
            assert!(Instant::now() < deadline, "a claim is not looked at");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Leases for Node {
    fn bind(&self, claim: &Claim, source: IpAddr, session: Arc<Occupant>) -> Result<Leased, Code> {
        assert!(source.is_loopback());
        let mut seen = self.seen.lock().unwrap();
        seen.push(claim.clone());
        if claim.signature != [1; 64] {
            return Err(Code::INVALID_CONTEXT);
        }
        if let Some(earlier) = self.sessions.lock().unwrap().insert(claim.lease, session) {
            earlier.end();
        }
        let is_over = self.is_over.clone();
        Ok(Leased { device: 1, bytes: 1 << 20, is_live: Box::new(move |_| !is_over.load(Relaxed)) })
    }
}

/// A connection, call by call.
struct Client(TcpStream);

impl Client {
    fn new(worker: &Served) -> Self {
        let stream = TcpStream::connect(worker.local_addr()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self(stream)
    }

    /// What follows the error code, or the code; `None` where the worker has closed.
    fn call(&mut self, op: Op, payload: &[u8]) -> Option<Result<Vec<u8>, i32>> {
        self.send(op, payload)?;
        self.answer()
    }

    fn send(&mut self, op: Op, payload: &[u8]) -> Option<()> {
        let header = Header::request(op, 1, payload.len() as u64, 0);
        self.0.write_all(&[zerocopy_bytes(&header), payload].concat()).ok()
    }

    fn answer(&mut self) -> Option<Result<Vec<u8>, i32>> {
        let mut header = [0; Header::LEN];
        self.0.read_exact(&mut header).ok()?;
        let mut body = vec![0; Header::parse(&header).unwrap().payload_length.get() as usize];
        self.0.read_exact(&mut body).ok()?;
        let code = i32::from_le_bytes(body[..4].try_into().unwrap());
        Some(if code == 0 { Ok(body.split_off(4)) } else { Err(code) })
    }

    fn malloc(&mut self, size: u64) -> Option<Result<(), i32>> {
        let request = q::Malloc { size: size.into(), flags: 0.into() };
        Some(self.call(Op::Malloc, zerocopy::IntoBytes::as_bytes(&request))?.map(drop))
    }

    fn claim(&mut self, lease_id: [u8; 16], signature: u8) -> Option<()> {
        let mut request = q::Bind::zeroed();
        (request.lease_id, request.signature, request.token_length) = (lease_id, [signature; 64], 5.into());
        self.send(Op::BerthBind, &[zerocopy::IntoBytes::as_bytes(&request), b"token"].concat())
    }

    fn bind(&mut self, signature: u8) -> Option<Result<(), i32>> {
        self.claim(LEASE, signature)?;
        self.bound()
    }

    fn bound(&mut self) -> Option<Result<(), i32>> {
        Some(self.answer()?.map(drop))
    }
}

#[test]
fn a_session_has_what_its_lease_gives_for_as_long_as_that_lives() {
    let node = Arc::<Node>::default();
    let worker = start(Settings { leases: Some((node.clone(), true)), ..settings() });
    let mut client = Client::new(&worker);
    assert_eq!(client.malloc(1), Some(Err(3)));
    assert_eq!(client.call(Op::Ping, &[]), Some(Ok(vec![])));
    let nonce = client.call(Op::BerthChallenge, &[]).unwrap().unwrap();
    assert_eq!(client.bind(2), Some(Err(201)));
    assert_eq!(client.bind(1), Some(Ok(())));
    let claim = node.seen.lock().unwrap()[0].clone();
    assert_eq!(claim.signed, [b"berth-hip-bind", &nonce[..], &LEASE].concat());
    assert_eq!((claim.lease, &claim.token[..]), (u128::from_be_bytes(LEASE), &b"token"[..]));
    assert_eq!(worker.monitor().used(), [0, 1 << 20], "the lease's bytes are taken, whatever is allocated");
    assert_eq!(client.call(Op::GetDeviceCount, &[]), Some(Ok(vec![1, 0, 0, 0])));
    assert_eq!(client.malloc(1 << 20), Some(Ok(())));
    assert_eq!(client.malloc(1), Some(Err(2)));
    assert_eq!(client.bind(1), Some(Err(201)), "it has one");
    // Three wrong claims, and the connection is closed.
    let mut wrong = Client::new(&worker);
    assert_eq!([0; 3].map(|_| wrong.bind(2)), [const { Some(Err(201)) }; 3]);
    assert_eq!(wrong.call(Op::Ping, &[]), None);
    // Whoever binds last has it.
    let mut second = Client::new(&worker);
    assert_ne!(second.call(Op::BerthChallenge, &[]).unwrap().unwrap(), nonce);
    assert_eq!(second.bind(1), Some(Ok(())));
    assert_eq!(client.call(Op::Ping, &[]), None);
    assert_eq!(worker.monitor().used(), [0, 1 << 20]);
    // Stopped, it is gone with all that it had.
    node.take().stop();
    assert_eq!(worker.monitor().used(), [0, 0]);
    assert_eq!(second.call(Op::Ping, &[]), None);
    // Over, it is served no more, and goes by itself.
    let mut third = Client::new(&worker);
    assert_eq!(third.bind(1), Some(Ok(())));
    node.is_over.store(true, Relaxed);
    assert_eq!(third.call(Op::Ping, &[]), None);
    let deadline = Instant::now() + Duration::from_secs(20);
    while worker.monitor().used() != [0, 0] {
        assert!(Instant::now() < deadline, "{:?} bytes are still used", worker.monitor().used());
    }
    assert_eq!(Client::new(&worker).bind(1), Some(Err(201)), "nobody binds what is over");
}

#[test]
fn claims_that_wait_for_an_earlier_session_keep_nobody_waiting() {
    let node = Arc::<Node>::default();
    let settings =
        Settings { cores: 1, max_sessions: 64, per_peer: 64, leases: Some((node.clone(), true)), ..settings() };
    let worker = start(settings);
    let mut first = Client::new(&worker);
    assert_eq!(first.bind(1), Some(Ok(())));
    // It does not end: nobody looks at it.
    let paused = worker.pause();
    let claim = |nth: usize| {
        let mut client = Client::new(&worker);
        client.claim(LEASE, 1).unwrap();
        node.has_seen(nth);
        client
    };
    let mut waiting = claim(2);
    for nth in 3..35 {
        let next = claim(nth);
        assert_eq!(waiting.bound(), Some(Err(201)), "one claim on a lease waits, the last one");
        waiting = next;
    }
    let mut other = Client::new(&worker);
    other.claim([8; 16], 1).unwrap();
    assert_eq!(other.bound(), Some(Ok(())));
    // Whoever stops the one that waits, waits for what the first one has.
    let (session, monitor) = (node.take(), worker.monitor());
    let stopped = thread::spawn(move || {
        session.stop();
        monitor.used()
    });
    assert_eq!(waiting.bound(), Some(Err(201)));
    drop(paused);
    assert_eq!(stopped.join().unwrap(), [0, 1 << 20], "what the other one has");
    assert_eq!(first.call(Op::Ping, &[]), None);
    // Who waits gets it in the end; who has gone does not.
    let mut third = Client::new(&worker);
    assert_eq!(third.bind(1), Some(Ok(())));
    let paused = worker.pause();
    drop((claim(37), claim(38)));
    let mut last = claim(39);
    drop(paused);
    assert_eq!(last.bound(), Some(Ok(())));
    assert_eq!(third.call(Op::Ping, &[]), None);
}

#[test]
fn a_claim_under_tls_is_signed_for_its_connection() {
    let node = Arc::<Node>::default();
    let (settings, certificate) = with_tls(Settings { leases: Some((node.clone(), true)), ..settings() });
    let worker = start(settings);
    python("bind.py", &worker, &[certificate.path().to_str().unwrap()]);
    let seen = node.seen.lock().unwrap();
    let [one, two] = &seen[..] else { panic!("{} claims", seen.len()) };
    let begins = [b"berth-hip-bind", &[0; 32][..], &LEASE].concat().len();
    for claim in [one, two] {
        assert_eq!(claim.signed.len(), begins + 32);
        assert_eq!(claim.signed[begins - 16..begins], LEASE);
    }
    assert_ne!(one.signed[begins..], [0; 32]);
    assert_ne!(one.signed[begins..], two.signed[begins..], "each connection has an exporter of its own");
}

#[test]
fn a_session_loses_nothing_to_a_lease_whose_bytes_others_use() {
    let node = Arc::<Node>::default();
    let devices = vec![(96 << 20, None), (3 << 19, None)];
    let worker = start(Settings { leases: Some((node, false)), devices, ..settings() });
    let [mut client, mut other] = [(); 2].map(|()| {
        let mut client = Client::new(&worker);
        let second = q::Device { device_id: 1.into() };
        assert_eq!(client.call(Op::SetDevice, zerocopy::IntoBytes::as_bytes(&second)), Some(Ok(vec![])));
        client
    });
    assert_eq!(other.malloc(3 << 18), Some(Ok(())));
    assert_eq!(client.malloc(2 << 18), Some(Ok(())));
    assert_eq!(client.bind(1), Some(Err(2)), "1 MiB, where another has all but 768 KiB");
    assert_eq!(worker.monitor().used(), [0, 5 << 18]);
    assert_eq!(client.malloc(1 << 18), Some(Ok(())), "on the second device still");
    assert_eq!(worker.monitor().used(), [0, 6 << 18]);
    drop(other);
    let deadline = Instant::now() + Duration::from_secs(20);
    while worker.monitor().used() != [0, 3 << 18] {
        assert!(Instant::now() < deadline, "{:?} bytes are still used", worker.monitor().used());
    }
    assert_eq!(client.bind(1), Some(Ok(())), "what it has itself is no hindrance");
    assert_eq!(worker.monitor().used(), [0, 1 << 20]);
    assert_eq!(client.malloc(1 << 20), Some(Ok(())), "what it had is freed");
}

#[test]
fn without_leases_there_is_nothing_to_bind() {
    let worker = start(settings());
    let mut client = Client::new(&worker);
    assert_eq!(client.call(Op::BerthChallenge, &[]), Some(Err(801)));
    assert_eq!(client.bind(1), Some(Err(801)));
}
