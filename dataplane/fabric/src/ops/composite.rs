//! Composite leases, of cores and an arena: TASKLET_LEASE_ALLOC and TASKLET_LEASE_FREE.

use berth_lease::{LeaseId, Rights};
use berth_tasklet::schedule::Room;
use berth_wire::fabric::{
    Perms, Status, TaskletAffinity, TaskletLeaseAlloc, TaskletLeaseFree, TaskletLeaseGrant, Wire as _,
};

use super::{Reply, TimedRequest, params, unit::UnitRequest};
use crate::{
    clock::secs,
    composite::Composite,
    host::{Host, random_u128},
    node::Node,
    request::Outcome,
};

/// An arena is a whole number of WASM pages.
const PAGE: u64 = 64 << 10;

impl<H: Host> Node<H> {
    pub(super) fn tasklet_lease_alloc(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let Some(tasklets) = &self.tasklets else { return Err(Status::UnsupportedOp) };
        let resource = tasklets.resource;
        let granted = self.verify(ask, Perms::EXEC, self.resource_ids[resource], None)?;
        let token = granted.token.token_id;
        let wanted: TaskletLeaseAlloc = params(ask)?;
        if wanted.duration_secs == 0 || wanted.num_cores == 0 || wanted.mem_bytes == 0 {
            return Err(Status::InvalidParams);
        }
        let arena = wanted.mem_bytes.checked_next_multiple_of(PAGE).ok_or(Status::CapacityExceeded)?;
        let Some(tasklets) = &self.tasklets else { return Err(Status::UnsupportedOp) };
        let Room { cores, memory } = tasklets.schedule.free();
        let near = wanted.affinity != TaskletAffinity::SameRack;
        if !near || u32::from(wanted.num_cores) > cores || arena > memory {
            return Err(Status::CapacityExceeded);
        }
        let composite = Composite { cores: wanted.num_cores, arena, mem: self.fresh_id(), cpu: self.fresh_id() };
        let request = UnitRequest {
            resource,
            wanted: &composite.to_bytes(),
            rights: Rights::NONE,
            token,
            duration: secs(wanted.duration_secs),
            grace: secs(wanted.grace_secs),
        };
        let id = self.grant_unit(ask, &request)?;
        self.know_composite(id, composite);
        if let Some(tasklets) = &mut self.tasklets {
            tasklets.schedule.open(id.0, composite.room());
        }
        let lease = self.leases.get(id).ok_or(Status::InternalError)?;
        let grant = TaskletLeaseGrant {
            lease_id: id.0,
            expires_at: self.clock.unix_secs(lease.expires),
            mem_resource_id: composite.mem,
            cpu_resource_id: composite.cpu,
            arena_size: arena,
            num_cores: composite.cores,
        };
        let mut outcome = Outcome::default();
        outcome.answer.result = grant.to_vec();
        outcome.journal.push(self.grant_record(&lease, ask.now.mono));
        Ok(outcome.into())
    }

    pub(super) fn tasklet_lease_free(&mut self, ask: &TimedRequest<'_>) -> Reply {
        if self.tasklets.is_none() {
            return Err(Status::UnsupportedOp);
        }
        let TaskletLeaseFree { lease_id } = params(ask)?;
        let id = LeaseId(lease_id);
        if !self.is_composite(id) {
            return Err(Status::ResourceNotFound);
        }
        self.free(ask, id)
    }

    /// An id that no resource has.
    fn fresh_id(&mut self) -> u128 {
        loop {
            let id = random_u128(&mut self.host);
            let taken = |tasklets: &crate::tasklet::Tasklets| tasklets.resource_ids.contains_key(&id);
            if id != 0 && !self.resource_ids.contains(&id) && !self.tasklets.as_ref().is_some_and(taken) {
                return id;
            }
        }
    }
}
