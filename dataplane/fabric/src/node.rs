//! The node: its state, and the steps that every operation goes through.

use std::{collections::BTreeMap, mem, net::SocketAddr, sync::Arc};

use berth_identity::{Enrolled, Enrolment, Identity, NodeId, PublicKey, Rates, token::Verifier};
use berth_lease::{Event, LeaseId, Leases, Quotas, Region, RegionId, Table};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{EndpointKind, Op, Perms, RevokeBroadcast, Status};

use crate::{
    binding::Binding,
    clock::Clock,
    composite::Cpu,
    counts::Counts,
    discovery::Discovery,
    ending::{self, Connection, Part, UnderWay},
    gpu::{GpuExecutor, Kernels},
    host::Host,
    inventory::{Facts, region_type},
    journal::Record,
    ops::{TimedRequest, ends, needs_journal},
    pending::Waiting,
    policy::Policy,
    request::{Answer, Carrier, Effects, Outcome, Request, Step},
    resource::{RegionResource, Resource, resource_id},
    tasklet::{TaskletConfig, Tasklets, Why},
};

/// Limit on the memory that one [`Node::zero_free`] zeroes, in bytes; takes about as long as checking a signature.
const ZERO_AT_ONCE: u64 = 256 << 10;

/// Everything a node is started with.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Site number in announcements.
    pub site: u32,
    /// Row number within the site.
    pub row: u32,
    /// Rack number within the row.
    pub rack: u32,
    /// Name of the trust domain, at most 255 bytes; empty for none.
    pub trust_domain: String,
    /// Control and data addresses, for announcements and binding TLVs.
    pub endpoints: Vec<(EndpointKind, SocketAddr)>,
    /// Which permissions presenters may get tokens for.
    pub policy: Policy,
    /// Limits on what each holder uses.
    pub quotas: Quotas,
    /// Keys that count as enrolled from the start.
    pub enrolled: Vec<PublicKey>,
    /// Whether other keys may enrol.
    pub enrolment: Enrolment,
    /// Whether tokens are refused as long as no scheduler fence is installed.
    pub require_fence: bool,
    /// Limit on a presenter's requests per second; 0 for none.
    pub max_requests_per_sec: u32,
    /// Facts about the host, such as its memory tiers, for the inventory.
    pub facts: Facts,
    /// Sizes and limits of the lease table.
    pub leases: berth_lease::Config,
    /// GPUs whose memory is leased, each by its region.
    pub gpus: Vec<(RegionId, Arc<dyn GpuExecutor>)>,
    /// Devices of HIP Remote, in their order, each by the region that stands for its memory. No byte of these regions is
    /// reached but by sessions ([`Node::bind_hip`]).
    pub hip: Vec<RegionId>,
    /// Names of GPUs that serve something else: the inventory says that they are fenced.
    pub gpus_in_use: Vec<String>,
    /// Names of regions and of GPUs in use, with the PCI addresses of their GPUs.
    pub gpu_addresses: Vec<(String, String)>,
    /// What runs tasklets; `None` if nothing does.
    pub tasklets: Option<TaskletConfig>,
}

/// The part of the configuration that a running node can replace.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Which permissions presenters may get tokens for.
    pub policy: Policy,
    /// Limits on what each holder uses.
    pub quotas: Quotas,
    /// Keys that count as enrolled from the start.
    pub enrolled: Vec<PublicKey>,
    /// Whether other keys may enrol.
    pub enrolment: Enrolment,
    /// Limit on a presenter's requests per second; 0 for none.
    pub max_requests_per_sec: u32,
}

