//! A port that carries two-sided messages to a lease as RDMA READs and WRITEs.

use std::{
    collections::VecDeque,
    net::{Ipv6Addr, SocketAddr},
    time::Instant,
};

use anyhow::Context as _;
use berth_client::RdmaBinding;
use berth_memory::Heap;
use berth_port::{Frame, Peer, Port, PostError, Verdict};
use berth_ports::{Client, PortUser};
use berth_rdma_lease::{Key, Local as Side, Peer as Described};
use berth_verbs::{
    Access, Completion, Context, Cq, Error, Flags, Local, MemoryId, Mr, Op, Outcome, Path, Pd, Qp, QpConfig, QpKind,
    Remote, RemoteBytes, Retry, random_psn,
};
use berth_wire::fabric::{
    ClientTlv,
    data::two_sided::{Opcode, Request, Status},
};

/// Connects a queue pair to the lease that `meet` binds, and hands it to `user`.
pub(crate) fn open(client: &Client<'_>, user: impl PortUser) -> anyhow::Result<()> {
    let device = client.device.context("--binding rdma needs --device")?;
    let mut port = OneSided::open(device, 1, client.gid_index, client.longest)?;
    let Described { qp_num, gid, psn, mtu } = port.describe();
    let mut own = Vec::new();
    ClientTlv::RdmaPeer { qp_num, gid, psn, mtu }.write(&mut own);
    let bound = RdmaBinding::parse(&client.meet.context("no lease is bound")?(&own)?)?;
    let RdmaBinding { rkey, remote_addr, qp_num, gid, port: number, psn } = bound;
    let begun = Instant::now();
    port.connect(Side { qp_num, gid, port: number as u8, psn }, rkey, remote_addr)?;
    port.read_byte()?;
    eprintln!("connecting and the first read took {:.1} us", begun.elapsed().as_secs_f64() * 1e6);
    let peer = port.peer();
    user.run(port, peer);
    Ok(())
}

/// Requests that are under way at once, at most.
const DEPTH: usize = 16;

/// About half a second until a node that is gone is given up on soft-RoCE.
const RETRY: Retry = Retry { timeout: 14, count: 6, no_receive: 0 };

/// A queue pair to one lease, as a port: requests of two-sided messages go in, their answers come out.
///
/// The node takes no part in it: the lease's bytes are read and written by its device, so that the key and generation of
/// a request mean nothing here. What the device refuses is answered [`Status::Denied`], and so is all that follows.
#[derive(Debug)]
struct OneSided {
    qp: Qp,
    cq: Cq,
    memory: Mr,
    id: MemoryId,
    path: Path,
    own: Described,
    lease: Key,
    peer: Peer,
    /// One request or answer at a time, outside of the memory that the device may write.
    frame: Vec<u8>,
    free: Vec<usize>,
    /// What is under way, in order.
    sent: VecDeque<Sent>,
    /// How many of those, the last, are still to be posted.
    queued: usize,
    failed: u64,
    malformed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    slot: usize,
    /// Bytes that are read; none of a write.
    reads: usize,
    /// It was not even posted.
    refused: bool,
}

