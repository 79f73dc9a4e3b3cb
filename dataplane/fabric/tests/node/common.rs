//! A node over memory, with virtual time and seeded randomness, and presenters that send it requests.
#![allow(unreachable_pub)] // its items are nobody else's

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_fabric::{
    Answer, Binding, BlockingWork, Carrier, Config, Effects, Host, Node, Outcome, Policy, Proxy, Recovered, Request,
    Resource, Rule, Started, Starting, Step, Stock, Teardown, TeardownFailed, WorkFailed, journal::Record,
};
use berth_identity::Identity;
use berth_lease::{Bytes, Item, LeaseId, Leases, Region, RegionKind, Regions, Storage};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    CapRequest, LeaseAlloc, LeaseGrant, Op, Perms, ResourceType, Status, Thermal, Tlvs, Wire as _,
};
use fastrand::Rng;

/// Memory behind a lock.
pub struct Heap(Mutex<Vec<u8>>);

impl Heap {
    pub fn of(len: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; len])))
    }
}

fn range(at: u64, len: usize) -> std::ops::Range<usize> {
    at as usize..at as usize + len
}

impl Bytes for Heap {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock().unwrap()[range(at, into.len())]);
    }
    fn write(&self, at: u64, from: &[u8]) {
        self.0.lock().unwrap()[range(at, from.len())].copy_from_slice(from);
    }
    fn zero(&self, at: u64, len: u64) {
        self.0.lock().unwrap()[range(at, len as usize)].fill(0);
    }
}

/// What the node asked of its host.
#[derive(Debug, Default)]
pub struct Asked {
    /// Proxies that were opened, and those that were closed.
    pub proxies: Vec<(LeaseId, Proxy)>,
    pub closed: Vec<LeaseId>,
    pub no_proxies: bool,
    pub thermal: Thermal,
}

#[derive(Debug)]
pub struct TestHost {
    rng: Rng,
    pub asked: Arc<Mutex<Asked>>,
}

impl TestHost {
    pub fn new(seed: u64) -> (Self, Arc<Mutex<Asked>>) {
        let asked = Arc::<Mutex<Asked>>::default();
        (Self { rng: Rng::with_seed(seed), asked: asked.clone() }, asked)
    }
}

impl Host for TestHost {
    fn random(&mut self, into: &mut [u8]) {
        self.rng.fill(into);
    }
    fn thermal(&mut self) -> Thermal {
        self.asked.lock().unwrap().thermal
    }
}

/// TCP proxies without sockets, whose closing takes time.
#[derive(Debug)]
pub struct TestProxies(pub Arc<Mutex<Asked>>);

impl Resource for TestProxies {
    fn kind(&self) -> ResourceType {
        ResourceType::Net
    }
    fn name(&self) -> &'static str {
        "tcp-proxy"
    }
    fn stock(&self, _: &Leases) -> Stock {
        let asked = self.0.lock().unwrap();
        let open = (asked.proxies.len() - asked.closed.len()) as u64;
        Stock { capacity: 28_232, available: 28_232 - open, fenced: false }
    }
    fn counts_as(&self) -> Option<Item> {
        Some(Item::Proxies)
    }
    fn grant(&mut self, lease: LeaseId, wanted: &[u8]) -> Result<Vec<u8>, Status> {
        let mut asked = self.0.lock().unwrap();
        if asked.no_proxies {
            return Err(Status::CapacityExceeded);
        }
        let wanted = Proxy::from_bytes(wanted).unwrap();
        let proxy = Proxy { ingress: 40_000 + (asked.proxies.len() % 25_000) as u16, ..wanted };
        asked.proxies.push((lease, proxy));
        Ok(proxy.to_bytes())
    }
    fn end(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let asked = self.0.clone();
        Ok(Some(BlockingWork::new(move || asked.lock().unwrap().closed.push(lease))))
    }
    fn recover(&mut self, lease: LeaseId, unit: &[u8]) -> bool {
        self.0.lock().unwrap().proxies.push((lease, Proxy::from_bytes(unit).unwrap()));
        true
    }
}

pub const SECOND: u64 = 1_000_000_000;

/// When tests begin: monotonic 1000 s, Unix 1 700 000 000 s.
pub const START: Now = Now { mono: Nanos(1000 * SECOND), wall: Nanos(1_700_000_000 * SECOND) };
pub const START_SECS: u64 = 1_700_000_000;