/// A fabricBIOS node without I/O. Every call needs `&mut self`: use one thread, or a lock. Hand on what a call returns
/// before the results of the next call, because the journal must have the order of the calls.
pub struct Node<H> {
    pub(crate) identity: Identity,
    pub(crate) config: Config,
    pub(crate) host: H,
    pub(crate) leases: Leases,
    pub(crate) verifier: Verifier,
    pub(crate) keys: Enrolled,
    /// The scheduler's term; `None` until a fence is installed.
    pub(crate) fence: Option<u64>,
    /// Latest expiry of any token issued since the start, in seconds of the host's clock.
    pub(crate) issued_until: u64,
    /// Latest issue of any token since the start, in seconds of the host's clock.
    pub(crate) issued_latest: u64,
    pub(crate) clock: Clock,
    pub(crate) started: Nanos,
    /// Number of this start of the node.
    pub(crate) epoch: u64,
    /// What leases are granted from: the regions in the order of their ids, then resources with units.
    pub(crate) resources: Vec<Box<dyn Resource>>,
    /// Ids of `resources`, by the same index.
    pub(crate) resource_ids: Vec<u128>,
    /// Units that leases hold, as encoded by their resources; of GPU leases, their exclusivity class.
    pub(crate) units: BTreeMap<LeaseId, Vec<u8>>,
    pub(crate) bindings: Vec<Box<dyn Binding>>,
    /// Connections by lease and index of the binding.
    pub(crate) connections: BTreeMap<(LeaseId, usize), Connection>,
    /// Teardowns under way, by ticket.
    pub(crate) teardowns: BTreeMap<u64, (LeaseId, Part)>,
    /// Endings that these teardowns belong to.
    pub(crate) endings: BTreeMap<LeaseId, UnderWay>,
    /// Leases that are not active any more, and whose connections of before the restart still stand.
    pub(crate) overdue: Vec<LeaseId>,
    pub(crate) degraded: bool,
    full: bool,
    pub(crate) discovery: Discovery,
    rates: Rates<u128>,
    /// Operations that wait for work, by ticket.
    pub(crate) pending: BTreeMap<u64, Waiting>,
    next_ticket: u64,
    /// Number of works under way on each lease's bytes. While there are any, the bytes are not leased again.
    pub(crate) pinned: BTreeMap<LeaseId, u32>,
    pub(crate) counts: Counts,
    pub(crate) tasklets: Option<Tasklets>,
    pub(crate) kernels: Kernels,
}

impl<H: Host> Node<H> {
    #[expect(clippy::too_many_arguments, reason = "made in one place")]
    pub(crate) fn empty(
        identity: Identity,
        mut config: Config,
        host: H,
        leases: Leases,
        units: Vec<Box<dyn Resource>>,
        bindings: Vec<Box<dyn Binding>>,
        clock: Clock,
        now: Now,
    ) -> Self {
        let verifier = Verifier::new(*identity.public_key());
        let region = |(id, region): (_, &Region)| -> Box<dyn Resource> {
            Box::new(RegionResource { id, kind: region_type(region.kind), name: region.name.clone() })
        };
        let cpu = config.tasklets.as_ref().map(|of| -> Box<dyn Resource> { Box::new(Cpu { cores: of.cores }) });
        let resources: Vec<_> = leases.regions().iter().map(region).chain(units).chain(cpu).collect();
        let tasklets = config.tasklets.clone().map(|of| Tasklets::new(of, resources.len() - 1));
        let id = identity.id().0;
        config.facts.name_gpus(&config.gpu_addresses);
        Self {
            resource_ids: resources.iter().map(|of| resource_id(id, of.kind(), of.name())).collect(),
            resources,
            units: BTreeMap::new(),
            verifier,
            identity,
            config,
            host,
            leases,
            keys: Enrolled::default(),
            fence: None,
            issued_until: 0,
            issued_latest: 0,
            clock,
            started: now.mono,
            epoch: 0,
            bindings,
            connections: BTreeMap::new(),
            teardowns: BTreeMap::new(),
            endings: BTreeMap::new(),
            overdue: Vec::new(),
            degraded: false,
            full: false,
            discovery: Discovery::default(),
            rates: Rates::default(),
            pending: BTreeMap::new(),
            next_ticket: 0,
            pinned: BTreeMap::new(),
            counts: Counts::default(),
            tasklets,
            kernels: Kernels::default(),
        }
    }

    /// First 16 bytes of the SHA-256 of the node's key.
    pub fn id(&self) -> u128 {
        self.identity.id().0
    }

    /// The key pair whose public key the node's id is the hash of.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The configuration, with what [`Node::reconfigure`] replaced.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Adds addresses that were not known when the node started.
    pub fn add_endpoints(&mut self, endpoints: impl IntoIterator<Item = (EndpointKind, SocketAddr)>) {
        self.config.endpoints.extend(endpoints);
    }

