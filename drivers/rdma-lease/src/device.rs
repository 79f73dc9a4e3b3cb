//! The device behind the binding: verbs.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use berth_fabric::{BoundLease, Reach};
use berth_lease::{RegionId, Rights, Span};
use berth_memory::{Heap, Part};
use berth_pages::DmaMemory;
use berth_verbs::{
    Access, Completion, Context, Cq, Error, Event, Flags, Local as LocalBytes, Mr, Mw, Op, Outcome, Path, Pd, Qp,
    QpConfig, QpKind, Remote, RemoteBytes, Retry, random, random_psn,
};

use crate::hca::{Connect, End, Hca, HcaError, Key, Local, Peer, Seen, Unconnected, Unended};

/// When a client that answers nothing is given up: about a second on soft-RoCE, up to four times that on cards. A
/// count of 7 would be for ever on soft-RoCE.
const RETRY: Retry = Retry { timeout: 15, count: 6, no_receive: 0 };

/// READs of one client that are served at once, at most.
const READS: u8 = 16;

/// How often it is looked whether the device is still there: soft-RoCE goes without a word.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long a window may take to be bound: no packet is involved.
const BIND_TIME: Duration = Duration::from_secs(1);

/// After how long it is looked again whether it is.
const LOOK_AGAIN: Duration = Duration::from_micros(50);

/// What a client may do before its lease is granted to it.
const NOTHING: Access = Access::LOCAL_READ;

/// How long each step of the trial of windows may take, in which packets go from the device to itself.
const TRIAL_TIME: Duration = Duration::from_secs(2);

/// Whether remote keys are of memory windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// Where the device has windows of type 2, and a trial shows that they keep clients within them.
    Auto,
    /// Windows, or opening the device fails. Leases of another device's memory have none all the same.
    Always,
    /// Every lease is registered as a memory region of its own, in a protection domain of its own.
    Never,
}

/// A device and its use.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of the device, as `ibv_devices` lists it.
    pub device: String,
    /// Number of its port, from 1 on.
    pub port: u8,
    /// Place of our address in the port's GID table.
    pub gid_index: u8,
    /// Most leases that are connected at once. The completion queue has room for four entries of each, and 64 more.
    pub max_leases: u32,
    /// Whether remote keys are those of windows or of memory regions.
    pub windows: Windows,
}

/// An RDMA device, as long as it is there.
#[derive(Debug)]
pub struct Verbs {
    device: Arc<Device>,
    next_serial: u64,
    /// The serial number of each queue pair that a client may use: a completion may be of a former one of its number.
    live: HashMap<u32, u64>,
    looked: Instant,
}

/// What those who connect share with those who hold the node; neither waits for the other.
#[derive(Debug)]
struct Device {
    config: Config,
    /// The memory of each region; `None` for blocks.
    memory: Vec<Option<DmaMemory>>,
    /// Held by whoever opens the device.
    opening: Mutex<()>,
    open: Mutex<Option<Arc<Open>>>,
}

#[derive(Debug)]
struct Open {
    context: Context,
    cq: Cq,
    gid: [u8; 16],
    path: Path,
    scoping: Scoping,
    completions: Mutex<Completions>,
}

/// What the queue has told, for those it concerns.
#[derive(Debug, Default)]
struct Completions {
    probes: Vec<Completion>,
    /// By the id of the work: of those whom somebody waits for.
    bindings: HashMap<u64, Option<Outcome>>,
}

/// How a key is kept to its lease.
#[derive(Debug)]
enum Scoping {
    /// By a window that is bound to its lease's queue pair. The regions' own keys allow nothing. Leases of memory that is
    /// not mapped are registered as below.
    Windows { pd: Pd, regions: Vec<Option<Mr>> },
    /// By a protection domain with nothing but its lease's queue pair and region.
    Regions,
}

/// A connected queue pair, and what its client reaches the lease by.
#[derive(Debug)]
pub struct Link {
    // Soft-RoCE waits with destroying a queue pair until no window is bound to it: the window is dropped first.
    window: Option<Mw>,
    qp: Option<Qp>,
    region: Option<Mr>,
    pd: Pd,
    serial: u64,
    local: Local,
    open: Arc<Open>,
}

/// What a work request is for: the low bit of its id, above which is its queue pair's serial number.
const PROBE: u64 = 0;
const BIND: u64 = 1;