pub fn identity(n: u8) -> Identity {
    Identity::from_seed(&[n; 32])
}

pub const ALL: Perms = Perms::ALL;

/// A node with a memory region of 1 MiB ("mem") and a region of blocks in memory of 256 KiB ("disk"). It knows the
/// presenters 1, 2 and 3, and lets 1 and 2 do everything.
pub struct World {
    pub node: Node<TestHost>,
    pub asked: Arc<Mutex<Asked>>,
    pub regions: Regions,
    pub now: Now,
    /// Every record so far.
    pub journal: Vec<Record>,
    /// Leases that are being connected again.
    pub works: Vec<berth_fabric::Work>,
    /// Keeps teardowns back if it is `Some`.
    pub held: Option<Vec<Teardown>>,
    nonce: u64,
}

pub fn regions() -> Regions {
    let region =
        |name: &str, kind, len| Region { name: name.into(), kind, numa: None, storage: Storage::Bytes(Heap::of(len)) };
    Regions::new(vec![region("mem", RegionKind::Memory, 1 << 20), region("disk", RegionKind::Block, 256 << 10)])
}

pub fn config() -> Config {
    let rule = |n: u8, perms| Rule { presenter: Some(identity(n).id().0), perms, resources: None };
    Config {
        policy: Policy::new(vec![rule(1, ALL), rule(2, ALL)]),
        enrolled: [1, 2, 3].map(|n| *identity(n).public_key()).into(),
        ..Config::default()
    }
}

impl World {
    pub fn new() -> Self {
        Self::with(config())
    }

    pub fn with(config: Config) -> Self {
        Self::start(config, regions(), Recovered::default(), START, 7)
    }

    pub fn start(config: Config, regions: Regions, recovered: Recovered, now: Now, seed: u64) -> Self {
        Self::start_with(config, regions, Vec::new(), recovered, now, seed)
    }

    pub fn start_with(
        config: Config,
        regions: Regions,
        bindings: Vec<Box<dyn Binding>>,
        recovered: Recovered,
        now: Now,
        seed: u64,
    ) -> Self {
        Self::start_units(config, regions, Vec::new(), bindings, recovered, now, seed)
    }

    /// With units beside proxies.
    pub fn start_units(
        config: Config,
        regions: Regions,
        units: Vec<Box<dyn Resource>>,
        bindings: Vec<Box<dyn Binding>>,
        recovered: Recovered,
        now: Now,
        seed: u64,
    ) -> Self {
        let (host, asked) = TestHost::new(seed);
        let (starting, works) = Starting::new(recovered, bindings);
        works.into_iter().for_each(BlockingWork::run);
        let proxies: Box<dyn Resource> = Box::new(TestProxies(asked.clone()));
        let resources = std::iter::once(proxies).chain(units).collect();
        let started = Node::start(identity(100), config, host, regions.clone(), resources, starting, now);
        let Started { node, journal, works, .. } = started.expect("a sound journal");
        Self { node, asked, regions, now, journal, works, held: None, nonce: 0 }
    }

    pub fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// The node's answer to an operation of presenter `n` over UDP, once everything that it waits for has happened.
    pub fn ask_whole(&mut self, n: u8, op: u16, resource: u128, token: &[u8], params: &[u8]) -> Outcome {
        self.nonce += 1;
        let request = Request {
            carrier: Carrier::Udp { nonce: self.nonce },
            presenter: identity(n).id().0,
            source: SocketAddr::from(([10, 0, 0, n], 5000)),
            op,
            resource,
            token,
            params,
        };
        self.ask_request(&request).expect("an answer")
    }

    pub fn ask_request(&mut self, request: &Request<'_>) -> Option<Outcome> {
        let step = self.node.request(request, self.now);
        self.finish(step)
    }

