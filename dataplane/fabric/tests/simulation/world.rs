//! The loop: virtual time, the network, the node's process and its crashes.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    time::Duration,
};

use berth_fabric::{
    Carrier, Config, Host, Job, Node, Outcome, Policy, Recovered, Rule, Step, Work, WorkFailed, journal::Proxy,
};
use berth_identity::{
    Identity, NodeId,
    link::{Received, Reply, Server},
};
use berth_lease::{Access, Bytes as _, Generation, Held, LeaseId, LeaseKey, Quiescence, Reader, Span, check};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    Bytes, CapRevoke, FenceSet, LeaseExported, LeaseGrant, LeaseImport, LeaseImported, LeaseRef, LeaseRelocate,
    LeaseRelocated, LeaseRenew, MsgType, Op, Perms, RelocateMode, Relocation, Request, Response, Status, Thermal,
    Wire as _,
};
use fastrand::Rng;

use super::{
    client::{Asked, Client, Rumours},
    disk::{Journal, Stores},
    oracle::{Known, Note, Oracle},
};

/// Bytes that accesses are made in.
pub const SLOT: u64 = 512;

/// How long a seed runs, in virtual time.
const LENGTH: u64 = 10 * SECOND;
const SECOND: u64 = 1_000_000_000;
const MILLI: u64 = 1_000_000;
/// Unix time when a seed begins.
const WALL: u64 = 1_700_000_000 * SECOND;
const CLIENTS: u8 = 3;
const NODE: u8 = 100;

/// What happened, so that a test can see that enough did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Summary {
    pub executed: u64,
    pub grants: u64,
    pub revocations: u64,
    pub relocations: u64,
    pub restarts: u64,
    pub served: u64,
    pub refused: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Self) {
        self.executed += other.executed;
        self.grants += other.grants;
        self.revocations += other.revocations;
        self.relocations += other.relocations;
        self.restarts += other.restarts;
        self.served += other.served;
        self.refused += other.refused;
    }
}

enum Event {
    /// A datagram of the control plane arrives.
    Datagram {
        to: u8,
        from: u8,
        bytes: Vec<u8>,
    },
    /// An access arrives at the node.
    Access(DataOp),
    /// A client does something.
    Client(u8),
    /// The journal's write is done, in this run of the process.
    Durable(u64),
    /// Work on bytes is done, in this run of the process.
    Worked(u64, u64),
    /// A block operation is done, in this run of the process.
    Io(u64, u64),
    Tick,
    Crash,
    /// The host's clock is set, by so many nanoseconds more than it should be.
    Step(i64),
}

#[derive(Debug, Clone, Copy)]
struct DataOp {
    key: u64,
    generation: u64,
    slot: u64,
    write: Option<u64>,
}

struct SimHost(Rng);

impl Host for SimHost {
    fn random(&mut self, into: &mut [u8]) {
        self.0.fill(into);
    }
    fn thermal(&mut self) -> Thermal {
        Thermal::default()
    }
    fn open_proxy(&mut self, _: LeaseId, _: Proxy) -> Option<u16> {
        None
    }
}

/// An answer that waits for the journal and for accesses to end.
struct Leaving {
    reply: Reply,
    payload: Vec<u8>,
    batch: u64,
    quiescence: Option<Quiescence>,
    note: Note,
}

/// A request whose bytes are being worked on.
struct Working {
    work: Work,
    asked: Executing,
    started: bool,
}

/// A request that is being executed.
struct Executing {
    reply: Reply,
    sender: u128,
    nonce: u64,
    op: Op,
    params: Vec<u8>,
}

/// What a crash takes with it.
struct Process {
    node: Node<SimHost>,
    server: Server,
    /// Monotonic time is counted from the machine's start.
    mono: u64,
    reader: Reader,
    leaving: Vec<Leaving>,
    working: BTreeMap<u64, Working>,
    flights: BTreeMap<u64, (Held, Span, u128, DataOp)>,
}

pub struct World {
    random: Rng,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    numbered: u64,
    clients: Vec<Client>,
    rumours: Rumours,
    /// Leases by exported handle.
    handles: BTreeMap<u128, u128>,
    stores: Stores,
    journal: Journal,
    process: Process,
    run: u64,
    step: i64,
    oracle: Oracle,
    summary: Summary,
    talk: bool,
}

