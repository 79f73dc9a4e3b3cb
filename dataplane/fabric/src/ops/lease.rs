//! Lease operations: LEASE_ALLOC, LEASE_RENEW, LEASE_FREE and LEASE_QUERY.

use berth_lease::{Lease, LeaseId, RegionId, RegionKind, Rights, Status as Standing, Wanted};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    BindingTlv, EndpointKind, LeaseAlloc, LeaseGrant, LeaseRef, LeaseRenew, LeaseRenewed, LeaseState, LeaseStatus, Op,
    Perms, ResourceType, Status, Tlvs, Wire as _,
};

use super::{Reply, TimedRequest, params};
use crate::{
    clock::secs,
    host::{Host, random_u128},
    inventory::region_type,
    journal::{Grant, Record},
    node::Node,
    pending::{Origin, Pending},
    request::{Job, Outcome, Step, Work},
    status::of_lease,
    tasklet::Why,
};

/// Size of a lease whose LEASE_ALLOC gives none, in bytes.
const DEFAULT_BYTES: u64 = 1 << 20;

pub(super) fn wire_status(status: Standing) -> LeaseStatus {
    match status {
        Standing::Active => LeaseStatus::Active,
        Standing::Expired => LeaseStatus::Expired,
        Standing::Revoked => LeaseStatus::Revoked,
    }
}

/// Whether an endpoint of this kind serves leases of this kind. Two-sided messages and pages serve both.
fn serves(kind: EndpointKind, region: RegionKind) -> bool {
    match kind {
        EndpointKind::TwoSidedUdp => true,
        EndpointKind::Fbmu | EndpointKind::Fbmt | EndpointKind::QuicMem => region.is_memory(),
        EndpointKind::Fbbu | EndpointKind::Fbbt | EndpointKind::QuicBlock | EndpointKind::NvmeTcp => {
            region == RegionKind::Block
        }
        _ => false,
    }
}

impl<H: Host> Node<H> {
    pub(super) fn lease_alloc(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let wanted = params::<LeaseAlloc<'_>>(ask);
        let requested = wanted.ok().and_then(|wanted| wanted.requested_bytes);
        let granted = self.verify(ask, Perms::ALLOC, ask.request.resource, requested)?;
        let wanted = wanted?;
        let resource = if ask.request.resource == 0 { granted.token.resource_id } else { ask.request.resource };
        if wanted.resource_type == Some(ResourceType::Net) {
            let (rights, token) = (Rights::from_bits(granted.token.perms.bits()), granted.token.token_id);
            return self.function_alloc(ask, resource, &wanted, (rights, token));
        }
        let kind = wanted.resource_type.unwrap_or(ResourceType::Mem);
        let candidates = self.candidates(resource, kind)?;
        let mut regions = self.place(candidates, wanted.intents)?;
        // Devices of HIP Remote are for sessions: whoever takes any GPU gets one that does everything, where there is one.
        if regions.iter().any(|region| self.hip_device(*region).is_none()) {
            regions.retain(|region| self.hip_device(*region).is_none());
        }
        let for_sessions = regions.iter().any(|region| self.hip_device(*region).is_some());
        let class = match kind {
            ResourceType::Gpu => Some(self.admit_class(&mut regions, wanted.intents)?),
            _ => None,
        };
        let (first, end) = granted.span;
        if end == 0 {
            return Err(Status::InvalidToken);
        }
        let request = berth_lease::Request {
            wanted: Wanted::Bytes(&regions),
            near: None,
            bytes: requested.unwrap_or(DEFAULT_BYTES.min(end)),
            range: Some((first, end)),
            // Nobody reads or writes beside a session.
            rights: if for_sessions { Rights::NONE } else { Rights::from_bits(granted.token.perms.bits()) },
            holder: ask.request.presenter,
            token: granted.token.token_id,
            duration: secs(wanted.duration_secs),
            grace: secs(wanted.grace_secs),
        };
        let host = &mut self.host;
        let granted = self.leases.alloc(&request, ask.now.mono, &mut || random_u128(host)).map_err(of_lease)?;
        if let Some(class) = class {
            self.units.insert(granted.id, vec![class.code()]);
        }
        if granted.zero.is_empty() {
            return self.granted(granted.id, ask.now.mono).map(Step::from);
        }
        let region = granted.zero[0].region;
        let mut jobs: Vec<Job> = granted.zero.into_iter().map(Job::Zero).collect();
        if !self.leases.is_volatile(region) {
            // The grant outlives a loss of power, and so must the zeroes.
            jobs.push(Job::Flush(region));
        }
        let work = self.work(Pending::Alloc { id: granted.id, run: None }, Origin::of(Op::LeaseAlloc, &ask.request));
        Ok(Work { jobs, ..work }.into())
    }

