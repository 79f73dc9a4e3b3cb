//! The server's half of rping on a queue pair of this crate: `rping_peer DEVICE GID LISTENER...`.
//!
//! LISTENER is a program that accepts a client of `rdma_cm` and says how to connect to it, like
//! `lab/peers/rping_listener.c`. In each round the client tells where its text is; we read it and say so; the client
//! tells where it wants it; we write it there and say so. Prints the number of rounds served.

use std::{
    env,
    error::Error,
    io::{BufRead, BufReader, Write},
    net::Ipv6Addr,
    process::{ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use berth_memory::Heap;
use berth_verbs::{
    Access, Completion, Context, Cq, Flags, Local, MemoryId, Mr, Op, Outcome, Path, Pd, Qp, QpConfig, QpKind, Remote,
    RemoteBytes, Retry, Work,
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Size of a client's message about its bytes: address, key and length, of 8, 4 and 4 bytes in network order.
const TOLD: usize = 16;
/// Offset of the text, behind the client's message.
const TEXT: usize = 4096;
const BYTES: usize = 1 << 20;

struct Server {
    qp: Qp,
    sent: Cq,
    received: Cq,
    mr: Mr,
    memory: MemoryId,
    /// Whether the client has left.
    gone: Arc<AtomicBool>,
}

impl Server {
    fn open(device: &str) -> Result<Self> {
        let context = Context::open(device)?;
        let pd = Pd::new(&context)?;
        let (sent, received) = (Cq::new(&context, 16)?, Cq::new(&context, 16)?);
        let config = QpConfig {
            kind: QpKind::Rc,
            send_cq: &sent,
            recv_cq: &received,
            srq: None,
            sends: 4,
            receives: 4,
            inline: 0,
            scatter: false,
        };
        let mut qp = Qp::new(&pd, &config)?;
        let mr = pd.register(Heap::new(BYTES), Access::LOCAL_WRITE, None)?;
        let memory = qp.keep(&mr)?;
        qp.to_init(1, Access::LOCAL_WRITE, 0)?;
        Ok(Self { qp, sent, received, mr, memory, gone: Arc::default() })
    }

    fn listen(&mut self) -> Result {
        self.qp.receive(0, Some(Local { memory: self.memory, at: 0, len: TOLD }))?;
        Ok(self.qp.ring_receives().1?)
    }

    /// The next completion of a queue; `None` once the client has left.
    fn next(&self, cq: &Cq, work: Work) -> Result<Option<Completion>> {
        let mut completion = [Completion::default()];
        while cq.poll(&mut completion)? == 0 {
            if self.gone.load(Relaxed) {
                return Ok(None);
            }
        }
        match completion[0] {
            done if done.outcome() == Outcome::Done && done.work() == work => Ok(Some(done)),
            other => Err(format!("{other:?}, not {work:?}").into()),
        }
    }

    fn work(&mut self, op: Op, at: usize, len: usize, work: Work) -> Result {
        let flags = Flags { signalled: true, ..Flags::default() };
        self.qp.send(1, op, Some(Local { memory: self.memory, at, len }), flags)?;
        self.qp.ring().1?;
        self.next(&self.sent, work)?.map(drop).ok_or_else(|| "the client went in the middle of a round".into())
    }

    /// The client's bytes and their number; `None` if it has left.
    fn told(&mut self) -> Result<Option<(RemoteBytes, usize)>> {
        let Some(told) = self.next(&self.received, Work::Received)? else { return Ok(None) };
        let mut bytes = [0; TOLD];
        self.mr.read(0, &mut bytes)?;
        self.listen()?;
        let [addr, rest] = [&bytes[..8], &bytes[8..]];
        let (rkey, len) = rest.split_at(4);
        let len = u32::from_be_bytes(len.try_into()?) as usize;
        if told.len() != TOLD || len > BYTES - TEXT {
            return Err(format!("{} bytes that tell of {len}", told.len()).into());
        }
        let there =
            RemoteBytes { addr: u64::from_be_bytes(addr.try_into()?), rkey: u32::from_be_bytes(rkey.try_into()?) };
        Ok(Some((there, len)))
    }

    fn rounds(&mut self) -> Result<u64> {
        let mut rounds = 0;
        while let Some((source, len)) = self.told()? {
            self.work(Op::Read(source), TEXT, len, Work::Read)?;
            self.work(Op::Send, 0, TOLD, Work::Sent)?;
            let Some((sink, room)) = self.told()? else { return Err("the client left in a round".into()) };
            self.work(Op::Write(sink), TEXT, len.min(room), Work::Wrote)?;
            self.work(Op::Send, 0, TOLD, Work::Sent)?;
            rounds += 1;
        }
        Ok(rounds)
    }
}

fn line(listener: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    listener.read_line(&mut line)?;
    Ok(line.trim_end().into())
}

fn main() -> Result {
    let args: Vec<_> = env::args().skip(1).collect();
    let [device, gid_index, listener, listener_args @ ..] = &args[..] else {
        return Err("usage: rping_peer DEVICE GID LISTENER...".into());
    };
    let mut server = Server::open(device)?;
    let mut listener =
        Command::new(listener).args(listener_args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut told = BufReader::new(listener.stdout.take().ok_or("no stdout")?);
    if line(&mut told)? != "listening" {
        return Err("the listener does not listen".into());
    }
    println!("listening");
    let peer = line(&mut told)?;
    let ["peer", qp_num, psn, gid, own_psn, mtu] = peer.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("the listener says {peer:?}").into());
    };
    let remote = Remote { qp_num: qp_num.parse()?, psn: psn.parse()?, gid: gid.parse::<Ipv6Addr>()?.octets() };
    let path = Path { port: 1, gid_index: gid_index.parse()?, mtu: mtu.parse()? };
    server.qp.to_rtr(path, Some(&remote), 1)?;
    server.listen()?;
    server.qp.to_rts(own_psn.parse()?, 1, Retry::default())?;
    writeln!(listener.stdin.take().ok_or("no stdin")?, "{}", server.qp.number())?;
    if line(&mut told)? != "established" {
        return Err("the client did not come in".into());
    }
    let gone = server.gone.clone();
    let watch = thread::spawn(move || {
        let told = line(&mut told).unwrap_or_default();
        gone.store(true, Relaxed);
        told
    });
    println!("served {} rounds", server.rounds()?);
    if watch.join().map_err(|_| "panicked")? != "gone" {
        return Err("the listener ended".into());
    }
    Ok(())
}
