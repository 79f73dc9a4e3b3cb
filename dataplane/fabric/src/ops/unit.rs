//! Leases of units: what has no bytes.

use std::time::Duration;

use berth_lease::{Item, LeaseId, Rights, Unit, Wanted};
use berth_wire::fabric::{LeaseAlloc, ResourceType, Status};

use super::{Reply, TimedRequest};
use crate::{
    clock::secs,
    host::{Host, random_u128},
    node::Node,
    request::Step,
    status::of_lease,
};

/// What a lease of a unit is to be.
pub(super) struct UnitRequest<'a> {
    /// The position of the resource.
    pub(super) resource: usize,
    /// What the resource is asked for, in its own form.
    pub(super) wanted: &'a [u8],
    pub(super) rights: Rights,
    /// The token's id.
    pub(super) token: u128,
    pub(super) duration: Duration,
    pub(super) grace: Duration,
}

impl<H: Host> Node<H> {
    /// LEASE_ALLOC of a virtual function. `resource` 0 is any pool.
    pub(super) fn function_alloc(
        &mut self,
        ask: &TimedRequest<'_>,
        resource: u128,
        wanted: &LeaseAlloc<'_>,
        (rights, token): (Rights, u128),
    ) -> Reply {
        // In functions.
        if wanted.requested_bytes.unwrap_or(1) != 1 {
            return Err(Status::InvalidParams);
        }
        let is_pool = |index: &usize| {
            let of = &self.resources[*index];
            of.kind() == ResourceType::Net && of.counts_as() == Some(Item::Functions)
        };
        let meant = |index: &usize| resource == 0 || self.resource_ids[*index] == resource;
        let pools: Vec<usize> = (0..self.resources.len()).filter(is_pool).filter(meant).collect();
        if pools.is_empty() {
            return Err(if resource == 0 { Status::CapacityExceeded } else { Status::ResourceNotFound });
        }
        let pools = self.place_units(pools, wanted.intents)?;
        let stocks = || pools.iter().map(|pool| (*pool, self.resources[*pool].stock(&self.leases)));
        let Some((pool, _)) = stocks().find(|(_, stock)| stock.available > 0) else {
            let fenced = stocks().all(|(_, stock)| stock.fenced);
            return Err(if fenced { Status::ResourceFenced } else { Status::CapacityExceeded });
        };
        let (duration, grace) = (secs(wanted.duration_secs), secs(wanted.grace_secs));
        let request = UnitRequest { resource: pool, wanted: &[], rights, token, duration, grace };
        let id = self.grant_unit(ask, &request)?;
        self.granted(id, ask.now.mono).map(Step::from)
    }

    /// Grants a lease of a unit; nobody is told of it yet.
    pub(super) fn grant_unit(&mut self, ask: &TimedRequest<'_>, unit: &UnitRequest<'_>) -> Result<LeaseId, Status> {
        let UnitRequest { resource, wanted, rights, token, duration, grace } = *unit;
        let item = self.resources[resource].counts_as().ok_or(Status::InternalError)?;
        let request = berth_lease::Request {
            wanted: Wanted::Unit(Unit { resource: resource as u16, item }),
            near: None,
            bytes: 0,
            range: None,
            rights,
            holder: ask.request.presenter,
            token,
            duration,
            grace,
        };
        let host = &mut self.host;
        let granted = self.leases.alloc(&request, ask.now.mono, &mut || random_u128(host)).map_err(of_lease)?;
        let unit = self.resources[resource].grant(granted.id, wanted).inspect_err(|_| {
            // Nobody knows the lease yet.
            let _ = self.leases.free(granted.id, ask.request.presenter, ask.now.mono);
            self.leases.release(granted.id, ask.now.mono);
        })?;
        self.units.insert(granted.id, unit);
        Ok(granted.id)
    }
}
