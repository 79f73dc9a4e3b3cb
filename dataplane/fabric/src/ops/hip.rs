//! Sessions of HIP Remote that use leased devices. They come by a connection of their own, not as an op.

use std::{fmt::Debug, net::SocketAddr, sync::Arc};

use berth_identity::NodeId;
use berth_lease::{Generation, Lease, LeaseId, LeaseKey, RegionId, Status as Standing};
use berth_port::Now;
use berth_wire::fabric::{Perms, Status};

use super::TimedRequest;
use crate::{
    host::Host,
    node::Node,
    request::{Carrier, Request},
};

/// What a session presents.
#[derive(Debug, Clone, Copy)]
pub struct HipClaim<'a> {
    /// Full id of the lease.
    pub lease: u128,
    /// A token of the lease's holder, with EXEC, for the device or for the lease.
    pub token: &'a [u8],
    /// Signature of `signed` by the key of the lease's holder.
    pub signature: &'a [u8; 64],
    /// What the signature is of.
    pub signed: &'a [u8],
    /// Address that the claim came from.
    pub source: SocketAddr,
}

/// A session that may use a device. It is ended before the lease's bytes are another's, and before a revocation is answered.
pub trait HipSession: Debug + Send + Sync {
    /// Has it end, and does not wait for that.
    fn end(&self);

    /// Ends it; returns when nothing is served any more and nothing of its memory is left.
    fn stop(&self);
}

/// What a session got.
#[derive(Debug)]
pub struct HipGrant {
    /// The device, among [`Config::hip`](crate::Config::hip).
    pub device: usize,
    /// Bytes of the lease, all of which the session uses.
    pub bytes: u64,
    /// Where the lease table tells whether the lease lives.
    pub key: LeaseKey,
    /// The lease's generation there.
    pub generation: Generation,
    /// The session that the lease had, if any: to be ended, and gone before this one begins.
    pub earlier: Option<Arc<dyn HipSession>>,
}

impl<H: Host> Node<H> {
    /// Gives a session the device of a lease, for as long as the lease lives. A lease has one session: the last.
    ///
    /// # Errors
    /// Why not, as an op would be answered.
    pub fn bind_hip(
        &mut self,
        claim: &HipClaim<'_>,
        session: Arc<dyn HipSession>,
        now: Now,
    ) -> Result<HipGrant, Status> {
        let id = LeaseId(claim.lease);
        let device = |lease: &Lease| lease.region().and_then(|region| self.hip_device(region));
        let (lease, device) = self
            .leases
            .get(id)
            .and_then(|lease| device(&lease).map(|at| (lease, at)))
            .ok_or(Status::ResourceNotFound)?;
        if !matches!(self.leases.query(id, now.mono), Some((Standing::Active, _))) {
            return Err(Status::LeaseExpired);
        }
        let holder = self.keys.get(NodeId(lease.holder)).ok_or(Status::InsufficientPerm)?;
        if !holder.verifies(claim.signed, claim.signature) {
            return Err(Status::InsufficientPerm);
        }
        // As if the holder had asked: it has, by its signature.
        let request = Request {
            carrier: Carrier::Quic,
            presenter: lease.holder,
            source: claim.source,
            op: 0,
            resource: 0,
            token: claim.token,
            params: &[],
        };
        let granted = self.verify(&TimedRequest { request, now }, Perms::EXEC, 0, None)?;
        if !granted.covers(self.lease_resource(&lease)) && granted.token.resource_id != id.0 {
            return Err(Status::InsufficientPerm);
        }
        // A session uses all of the lease.
        if granted.span.0 > 0 || granted.span.1 < lease.len {
            return Err(Status::InsufficientPerm);
        }
        if self.endings.contains_key(&id) {
            return Err(Status::ResourceBusy);
        }
        let earlier = self.kernels.sessions.insert(id, session);
        Ok(HipGrant { device, bytes: lease.len, key: id.key(), generation: lease.generation, earlier })
    }

    /// Which device of HIP Remote a region is.
    pub(crate) fn hip_device(&self, region: RegionId) -> Option<usize> {
        self.config.hip.iter().position(|device| *device == region)
    }
}