    /// Carries out what a step asks for, to its end.
    pub fn finish(&mut self, mut step: Step) -> Option<Outcome> {
        let mut outcome = loop {
            match step {
                Step::Done(outcome) => break outcome,
                Step::Work(work) => {
                    self.journal.extend(work.journal.into_iter().flatten());
                    self.apply(work.effects);
                    assert!(work.quiescence.is_none_or(|mut quiescence| quiescence.is_over()));
                    assert!(work.jobs.iter().all(|job| job.in_memory(&self.regions)));
                    let ended = work.ending.is_none_or(|ending| ending.is_over() && !ending.has_failed());
                    work.prepare.into_iter().for_each(BlockingWork::run);
                    step = self.node.resume(work.ticket, ended.then_some(()).ok_or(WorkFailed), self.now);
                }
                Step::List(mut listing) => {
                    while !listing.is_whole() {
                        self.node.list(&mut listing, self.now);
                    }
                    break Outcome { answer: listing.answer(), ..Outcome::default() };
                }
                Step::Drop => return None,
            }
        };
        self.journal.extend(outcome.journal.iter().cloned());
        self.journal.extend(outcome.effects.journal.iter().cloned());
        let teardowns = std::mem::take(&mut outcome.effects.teardowns);
        self.apply(Effects { teardowns, ..Effects::default() });
        if outcome.endings.iter().any(berth_fabric::Ending::has_failed) {
            outcome.answer = Answer { status: Status::ResourceFenced, result: Vec::new() };
        }
        Some(outcome)
    }

    /// Carries out what the node asks for besides answers.
    pub fn apply(&mut self, effects: Effects) {
        self.journal.extend(effects.journal);
        for teardown in effects.teardowns {
            match &mut self.held {
                Some(held) => held.push(teardown),
                None => self.tear_down(teardown),
            }
        }
    }

    pub fn tear_down(&mut self, teardown: Teardown) {
        teardown.work.run();
        let effects = self.node.torn_down(teardown.ticket, self.now);
        self.apply(effects);
    }

    /// Tells the node the time; returns the leases that serve no more I/O.
    pub fn tick(&mut self) -> Vec<LeaseId> {
        let effects = self.node.tick(self.now);
        let ended = effects.ended.clone();
        self.apply(effects);
        ended
    }

    pub fn ask(&mut self, n: u8, op: Op, resource: u128, token: &[u8], params: &[u8]) -> Answer {
        self.ask_whole(n, op.code(), resource, token, params).answer
    }

    /// The result of an operation that must succeed.
    pub fn ok(&mut self, n: u8, op: Op, resource: u128, token: &[u8], params: &[u8]) -> Vec<u8> {
        let answer = self.ask(n, op, resource, token, params);
        assert_eq!(answer.status, Status::Ok, "{op}");
        answer.result
    }

    /// The status of an operation that must be refused.
    pub fn refused(&mut self, n: u8, op: Op, resource: u128, token: &[u8], params: &[u8]) -> Status {
        let answer = self.ask(n, op, resource, token, params);
        assert_eq!(answer.result, [], "{op}");
        assert_ne!(answer.status, Status::Ok, "{op}");
        answer.status
    }

    /// A token of presenter `n` for any resource.
    pub fn token(&mut self, n: u8, perms: Perms) -> Vec<u8> {
        let epoch = self.fence();
        let audience = identity(n).id().0;
        let params = CapRequest { perms: perms.bits(), ttl_secs: 300, audience, epoch };
        self.ok(n, Op::CapRequest, 0, &[], &params.to_vec())
    }

    fn fence(&mut self) -> Option<u64> {
        let state = self.ok(1, Op::SchedulerFenceGet, 0, &[], &[]);
        let state = berth_wire::fabric::FenceState::parse(&state).unwrap();
        state.installed.then_some(state.epoch)
    }

    /// A lease of `bytes` for 60 s with a grace of 10 s.
    pub fn alloc(&mut self, n: u8, kind: ResourceType, bytes: u64) -> LeaseId {
        let token = self.token(n, ALL);
        self.alloc_under(n, kind, bytes, &token)
    }

    pub fn alloc_under(&mut self, n: u8, kind: ResourceType, bytes: u64, token: &[u8]) -> LeaseId {
        let params = LeaseAlloc {
            duration_secs: 60,
            grace_secs: 10,
            resource_type: Some(kind),
            requested_bytes: Some(bytes),
            intents: Tlvs::EMPTY,
        };
        let result = self.ok(n, Op::LeaseAlloc, 0, token, &params.to_vec());
        LeaseId(LeaseGrant::parse(&result).unwrap().lease_id)
    }
}

/// The outcome of a step that needs no work.
pub fn done(step: Step) -> Outcome {
    let Step::Done(outcome) = step else { panic!("more is to be done: {step:?}") };
    outcome
}