impl OneSided {
    /// Makes a queue pair for frames of up to `max_frame` bytes.
    fn open(device: &str, port: u8, gid_index: u8, max_frame: usize) -> Result<Self, Error> {
        let context = Context::open(device)?;
        let mtu = context.port(port)?.mtu;
        let gid = context.gid(port, gid_index)?.raw;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 2 * DEPTH as u32)?;
        let memory = pd.register(Heap::new(DEPTH * max_frame), Access::LOCAL_WRITE, None)?;
        let config = QpConfig {
            kind: QpKind::Rc,
            send_cq: &cq,
            recv_cq: &cq,
            srq: None,
            sends: DEPTH as u32,
            receives: 1,
            inline: 0,
            scatter: false,
        };
        let mut qp = Qp::new(&pd, &config)?;
        // The node writes no bytes here now and then, to see whether this client lives.
        qp.to_init(port, Access::REMOTE_WRITE, 0)?;
        let id = qp.keep(&memory)?;
        Ok(Self {
            own: Described { qp_num: qp.number(), gid, psn: random_psn(), mtu },
            qp,
            cq,
            memory,
            id,
            path: Path { port, gid_index, mtu },
            lease: Key { rkey: 0, region_addr: 0 },
            peer: Peer::Connection { number: 0, host: None },
            frame: vec![0; max_frame],
            free: (0..DEPTH).collect(),
            sent: VecDeque::with_capacity(DEPTH),
            queued: 0,
            failed: 0,
            malformed: 0,
        })
    }

    /// How `LEASE_BIND` describes this client.
    fn describe(&self) -> Described {
        self.own
    }

    /// Connects to what `LEASE_BIND` answered: the node's side, the lease's key and the address of its first byte.
    fn connect(&mut self, node: Side, rkey: u32, remote_addr: u64) -> Result<(), Error> {
        let remote = Remote { qp_num: node.qp_num, psn: node.psn, gid: node.gid };
        self.qp.to_rtr(self.path, Some(&remote), 1)?;
        let reads = self.qp.pd().context().limits().reads_out.min(DEPTH as u8);
        self.qp.to_rts(self.own.psn, reads, RETRY)?;
        self.lease = Key { rkey, region_addr: remote_addr };
        self.peer = Peer::Connection { number: 0, host: Some(Ipv6Addr::from(node.gid).to_canonical()) };
        Ok(())
    }

    /// The only peer.
    fn peer(&self) -> Peer {
        self.peer
    }

    /// Reads the lease's first byte, and waits for it.
    fn read_byte(&mut self) -> Result<(), Error> {
        let there = RemoteBytes { addr: self.lease.region_addr, rkey: self.lease.rkey };
        let flags = Flags { signalled: true, ..Flags::default() };
        self.qp.send(0, Op::Read(there), Some(Local { memory: self.id, at: 0, len: 1 }), flags)?;
        self.qp.ring().1?;
        let mut completion = [Completion::default()];
        while self.cq.poll(&mut completion)? == 0 {}
        match completion[0].outcome() {
            Outcome::Done => Ok(()),
            _ => Err(Error::Misuse("the lease's first byte cannot be read")),
        }
    }

    fn ask(&mut self, slot: usize, len: usize) -> Option<Sent> {
        let request = Request::parse(&self.frame[..len])?;
        let (at, count) = (slot * self.frame.len(), usize::try_from(request.len()).ok()?);
        let there = RemoteBytes { addr: self.lease.region_addr.wrapping_add(request.offset()), rkey: self.lease.rkey };
        let (op, reads) = match request.opcode()? {
            Opcode::Write if len == Request::LEN + count => {
                self.memory.write(at, &self.frame[Request::LEN..len]).ok()?;
                (Op::Write(there), 0)
            }
            Opcode::Read if len == Request::LEN && count < self.frame.len() => (Op::Read(there), count),
            _ => return None,
        };
        let flags = Flags { signalled: true, ..Flags::default() };
        let refused = self.qp.send(slot as u64, op, Some(Local { memory: self.id, at, len: count }), flags).is_err();
        self.queued += usize::from(!refused);
        Some(Sent { slot, reads, refused })
    }
}

impl Port for OneSided {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        let mut completions = [Completion::default(); DEPTH];
        let polled = self.cq.poll(&mut completions).unwrap_or(0);
        let mut lent = 0;
        let mut completions = completions[..polled].iter();
        while let Some(sent) = self.sent.front().copied() {
            let done = if sent.refused {
                false
            } else {
                // Work of one queue pair completes in its order.
                let Some(completion) = completions.next() else { break };
                completion.outcome() == Outcome::Done
            };
            self.sent.pop_front();
            self.free.push(sent.slot);
            let mut len = 1;
            self.frame[0] = if done { Status::Ok } else { Status::Denied }.code();
            if done && sent.reads > 0 {
                let at = sent.slot * self.frame.len();
                len += sent.reads;
                self.memory.read(at, &mut self.frame[1..len]).expect("slots are within the memory");
            }
            self.failed += u64::from(!done);
            lent += 1;
            // There is nobody to answer: the node's device has no more to say.
            let _ = handle(&mut Frame::new(&mut self.frame, len, len, self.peer));
        }
        lent
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, _: Peer, fill: F) -> Result<(), PostError> {
        let slot = self.free.pop().ok_or(PostError::Full)?;
        let len = fill(&mut self.frame);
        if let Some(sent) = self.ask(slot, len) {
            self.sent.push_back(sent);
        } else {
            self.malformed += 1;
            self.free.push(slot);
        }
        Ok(())
    }

    fn tx(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        if let (taken, Err(_)) = self.qp.ring() {
            let rest = self.sent.iter_mut().rev().filter(|sent| !sent.refused).take(queued - taken);
            rest.for_each(|sent| sent.refused = true);
        }
    }

    fn max_frame(&self) -> usize {
        self.frame.len()
    }

    fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.own.gid).to_canonical(), 0)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("denied", self.failed);
        visit("malformed", self.malformed);
    }
}
