//! The loop: virtual time, the network, the node's process and its crashes.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use berth_fabric::{BlockingWork, Config, Ending, Host, Node, Policy, Recovered, Rule, Starting, Teardown, Work};
use berth_identity::{
    Identity, NodeId,
    link::{Reply, Server},
};
use berth_lease::{Held, Item, Quiescence, Quotas, Reader, Span};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{MsgType, Op, Perms, Response, Status, Thermal, Wire as _};
use fastrand::Rng;

use super::{
    client::{Asked, Client, Greed, Rumours},
    connections::{Target, TargetBinding},
    journal::Journal,
    oracle::{Note, Oracle},
    stores::Stores,
    work::Working,
};

/// Size and alignment of accesses in bytes.
pub const SLOT: u64 = 512;

/// How long a seed runs, in virtual time.
const LENGTH: u64 = 10 * SECOND;
const SECOND: u64 = 1_000_000_000;
/// Nanoseconds that the node takes for each byte that it touches itself.
const PER_BYTE: u64 = 1;
/// Longest duration of one storage operation.
pub(super) const SLOWEST: u64 = 1500 * MILLI;
/// Longest time until something journaled is durable: one write under way, then its own.
pub(super) const JOURNALED: u64 = 2 * 20 * MILLI;
/// Longest time for which other work holds the node.
pub(super) const HELD: u64 = 5 * MILLI;
pub(super) const MILLI: u64 = 1_000_000;
/// Unix time at the start of a seed.
const WALL: u64 = 1_700_000_000 * SECOND;
const CLIENTS: u8 = 3;
/// Number of further clients, which are hostile.
const HOSTILE: u8 = 3;
/// The last of them, which hoards handles.
const HOARDER: u8 = CLIENTS + HOSTILE;
/// Quota of handles and attachments per client; all together stay far below the node's limit.
pub(super) const MOST_HANDLES: u64 = 3;
pub(super) const NODE: u8 = 100;

/// Counts of what happened, so that a test can check that enough did.
#[derive(Debug, Default, Clone, Copy)]
pub struct Summary {
    pub executed: u64,
    pub grants: u64,
    pub revocations: u64,
    pub relocations: u64,
    pub restarts: u64,
    pub served: u64,
    pub refused: u64,
    /// Losses of power among the restarts.
    pub outages: u64,
    /// Works that ended together with their leases.
    pub stopped: u64,
    /// Grants of most of the memory.
    pub hoarded: u64,
    /// Handles and attachments that were refused because of their presenter's quota.
    pub over_quota: u64,
    /// Revocations by holder, and removals among them.
    pub keys_revoked: u64,
    pub keys_removed: u64,
    /// Attachments that ended with their importer's key.
    pub detached: u64,
    pub keys_listed: u64,
    /// Connections made, and accesses by their clients.
    pub binds: u64,
    pub remote: u64,
    pub slow_teardowns: u64,
    /// Crashes with leases connected, and with some being torn down.
    pub bound_crashes: u64,
    pub ending_crashes: u64,
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
        self.outages += other.outages;
        self.stopped += other.stopped;
        self.hoarded += other.hoarded;
        self.over_quota += other.over_quota;
        self.keys_revoked += other.keys_revoked;
        self.keys_removed += other.keys_removed;
        self.detached += other.detached;
        self.keys_listed += other.keys_listed;
        self.binds += other.binds;
        self.remote += other.remote;
        self.slow_teardowns += other.slow_teardowns;
        self.bound_crashes += other.bound_crashes;
        self.ending_crashes += other.ending_crashes;
    }
}