fn who(n: u8) -> Identity {
    Identity::from_seed(&[n; 32])
}

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 5700))
}

fn config() -> Config {
    let rule = |n| Rule { presenter: Some(who(n).id().0), perms: Perms::ALL, resources: None };
    Config {
        policy: Policy::new((1..=CLIENTS).map(rule).collect()),
        enrolled: (1..=CLIENTS).map(|n| *who(n).public_key()).collect(),
        leases: berth_lease::Config { capacity: 512, ..berth_lease::Config::default() },
        ..Config::default()
    }
}

pub fn run(seed: u64, talk: bool) -> Summary {
    let mut world = World::new(seed, talk);
    world.run();
    world.summary
}

impl World {
    fn new(seed: u64, talk: bool) -> Self {
        let mut random = Rng::with_seed(seed);
        let stores = Stores::new();
        let mut journal = Journal::new(random.u64(..));
        let process = Process::start(&stores, &mut journal, Recovered::default(), 0, &mut random);
        let clients = (1..=CLIENTS).map(|n| Client::new(who(n), &mut random)).collect();
        let mut world = Self {
            random,
            now: 0,
            events: BTreeMap::new(),
            numbered: 0,
            clients,
            rumours: Rumours::default(),
            handles: BTreeMap::new(),
            stores,
            journal,
            process,
            run: 1,
            step: 0,
            oracle: Oracle::default(),
            summary: Summary::default(),
            talk,
        };
        for n in 1..=CLIENTS {
            world.after(u64::from(n) * MILLI, Event::Client(n));
        }
        world.after(50 * MILLI, Event::Tick);
        for _ in 0..world.random.u64(0..3) {
            let at = world.random.u64(0..LENGTH);
            world.after(at, Event::Crash);
        }
        for _ in 0..world.random.u64(0..3) {
            let (at, by) = (world.random.u64(0..LENGTH), world.random.i64(-7200..7200));
            world.after(at, Event::Step(by * SECOND as i64));
        }
        world
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.numbered += 1;
        self.events.insert((self.now + delay, self.numbered), event);
    }

