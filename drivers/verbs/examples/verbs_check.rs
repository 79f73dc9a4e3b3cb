//! Checks the verbs layer on a device, each queue pair connected to another of the same device: `verbs_check DEVICE
//! GID`. Prints `ok WHAT` or `not ok WHAT: WHY`, as a suite of the lab does.

use std::{
    error::Error,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
    time::{Duration, Instant},
};

use berth_memory::Heap;
use berth_pages::{Backing, Pages};
use berth_verbs::{
    Access, Completion, Context, Cq, Error as Verbs, Event, Flags, Local, MemoryId, Mr, Mw, Op, Outcome, Path, Pd, Qp,
    QpConfig, QpKind, Remote, RemoteBytes, Retry, Srq, State, Work, random_psn,
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

const SIGNALLED: Flags = Flags { signalled: true, inline: false, fence: false };
const BYTES: usize = 64 << 10;

/// A queue pair with its completion queues and a page of memory.
struct End {
    qp: Qp,
    sent: Cq,
    received: Cq,
    mr: Mr,
    memory: MemoryId,
}

struct Lab {
    context: Context,
    pd: Pd,
    path: Path,
    gid: [u8; 16],
}

impl Lab {
    fn end(&self, kind: QpKind, srq: Option<&Srq>) -> Result<End> {
        let (sent, received) = (Cq::new(&self.context, 128)?, Cq::new(&self.context, 128)?);
        let config = QpConfig {
            kind,
            send_cq: &sent,
            recv_cq: &received,
            srq,
            sends: 64,
            receives: 64,
            inline: 64,
            scatter: true,
        };
        let mut qp = Qp::new(&self.pd, &config)?;
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::BIND;
        let mr = self.pd.register(Heap::new(BYTES), all, Some(0))?;
        let memory = qp.keep(&mr)?;
        Ok(End { qp, sent, received, mr, memory })
    }

    fn pair(&self, kind: QpKind) -> Result<[End; 2]> {
        let [mut a, mut b] = [self.end(kind, None)?, self.end(kind, None)?];
        let psn = [random_psn(), random_psn()];
        self.connect(&mut a.qp, b.qp.number(), psn)?;
        self.connect(&mut b.qp, a.qp.number(), [psn[1], psn[0]])?;
        Ok([a, b])
    }

    /// Connects to a queue pair; both sides' packet sequence numbers are in `psn`.
    fn connect(&self, qp: &mut Qp, to: u32, psn: [u32; 2]) -> Result {
        qp.to_init(self.path.port, Access::REMOTE_READ | Access::REMOTE_WRITE, 0)?;
        qp.to_rtr(self.path, Some(&Remote { qp_num: to, psn: psn[1], gid: self.gid }), 4)?;
        Ok(qp.to_rts(psn[0], 4, Retry { timeout: 8, ..Retry::default() })?)
    }
}

impl End {
    fn local(&self, at: usize, len: usize) -> Local {
        Local { memory: self.memory, at, len }
    }

    fn receive(&mut self, id: u64, at: usize, len: usize) -> Result {
        let local = Some(self.local(at, len));
        self.qp.receive(id, local)?;
        Ok(self.qp.ring_receives().1?)
    }

    /// Posts one piece of work and waits for it.
    fn work(&mut self, op: Op, local: Option<Local>) -> Result<Completion> {
        self.qp.send(7, op, local, SIGNALLED)?;
        self.qp.ring().1?;
        one(&self.sent)
    }
}

/// The next completion.
fn one(cq: &Cq) -> Result<Completion> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut completion = [Completion::default()];
    while cq.poll(&mut completion)? == 0 {
        if Instant::now() > deadline {
            return Err("no completion within 10 s".into());
        }
    }
    Ok(completion[0])
}

fn expect(completion: Completion, work: Work) -> Result {
    let done = completion.outcome() == Outcome::Done && completion.work() == work;
    if done { Ok(()) } else { Err(format!("{completion:?}, not {work:?}").into()) }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, is: &T, should: &T) -> Result {
    if is == should { Ok(()) } else { Err(format!("{what} is {is:?}, not {should:?}").into()) }
}

fn bytes(mr: &Mr, at: usize, len: usize) -> Result<Vec<u8>> {
    let mut out = vec![0; len];
    mr.read(at, &mut out)?;
    Ok(out)
}