pub(super) enum Event {
    /// A datagram of the control plane arrives.
    Datagram {
        to: u8,
        from: u8,
        bytes: Vec<u8>,
    },
    /// An access arrives at the node.
    Access(DataOp),
    /// A client acts.
    Client(u8),
    /// The journal's write is complete, in this run of the process.
    Durable(u64),
    /// A piece of work on bytes is complete, in this run of the process.
    Worked(u64, u64),
    /// A block operation is complete, in this run of the process.
    Io(u64, u64),
    /// A teardown is complete, in this run of the process.
    TornDown(u64, u64),
    /// The client of a connected lease acts.
    Remote,
    Tick,
    Crash,
    /// The host's clock is set this many nanoseconds ahead of the true time.
    Step(i64),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct DataOp {
    pub(super) key: u64,
    pub(super) generation: u64,
    pub(super) slot: u64,
    pub(super) write: Option<u64>,
}

pub(super) struct SimHost(Rng);

impl Host for SimHost {
    fn random(&mut self, into: &mut [u8]) {
        self.0.fill(into);
    }
    fn thermal(&mut self) -> Thermal {
        Thermal::default()
    }
}

/// An answer that waits for the journal and for accesses to end.
pub(super) struct Leaving {
    pub(super) reply: Reply,
    pub(super) payload: Vec<u8>,
    pub(super) batch: u64,
    pub(super) quiescence: Option<Quiescence>,
    pub(super) endings: Vec<Ending>,
    pub(super) note: Note,
    /// When it must have left, if only the node itself could delay it.
    pub(super) due: u64,
}

/// A request that is being executed.
pub(super) struct Executing {
    pub(super) reply: Reply,
    pub(super) sender: u128,
    pub(super) nonce: u64,
    pub(super) op: Op,
    pub(super) params: Vec<u8>,
    /// Time of its arrival, even if the node was busy.
    pub(super) came: u64,
}

/// What a crash destroys.
pub(super) struct Process {
    pub(super) node: Node<SimHost>,
    pub(super) server: Server,
    /// Monotonic time is counted from the machine's start.
    pub(super) mono: u64,
    pub(super) reader: Reader,
    pub(super) leaving: Vec<Leaving>,
    pub(super) working: BTreeMap<u64, Working>,
    pub(super) teardowns: BTreeMap<u64, Teardown>,
    pub(super) flights: BTreeMap<u64, (Held, Span, u128, DataOp)>,
}

pub struct World {
    pub(super) random: Rng,
    pub(super) now: u64,
    pub(super) events: BTreeMap<(u64, u64), Event>,
    pub(super) numbered: u64,
    pub(super) clients: Vec<Client>,
    pub(super) rumours: Rumours,
    /// Leases by exported handle.
    pub(super) handles: BTreeMap<u128, u128>,
    pub(super) stores: Stores,
    pub(super) target: Arc<Mutex<Target>>,
    pub(super) journal: Journal,
    pub(super) process: Process,
    pub(super) run: u64,
    /// When this run of the process began.
    pub(super) started: u64,
    /// Time of the event that is being handled.
    pub(super) at: u64,
    pub(super) step: i64,
    pub(super) oracle: Oracle,
    pub(super) summary: Summary,
    pub(super) talk: bool,
}

fn who(n: u8) -> Identity {
    Identity::from_seed(&[n; 32])
}

pub(super) fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 5700))
}

/// The ids of all clients' keys.
pub(super) fn keys() -> impl Iterator<Item = u128> {
    (1..=CLIENTS + HOSTILE).map(|n| who(n).id().0)
}

