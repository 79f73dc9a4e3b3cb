//! Starting a node from what its journal remembers.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
};

use berth_identity::{Identity, NodeId, PublicKey};
use berth_lease::{
    Generation, Holding, Lease, LeaseId, LeaseKey, Leases, REMEMBERED, RegionId, Regions, RestoreError, Rights,
    Standing, Status as LeaseStatus, Unit,
};
use berth_port::{Nanos, Now};

use crate::{
    binding::{Binding, TeardownFailed, binding_id},
    blocking::BlockingWork,
    clock::Clock,
    host::Host,
    journal::{self, Grant, Record},
    node::{Config, Node},
    recovered::{Attached, Recovered, RecoveredLease},
    request::{Step, Work},
    resource::Resource,
};

/// A node that has started.
#[derive(Debug)]
pub struct Started<H> {
    /// The node.
    pub node: Node<H>,
    /// What must be durable before the node serves anything: no request, and no access to a lease.
    pub journal: Vec<Record>,
    /// For each sender the highest nonce that was used up: the link must refuse those up to it.
    pub seen: BTreeMap<u128, u64>,
    /// Leases that are being connected again; to be done like the work of requests, once the node serves.
    pub works: Vec<Work>,
}

/// A node that is about to start: what was connected before is being torn down.
#[derive(Debug)]
pub struct Starting {
    recovered: Recovered,
    bindings: Vec<Box<dyn Binding>>,
    /// Connections whose teardown takes time, by lease and position of the binding.
    waiting: Vec<(u128, usize)>,
    /// Those that are gone.
    gone: BTreeSet<(u128, usize)>,
    /// Those that still stand.
    kept: BTreeSet<(u128, usize)>,
}

impl Starting {
    /// Begins to tear down what `recovered` says was connected, and nothing else. All of the work that is returned is to
    /// be done before [`Node::start`]; the default of `recovered` is for a new node.
    pub fn new(mut recovered: Recovered, mut bindings: Vec<Box<dyn Binding>>) -> (Self, Vec<BlockingWork>) {
        recovered.settle();
        let ids: Vec<u64> = bindings.iter().map(|binding| binding_id(&**binding)).collect();
        let (mut waiting, mut gone, mut works) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut kept = BTreeSet::new();
        for (lease, binding) in recovered.bound.keys() {
            let Some(index) = ids.iter().position(|id| id == binding) else { continue };
            let lives = recovered.leases.get(lease).is_some_and(|known| known.revoked.is_none() && !known.fenced);
            if lives && bindings[index].outlives(LeaseId(*lease)) {
                kept.insert((*lease, index));
                continue;
            }
            match bindings[index].teardown(LeaseId(*lease)) {
                Ok(None) => {
                    gone.insert((*lease, index));
                }
                Ok(Some(work)) => {
                    works.push(work);
                    waiting.push((*lease, index));
                }
                Err(TeardownFailed) => {}
            }
        }
        (Self { recovered, bindings, waiting, gone, kept }, works)
    }
}

/// Why a node cannot start from its journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// The journal grants something of a resource that is not there.
    #[error(
        "the journal grants lease {0}, whose region is not in the configuration; put the region back, or start with \
         an empty journal, which ends every lease"
    )]
    Resource(LeaseId),
    /// The journal's leases do not fit the configuration.
    #[error(
        "the journal grants lease {0}, but {1}; undo the change of the configuration, or start with an empty journal"
    )]
    Lease(LeaseId, RestoreError),
}