impl Verbs {
    /// Opens the device, and finds out whether windows work on it. `memory` is that of each region, by id.
    pub fn open(config: Config, memory: Vec<Option<DmaMemory>>) -> Result<Self, HcaError> {
        let device = Arc::new(Device { config, memory, opening: Mutex::default(), open: Mutex::default() });
        device.opened()?;
        Ok(Self { device, next_serial: 0, live: HashMap::new(), looked: Instant::now() })
    }

    /// Whether remote keys are of windows; false while the device is not open.
    pub fn uses_windows(&self) -> bool {
        self.device.current().is_some_and(|open| matches!(open.scoping, Scoping::Windows { .. }))
    }
}

impl Device {
    fn current(&self) -> Option<Arc<Open>> {
        lock(&self.open).clone()
    }

    /// The device; opens it if it is not open, which may take seconds.
    fn opened(&self) -> Result<Arc<Open>, HcaError> {
        let _opening = lock(&self.opening);
        if let Some(open) = self.current() {
            return Ok(open);
        }
        let open = Arc::new(Open::new(&self.config, &self.memory)?);
        *lock(&self.open) = Some(open.clone());
        Ok(open)
    }

    /// Connects a queue pair whose client may do nothing yet, and makes the key of its lease.
    fn connect(&self, peer: Peer, lease: &BoundLease, serial: u64) -> Result<(Link, Key), Unconnected<Link>> {
        let Reach::Bytes { span, .. } = lease.reach else { return Err(HcaError::NotMemory.into()) };
        let memory = self.memory.get(usize::from(span.region.0)).and_then(Option::as_ref);
        let memory = memory.filter(|_| span.len > 0).ok_or(HcaError::NotMemory)?;
        let open = self.opened()?;
        let pd = match (&open.scoping, memory) {
            (Scoping::Windows { pd, .. }, DmaMemory::Mapped(_)) => pd.clone(),
            // The key of a region is good on every queue pair of its domain.
            (Scoping::Regions, _) | (_, DmaMemory::DmaBufs(_)) => Pd::new(&open.context).map_err(failed)?,
        };
        let mut qp = queue_pair(&pd, &open.cq, true).map_err(failed)?;
        let path = Path { mtu: open.path.mtu.min(peer.mtu), ..open.path };
        let local = Local { qp_num: qp.number(), gid: open.gid, port: path.port, psn: random_psn() };
        let remote = Remote { qp_num: peer.qp_num, psn: peer.psn, gid: peer.gid };
        qp.to_init(path.port, NOTHING, 0).map_err(failed)?;
        let reads = open.context.limits().reads_in.min(READS);
        qp.to_rtr(path, Some(&remote), reads).map_err(|error| HcaError::Unreachable(error.into()))?;
        qp.to_rts(local.psn, 1, RETRY).map_err(failed)?;
        let mut link = Link { window: None, qp: Some(qp), region: None, pd, serial, local, open };
        match link.make_key(span, lease.rights, memory) {
            Ok(key) => Ok((link, key)),
            Err(error) => Err(Unconnected { error, left: Some(Box::new(link)) }),
        }
    }
}

impl Link {
    /// Takes the key away and ends the queue pair.
    fn end(&mut self) -> Result<(), HcaError> {
        let there = self.pd.context().is_present();
        // A device that is gone reaches nothing, whatever its driver says.
        let failed = |error| if there { Some(failed(error)) } else { None };
        if let Some(qp) = &mut self.qp {
            // Whether or not the device does this, destroying the queue pair is what counts.
            let _ = qp.to_error();
        }
        if let Some(Err((window, error))) = self.window.take().map(Mw::dealloc)
            && let Some(error) = failed(error)
        {
            self.window = Some(window);
            return Err(error);
        }
        if let Some(Err((qp, error))) = self.qp.take().map(Qp::destroy)
            && let Some(error) = failed(error)
        {
            self.qp = Some(qp);
            return Err(error);
        }
        if let Some(Err((region, error))) = self.region.take().map(Mr::deregister)
            && let Some(error) = failed(error)
        {
            self.region = Some(region);
            return Err(error);
        }
        Ok(())
    }