fn sends(lab: &Lab, kind: QpKind) -> Result {
    let [mut a, mut b] = lab.pair(kind)?;
    a.mr.write(0, b"one two")?;
    b.receive(1, 100, 50)?;
    let local = Some(a.local(0, 7));
    expect(a.work(Op::SendImm(0xDEAD_BEEF), local)?, Work::Sent)?;
    let got = one(&b.received)?;
    expect(got, Work::Received)?;
    same("the length", &got.len(), &7)?;
    same("the immediate", &got.immediate(), &Some(0xDEAD_BEEF))?;
    same("the bytes", &bytes(&b.mr, 100, 7)?, &b"one two".to_vec())?;
    // Linked requests in one call, the last alone signalled, inline.
    for id in 0..16 {
        b.receive(id, id as usize * 64, 64)?;
    }
    for id in 0..16_u64 {
        a.mr.write(500, &[id as u8; 8])?;
        let flags = Flags { signalled: id == 15, inline: true, fence: false };
        let local = Some(a.local(500, 8));
        a.qp.send(id, Op::Send, local, flags)?;
        if id % 8 == 7 {
            let (posted, result) = a.qp.ring();
            result?;
            same("posted", &posted, &8)?;
        }
    }
    same("the signalled one", &one(&a.sent)?.id(), &15)?;
    for id in 0..16 {
        same("the order", &one(&b.received)?.id(), &id)?;
    }
    // Inline bytes are taken when the doorbell rings, so eight requests that were queued together carry the eighth's.
    same("the first inline bytes", &bytes(&b.mr, 0, 8)?, &vec![7; 8])?;
    same("the last inline bytes", &bytes(&b.mr, 15 * 64, 8)?, &vec![15; 8])
}

fn writes(lab: &Lab, kind: QpKind) -> Result {
    let [mut a, mut b] = lab.pair(kind)?;
    a.mr.write(0, &[9; 4000])?;
    b.qp.receive(3, None)?;
    b.qp.ring_receives().1?;
    let remote = RemoteBytes { addr: 5000, rkey: b.mr.rkey() };
    let local = Some(a.local(0, 4000));
    expect(a.work(Op::WriteImm(remote, 77), local)?, Work::Wrote)?;
    let told = one(&b.received)?;
    expect(told, Work::Written)?;
    same("the immediate", &told.immediate(), &Some(77))?;
    same("the bytes", &bytes(&b.mr, 4999, 4002)?, &[&[0][..], &[9; 4000], &[0]].concat())
}

fn reads(lab: &Lab) -> Result {
    let [mut a, b] = lab.pair(QpKind::Rc)?;
    b.mr.write(0, b"to be read")?;
    let remote = RemoteBytes { addr: 0, rkey: b.mr.rkey() };
    let local = Some(a.local(300, 10));
    expect(a.work(Op::Read(remote), local)?, Work::Read)?;
    same("the bytes", &bytes(&a.mr, 300, 10)?, &b"to be read".to_vec())
}

