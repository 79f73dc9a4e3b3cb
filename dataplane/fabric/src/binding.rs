//! Where a transport of its own joins leases: RDMA, NVMe-oF, SR-IOV, libfabric.

use std::fmt::{self, Debug};

use berth_lease::{Generation, LeaseId, Rights, Span};
use berth_port::Nanos;
use berth_wire::fabric::{BindKind, Status, Tlvs};

/// A lease as a binding sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundLease {
    /// Its id.
    pub id: LeaseId,
    /// Its generation.
    pub generation: Generation,
    /// What the transport may let the client do.
    pub rights: Rights,
    /// The bytes that it may let the client reach: the lease's, narrowed to its RANGE caveats.
    pub bytes: Span,
    /// How far into the lease those start, in bytes.
    pub first: u64,
}

/// Connects leases to a transport that does its own data I/O, past the lease table: it must itself enforce the rights
/// and the bytes of [`BoundLease`], and stop when it is told to.
pub trait Binding: Debug + Send {
    /// The kind that it serves.
    fn kind(&self) -> BindKind;

    /// Appends what LEASE_ALLOC's answer tells of this binding, for clients that need not be known to be told.
    fn describe(&self, _lease: LeaseId, _out: &mut Vec<u8>) {}

    /// Begins to connect a lease; returns what takes time, if anything does, such as opening a device, finding the way to
    /// the client or registering memory. That is done without holding the node, and [`Binding::bind`] follows. Until then
    /// the client must reach nothing, and [`Binding::teardown`] gives the attempt up. Must not wait for anybody.
    ///
    /// # Errors
    /// The status to answer with.
    fn prepare(&mut self, _lease: &BoundLease, _client: Tlvs<'_>) -> Result<Option<Preparation>, Status> {
        Ok(None)
    }

    /// Connects a lease to the client that `client` describes, and appends that binding's TLVs to `out`. Must not wait
    /// for anybody.
    ///
    /// # Errors
    /// The status to answer with; the lease is then not connected.
    fn bind(&mut self, lease: &BoundLease, client: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status>;

    /// Disconnects a lease; when this returns, the client reaches none of its bytes. So it is for a lease that was never
    /// connected: after a restart a node asks for every lease that it is not sure of.
    ///
    /// # Errors
    /// The client may still reach them. The node then keeps the bytes from everyone else and tries again.
    fn teardown(&mut self, lease: LeaseId) -> Result<(), TeardownFailed>;

    /// Looks after what is connected: clients that are gone, devices that come and go. Called with every
    /// [`Node::tick`](crate::Node::tick); must not block.
    fn tick(&mut self, _now: Nanos) {}

    /// Reports every counter.
    fn counters(&self, _visit: &mut dyn FnMut(&str, u64)) {}
}

/// The transport could not be told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the binding could not be torn down")]
pub struct TeardownFailed;

/// What a binding has to do before it can connect a lease.
pub struct Preparation(Box<dyn FnOnce() + Send>);

impl Preparation {
    /// What is to be done.
    pub fn new(work: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(work))
    }

    /// Does it; may take seconds.
    pub fn run(self) {
        (self.0)();
    }
}

impl Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Preparation")
    }
}