    /// Makes the key by which the client of this queue pair, and nobody else, reaches exactly the lease's bytes, once
    /// it may do anything.
    fn make_key(&mut self, span: Span, rights: Rights, memory: &DmaMemory) -> Result<Key, HcaError> {
        let Span { region, at, len } = span;
        let region_addr = region_addr(region);
        // What a client may write, the device must be able to write.
        let local = if rights.contains(Rights::WRITE) { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        match (&self.open.scoping, memory) {
            (Scoping::Windows { pd, regions }, DmaMemory::Mapped(_)) => {
                let mr = regions.get(usize::from(region.0)).and_then(Option::as_ref).ok_or(HcaError::NotMemory)?;
                let window = self.window.insert(Mw::new(pd).map_err(failed)?);
                let qp = self.qp.as_mut().expect("it was made with the link");
                let memory = qp.keep(mr).map_err(failed)?;
                let (bytes, id) = (LocalBytes { memory, at: at as usize, len: len as usize }, self.serial << 1 | BIND);
                let flags = Flags { signalled: true, ..Flags::default() };
                let rkey = self.open.await_binding(id, || {
                    let rkey = qp.bind(id, window, bytes, access(rights), random() as u8, flags).map_err(failed)?;
                    qp.ring().1.map_err(failed)?;
                    Ok(rkey)
                })?;
                Ok(Key { rkey, region_addr })
            }
            (Scoping::Regions, DmaMemory::Mapped(memory)) => {
                let part = Part::new(memory.clone(), at as usize, len as usize).ok_or(HcaError::NotMemory)?;
                let mr = self.pd.register(part, access(rights) | local, Some(region_addr + at)).map_err(failed)?;
                Ok(Key { rkey: self.region.insert(mr).rkey(), region_addr })
            }
            (_, DmaMemory::DmaBufs(memory)) => {
                let (buffer, offset) = memory.export(at, len).map_err(|error| match error.kind() {
                    io::ErrorKind::Unsupported => HcaError::NoDmaBufs(error.into()),
                    _ => HcaError::Failed(error.into()),
                })?;
                // Addresses are to be as far into a page as the bytes are in the dma-buf.
                let addr = region_addr + offset;
                let mr = self.pd.register_dmabuf(buffer, offset, len as usize, addr, access(rights) | local);
                let mr = mr.map_err(|error| match error {
                    error @ Error::NoDmaBufs { .. } => HcaError::NoDmaBufs(error.into()),
                    error => failed(error),
                })?;
                Ok(Key { rkey: self.region.insert(mr).rkey(), region_addr: addr - at })
            }
        }
    }
}

impl Hca for Verbs {
    type Link = Link;

    fn begin(&mut self, peer: Peer, lease: &BoundLease) -> Connect<Link> {
        let serial = self.next_serial;
        self.next_serial += 1;
        let (device, lease) = (self.device.clone(), *lease);
        Box::new(move || device.connect(peer, &lease, serial))
    }

    fn local(link: &Link) -> Local {
        link.local
    }

    fn grant(&mut self, link: &mut Link, rights: Rights) -> Result<(), HcaError> {
        // It may be gone since, and open anew: of the former one nothing is heard any more.
        let there = self.device.current().is_some_and(|open| Arc::ptr_eq(&open, &link.open));
        let qp = link.qp.as_mut().filter(|_| there).ok_or_else(|| HcaError::Gone(self.device.config.device.clone()))?;
        qp.allow(access(rights)).map_err(failed)?;
        self.live.insert(link.local.qp_num, link.serial);
        Ok(())
    }

    fn end(&mut self, mut link: Link) -> End<Link> {
        self.live.remove(&link.local.qp_num);
        Box::new(move || link.end().map_err(|error| Unended { error, link: Box::new(link) }))
    }

    fn probe(&mut self, link: &mut Link) -> Result<(), HcaError> {
        let Some(qp) = &mut link.qp else { return Ok(()) };
        // No bytes are written, so that neither address nor key mean anything.
        let nothing = Op::Write(RemoteBytes { addr: 0, rkey: 0 });
        let flags = Flags { signalled: true, ..Flags::default() };
        qp.send(link.serial << 1 | PROBE, nothing, None, flags).map_err(failed)?;
        qp.ring().1.map_err(failed)
    }

