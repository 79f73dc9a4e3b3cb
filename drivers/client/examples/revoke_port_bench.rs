//! How soon a client of a real port feels a revocation, as JSON lines:
//! `cargo run --release -p berth-client --example revoke_port_bench -- CONTROL IDENTITY PORT`.
//!
//! CONTROL is the QUIC address of a node, IDENTITY the key file of an enrolled client that may revoke, PORT the UDP
//! address of a `lease-io` port. One client reads a lease over the port, a few messages ahead, while another revokes
//! its token. Each line is one revocation: microseconds from the request to the first refusal, and to its answer; and
//! the number of reads sent after that answer that were still served.
#![allow(clippy::doc_markdown)] // the documents' names of ops

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Grant};
use berth_wire::fabric::{
    Perms,
    data::two_sided::{Opcode, Request, Status},
};
use zerocopy::IntoBytes as _;

const REVOCATIONS: usize = 200;
/// Number of reads requested ahead.
const AHEAD: usize = 8;
/// How long reads go on before a revocation, and after its answer.
const AROUND: Duration = Duration::from_millis(2);

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let [_, control, identity, port] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY PORT".into());
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let (control, port): (SocketAddr, SocketAddr) = (control.parse()?, port.parse()?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(Client::quic(identity, control, None))?;
    for _ in 0..REVOCATIONS {
        let (grant, power, token) = runtime.block_on(async {
            let token = client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 60, 0, None).await?;
            let power = client.cap_request(Perms::REVOKE, 60, 0, None).await?;
            let grant = client.lease_alloc(&token, &Alloc::memory(4096, 60)).await?;
            Ok::<_, Failure>((grant, power, token.fields().token_id))
        })?;
        let stop = AtomicBool::new(false);
        let (asked, answered, reads) = thread::scope(|scope| {
            let reads = scope.spawn(|| read(&grant, port, &stop));
            thread::sleep(AROUND);
            let asked = Instant::now();
            let revoked = runtime.block_on(client.cap_revoke(&power, token, 60));
            let answered = Instant::now();
            thread::sleep(AROUND);
            stop.store(true, Relaxed);
            let reads = reads.join().expect("the reader does not panic")?;
            revoked?;
            Ok::<_, Failure>((asked, answered, reads))
        })?;
        let refused = reads.iter().find(|read| !read.served).ok_or("nothing was refused")?;
        let late = reads.iter().filter(|read| read.served && read.sent > answered).count();
        println!(
            "{{\"refused_us\": {:.1}, \"answered_us\": {:.1}, \"reads\": {}, \"served_after_answer\": {late}}}",
            (refused.answered - asked).as_secs_f64() * 1e6,
            (answered - asked).as_secs_f64() * 1e6,
            reads.len(),
        );
    }
    runtime.block_on(client.close());
    Ok(())
}

struct Read {
    sent: Instant,
    answered: Instant,
    served: bool,
}

/// Reads until told to stop, and once more. On loopback, answers come in the order of the requests.
fn read(grant: &Grant, port: SocketAddr, stop: &AtomicBool) -> Result<Vec<Read>, Failure> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(port)?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    let request = Request::new(Opcode::Read, grant.key, grant.generation, 0, 64);
    let (mut reads, mut ahead, mut answer) = (Vec::new(), VecDeque::new(), [0; 128]);
    loop {
        let last = stop.load(Relaxed);
        while ahead.len() < AHEAD {
            ahead.push_back(Instant::now());
            socket.send(request.as_bytes())?;
        }
        for sent in ahead.drain(..if last { AHEAD } else { 1 }) {
            socket.recv(&mut answer)?;
            let served = match Status::from_code(answer[0]) {
                Some(Status::Ok) => true,
                Some(Status::LeaseRevoked) => false,
                other => return Err(format!("a read was answered {other:?}").into()),
            };
            reads.push(Read { sent, answered: Instant::now(), served });
        }
        if last {
            return Ok(reads);
        }
    }
}