    fn time(&self) -> Now {
        Now {
            mono: self.process.mono(self.now),
            wall: Nanos(WALL.saturating_add(self.now).saturating_add_signed(self.step)),
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.talk {
            println!("{:>12.6} {}", self.now as f64 / 1e9, what());
        }
    }

    fn run(&mut self) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > LENGTH {
                break;
            }
            // A restart takes time in which nothing happens.
            self.now = at.max(self.now);
            match event {
                Event::Datagram { to: NODE, from, bytes } => self.arrives(from, &bytes),
                Event::Datagram { to, bytes, .. } => self.answered(to, &bytes),
                Event::Access(access) => self.access(access),
                Event::Client(n) => self.client(n),
                Event::Durable(run) if run == self.run => {
                    self.journal.end();
                    if self.random.u8(..) < 6 {
                        let id = self.random.u64(..);
                        self.journal.compact(id);
                    }
                }
                Event::Worked(run, ticket) if run == self.run => self.worked(ticket),
                Event::Io(run, flight) if run == self.run => self.io(flight),
                Event::Durable(_) | Event::Worked(..) | Event::Io(..) => {}
                Event::Tick => {
                    let effects = self.process.node.tick(self.time());
                    if !effects.journal.is_empty() {
                        self.journal.stage(&effects.journal);
                    }
                    let delay = self.random.u64(MILLI..400 * MILLI);
                    self.after(delay, Event::Tick);
                }
                Event::Crash => self.crash(),
                Event::Step(by) => {
                    self.say(|| format!("the clock is set by {} s", by / SECOND as i64));
                    self.step = by;
                }
            }
            self.settle();
        }
    }

    /// What has become possible: writes of the journal, work, answers.
    fn settle(&mut self) {
        if !self.process.node.is_degraded() && self.journal.begin() {
            if self.random.u16(..) < 40 {
                self.say(|| "the journal fails".into());
                self.process.node.journal_failed();
            } else {
                let (delay, run) = (self.random.u64(MILLI / 10..20 * MILLI), self.run);
                self.after(delay, Event::Durable(run));
            }
        }
        let ready: Vec<u64> = self
            .process
            .working
            .iter_mut()
            .filter_map(|(ticket, working)| {
                let quiet = working.work.quiescence.as_mut().is_none_or(Quiescence::is_over);
                let begins = quiet && !working.started;
                working.started |= quiet;
                begins.then_some(*ticket)
            })
            .collect();
        for ticket in ready {
            let (delay, run) = (self.slow(3 * MILLI), self.run);
            self.after(delay, Event::Worked(run, ticket));
        }
        let mut waiting = std::mem::take(&mut self.process.leaving);
        let durable_to = self.journal.durable_to;
        let may_leave = |leaving: &mut Leaving| {
            leaving.batch <= durable_to && leaving.quiescence.as_mut().is_none_or(Quiescence::is_over)
        };
        for mut leaving in waiting.extract_if(.., may_leave) {
            self.oracle.answered(&leaving.note);
            let payload = std::mem::take(&mut leaving.payload);
            let (node, now) = (self.process.node.identity().clone(), self.time().mono);
            let answer = leaving.reply.message(MsgType::Response, payload, &node).expect("answers are short");
            self.process.server.answered(&leaving.reply, &answer, now);
            let to = host(leaving.reply.to);
            for frame in answer.frames() {
                self.send(NODE, to, &frame);
            }
        }
        self.process.leaving.append(&mut waiting);
    }

    /// How long storage takes: up to `most`, and now and then so long that much else happens meanwhile.
    fn slow(&mut self, most: u64) -> u64 {
        if self.random.u8(..) < 80 { self.random.u64(0..1500 * MILLI) } else { self.random.u64(0..most) }
    }

    /// A datagram goes on its way: it may be lost, doubled and overtaken.
    fn send(&mut self, from: u8, to: u8, bytes: &[u8]) {
        let copies = match self.random.u8(0..100) {
            0..8 => 0,
            8..18 => 2,
            _ => 1,
        };
        for _ in 0..copies {
            // Now and then a copy comes very late: an old term.
            let delay = if self.random.u8(..) < 6 {
                self.random.u64(0..8 * SECOND)
            } else {
                self.random.u64(MILLI / 20..60 * MILLI)
            };
            self.after(delay, Event::Datagram { to, from, bytes: bytes.to_vec() });
        }
    }

    fn client(&mut self, n: u8) {
        let index = usize::from(n) - 1;
        let again = self.clients[index].asked.as_mut().and_then(|asked| {
            asked.tries += 1;
            (asked.tries <= 5).then_some(asked.request_id)
        });
        let request_id = if let Some(id) = again {
            id
        } else {
            if let Some(asked) = self.clients[index].asked.take() {
                self.clients[index].link.forget(asked.request_id);
            }
            let (op, token, params) = self.clients[index].plan(&self.rumours, &mut self.random);
            let client = &mut self.clients[index];
            let id = client.link.request(address(NODE), None, op.code(), 0, &token, &params).expect("it is short");
            client.asked = Some(Asked { request_id: id, op, params, tries: 0 });
            id
        };
        let frames: Vec<Vec<u8>> = self.clients[index].link.frames(request_id).collect();
        for frame in frames {
            self.send(n, NODE, &frame);
        }
        for _ in 0..self.random.usize(0..6) {
            self.use_a_lease(index);
        }
        let pause = self.random.u64(300 * MILLI..1800 * MILLI);
        self.after(pause, Event::Client(n));
    }

    fn use_a_lease(&mut self, index: usize) {
        let leases = &self.clients[index].leases;
        if leases.is_empty() {
            return;
        }
        // Newer leases are likelier to live.
        let from = if self.random.bool() { leases.len().saturating_sub(4) } else { 0 };
        let lease = leases[self.random.usize(from..leases.len())];
        let write = self.random.bool().then(|| self.random.u64(1..));
        let access =
            DataOp { key: lease.key, generation: lease.generation, slot: self.random.u64(0..=lease.slots), write };
        let delay = self.random.u64(0..300 * MILLI);
        self.after(delay, Event::Access(access));
    }

    fn answered(&mut self, to: u8, bytes: &[u8]) {
        let now = self.time().mono;
        let client = &mut self.clients[usize::from(to) - 1];
        let Some(answer) = client.link.receive(bytes, address(NODE), now) else { return };
        let Some(asked) = client.asked.take_if(|asked| asked.request_id == answer.request_id) else { return };
        let response = Response::parse(&answer.payload).expect("the node answers soundly");
        assert_eq!(response.op, asked.op.code());
        let status = Status::from_code(response.status).expect("a status");
        client.learn(&asked, status, response.result.get(), &mut self.rumours);
        // A client that has its answer asks the next thing soon.
        let pause = self.random.u64(MILLI..300 * MILLI);
        if self.random.bool() {
            self.after(pause, Event::Client(to));
            self.events
                .retain(|(at, _), event| !matches!(event, Event::Client(n) if *n == to && *at > self.now + pause));
        }
    }

    /// A datagram comes to the node.
    fn arrives(&mut self, from: u8, bytes: &[u8]) {
        let now = self.time();
        let process = &mut self.process;
        match process.server.receive(bytes, address(from), process.node.keys(), now.mono) {
            Received::Nothing => {}
            Received::Again(answer) => {
                let frames: Vec<Vec<u8>> = answer.frames().collect();
                for frame in frames {
                    self.send(NODE, from, &frame);
                }
            }
            Received::New(message, reply) => {
                let request = Request::parse(&message.payload).expect("the link has looked");
                let asked = berth_fabric::Request {
                    carrier: Carrier::Udp { nonce: message.nonce },
                    presenter: message.sender.0,
                    source: address(from),
                    op: request.op,
                    resource: request.resource_id,
                    token: request.token.get(),
                    params: request.params.get(),
                };
                let executing = Executing {
                    reply,
                    sender: message.sender.0,
                    nonce: message.nonce,
                    op: Op::from_code(request.op).expect("clients know their ops"),
                    params: request.params.get().to_vec(),
                };
                self.oracle.executes(executing.sender, executing.nonce);
                self.summary.executed += 1;
                match process.node.request(&asked, now) {
                    Step::Done(outcome) => self.conclude(&executing, outcome),
                    Step::Work(work) => {
                        if let Some((src, _)) = moved(&executing) {
                            let src = self.oracle.keys[&src];
                            self.oracle.ended(&[src]);
                        }
                        self.say(|| format!("works on {:?}", work.jobs));
                        let ticket = work.ticket;
                        self.process.working.insert(ticket, Working { work, asked: executing, started: false });
                    }
                    Step::Drop => unreachable!("clients are enrolled"),
                }
            }
        }
    }

    fn worked(&mut self, ticket: u64) {
        let Working { work, asked, .. } = self.process.working.remove(&ticket).expect("it is under way");
        let fails = self.random.u8(..) < 40;
        if !fails {
            for job in &work.jobs {
                match job {
                    Job::Zero(span) => self.stores.heap(span.region.0).zero(span.at, span.len),
                    Job::Copy(from, to) => {
                        let mut bytes = vec![0; from.len as usize];
                        self.stores.heap(from.region.0).read(from.at, &mut bytes);
                        self.stores.heap(to.region.0).write(to.at, &bytes);
                    }
                }
            }
            if asked.op == Op::LeaseRelocate {
                let params = LeaseRelocate::parse(&asked.params).expect("it was served");
                let (src, dst) = (self.oracle.keys[&params.src_lease_id], self.oracle.keys[&params.dst_lease_id]);
                self.oracle.copied(src, dst);
            }
        }
        let result = if fails { Err(WorkFailed) } else { Ok(()) };
        let now = self.time();
        let outcome = self.process.node.resume(ticket, result, now);
        self.conclude(&asked, outcome);
    }

    /// An op was executed: what it means, and when its answer may leave.
    fn conclude(&mut self, asked: &Executing, outcome: Outcome) {
        let Outcome { answer, journal, quiescence, effects } = outcome;
        let (op, status, result) = (asked.op, answer.status, &answer.result);
        self.say(|| format!("{op} of {} -> {status}, {journal:?}", NodeId(asked.sender)));
        assert!(status != Status::InternalError || self.process.node.is_degraded() || op == Op::LeaseAlloc);
        let note = if status == Status::Ok { self.meaning(asked, result) } else { Note::Nothing };
        let mut records = journal;
        let waits = !records.is_empty();
        records.extend(effects.journal);
        let staged = if records.is_empty() { 0 } else { self.journal.stage(&records) };
        if waits {
            self.oracle.journaled(asked.sender, asked.nonce, staged);
        }
        let result = Bytes::of(&answer.result).expect("it is short");
        let payload = Response { status: status.code(), op: op.code(), result }.to_vec();
        let batch = if waits { staged } else { 0 };
        self.process.leaving.push(Leaving { reply: asked.reply, payload, batch, quiescence, note });
    }

    /// What an op that succeeded means to the oracle.
    fn meaning(&mut self, asked: &Executing, result: &[u8]) -> Note {
        match asked.op {
            Op::LeaseAlloc => {
                let grant = LeaseGrant::parse(result).expect("a grant");
                let lease = *self.process.node.leases().get(LeaseId(grant.lease_id)).expect("it was granted");
                let mono = self.process.mono(self.now);
                let time = |at: Nanos| self.now + at.0 - mono.0;
                let known = Known {
                    holder: lease.holder,
                    token: lease.token,
                    region: lease.region.expect("it has bytes").0,
                    base: lease.base,
                    len: lease.len,
                    generation: lease.generation.0,
                    expires_at_most: time(lease.expires),
                    expires_ever: time(lease.expires),
                    ends_at_most: time(lease.ends()),
                    expires_at_least: None,
                    over: false,
                    over_for_good: false,
                    contents: HashMap::new(),
                };
                assert_eq!(lease.holder, asked.sender);
                self.oracle.granted(grant.lease_id, known, self.now);
                self.summary.grants += 1;
                Note::Lives(grant.lease_id, time(lease.expires))
            }
            Op::LeaseRenew => {
                let params = LeaseRenew::parse(&asked.params).expect("it was served");
                let until = self.now + Duration::from_secs(params.duration_secs.into()).as_nanos() as u64;
                assert_eq!(self.oracle.leases[&params.lease_id].holder, asked.sender, "another's lease was renewed");
                self.oracle.renewed(params.lease_id, until);
                Note::Lives(params.lease_id, until)
            }
            Op::LeaseFree => {
                let LeaseRef { lease_id } = LeaseRef::parse(&asked.params).expect("it was served");
                assert_eq!(self.oracle.leases[&lease_id].holder, asked.sender, "another's lease was freed");
                assert!(!self.oracle.leases[&lease_id].over, "a lease was freed twice");
                self.oracle.ended(&[lease_id]);
                Note::Over(vec![lease_id], None)
            }
            Op::CapRevoke => {
                let token = CapRevoke::parse(&asked.params).expect("it was served").token_id;
                self.summary.revocations += 1;
                Note::Over(self.oracle.revokes(token), Some(token))
            }
            Op::LeaseRelocate => {
                let relocated = LeaseRelocated::parse(result).expect("a relocation");
                let complete = relocated.outcome == Relocation::Complete;
                self.summary.relocations += u64::from(complete);
                let Some((src, _)) = moved(asked) else { return Note::Nothing };
                let src = self.oracle.keys[&src];
                if complete {
                    return Note::Over(vec![src], None);
                }
                let token = self.oracle.leases[&src].token;
                let leases = self.process.node.leases();
                let lives = leases.get(LeaseId(src)).is_some_and(|lease| lease.standing == berth_lease::Standing::Live);
                if lives {
                    assert!(!self.oracle.is_revoked(token), "a failed move brought a revoked lease back");
                    self.oracle.lives_again(src);
                }
                Note::Nothing
            }
            Op::LeaseExportHandle => {
                let exported = LeaseExported::parse(result).expect("a handle");
                let key = berth_wire::fabric::LeaseExport::parse(&asked.params).expect("it was served").lease_id;
                self.handles.insert(exported.export_handle, self.oracle.keys[&key]);
                Note::Nothing
            }
            Op::LeaseImportHandle => {
                let imported = LeaseImported::parse(result).expect("an attachment");
                let handle = LeaseImport::parse(&asked.params).expect("it was served").export_handle;
                self.oracle.keys.insert(imported.local_attach_id, self.handles[&handle]);
                Note::Nothing
            }
            Op::SchedulerFenceSet => Note::Fence(FenceSet::parse(&asked.params).expect("it was served").new_epoch),
            _ => Note::Nothing,
        }
    }

    /// An access, decided as every dataplane does.
    fn access(&mut self, access: DataOp) {
        let now = self.time().mono;
        let op = if access.write.is_some() { berth_lease::Op::Write } else { berth_lease::Op::Read };
        let asked = Access {
            op,
            key: LeaseKey(access.key),
            generation: Some(Generation(access.generation)),
            offset: access.slot * SLOT,
            len: SLOT,
            well_formed: true,
        };
        let entry = self.process.reader.enter().probe(asked.key);
        let Ok(span) = check(entry.as_ref(), &asked, now) else {
            self.summary.refused += 1;
            return;
        };
        let id = self.oracle.begins(access.key, access.generation, self.now);
        self.summary.served += 1;
        if span.region.0 == 0 {
            return self.touch(span, id, access);
        }
        let held = self.process.node.table().reader().hold();
        self.numbered += 1;
        let (flight, delay, run) = (self.numbered, self.slow(30 * MILLI), self.run);
        self.process.flights.insert(flight, (held, span, id, access));
        self.after(delay, Event::Io(run, flight));
    }

    fn io(&mut self, flight: u64) {
        let (held, span, id, access) = self.process.flights.remove(&flight).expect("it is in flight");
        self.touch(span, id, access);
        held.end();
    }

    fn touch(&mut self, span: Span, id: u128, access: DataOp) {
        self.oracle.touches(id);
        let heap = self.stores.heap(span.region.0);
        if let Some(tag) = access.write {
            heap.write(span.at, &tag.to_be_bytes().repeat(SLOT as usize / 8));
            self.oracle.wrote(id, access.slot, tag);
        } else {
            let mut bytes = [0; SLOT as usize];
            heap.read(span.at, &mut bytes);
            let tag = u64::from_be_bytes(*bytes.first_chunk().expect("8 bytes"));
            assert_eq!(bytes[..], tag.to_be_bytes().repeat(SLOT as usize / 8), "bytes of two writes");
            self.oracle.read(id, access.slot, tag);
        }
    }

    /// The process dies and starts again; now and then the machine does.
    fn crash(&mut self) {
        self.summary.restarts += 1;
        self.step = 0;
        let recovered = self.journal.crash(&mut self.random);
        self.say(|| format!("crashes; durable up to {}: {recovered:?}", self.journal.durable_to));
        self.oracle.crashed(self.journal.durable_to);
        self.stores.lose_memory();
        self.now += self.random.u64(0..2 * SECOND);
        self.run += 1;
        self.process = Process::start(&self.stores, &mut self.journal, recovered, self.now, &mut self.random);
        let node = &self.process.node;
        self.oracle.restarted(node.leases(), node.fence(), self.process.mono(self.now), self.now);
    }
}