impl<H: Host> Node<H> {
    /// Starts a node of these regions, and these resources of units.
    ///
    /// Leases that were answered and have not ended are served again, at the very bytes they had; those in memory under
    /// a higher generation, for their contents are lost. Of these, such are revoked that do not begin at a granule of
    /// their region, which is leased in larger ones now; and those of a GPU's memory of which there is less now.
    pub fn start(
        identity: Identity,
        config: Config,
        host: H,
        regions: Regions,
        resources: Vec<Box<dyn Resource>>,
        starting: Starting,
        now: Now,
    ) -> Result<Started<H>, RecoverError> {
        let Starting { mut recovered, mut bindings, waiting, mut gone, kept } = starting;
        gone.extend(waiting.into_iter().filter(|(lease, index)| bindings[*index].torn_down(LeaseId(*lease)).is_ok()));
        if Clock::was_wrong(recovered.latest, now.wall) {
            recovered.set_clock(now.wall);
        }
        let clock = Clock::new(now, recovered.latest);
        let mut leases = Leases::new(config.leases, regions);
        for binding in &mut bindings {
            binding.attach(leases.table(), leases.regions());
        }
        leases.set_quotas(config.quotas.clone());
        let mut node = Self::empty(identity, config, host, leases, resources, bindings, clock, now);
        node.epoch = recovered.epoch + 1;
        node.fence = recovered.fence;
        node.list_keys();
        for key in recovered.enrolled.values().filter_map(|key| PublicKey::from_bytes(key).ok()) {
            node.keys.restore(key);
        }
        for key in recovered.removed {
            // As many as were remembered before fit again.
            let _ = node.keys.remove(NodeId(key));
        }
        let wall = now.wall.0 / 1_000_000_000;
        for (token, until) in recovered.revoked_tokens {
            // As many as were remembered before fit again.
            let _ = node.verifier.revoked.revoke(token, until.0 / 1_000_000_000, wall);
        }
        for (holder, (_, revoked)) in recovered.revoked_holders {
            let _ = node.verifier.revoked.revoke_holder(holder, revoked, wall);
        }
        let mut journal = vec![Record::Started { epoch: node.epoch, at: clock.unix(now.mono) }];
        let bound = node.connections_of(recovered.bound, &gone, &kept);
        for lease in recovered.leases.into_values() {
            let stuck = bound.get(&lease.grant.lease).is_some_and(|bound| bound.stuck(lease.fenced));
            node.restore(*lease, stuck, now, &mut journal)?;
        }
        // One that has expired has no place among those that live.
        let lives = |handle: &journal::Handle| clock.mono(handle.expires) > now.mono;
        for handle in recovered.handles.into_values().flatten().filter(lives) {
            node.leases.restore_handle(berth_lease::Handle {
                id: handle.handle,
                lease: LeaseId(handle.lease),
                target: handle.target,
                kind: handle.kind,
                rights: handle.rights,
                expires: clock.mono(handle.expires),
            });
        }
        for Attached { handle, importer, key, .. } in recovered.attachments {
            node.leases.restore_attachment(handle, importer, LeaseKey(key));
        }
        let works = node.restore_connections(bound, now, &mut journal);
        Ok(Started { node, journal, seen: recovered.seen, works })
    }

    /// What the journal says of connections, by lease.
    fn connections_of(
        &self,
        bound: BTreeMap<(u128, u64), Box<[u8]>>,
        gone: &BTreeSet<(u128, usize)>,
        kept: &BTreeSet<(u128, usize)>,
    ) -> BTreeMap<u128, Bound> {
        let ids: Vec<u64> = self.bindings.iter().map(|binding| binding_id(&**binding)).collect();
        let mut all = BTreeMap::<u128, Bound>::new();
        for ((lease, binding), client) in bound {
            let bound = all.entry(lease).or_default();
            match ids.iter().position(|id| *id == binding) {
                Some(index) if gone.contains(&(lease, index)) => bound.gone.push((index, client)),
                Some(index) if kept.contains(&(lease, index)) => bound.kept.push(index),
                Some(index) => bound.left.push(index),
                None => bound.unknown = true,
            }
        }
        all
    }

    /// Knows what is still connected, and connects again what goes on without being asked.
    fn restore_connections(&mut self, bound: BTreeMap<u128, Bound>, now: Now, journal: &mut Vec<Record>) -> Vec<Work> {
        let mut works = Vec::new();
        for (id, Bound { gone, left, kept, .. }) in bound {
            let lease = self.leases.get(LeaseId(id));
            for (index, lease) in kept.into_iter().zip(iter::repeat(lease)).filter_map(|(at, lease)| Some((at, lease?)))
            {
                self.connected(lease.id, index, lease.holder);
                if self.leases.query(lease.id, now.mono).is_none_or(|(status, _)| status != LeaseStatus::Active) {
                    self.overdue.push(lease.id);
                }
            }
            for index in left {
                self.counts.counters.teardowns_failed += 1;
                if let Some(lease) = lease {
                    self.connected(lease.id, index, lease.holder);
                }
            }
            for (index, client) in gone {
                journal.push(Record::Unbound { lease: id, binding: binding_id(&*self.bindings[index]) });
                let Some(lease) = lease.filter(|_| self.bindings[index].resumes()) else { continue };
                match self.bind_anew(&lease, index, client.into(), now) {
                    Step::Work(work) => works.push(work),
                    // Done at once. Where it is refused, its holder has to ask again.
                    Step::Done(outcome) => journal.extend(outcome.into_effects().journal),
                    _ => {}
                }
            }
        }
        works
    }