/// A dma-buf of pages of that file (`linux/udmabuf.h`).
fn dma_buf(file: &File) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
    const CLOSE_ON_EXEC: u32 = 1;
    let create = Create { memfd: file.as_raw_fd() as u32, flags: CLOSE_ON_EXEC, offset: 0, size: BYTES as u64 };
    let maker = File::options().read(true).write(true).open("/dev/udmabuf")?;
    // SAFETY: the call reads this structure.
    let made = unsafe { libc::ioctl(maker.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// Soft-RoCE takes none on most kernels.
fn dma_bufs(lab: &Lab) -> Result {
    let pages = Pages::new(BYTES as u64, &Backing::Unnamed, None)?;
    let file = pages.file().ok_or("pages without a file")?;
    let mr = match lab.pd.register_dmabuf(dma_buf(file)?, 4096, 4096, 4096, Access::REMOTE_READ) {
        Err(refused @ Verbs::NoDmaBufs { .. }) => {
            println!("# {refused}");
            return Ok(());
        }
        registered => registered?,
    };
    let [mut a, _b] = lab.pair(QpKind::Rc)?;
    file.write_all_at(b"to be read", 5000)?;
    let local = Some(a.local(300, 10));
    expect(a.work(Op::Read(RemoteBytes { addr: 5000, rkey: mr.rkey() }), local)?, Work::Read)?;
    same("the bytes", &bytes(&a.mr, 300, 10)?, &b"to be read".to_vec())
}

fn wrong_rkeys(lab: &Lab) -> Result {
    let [mut a, b] = lab.pair(QpKind::Rc)?;
    let remote = RemoteBytes { addr: 0, rkey: b.mr.rkey() ^ 0x100 };
    let local = Some(a.local(0, 8));
    same("the outcome", &a.work(Op::Write(remote), local)?.outcome(), &Outcome::RemoteAccess)?;
    same("the state", &a.qp.query_state()?, &State::Error)?;
    // Beyond the end by one byte.
    let [mut a, b] = lab.pair(QpKind::Rc)?;
    let remote = RemoteBytes { addr: BYTES as u64 - 7, rkey: b.mr.rkey() };
    let local = Some(a.local(0, 8));
    same("the outcome", &a.work(Op::Write(remote), local)?.outcome(), &Outcome::RemoteAccess)
}

fn windows(lab: &Lab) -> Result {
    if !lab.context.limits().type2_windows {
        println!("# {} has no windows of type 2", lab.context.name());
        return Ok(());
    }
    let [mut a, mut b] = lab.pair(QpKind::Rc)?;
    let mut window = Mw::new(&lab.pd)?;
    let range = Local { memory: b.memory, at: 4096, len: 512 };
    let rkey = b.qp.bind(1, &mut window, range, Access::REMOTE_WRITE, 0x5A, SIGNALLED)?;
    expect(one(&b.sent)?, Work::Bound)?;
    same("the key", &(rkey & 0xFF), &0x5A)?;
    a.mr.write(0, &[3; 512])?;
    let local = Some(a.local(0, 512));
    expect(a.work(Op::Write(RemoteBytes { addr: 4096, rkey }), local)?, Work::Wrote)?;
    same("the bytes", &bytes(&b.mr, 4095, 514)?, &[&[0][..], &[3; 512], &[0]].concat())?;
    expect(b.work(Op::Invalidate(rkey), None)?, Work::Invalidated)?;
    a.mr.write(0, &[4; 512])?;
    let outcome = a.work(Op::Write(RemoteBytes { addr: 4096, rkey }), local)?.outcome();
    same("after invalidation", &outcome, &Outcome::RemoteAccess)?;
    same("the bytes after it", &bytes(&b.mr, 4096, 512)?, &vec![3; 512])
}

fn shared_receives(lab: &Lab) -> Result {
    let srq = Srq::new(&lab.pd, 16)?;
    let pool = lab.pd.register(Heap::new(4096), Access::LOCAL_WRITE, None)?;
    let memory = srq.keep(&pool)?;
    let mut senders = Vec::new();
    for _ in 0..2 {
        let (mut a, mut b) = (lab.end(QpKind::Rc, None)?, lab.end(QpKind::Rc, Some(&srq))?);
        lab.connect(&mut a.qp, b.qp.number(), [1, 2])?;
        lab.connect(&mut b.qp, a.qp.number(), [2, 1])?;
        let refused = b.qp.receive(0, None);
        same("a receive of its own", &matches!(refused, Err(Verbs::Misuse(_))), &true)?;
        senders.push((a, b));
    }
    let receives: Vec<_> = (0..2_usize).map(|n| (n as u64, Local { memory, at: n * 64, len: 64 })).collect();
    let (taken, result) = srq.receive(&receives);
    result?;
    same("taken", &taken, &2)?;
    for (nth, (a, b)) in senders.iter_mut().enumerate() {
        a.mr.write(0, &[nth as u8 + 1; 4])?;
        let local = Some(a.local(0, 4));
        expect(a.work(Op::Send, local)?, Work::Sent)?;
        same("the receive", &one(&b.received)?.id(), &(nth as u64))?;
        same("the bytes", &bytes(&pool, nth * 64, 4)?, &vec![nth as u8 + 1; 4])?;
    }
    Ok(())
}

fn datagrams(lab: &Lab) -> Result {
    const QKEY: u32 = 0x1111_1111;
    let [mut a, mut b] = [lab.end(QpKind::Ud, None)?, lab.end(QpKind::Ud, None)?];
    for end in [&mut a, &mut b] {
        end.qp.to_init(lab.path.port, Access::LOCAL_READ, QKEY)?;
        end.qp.to_rtr(lab.path, None, 0)?;
        end.qp.to_rts(random_psn(), 0, Retry::default())?;
    }
    b.receive(0, 0, 256)?;
    a.mr.write(0, b"datagram")?;
    let address = a.qp.address(lab.path, lab.gid)?;
    let (local, op) = (Some(a.local(0, 8)), Op::Datagram(address, b.qp.number(), QKEY));
    expect(a.work(op, local)?, Work::Sent)?;
    let got = one(&b.received)?;
    same("the length", &got.len(), &48)?;
    same("the sender", &got.source(), &a.qp.number())?;
    same("the bytes", &bytes(&b.mr, 40, 8)?, &b"datagram".to_vec())
}

fn misuse(lab: &Lab) -> Result {
    let mut a = lab.end(QpKind::Rc, None)?;
    let refused = |what: &str, result: std::result::Result<(), Verbs>, is: fn(&Verbs) -> bool| match result {
        Err(e) if is(&e) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    };
    refused("RESET to RTS", a.qp.to_rts(0, 0, Retry::default()), |e| matches!(e, Verbs::State { .. }))?;
    refused("a receive in RESET", a.qp.receive(0, None), |e| matches!(e, Verbs::NotReady(State::Reset)))?;
    refused("a send in RESET", a.qp.send(0, Op::Send, None, SIGNALLED), |e| matches!(e, Verbs::NotReady(_)))?;
    a.qp.to_init(lab.path.port, Access::LOCAL_READ, 0)?;
    let local = Some(a.local(BYTES - 7, 8));
    refused("8 bytes at the end less 7", a.qp.receive(0, local), |e| matches!(e, Verbs::Range { .. }))?;
    let other = Pd::new(&lab.context)?;
    let foreign = other.register(Heap::new(1), Access::LOCAL_WRITE, None)?;
    refused("another domain's region", a.qp.keep(&foreign).map(drop), |e| matches!(e, Verbs::Misuse(_)))?;
    // Numbers jump: of several queue pairs in a row, some are not neighbours.
    let numbers = (0..6).map(|_| Ok(lab.end(QpKind::Rc, None)?.qp.number())).collect::<Result<Vec<_>>>()?;
    let neighbours = numbers.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    same("numbers in order", &(neighbours == 5), &false)
}

/// Posted work is flushed when its queue pair fails, and objects may be dropped in any order.
fn flushes(lab: &Lab) -> Result {
    let [mut a, mut b] = lab.pair(QpKind::Rc)?;
    b.receive(5, 0, 64)?;
    b.qp.to_error()?;
    let flushed = one(&b.received).map_err(|e| format!("the flushed receive: {e}"))?;
    same("the flushed", &(flushed.id(), flushed.outcome()), &(5, Outcome::Flushed))?;
    let local = Some(a.local(0, 4));
    let sent = a.work(Op::Send, local).map_err(|e| format!("the send to a dead peer: {e}"))?;
    same("to a dead peer", &sent.outcome(), &Outcome::Unreachable)?;
    let End { qp, sent, received, mr, .. } = b;
    drop((mr, sent, received));
    drop(qp);
    Ok(())
}

/// A completion queue that overruns is reported, and the others continue to work.
fn overrun(lab: &Lab) -> Result {
    let [mut a, mut b] = lab.pair(QpKind::Uc)?;
    let [mut c, mut d] = lab.pair(QpKind::Uc)?;
    let depth = u64::from(a.sent.depth());
    let mut told = Vec::new();
    for n in 0..depth + 40 {
        a.qp.send(n, Op::Send, None, SIGNALLED)?;
        if a.qp.ring().1.is_err() {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
        told.extend(lab.context.event());
    }
    std::thread::sleep(Duration::from_millis(50));
    told.extend(std::iter::from_fn(|| lab.context.event()));
    same("the event", &told.contains(&Event::CqError), &true)?;
    drop((a, std::mem::replace(&mut b, lab.end(QpKind::Uc, None)?)));
    d.receive(0, 0, 64)?;
    let local = Some(c.local(0, 16));
    expect(c.work(Op::Send, local)?, Work::Sent)?;
    expect(one(&d.received)?, Work::Received)
}

fn main() -> Result {
    let mut args = std::env::args().skip(1);
    let (Some(device), Some(gid)) = (args.next(), args.next()) else {
        return Err("usage: verbs_check DEVICE GID".into());
    };
    let context = Context::open(&device)?;
    let info = context.port(1)?;
    let gid = context.gid(1, gid.parse()?)?;
    println!("# {:?} {info:?} {gid:?}", context.limits());
    let path = Path { port: 1, gid_index: gid.index, mtu: info.mtu };
    let lab = Lab { pd: Pd::new(&context)?, context, path, gid: gid.raw };
    let checks: &[(&str, &dyn Fn() -> Result)] = &[
        ("RC sends, inline, linked and selectively signalled", &|| sends(&lab, QpKind::Rc)),
        ("UC sends, inline, linked and selectively signalled", &|| sends(&lab, QpKind::Uc)),
        ("RC writes with immediate", &|| writes(&lab, QpKind::Rc)),
        ("UC writes with immediate", &|| writes(&lab, QpKind::Uc)),
        ("RC reads", &|| reads(&lab)),
        ("dma-bufs are read, or refused as such", &|| dma_bufs(&lab)),
        ("a wrong rkey and a range by one byte fail", &|| wrong_rkeys(&lab)),
        ("windows of type 2 are bound and invalidated", &|| windows(&lab)),
        ("shared receive queues", &|| shared_receives(&lab)),
        ("datagrams", &|| datagrams(&lab)),
        ("misuse is refused", &|| misuse(&lab)),
        ("failed queue pairs give posted work back", &|| flushes(&lab)),
        ("an overrun completion queue is told, and others go on", &|| overrun(&lab)),
    ];
    for (name, check) in checks {
        match check() {
            Ok(()) => println!("ok verbs: {name}"),
            Err(e) => println!("not ok verbs: {name}: {e}"),
        }
    }
    Ok(())
}