    /// Replaces these parts of the configuration.
    pub fn reconfigure(&mut self, settings: Settings) {
        let Settings { policy, quotas, enrolled, enrolment, max_requests_per_sec } = settings;
        self.leases.set_quotas(quotas);
        self.config.policy = policy;
        self.config.enrolled = enrolled;
        self.config.enrolment = enrolment;
        self.config.max_requests_per_sec = max_requests_per_sec;
        self.list_keys();
    }

    /// Counts a message other than a request towards its sender's rate limit. False if the limit is exceeded, or the
    /// key is no longer known.
    pub fn admit(&mut self, sender: u128, now: Now) -> bool {
        self.knows(sender) && self.within_rate(sender, now)
    }

    fn within_rate(&mut self, sender: u128, now: Now) -> bool {
        let limit = self.config.max_requests_per_sec;
        limit == 0 || self.rates.admit(sender, limit, now.mono.0 / 1_000_000_000)
    }

    /// Counts work for a sender as `requests` further requests.
    pub(crate) fn charge(&mut self, sender: u128, requests: usize, now: Now) {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        self.rates.charge(&sender, requests, now.mono.0 / 1_000_000_000);
    }

    /// Keys whose signatures are accepted.
    pub fn keys(&self) -> &Enrolled {
        &self.keys
    }

    /// Number of this start of the node, from 1.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Epoch of the installed scheduler fence; `None` if there is none.
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Leases, handles and quotas.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Write access for page operations. They change only page state, which is neither an operation of the control
    /// plane nor journaled.
    pub fn leases_mut(&mut self) -> &mut Leases {
        &mut self.leases
    }

    /// The table by which dataplanes decide on accesses.
    pub fn table(&self) -> &Table {
        self.leases.table()
    }

    /// The clock of leases and journal.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Says that the journal failed, so that records passed to it may not be durable. From now on, operations that need
    /// it are refused, and every resource is announced as degraded. Answers that wait for the journal must never leave.
    pub fn journal_failed(&mut self) {
        self.degraded = true;
    }

    /// Whether [`Node::journal_failed`] was called.
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Says whether the journal's disk is full. While it is, operations that need the journal are refused with
    /// [`Status::CapacityExceeded`], except those that end something: what exists goes on, and nothing is added.
    pub fn set_journal_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Whether [`Node::set_journal_full`] said so.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Executes one operation. The caller must make sure that no request is executed twice.
    pub fn request(&mut self, request: &Request<'_>, now: Now) -> Step {
        let Some(op) = Op::from_code(request.op) else {
            self.counts.counters.unknown_ops += 1;
            return Outcome::refused(Status::UnsupportedOp).into();
        };
        // Its key may have been removed since its signature was verified.
        if op != Op::EnrollRequest && !self.knows(request.presenter) {
            return Step::Drop;
        }
        let reply =
            self.enter(request, op, now).and_then(|()| self.perform(op, &TimedRequest { request: *request, now }));
        match reply {
            Ok(Step::Work(work)) => Step::Work(work),
            Ok(Step::Drop) => Step::Drop,
            Ok(Step::List(listing)) => {
                self.done(op, Ok(Outcome::default()), request.carrier, request.presenter);
                Step::List(listing)
            }
            Ok(Step::Done(outcome)) => self.done(op, Ok(outcome), request.carrier, request.presenter).into(),
            Err(status) => self.done(op, Err(status), request.carrier, request.presenter).into(),
        }
    }

    /// Handles what is due: leases that expire and end. Call it every few milliseconds as long as it returns something,
    /// otherwise a few times a second.
    pub fn tick(&mut self, now: Now) -> Effects {
        let mut outcome = Outcome::default();
        for event in self.leases.tick(now.mono) {
            match event {
                Event::Expired(id) => {
                    self.counts.counters.leases_expired += 1;
                    self.stop_runs(|run| run.group == Some(id), Why::Expired, now, &mut Vec::new());
                    outcome.effects.ended.push(id);
                    if self.is_connected(id) || self.kernels.any_of(id) {
                        // Where that fails, what it holds is fenced.
                        let _ = self.end(id, ending::Why::Expired, None, now, &mut outcome);
                    }
                }
                Event::Ended(id) => self.wind_up(id, now, &mut outcome),
            }
        }
        self.tick_tasklets(now);
        for id in mem::take(&mut self.overdue) {
            // Where that fails, what it holds is fenced.
            let _ = self.end(id, self.why_lost(id), None, now, &mut outcome);
        }
        let mut lost = Vec::new();
        for index in 0..self.bindings.len() {
            self.bindings[index].tick(now.mono, &mut lost);
            for id in lost.drain(..) {
                // Where that fails, the lease's end tries again.
                let _ = self.end(id, self.why_lost(id), Some(index), now, &mut outcome);
            }
        }
        outcome.into_effects()
    }

