//! Where a transport of its own joins leases: RDMA, NVMe-oF, SR-IOV, libfabric.

use std::fmt::Debug;

use berth_lease::{Generation, LeaseId, Regions, Rights, Span, Table};
use berth_port::Nanos;
use berth_wire::fabric::{BindKind, Status, Tlvs};
use sha2::{Digest as _, Sha256};

use crate::blocking::BlockingWork;

/// A lease as a binding sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundLease {
    /// Full id of the lease.
    pub id: LeaseId,
    /// Its generation, of 56 bits.
    pub generation: Generation,
    /// What the transport may let the client do.
    pub rights: Rights,
    /// What the transport may let the client reach.
    pub reach: Reach,
    /// What the client can prove to know, where [`Binding::answers_secrets`] says that it is told.
    pub secret: Option<BindSecret>,
}

/// A secret of one LEASE_BIND, which a restart of the node brings back: 32 bytes that nobody can guess. Nothing prints it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BindSecret(pub [u8; 32]);

impl Debug for BindSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BindSecret")
    }
}

/// What the client of a lease may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The lease's bytes, narrowed to its RANGE caveats.
    Bytes {
        /// Region, offset in it and length, in bytes.
        span: Span,
        /// How far into the lease they start, in bytes.
        first: u64,
    },
    /// The unit that its resource gave the lease.
    Unit,
}

/// Connects leases to a transport that does its own data I/O, past the lease table: it must itself enforce the rights
/// and the reach of [`BoundLease`], and stop when it is told to.
///
/// A node may have several bindings of one kind: each is asked in turn, and the first that takes the client has it. No
/// call may wait for anybody; what takes time is returned as [`BlockingWork`].
pub trait Binding: Debug + Send {
    /// The `kind` of LEASE_BIND that it serves.
    fn kind(&self) -> BindKind;

    /// The name of its device or port, which tells it from others of its kind on this node, also after a restart.
    fn name(&self) -> &str;

    /// Told once, when the node starts: where accesses are checked, and where the bytes lie. Only [`Binding::teardown`] comes
    /// before it, for what was connected before a restart.
    fn attach(&mut self, _table: &Table, _regions: &Regions) {}

    /// Whether clients go on after a restart of the node without another LEASE_BIND: then the start binds their leases
    /// anew, with what they said before.
    fn resumes(&self) -> bool {
        false
    }

    /// Whether its answers tell the client a secret, [`BoundLease::secret`]. Then the node binds no lease of requests over
    /// UDP, where everybody would read it.
    fn answers_secrets(&self) -> bool {
        false
    }

    /// Whether it refuses the accesses of an expired lease by itself, as the table does: then the connection stays while the
    /// lease is in its grace, and goes on where it is renewed. Else it is torn down at the expiry.
    fn outlasts_expiry(&self) -> bool {
        false
    }

    /// Whether a connection of before a restart still stands, and goes on while its lease does. Asked once for each, before
    /// the node starts; where it is false, [`Binding::teardown`] follows.
    fn outlives(&mut self, _lease: LeaseId) -> bool {
        false
    }

    /// Appends what LEASE_ALLOC's answer tells of this binding, for clients that need not be known to be told.
    fn describe(&self, _lease: LeaseId, _out: &mut Vec<u8>) {}

    /// Begins to connect a lease; returns what takes time, if anything does, such as opening a device, finding the way to
    /// the client or registering memory. [`Binding::bind`] follows. Until then the client must reach nothing, and
    /// [`Binding::teardown`] gives the attempt up. A connection that outlives the process has to be made by that work: it
    /// begins when the journal knows of it.
    ///
    /// # Errors
    /// The status to answer with.
    fn prepare(&mut self, _lease: &BoundLease, _client: Tlvs<'_>) -> Result<Option<BlockingWork>, Status> {
        Ok(None)
    }

    /// Connects a lease to the client that `client` describes, and appends that binding's TLVs to `out`.
    ///
    /// # Errors
    /// The status to answer with; the lease is then not connected, and [`Binding::teardown`] follows.
    fn bind(&mut self, lease: &BoundLease, client: Tlvs<'_>, out: &mut Vec<u8>) -> Result<(), Status>;

    /// Begins to disconnect a lease, or to give up what was prepared for it; returns what takes time, if anything does,
    /// and then [`Binding::torn_down`] follows. When that is over, the client reaches nothing of the lease. So it is for a
    /// lease of which this binding knows nothing: one that was connected before a restart.
    ///
    /// # Errors
    /// The client may still reach it. The node then keeps what the lease holds from everyone else.
    fn teardown(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed>;

    /// The work that [`Binding::teardown`] returned is done, or has panicked.
    ///
    /// # Errors
    /// As those of [`Binding::teardown`].
    fn torn_down(&mut self, _lease: LeaseId) -> Result<(), TeardownFailed> {
        Ok(())
    }

    /// Looks after what is connected: devices that come and go. Called with every [`Node::tick`](crate::Node::tick).
    /// Leases whose client is gone go to `lost`; the node disconnects them.
    fn tick(&mut self, _now: Nanos, _lost: &mut Vec<LeaseId>) {}

    /// Reports every counter; its name begins with the kind. Those of bindings of one kind are added up.
    fn counters(&self, _visit: &mut dyn FnMut(&str, u64)) {}
}

/// What a lease was connected to, or what it held, may still be in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it could not be torn down")]
pub struct TeardownFailed;

/// As what the journal knows a binding.
pub(crate) fn binding_id(binding: &dyn Binding) -> u64 {
    let digest = Sha256::new().chain_update([binding.kind().code()]).chain_update(binding.name()).finalize();
    u64::from_be_bytes(*digest.first_chunk().expect("32 bytes"))
}
