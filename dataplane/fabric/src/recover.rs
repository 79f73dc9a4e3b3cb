//! Starting a node from what its journal remembers.

use std::collections::BTreeMap;

use berth_identity::{Identity, NodeId, PublicKey};
use berth_lease::{
    Generation, Lease, LeaseId, LeaseKey, Leases, REMEMBERED, RegionId, Regions, RestoreError, Rights, Standing,
};
use berth_port::{Nanos, Now};

use crate::{
    binding::Binding,
    clock::Clock,
    host::Host,
    journal::{self, Grant, Record},
    node::{Config, Node},
    recovered::{Attached, Recovered, RecoveredLease},
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
    /// Starts a node of these regions. `recovered` is what its journal adds up to; the default for a new node.
    ///
    /// Leases that were answered and have not ended are served again, at the very bytes they had; those in memory under
    /// a higher generation, for their contents are lost.
    pub fn start(
        identity: Identity,
        config: Config,
        host: H,
        regions: Regions,
        bindings: Vec<Box<dyn Binding>>,
        mut recovered: Recovered,
        now: Now,
    ) -> Result<Started<H>, RecoverError> {
        recovered.settle();
        if Clock::was_wrong(recovered.latest, now.wall) {
            recovered.set_clock(now.wall);
        }
        let clock = Clock::new(now, recovered.latest);
        let mut leases = Leases::new(config.leases, regions);
        leases.set_quotas(config.quotas.clone());
        let mut node = Self::empty(identity, config, host, leases, bindings, clock, now);
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
        for lease in recovered.leases.into_values() {
            node.restore(*lease, now, &mut journal)?;
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
        Ok(Started { node, journal, seen: recovered.seen })
    }

    fn restore(&mut self, known: RecoveredLease, now: Now, journal: &mut Vec<Record>) -> Result<(), RecoverError> {
        let RecoveredLease { grant, revoked, fenced, .. } = known;
        let id = LeaseId(grant.lease);
        // The process that connected it may be gone, and the connection not.
        let unbound = self.unbind_after_restart(id, grant.holder);
        let unix = self.clock.unix(now.mono);
        let over = match revoked {
            Some(at) => unix >= at + REMEMBERED,
            None => unix >= Nanos(grant.expires.0.saturating_add(grant.grace.0)),
        };
        // A fence is lifted only where a binding has said that it is disconnected.
        let fenced = if unbound { fenced && self.bindings.is_empty() } else { fenced || over || revoked.is_some() };
        if over && !fenced {
            journal.push(Record::Ended { lease: grant.lease });
            return Ok(());
        }
        let region = match self.region_of(&grant, id) {
            // It has no bytes any more; that it was revoked is still to be told.
            Err(_) if revoked.is_some() && !fenced => None,
            region => region?,
        };
        let lease = self.lease_of(&grant, region, revoked, fenced, now);
        let generation = lease.generation;
        let restored = self.leases.restore(lease, now.mono).map_err(|error| RecoverError::Lease(id, error))?;
        let Some(lease) = restored else { return Ok(()) };
        if let (Some(proxy), Standing::Live) = (grant.proxy, lease.standing)
            && self.host.open_proxy(id, proxy) == Some(proxy.ingress)
        {
            self.proxies.insert(id, proxy);
        }
        if lease.generation != generation {
            journal.push(Record::Granted(Grant { generation: lease.generation.0, ..grant }));
        }
        Ok(())
    }

    /// A grant as the leases have it. One whose expiry is past gets what is left of its grace.
    fn lease_of(
        &self,
        grant: &Grant,
        region: Option<RegionId>,
        revoked: Option<Nanos>,
        fenced: bool,
        now: Now,
    ) -> Lease {
        let ago = self.clock.unix(now.mono) - grant.expires;
        let standing = revoked.map_or(Standing::Live, |at| Standing::Revoked { at: self.clock.mono(at) });
        Lease {
            id: LeaseId(grant.lease),
            region,
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

    fn region_of(&self, grant: &Grant, id: LeaseId) -> Result<Option<RegionId>, RecoverError> {
        if grant.resource == self.proxy_resource() {
            return Ok(None);
        }
        let region = self.regions().iter().find(|(region, _)| self.region_resource(*region) == grant.resource);
        region.map(|(region, _)| Some(region)).ok_or(RecoverError::Resource(id))
    }

    /// Tears down what bindings may have left of a lease; false where that fails.
    fn unbind_after_restart(&mut self, id: LeaseId, holder: u128) -> bool {
        for binding in &self.bindings {
            self.bound.insert((id, binding.kind()), holder);
            self.leases.bound(holder);
        }
        self.unbind(id)
    }
}