    /// Zeroes a little of the free memory that needs it. False if there is none left.
    pub fn zero_free(&mut self) -> bool {
        self.leases.zero(ZERO_AT_ONCE) > 0
    }

    /// Obeys a REVOKE_BROADCAST whose frame signature was verified (decision 24). `None` if its sender may not revoke
    /// here. The outcome's answer has no meaning.
    pub fn revoke_broadcast(&mut self, sender: u128, revoked: &RevokeBroadcast<'_>, now: Now) -> Option<Outcome> {
        let may = self.perms(sender, 0).contains(Perms::ADMIN);
        if sender != revoked.issuer || !may || self.degraded {
            return None;
        }
        let mut outcome = Outcome::default();
        for token in revoked.token_ids {
            // Where no more revocations fit, its leases are taken back all the same.
            self.revoke_token(token, now, &mut outcome);
        }
        Some(outcome)
    }

    fn enter(&mut self, request: &Request<'_>, op: Op, now: Now) -> Result<(), Status> {
        if !self.within_rate(request.presenter, now) {
            return Err(Status::RateLimited);
        }
        match needs_journal(op) {
            true if self.degraded => Err(Status::InternalError),
            true if self.full && !ends(op) => Err(Status::CapacityExceeded),
            _ => Ok(()),
        }
    }

    /// Completes an outcome. It journals the nonce if a copy of the request must not run again after a restart.
    pub(crate) fn done(
        &mut self,
        op: Op,
        outcome: Result<Outcome, Status>,
        carrier: Carrier,
        presenter: u128,
    ) -> Outcome {
        let mut outcome = outcome.unwrap_or_else(Outcome::refused);
        if outcome.answer.status != Status::Ok {
            outcome.answer.result.clear();
        }
        let journaled = !outcome.journal.is_empty() || !outcome.endings.is_empty();
        if let (Carrier::Udp { nonce }, true) = (carrier, journaled) {
            outcome.journal.push(Record::Seen { sender: presenter, nonce });
        }
        if let Some((_, counts)) = self.counts.by_op.iter_mut().find(|(known, _)| *known == op) {
            counts[usize::from(outcome.answer.status != Status::Ok)] += 1;
        }
        outcome
    }

    /// Draws the name of work that is handed out.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Adds the keys that the configuration lists, and the node's own, to the known keys.
    pub(crate) fn list_keys(&self) {
        let own = *self.identity.public_key();
        self.keys.list(self.config.enrolled.iter().copied().chain([own]), self.config.enrolment);
    }

    /// Permissions that a presenter may get tokens for. The node's own key may administer it: it signs tokens anyway.
    pub(crate) fn perms(&self, presenter: u128, resource: u128) -> Perms {
        let own = if presenter == self.id() { Perms::ADMIN | Perms::REVOKE } else { Perms::NONE };
        // A token for one lease of a GPU, which GPU_SUBMIT takes, is as one for the GPU.
        let gpu = self.gpu_lease(resource).map_or(resource, |lease| self.lease_resource(&lease));
        self.config.policy.perms(presenter, gpu).or(own)
    }

    /// Whether a presenter's key is known.
    pub fn knows(&self, presenter: u128) -> bool {
        self.keys.get(NodeId(presenter)).is_some()
    }
}

impl Outcome {
    pub(crate) fn refused(status: Status) -> Self {
        Self { answer: Answer { status, result: Vec::new() }, ..Self::default() }
    }
}

impl<H> std::fmt::Debug for Node<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("identity", &self.identity).finish_non_exhaustive()
    }
}