fn config() -> Config {
    let rule = |n| Rule { presenter: Some(who(n).id().0), perms: Perms::ALL, resources: None };
    Config {
        policy: Policy::new((1..=CLIENTS + HOSTILE).map(rule).collect()),
        enrolled: (1..=CLIENTS + HOSTILE).map(|n| *who(n).public_key()).collect(),
        leases: berth_lease::Config { capacity: 512, ..berth_lease::Config::default() },
        quotas: Quotas::new(&[(None, [Item::Handles, Item::Attachments].map(|item| (item, MOST_HANDLES)).into())]),
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
        let target = Target::new(&mut random);
        let (process, _) = Process::start(&stores, &target, &mut journal, Recovered::default(), 0, &mut random);
        let greed = |n| match n {
            HOARDER => Greed::Handles,
            n if n > CLIENTS => Greed::Bytes,
            _ => Greed::None,
        };
        let clients = (1..=CLIENTS + HOSTILE).map(|n| Client::new(who(n), greed(n), &mut random)).collect();
        let mut world = Self {
            random,
            now: 0,
            events: BTreeMap::new(),
            numbered: 0,
            clients,
            rumours: Rumours { keys: keys().collect(), ..Rumours::default() },
            handles: BTreeMap::new(),
            stores,
            target,
            journal,
            process,
            run: 1,
            started: 0,
            at: 0,
            step: 0,
            oracle: Oracle::default(),
            summary: Summary::default(),
            talk,
        };
        for n in 1..=CLIENTS + HOSTILE {
            world.after(u64::from(n) * MILLI, Event::Client(n));
        }
        world.after(50 * MILLI, Event::Tick);
        world.after(MILLI, Event::Remote);
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

    pub(super) fn after(&mut self, delay: u64, event: Event) {
        self.numbered += 1;
        self.events.insert((self.now + delay, self.numbered), event);
    }

    pub(super) fn time(&self) -> Now {
        Now {
            mono: self.process.mono(self.now),
            wall: Nanos(WALL.saturating_add(self.now).saturating_add_signed(self.step)),
        }
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
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
            self.at = at.max(self.started);
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
                Event::TornDown(run, ticket) if run == self.run => self.torn_down(ticket),
                Event::Durable(_) | Event::Worked(..) | Event::Io(..) | Event::TornDown(..) => {}
                Event::Remote => self.remote(),
                Event::Tick => {
                    let effects = self.process.node.tick(self.time());
                    self.process.node.zero_free();
                    if self.random.u8(..) < 40 {
                        // The disk writes back what it likes when it likes.
                        self.stores.flush();
                    }
                    self.apply(effects);
                    let delay = self.random.u64(MILLI..400 * MILLI);
                    self.after(delay, Event::Tick);
                    self.check_delays();
                }
                Event::Crash => self.crash(),
                Event::Step(by) => {
                    self.say(|| format!("the clock is set by {} s", by / SECOND as i64));
                    self.step = by;
                }
            }
            // Whatever the node did to bytes itself, everybody has waited for.
            self.now += self.stores.touched() * PER_BYTE;
            self.settle();
        }
    }

    /// Does what has become possible: journal writes, work, answers.
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
        self.begin_works();
        let mut waiting = std::mem::take(&mut self.process.leaving);
        let (durable_to, staged_to) = (self.journal.durable_to, self.journal.staged_to);
        let may_leave = |leaving: &mut Leaving| {
            leaving.look(staged_to);
            leaving.endings.is_empty()
                && leaving.batch <= durable_to
                && leaving.quiescence.as_mut().is_none_or(Quiescence::is_over)
        };
        for mut leaving in waiting.extract_if(.., may_leave) {
            assert!(
                self.now <= leaving.due,
                "an answer left {} ns too late: {:?}",
                self.now - leaving.due,
                leaving.note
            );
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

    /// Checks that no answer is overdue, except those that wait for a failed journal.
    fn check_delays(&self) {
        let overdue = |leaving: &&Leaving| self.now > leaving.due;
        let late = self.process.leaving.iter().find(overdue).filter(|_| !self.process.node.is_degraded());
        assert!(late.is_none(), "an answer is overdue: {:?}", late.map(|leaving| &leaving.note));
    }

    /// A random duration of up to `most`; now and then one so long that much else happens meanwhile.
    pub(super) fn slow(&mut self, most: u64) -> u64 {
        if self.random.u8(..) < 80 { self.random.u64(0..SLOWEST) } else { self.random.u64(0..most) }
    }

    /// Sends a datagram, which may be lost, doubled and overtaken.
    pub(super) fn send(&mut self, from: u8, to: u8, bytes: &[u8]) {
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
        let longest = if self.clients[index].is_hostile() { 400 } else { 1800 };
        let pause = self.random.u64(300 * MILLI..longest * MILLI);
        self.after(pause, Event::Client(n));
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
        let (hostile, longest) = if client.is_hostile() { (true, 100) } else { (false, 300) };
        let pause = self.random.u64(MILLI..longest * MILLI);
        if hostile || self.random.bool() {
            self.after(pause, Event::Client(to));
            self.events
                .retain(|(at, _), event| !matches!(event, Event::Client(n) if *n == to && *at > self.now + pause));
        }
    }

    /// The process dies and starts again; now and then the machine does.
    fn crash(&mut self) {
        self.summary.restarts += 1;
        self.step = 0;
        let recovered = self.journal.crash(&mut self.random);
        let outage = self.random.bool();
        if outage {
            self.summary.outages += 1;
            self.stores.lose_power(&mut self.random);
        }
        self.say(|| format!("crashes (outage: {outage}); durable up to {}: {recovered:?}", self.journal.durable_to));
        self.oracle.crashed(self.journal.durable_to);
        self.stores.lose_memory();
        self.summary.ending_crashes += u64::from(!self.process.teardowns.is_empty());
        self.summary.bound_crashes += u64::from(!recovered.bound.is_empty());
        self.target.lock().unwrap().crash(outage);
        self.now += self.random.u64(0..2 * SECOND);
        self.run += 1;
        let (stores, target) = (&self.stores, &self.target);
        let (process, works) = Process::start(stores, target, &mut self.journal, recovered, self.now, &mut self.random);
        self.process = process;
        self.begin_own(works);
        let node = &self.process.node;
        self.oracle.restarted(node.leases(), node.fence(), self.process.mono(self.now), self.now);
        self.oracle.finds_keys(node.keys());
        self.oracle.finds(self.stores.heap(1));
        self.started = self.now;
    }
}

fn host(address: SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(address) => address.ip().octets()[3],
        SocketAddr::V6(_) => unreachable!("the network is IPv4"),
    }
}

impl Process {
    fn start(
        stores: &Stores,
        target: &Arc<Mutex<Target>>,
        journal: &mut Journal,
        recovered: Recovered,
        now: u64,
        random: &mut Rng,
    ) -> (Self, Vec<Work>) {
        let mono = random.u64(SECOND..1000 * SECOND);
        let time = Now { mono: Nanos(mono), wall: Nanos(WALL + now) };
        let host = SimHost(Rng::with_seed(random.u64(..)));
        let (starting, works) = Starting::new(recovered, vec![Box::new(TargetBinding(target.clone()))]);
        works.into_iter().for_each(BlockingWork::run);
        let started = Node::start(who(NODE), config(), host, stores.regions(), Vec::new(), starting, time);
        let started = started.expect("the configuration has not changed");
        journal.write_now(&started.journal);
        let mut server = Server::default();
        for (sender, nonce) in started.seen {
            server.replay.refuse_up_to(NodeId(sender), nonce);
        }
        let reader = started.node.table().reader();
        let process = Self {
            node: started.node,
            server,
            mono: mono.wrapping_sub(now),
            reader,
            leaving: Vec::new(),
            working: BTreeMap::new(),
            teardowns: BTreeMap::new(),
            flights: BTreeMap::new(),
        };
        (process, started.works)
    }

    pub(super) fn mono(&self, now: u64) -> Nanos {
        Nanos(now.wrapping_add(self.mono))
    }
}