    /// Regions that `resource` (0: any) and the type select.
    fn candidates(&self, resource: u128, wanted: ResourceType) -> Result<Vec<RegionId>, Status> {
        let of_type = self.regions().iter().filter(|(_, region)| region_type(region.kind) == wanted);
        let candidates: Vec<RegionId> =
            of_type.map(|(id, _)| id).filter(|id| resource == 0 || self.region_resource(*id) == resource).collect();
        let in_use = wanted == ResourceType::Gpu && candidates.is_empty() && self.is_in_use(resource);
        match (candidates.is_empty(), resource) {
            _ if in_use => Err(Status::ResourceFenced),
            (false, _) => Ok(candidates),
            (true, 0) => Err(Status::CapacityExceeded),
            (true, _) => Err(Status::ResourceNotFound),
        }
    }

    /// Answers an allocation whose bytes are zeroed.
    pub(crate) fn granted(&mut self, id: LeaseId, now: Nanos) -> Result<Outcome, Status> {
        let lease = self.leases.get(id).ok_or(Status::InternalError)?;
        let bindings = self.binding_tlvs(&lease);
        let grant = LeaseGrant {
            lease_id: id.0,
            expires_at: self.clock.unix_secs(lease.expires),
            bindings: Tlvs::parse(&bindings).map_err(|_| Status::InternalError)?,
        };
        let mut outcome = Outcome::default();
        outcome.answer.result = grant.to_vec();
        outcome.journal.push(self.grant_record(&lease, now));
        Ok(outcome)
    }

    /// Drops an allocation whose bytes could not be zeroed, or not in time. Nobody was told of it.
    pub(crate) fn not_granted(&mut self, id: LeaseId, now: Now) {
        if let Some(holder) = self.leases.get(id).map(|lease| lease.holder) {
            let _ = self.leases.free(id, holder, now.mono);
            self.units.remove(&id);
            self.leases.release(id, now.mono);
        }
    }

    /// The 0x01xx TLVs of a lease with bytes, and those of bindings that need not know their client.
    fn binding_tlvs(&self, lease: &Lease) -> Vec<u8> {
        let mut tlvs = Vec::new();
        let Some(region) = lease.region().and_then(|region| self.regions().get(region)) else { return tlvs };
        let for_sessions = lease.region().is_some_and(|region| self.hip_device(region).is_some());
        let serves = |kind| if for_sessions { kind == EndpointKind::HipTcp } else { serves(kind, region.kind) };
        for (kind, addr) in self.config.endpoints.iter().filter(|(kind, _)| serves(*kind)) {
            BindingTlv::Endpoint { kind: *kind, addr: &addr.to_string() }.write(&mut tlvs);
        }
        BindingTlv::Generation(lease.generation.0).write(&mut tlvs);
        BindingTlv::LeaseKey(lease.id.key().0).write(&mut tlvs);
        let max_io = self.leases.config().max_io;
        BindingTlv::Limits { offset: 0, len: lease.len, max_io }.write(&mut tlvs);
        if let Some(gpu) = lease.region().and_then(|region| self.gpu_of(region)) {
            BindingTlv::GpuVram { base: gpu.base() + lease.base, len: lease.len }.write(&mut tlvs);
        }
        for binding in &self.bindings {
            binding.describe(lease.id, &mut tlvs);
        }
        tlvs
    }

