//! What a lease that is a disk takes, and how soon it ends, as JSON lines:
//! `cargo run --release -p berth-perf --example nvme_lease_bench -- ends|memory CONTROL IDENTITY [PID]`.
//!
//! CONTROL is the QUIC address of a node with a binding of kind nvme, IDENTITY the key file of an enrolled client that may
//! revoke, PID the node's process.
//!
//! `ends`: a host reads a lease, eight commands ahead, while its token is revoked. Each line is one lease: microseconds from
//! asking for `LEASE_BIND` to the end of the first read; from asking for the revocation to the first read that is refused, and
//! to its answer; and how many reads were served that were sent after that answer.
//!
//! `memory`: KiB of the node's resident memory by lease that is bound, and by connection that is idle.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use berth_client::{Alloc, Client, NvmeBinding, Token};
use berth_host::pin_current_thread;
use berth_nvme::host::{Command, Controller, Data, Names, Queue, Settings, User};
use berth_port::{Nanos, Next, Progress};
use berth_wire::{
    fabric::Perms,
    nvme::{Sqe, Status, fabrics::Nqn, io::Access, opcode},
};
use tokio::runtime::Runtime;

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:6265-7274-682d-6c65-6173";
/// Leases that are revoked.
const ENDS: usize = 50;
/// Reads that are under way.
const AHEAD: u16 = 8;
/// How long reads go on before a revocation, and after its answer.
const AROUND: Duration = Duration::from_millis(5);
/// Leases of which each is bound, and those of them that a host has connected to.
const LEASES: usize = 400;
const CONNECTED: usize = 100;
/// Until what was begun has settled.
const REST: Duration = Duration::from_secs(2);
/// The CPU of the host that reads.
const CPU: usize = 0;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [what, control, identity, ref pid @ ..] = args[..] else {
        bail!("arguments: ends|memory CONTROL IDENTITY [PID]")
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(Client::quic(identity, control.parse()?, None))?;
    match (what, pid) {
        ("ends", []) => (0..ENDS).try_for_each(|_| ends(&runtime, &client))?,
        ("memory", [pid]) => memory(&runtime, &client, pid)?,
        _ => bail!("ends has no PID, memory has one"),
    }
    runtime.block_on(client.close());
    Ok(())
}

/// A token for a lease or several.
fn token(runtime: &Runtime, client: &Client) -> Result<Token> {
    let perms = Perms::READ | Perms::WRITE | Perms::ALLOC;
    Ok(runtime.block_on(client.cap_request(perms, 600, 0, None))?)
}

fn bound(runtime: &Runtime, client: &Client, token: &Token, len: u64) -> Result<(Instant, NvmeBinding)> {
    runtime.block_on(async {
        let grant = client.lease_alloc(token, &Alloc::block(len, 600)).await?;
        let asked = Instant::now();
        Ok((asked, client.bind_nvme(token, grant.lease_id, HOST, None).await?))
    })
}

/// One revocation.
fn ends(runtime: &Runtime, client: &Client) -> Result<()> {
    let token = token(runtime, client)?;
    let power = runtime.block_on(client.cap_request(Perms::REVOKE, 60, 0, None))?;
    let (began, binding) = bound(runtime, client, &token, 1 << 20)?;
    let stop = AtomicBool::new(false);
    let (asked, answered, (first, reads)) = thread::scope(|scope| {
        let reads = scope.spawn(|| read(&binding, &stop));
        thread::sleep(AROUND * 4);
        let asked = Instant::now();
        let revoked = runtime.block_on(client.cap_revoke(&power, token.fields().token_id, 60));
        let answered = Instant::now();
        thread::sleep(AROUND);
        stop.store(true, Relaxed);
        let reads = reads.join().expect("the reader does not panic")?;
        revoked?;
        Ok::<_, anyhow::Error>((asked, answered, reads))
    })?;
    let refused = reads.iter().find(|read| !read.served).context("nothing was refused")?;
    let late = reads.iter().filter(|read| read.served && read.sent > answered).count();
    println!(
        "{{\"first_read_us\": {:.1}, \"refused_us\": {:.1}, \"answered_us\": {:.1}, \"reads\": {}, \"served_after_answer\": {late}}}",
        (first - began).as_secs_f64() * 1e6,
        (refused.ended - asked).as_secs_f64() * 1e6,
        (answered - asked).as_secs_f64() * 1e6,
        reads.len(),
    );
    Ok(())
}

struct Done {
    sent: Instant,
    ended: Instant,
    served: bool,
}

/// Reads until told to stop, or until the connection ends; when the first one ended, and all of them.
fn read(binding: &NvmeBinding, stop: &AtomicBool) -> Result<(Instant, Vec<Done>)> {
    pin_current_thread(CPU)?;
    let mut host = Host::connect(binding, AHEAD)?;
    let mut sqe = Sqe::new(opcode::io::READ, 0, 1);
    Access { slba: 0, blocks: 8, fua: false, deallocate: false }.put(&mut sqe);
    let command = Command { sqe, data: Data::In(4096) };
    let mut reads = Vec::new();
    while !stop.load(Relaxed) {
        while let Some(number) = host.queue.submit(command, Nanos(0)) {
            host.reads.sent[number] = Instant::now();
        }
        let goes_on = host.poll()?;
        reads.append(&mut host.reads.done);
        if !goes_on {
            break;
        }
    }
    Ok((reads.first().context("nothing was read")?.ended, reads))
}

