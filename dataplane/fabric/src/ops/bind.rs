//! LEASE_BIND: transports of their own.

use berth_lease::{LeaseId, Status as Standing};
use berth_wire::fabric::{BindKind, LeaseBind, Perms, Status};

use super::{Ask, Reply, params};
use crate::{binding::BoundLease, host::Host, node::Node, request::Outcome};

impl<H: Host> Node<H> {
    /// Connects a lease to its holder; where it is connected already, that connection is torn down first.
    pub(super) fn lease_bind(&mut self, ask: &Ask<'_>) -> Reply {
        let granted = self.verify(ask, Perms::ALLOC, 0, None)?;
        let LeaseBind { lease_id, kind, client } = params(ask)?;
        let kind = BindKind::from_code(kind).ok_or(Status::InvalidParams)?;
        let binding = self.bindings.iter().position(|binding| binding.kind() == kind).ok_or(Status::UnsupportedOp)?;
        let id = LeaseId(lease_id);
        let lease = *self.leases.get(id).ok_or(Status::ResourceNotFound)?;
        match self.leases.query(id, ask.now.mono) {
            None => return Err(Status::ResourceNotFound),
            Some(_) if lease.holder != ask.request.presenter => return Err(Status::InsufficientPerm),
            Some((Standing::Expired | Standing::Revoked, _)) => return Err(Status::LeaseExpired),
            Some((Standing::Active, _)) => {}
        }
        if !granted.covers(self.lease_resource(&lease)) {
            return Err(Status::InsufficientPerm);
        }
        let bytes = Self::reach(&lease).ok_or(Status::InvalidParams)?;
        if self.bound.contains(&(id, kind)) {
            self.bindings[binding].teardown(id).map_err(|_| Status::ResourceBusy)?;
            self.bound.remove(&(id, kind));
        }
        let bound = BoundLease {
            id,
            generation: lease.generation,
            rights: lease.rights,
            bytes,
            first: lease.first.min(lease.len),
        };
        let mut tlvs = Vec::new();
        self.bindings[binding].bind(&bound, client, &mut tlvs)?;
        self.bound.insert((id, kind));
        Ok(Outcome::ok(tlvs))
    }
}