    fn poll(&mut self, seen: &mut Vec<Seen>) {
        let Some(open) = self.device.current() else { return };
        if self.looked.elapsed() >= LOOK_EVERY {
            self.looked = Instant::now();
            if !open.context.is_present() {
                seen.push(Seen::Removed);
                return;
            }
        }
        while let Some(event) = open.context.event() {
            match event {
                // A queue that overran, though it has room for all that is posted, fails every queue pair.
                Event::DeviceFatal | Event::CqError => {
                    seen.push(Seen::Removed);
                    return;
                }
                Event::QpError(qp_num) => seen.push(Seen::Faulted(qp_num)),
                Event::PortDown(_) | Event::PortUp(_) | Event::GidsChanged | Event::Other(_) => {}
            }
        }
        let mut completions = lock(&open.completions);
        // A queue that cannot be polled belongs to a device that is going.
        let _ = completions.poll(&open.cq);
        for completion in completions.probes.drain(..) {
            let qp_num = completion.qp_num();
            if self.live.get(&qp_num) == Some(&(completion.id() >> 1)) {
                seen.push(match completion.outcome() {
                    Outcome::Done => Seen::Alive(qp_num),
                    Outcome::Flushed => Seen::Faulted(qp_num),
                    _ => Seen::Lost(qp_num),
                });
            }
        }
    }

    fn close(&mut self) {
        *lock(&self.device.open) = None;
        self.live.clear();
    }
}

impl Open {
    fn new(config: &Config, memory: &[Option<DmaMemory>]) -> Result<Self, HcaError> {
        let context = Context::open(&config.device).map_err(|error| match error {
            Error::NoDevice { name, .. } => HcaError::Gone(name),
            error => failed(error),
        })?;
        let mtu = context.port(config.port).map_err(failed)?.mtu;
        let gid = context.gid(config.port, config.gid_index).map_err(failed)?.raw;
        // A probe and a window for each, and as many again for those that just ended.
        let depth = config.max_leases.saturating_mul(4).saturating_add(64).min(context.limits().completions);
        let cq = Cq::new(&context, depth).map_err(failed)?;
        let path = Path { port: config.port, gid_index: config.gid_index, mtu };
        let scoping = match config.windows {
            Windows::Never => Scoping::Regions,
            _ => match windows(&context, &cq, path, gid, memory) {
                Ok(scoping) => scoping,
                Err(error) if config.windows == Windows::Always => return Err(error),
                Err(error) => {
                    tracing::info!("{} gets a memory region for each lease: {error}", config.device);
                    Scoping::Regions
                }
            },
        };
        Ok(Self { context, cq, gid, path, scoping, completions: Mutex::default() })
    }

    /// Posts the binding of a window, and waits until it is done.
    fn await_binding<T>(&self, id: u64, post: impl FnOnce() -> Result<T, HcaError>) -> Result<T, HcaError> {
        lock(&self.completions).bindings.insert(id, None);
        let bound = post().and_then(|posted| self.bound(id).map(|()| posted));
        lock(&self.completions).bindings.remove(&id);
        bound
    }