    /// The journal's record of a lease.
    pub(crate) fn grant_record(&self, lease: &Lease, now: Nanos) -> Record {
        Record::Granted(Grant {
            lease: lease.id.0,
            resource: self.lease_resource(lease),
            base: lease.base,
            len: lease.len,
            first: lease.first,
            holder: lease.holder,
            token: lease.token,
            rights: lease.rights.bits(),
            generation: lease.generation.0,
            at: self.clock.unix(now),
            expires: self.clock.unix(lease.expires),
            grace: Nanos(lease.grace.as_nanos() as u64),
            unit: self.units.get(&lease.id).cloned().unwrap_or_default(),
        })
    }

    pub(super) fn lease_renew(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let granted = self.verify(ask, Perms::ALLOC, 0, None)?;
        let LeaseRenew { lease_id, duration_secs } = params(ask)?;
        if duration_secs == 0 {
            return Err(Status::InvalidParams);
        }
        let id = LeaseId(lease_id);
        let lease = self.leases.get(id).ok_or(Status::ResourceNotFound)?;
        if !granted.covers(self.lease_resource(&lease)) {
            return Err(Status::InsufficientPerm);
        }
        let now = ask.now.mono;
        let expires = self.leases.renew(id, ask.request.presenter, secs(duration_secs), now).map_err(of_lease)?;
        self.prolong_work(id, now);
        let mut outcome = Outcome::default();
        outcome.answer.result = LeaseRenewed { expires_at: self.clock.unix_secs(expires) }.to_vec();
        let (at, expires) = (self.clock.unix(now), self.clock.unix(expires));
        outcome.journal.push(Record::Renewed { lease: lease_id, at, expires });
        Ok(outcome.into())
    }

    pub(super) fn lease_free(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let LeaseRef { lease_id } = params(ask)?;
        let id = LeaseId(lease_id);
        if self.is_composite(id) {
            return Err(Status::ResourceNotFound);
        }
        self.free(ask, id)
    }

    /// Ends a lease at the presenter's request.
    pub(super) fn free(&mut self, ask: &TimedRequest<'_>, id: LeaseId) -> Reply {
        self.leases.free(id, ask.request.presenter, ask.now.mono).map_err(of_lease)?;
        let mut outcome = Outcome::default();
        self.wind_up(id, ask.now, &mut outcome);
        // Taken last: once it is over, so is what the lease's bytes wait for before they are leased again.
        outcome.quiescence = Some(self.leases.quiescence());
        Ok(outcome.into())
    }

    pub(super) fn lease_query(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let LeaseRef { lease_id } = params(ask)?;
        let (status, expires) = self.leases.query(LeaseId(lease_id), ask.now.mono).ok_or(Status::ResourceNotFound)?;
        let state = LeaseState { status: wire_status(status), expires_at: self.clock.unix_secs(expires) };
        Ok(Outcome::ok(state.to_vec()))
    }

    /// Revokes every lease that was allocated under a token, by one record.
    pub(crate) fn revoke_leases_of(&mut self, token: u128, now: Now, outcome: &mut Outcome) {
        let revoked = self.leases.revoke_token(token, now.mono);
        if !revoked.is_empty() {
            outcome.journal.push(Record::LeasesRevoked { token, at: self.clock.unix(now.mono) });
        }
        self.stop_runs(|run| run.terms.token == token, Why::Token, now, &mut outcome.endings);
        self.await_others(|lease| lease.token == token, now, outcome);
        for id in revoked {
            self.wind_up(id, now, outcome);
        }
        // Also where none is left: one that ended a moment ago may still be accessed.
        outcome.quiescence = Some(self.leases.quiescence());
    }
}