    /// Restores a lease. `stuck`: its client may still reach what it holds.
    fn restore(
        &mut self,
        known: RecoveredLease,
        stuck: bool,
        now: Now,
        journal: &mut Vec<Record>,
    ) -> Result<(), RecoverError> {
        let RecoveredLease { grant, revoked, fenced, .. } = known;
        let id = LeaseId(grant.lease);
        let unix = self.clock.unix(now.mono);
        let over = match revoked {
            Some(at) => unix >= at + REMEMBERED,
            None => unix >= Nanos(grant.expires.0.saturating_add(grant.grace.0)),
        };
        // A fence is lifted where every binding has said that it is disconnected.
        let fenced = stuck && (fenced || over || revoked.is_some());
        if over && !fenced {
            journal.push(Record::Ended { lease: grant.lease });
            return Ok(());
        }
        let holds = match self.holding_of(&grant) {
            Some(holds) => holds,
            // What it held is gone; that it was revoked is still to be told.
            None if revoked.is_some() && !fenced => Holding::Nothing,
            None => return Err(RecoverError::Resource(id)),
        };
        let lease = self.lease_of(&grant, holds, revoked, fenced, now);
        let generation = lease.generation;
        let mut restored = self.leases.restore(lease, now.mono);
        let has_no_place = match restored {
            Err(RestoreError::Granule) => lease.region().is_some_and(|region| self.leases.is_volatile(region)),
            Err(RestoreError::Region) => self.is_vram(&lease),
            _ => false,
        };
        if has_no_place && !stuck {
            // Its contents are lost whatever is done: rather than that the node does not start, its holder asks for another.
            let standing = match lease.standing {
                Standing::Live => {
                    journal.push(Record::LeaseRevoked { lease: grant.lease, at: unix });
                    Standing::Revoked { at: now.mono }
                }
                ended => ended,
            };
            restored = self.leases.restore(Lease { holds: Holding::Nothing, standing, ..lease }, now.mono);
        }
        let restored = restored.map_err(|error| RecoverError::Lease(id, error))?;
        let Some(lease) = restored else { return Ok(()) };
        self.restore_composite(&lease, &grant.unit);
        if let (Holding::Unit(unit), Standing::Live) = (lease.holds, lease.standing)
            && self.resources[usize::from(unit.resource)].recover(id, &grant.unit)
        {
            self.units.insert(id, grant.unit.clone());
        }
        if lease.region().is_some() && lease.standing == Standing::Live && !grant.unit.is_empty() {
            self.units.insert(id, grant.unit.clone());
        }
        if lease.generation != generation {
            journal.push(Record::Granted(Grant { generation: lease.generation.0, ..grant }));
        }
        Ok(())
    }

    /// A grant as the leases have it. One whose expiry is past gets what is left of its grace.
    fn lease_of(&self, grant: &Grant, holds: Holding, revoked: Option<Nanos>, fenced: bool, now: Now) -> Lease {
        let ago = self.clock.unix(now.mono) - grant.expires;
        let standing = revoked.map_or(Standing::Live, |at| Standing::Revoked { at: self.clock.mono(at) });
        Lease {
            id: LeaseId(grant.lease),
            holds,
            base: grant.base,
            len: grant.len,
            first: grant.first,
            rights: Rights::from_bits(grant.rights.into()),
            generation: Generation(grant.generation),
            holder: grant.holder,
            token: grant.token,
            expires: self.clock.mono(grant.expires),
            grace: (Nanos(grant.grace.0) - Nanos(0)).saturating_sub(ago),
            standing,
            fenced,
        }
    }

    /// What a grant is of; `None` where that is not configured.
    fn holding_of(&self, grant: &Grant) -> Option<Holding> {
        let index = self.resource_ids.iter().position(|id| *id == grant.resource)?;
        let item = self.resources[index].counts_as();
        Some(match item {
            Some(item) => Holding::Unit(Unit { resource: index as u16, item }),
            None => Holding::Bytes(RegionId(index as u16)),
        })
    }
}

/// What a lease was connected to.
#[derive(Debug, Default)]
struct Bound {
    /// Over these bindings, by position, and to whom: not any more.
    gone: Vec<(usize, Box<[u8]>)>,
    /// Over these: perhaps still.
    left: Vec<usize>,
    /// Over these: still, as it may be.
    kept: Vec<usize>,
    /// And over bindings that are not configured any more.
    unknown: bool,
}

impl Bound {
    /// Whether the client may still reach what the lease holds. Today's transports end with the process; one that is not
    /// configured any more counts where it is why a lease was `fenced`.
    fn stuck(&self, fenced: bool) -> bool {
        !self.left.is_empty() || !self.kept.is_empty() || fenced && self.unknown
    }
}