/// The keys of a relocation that moves.
fn moved(asked: &Executing) -> Option<(u64, u64)> {
    let params = (asked.op == Op::LeaseRelocate).then(|| LeaseRelocate::parse(&asked.params).ok()).flatten()?;
    (params.mode == RelocateMode::Move).then_some((params.src_lease_id, params.dst_lease_id))
}

fn host(address: SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(address) => address.ip().octets()[3],
        SocketAddr::V6(_) => unreachable!("the network is IPv4"),
    }
}

impl Process {
    fn start(stores: &Stores, journal: &mut Journal, recovered: Recovered, now: u64, random: &mut Rng) -> Self {
        let mono = random.u64(SECOND..1000 * SECOND);
        let time = Now { mono: Nanos(mono), wall: Nanos(WALL + now) };
        let host = SimHost(Rng::with_seed(random.u64(..)));
        let started = Node::start(who(NODE), config(), host, stores.regions(), Vec::new(), recovered, time);
        let started = started.expect("the configuration has not changed");
        journal.write_now(&started.journal);
        let mut server = Server::default();
        for (sender, nonce) in started.seen {
            server.replay.refuse_up_to(NodeId(sender), nonce);
        }
        let reader = started.node.table().reader();
        Self {
            node: started.node,
            server,
            mono: mono.wrapping_sub(now),
            reader,
            leaving: Vec::new(),
            working: BTreeMap::new(),
            flights: BTreeMap::new(),
        }
    }

    fn mono(&self, now: u64) -> Nanos {
        Nanos(now.wrapping_add(self.mono))
    }
}