    fn bound(&self, id: u64) -> Result<(), HcaError> {
        let deadline = Instant::now() + BIND_TIME;
        loop {
            {
                let mut completions = lock(&self.completions);
                completions.poll(&self.cq).map_err(failed)?;
                match completions.bindings.get(&id).copied().flatten() {
                    Some(Outcome::Done) => return Ok(()),
                    Some(outcome) => return Err(HcaError::Failed(format!("binding a window: {outcome:?}").into())),
                    None => {}
                }
            }
            if Instant::now() > deadline {
                return Err(HcaError::Failed("binding a window takes too long".into()));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }
}

impl Completions {
    /// Takes what has completed off the queue.
    fn poll(&mut self, cq: &Cq) -> Result<(), Error> {
        let mut polled = [Completion::default(); 32];
        loop {
            let count = cq.poll(&mut polled)?;
            for completion in &polled[..count] {
                if completion.id() & 1 == PROBE {
                    self.probes.push(*completion);
                } else if let Some(outcome) = self.bindings.get_mut(&completion.id()) {
                    *outcome = Some(completion.outcome());
                }
            }
            if count < polled.len() {
                return Ok(());
            }
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers every region, to be reached through windows, if those are to be trusted.
fn windows(
    context: &Context,
    cq: &Cq,
    path: Path,
    gid: [u8; 16],
    memory: &[Option<DmaMemory>],
) -> Result<Scoping, HcaError> {
    if !context.limits().type2_windows {
        return Err(HcaError::Failed("the device has no memory windows of type 2".into()));
    }
    let pd = Pd::new(context).map_err(failed)?;
    trial(&pd, cq, path, gid)?;
    let register = |(index, memory): (usize, &Option<DmaMemory>)| {
        let Some(DmaMemory::Mapped(memory)) = memory else { return Ok(None) };
        let access = Access::LOCAL_WRITE | Access::BIND;
        pd.register(memory.clone(), access, Some(region_addr(RegionId(index as u16)))).map(Some)
    };
    let regions = memory.iter().enumerate().map(register).collect::<Result<_, _>>().map_err(failed)?;
    Ok(Scoping::Windows { pd, regions })
}

/// Reads through a window by a queue pair that is connected to itself: what is within, and a byte beyond. Soft-RoCE
/// lets whoever has a window's key reach the whole region (seen on Linux 6.12).
fn trial(pd: &Pd, cq: &Cq, path: Path, gid: [u8; 16]) -> Result<(), HcaError> {
    const LEN: usize = 64;
    let (into, at) = (0, 4096);
    let scratch = pd.register(Heap::new(2 * at), Access::LOCAL_WRITE | Access::BIND, None).map_err(failed)?;
    let mut qp = queue_pair(pd, cq, false).map_err(failed)?;
    let itself = Remote { qp_num: qp.number(), psn: 0, gid };
    qp.to_init(path.port, Access::REMOTE_READ, 0).map_err(failed)?;
    qp.to_rtr(path, Some(&itself), 1).map_err(failed)?;
    qp.to_rts(0, 1, RETRY).map_err(failed)?;
    let memory = qp.keep(&scratch).map_err(failed)?;
    let mut window = Mw::new(pd).map_err(failed)?;
    let flags = Flags { signalled: true, ..Flags::default() };
    let within = LocalBytes { memory, at, len: LEN };
    let rkey = qp.bind(0, &mut window, within, Access::REMOTE_READ, 0, flags).map_err(failed)?;
    let mut outcomes = [trial_outcome(&mut qp, cq)?, Outcome::Failed, Outcome::Failed];
    for (beyond, outcome) in outcomes[1..].iter_mut().enumerate() {
        let from = RemoteBytes { addr: scratch.iova() + (at + beyond) as u64, rkey };
        qp.send(0, Op::Read(from), Some(LocalBytes { memory, at: into, len: LEN }), flags).map_err(failed)?;
        *outcome = trial_outcome(&mut qp, cq)?;
    }
    match outcomes {
        [Outcome::Done, Outcome::Done, Outcome::RemoteAccess] => Ok(()),
        [Outcome::Done, Outcome::Done, Outcome::Done] => {
            Err(HcaError::Failed("the device's memory windows do not keep clients within them".into()))
        }
        outcomes => Err(HcaError::Failed(format!("the device's memory windows do not work: {outcomes:?}").into())),
    }
}

fn trial_outcome(qp: &mut Qp, cq: &Cq) -> Result<Outcome, HcaError> {
    qp.ring().1.map_err(failed)?;
    let deadline = Instant::now() + TRIAL_TIME;
    let mut completion = [Completion::default()];
    while Instant::now() < deadline {
        if cq.poll(&mut completion).map_err(failed)? == 1 {
            return Ok(completion[0].outcome());
        }
    }
    Err(HcaError::Failed("the device takes too long with a memory window".into()))
}

fn queue_pair(pd: &Pd, cq: &Cq, scatter: bool) -> Result<Qp, Error> {
    let config =
        QpConfig { kind: QpKind::Rc, send_cq: cq, recv_cq: cq, srq: None, sends: 4, receives: 1, inline: 0, scatter };
    Qp::new(pd, &config)
}

/// The remote address of a region's first byte: none of this process, which clients need not know.
fn region_addr(region: RegionId) -> u64 {
    (u64::from(region.0) + 1) << 40
}

fn access(rights: Rights) -> Access {
    let read = if rights.contains(Rights::READ) { Access::REMOTE_READ } else { Access::LOCAL_READ };
    let write = if rights.contains(Rights::WRITE) { Access::REMOTE_WRITE } else { Access::LOCAL_READ };
    read | write
}

fn failed(error: Error) -> HcaError {
    HcaError::Failed(error.into())
}