/// What is under way.
struct Reads {
    sent: Vec<Instant>,
    done: Vec<Done>,
}

impl User for Reads {
    fn data(&mut self, _: usize, _: usize, to: &mut [u8]) {
        to.fill(0);
    }

    fn received(&mut self, _: usize, _: usize, _: &[u8]) {}

    fn ended(&mut self, command: usize, status: Status, _: u64) {
        self.done.push(Done { sent: self.sent[command], ended: Instant::now(), served: status.is_success() });
    }
}

/// A host with one I/O queue.
struct Host {
    _admin: Wire,
    _controller: Controller,
    wire: Wire,
    queue: Queue,
    reads: Reads,
}

impl Host {
    fn connect(binding: &NvmeBinding, depth: u16) -> Result<Self> {
        let address = SocketAddr::new(binding.address.parse()?, binding.port);
        let field = |name: &str| Nqn::new(name.as_bytes()).context("a long name");
        let names = Names { subsystem: field(&binding.nqn)?, host: field(HOST)?, host_id: [7; 16] };
        let timeout = Duration::from_hours(1);
        let settings = Settings { header_digest: false, data_digest: false, keep_alive: Duration::ZERO, timeout };
        let (mut admin, mut controller) = (Wire::connect(address)?, Controller::new(settings, names, 1, Nanos(0)));
        while controller.facts().is_none() {
            let goes_on = admin.step(|input, output| controller.advance(input, output, Nanos(0)))?;
            ensure!(goes_on, "{:?}", controller.error());
        }
        let (wire, queue) = (Wire::connect(address)?, controller.queue(1, depth, Nanos(0)));
        let reads = Reads { sent: vec![Instant::now(); depth.into()], done: Vec::new() };
        let mut host = Self { _admin: admin, _controller: controller, wire, queue, reads };
        while host.queue.joined().is_none() {
            ensure!(host.poll()?, "{:?}", host.queue.error());
        }
        Ok(host)
    }

    fn poll(&mut self) -> Result<bool> {
        let (queue, reads) = (&mut self.queue, &mut self.reads);
        self.wire.step(|input, output| queue.advance(input, output, reads))
    }
}

/// A socket, and what came by it.
struct Wire {
    socket: TcpStream,
    held: Vec<u8>,
    room: Vec<u8>,
}

impl Wire {
    fn connect(address: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, held: Vec::new(), room: vec![0; Queue::OUTPUT] })
    }

    /// Takes what has come and sends what is to be sent; `false` once the connection is over.
    fn step(&mut self, mut advance: impl FnMut(&[u8], &mut [u8]) -> Progress) -> Result<bool> {
        let mut input = [0; 16 << 10];
        match self.socket.read(&mut input) {
            Ok(0) => return Ok(false),
            Ok(bytes) => self.held.extend_from_slice(&input[..bytes]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        loop {
            let Progress { consumed, written, next } = advance(&self.held, &mut self.room);
            self.held.drain(..consumed);
            let mut rest = &self.room[..written];
            while !rest.is_empty() {
                match self.socket.write(rest) {
                    Ok(bytes) => rest = &rest[bytes..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return Ok(false),
                }
            }
            match next {
                Next::Output(_) => {}
                Next::Close => return Ok(false),
                Next::Input(_) | Next::Completion => return Ok(true),
            }
        }
    }
}

fn memory(runtime: &Runtime, client: &Client, pid: &str) -> Result<()> {
    let resident = || -> Result<f64> {
        thread::sleep(REST);
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    let token = token(runtime, client)?;
    let lease = || Ok(bound(runtime, client, &token, 4096)?.1);
    // What is there once, whatever the number of leases.
    let bindings = (0..CONNECTED).map(|_| lease()).collect::<Result<Vec<_>>>()?;
    let before = resident()?;
    (0..LEASES).try_for_each(|_| lease().map(drop))?;
    let with_leases = resident()?;
    let first =
        bindings.iter().take(CONNECTED / 4).map(|binding| Host::connect(binding, 1)).collect::<Result<Vec<_>>>()?;
    let idle = resident()?;
    let rest =
        bindings.iter().skip(CONNECTED / 4).map(|binding| Host::connect(binding, 1)).collect::<Result<Vec<_>>>()?;
    let connected = resident()?;
    println!(
        "{{\"leases\": {LEASES}, \"lease_kib\": {:.2}, \"connections\": {}, \"connection_kib\": {:.2}}}",
        (with_leases - before) / LEASES as f64,
        2 * rest.len(),
        (connected - idle) / (2 * rest.len()) as f64,
    );
    drop((first, rest));
    Ok(())
}
