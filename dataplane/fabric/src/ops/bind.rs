//! LEASE_BIND: transports of their own.

use berth_lease::{Lease, LeaseId, Status as Standing};
use berth_port::Nanos;
use berth_wire::fabric::{BindKind, LeaseBind, Op, Perms, Status, Tlvs};

use super::{Ask, Reply, params};
use crate::{
    binding::BoundLease,
    host::Host,
    node::Node,
    pending::{Pending, Waiting},
    request::{Outcome, Work},
    status::of_lease,
};

impl<H: Host> Node<H> {
    /// Connects a lease to its holder; where it is connected already, that connection is torn down first.
    pub(super) fn lease_bind(&mut self, ask: &Ask<'_>) -> Reply {
        let granted = self.verify(ask, Perms::ALLOC, 0, None)?;
        let LeaseBind { lease_id, kind, client } = params(ask)?;
        let kind = BindKind::from_code(kind).ok_or(Status::InvalidParams)?;
        let binding = self.bindings.iter().position(|binding| binding.kind() == kind).ok_or(Status::UnsupportedOp)?;
        let id = LeaseId(lease_id);
        let lease = self.leases.get(id).ok_or(Status::ResourceNotFound)?;
        match self.leases.query(id, ask.now.mono) {
            None => return Err(Status::ResourceNotFound),
            Some(_) if lease.holder != ask.request.presenter => return Err(Status::InsufficientPerm),
            Some((Standing::Expired | Standing::Revoked, _)) => return Err(Status::LeaseExpired),
            Some((Standing::Active, _)) => {}
        }
        if !granted.covers(self.lease_resource(&lease)) {
            return Err(Status::InsufficientPerm);
        }
        let bound = Self::bound_lease(&lease).ok_or(Status::InvalidParams)?;
        if self.is_being_bound(id, kind) {
            return Err(Status::ResourceBusy);
        }
        if let Some(holder) = self.bound.get(&(id, kind)).copied() {
            self.bindings[binding].teardown(id).map_err(|_| Status::ResourceBusy)?;
            self.bound.remove(&(id, kind));
            self.leases.unbound(holder);
        }
        let of_holder =
            |waiting: &&Waiting| matches!(waiting.pending, Pending::Bind { .. }) && waiting.presenter == lease.holder;
        let begun = self.pending.values().filter(of_holder).count();
        self.leases.check_binding(lease.holder, begun as u64).map_err(of_lease)?;
        let Some(prepare) = self.bindings[binding].prepare(&bound, client)? else {
            return self.connect(id, kind, client, ask.now.mono).map(Outcome::ok);
        };
        let pending = Pending::Bind { lease: id, kind, client: client.as_bytes().to_vec() };
        let work = self.work(pending, None, Vec::new(), Op::LeaseBind, &ask.request);
        Ok(Work { prepare: Some(prepare), ..work }.into())
    }

    /// Connects a lease whose client can be reached by now; returns the binding's TLVs.
    pub(crate) fn connect(
        &mut self,
        id: LeaseId,
        kind: BindKind,
        client: Tlvs<'_>,
        now: Nanos,
    ) -> Result<Vec<u8>, Status> {
        let binding = self.bindings.iter_mut().find(|binding| binding.kind() == kind).ok_or(Status::UnsupportedOp)?;
        let active = self.leases.query(id, now).is_some_and(|(standing, _)| standing == Standing::Active);
        let bound = self.leases.get(id).filter(|_| active).and_then(|lease| Self::bound_lease(&lease));
        let mut tlvs = Vec::new();
        // It may have ended while its client was looked for.
        let connected = bound.ok_or(Status::LeaseExpired).and_then(|bound| binding.bind(&bound, client, &mut tlvs));
        match connected {
            Ok(()) => self.bound(id, kind),
            Err(_) => self.give_up(id, kind),
        }
        connected.map(|()| tlvs)
    }

    /// A lease is connected.
    fn bound(&mut self, id: LeaseId, kind: BindKind) {
        let Some(holder) = self.leases.get(id).map(|lease| lease.holder) else { return };
        if self.bound.insert((id, kind), holder).is_none() {
            self.leases.bound(holder);
        }
    }

    /// Has a binding forget what it prepared for a lease that is not connected.
    pub(crate) fn give_up(&mut self, id: LeaseId, kind: BindKind) {
        let mut failed = false;
        for binding in self.bindings.iter_mut().filter(|binding| binding.kind() == kind) {
            // The client may reach its bytes, and the lease's end must see to it.
            failed |= binding.teardown(id).is_err();
        }
        if failed {
            self.bound(id, kind);
        }
    }

    /// A lease as bindings see it; `None` where it has no bytes.
    fn bound_lease(lease: &Lease) -> Option<BoundLease> {
        let (id, generation, rights) = (lease.id, lease.generation, lease.rights);
        Some(BoundLease { id, generation, rights, bytes: Self::reach(lease)?, first: lease.first.min(lease.len) })
    }

    fn is_being_bound(&self, id: LeaseId, kind: BindKind) -> bool {
        let binds = |pending: &Pending| matches!(pending, Pending::Bind { lease, kind: other, .. } if (*lease, *other) == (id, kind));
        self.pending.values().any(|waiting| binds(&waiting.pending))
    }
}
