//! The ops of the control plane, a file for each subject. Each is one method of [`Node`](crate::Node).

mod bind;
mod handle;
mod key;
mod lease;
mod list;
mod node;
mod service;
mod token;

use berth_port::Now;
use berth_wire::fabric::{Op, Status, Wire};

pub(crate) use bind::Attempt;
pub(crate) use handle::STILL_CONNECTED;
pub use list::Listing;
pub use service::Proxy;

use crate::{
    host::Host,
    node::Node,
    request::{Answer, Outcome, Request, Step, Work},
};

/// A request and the time it came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedRequest<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) now: Now,
}

impl TimedRequest<'_> {
    /// The host's time of day: what tokens go by.
    pub(crate) fn wall_secs(&self) -> u64 {
        wall_secs(self.now)
    }

    /// For ops whose params are empty.
    fn no_params(&self) -> Result<(), Status> {
        if self.request.params.is_empty() { Ok(()) } else { Err(Status::InvalidParams) }
    }
}

/// Seconds since the epoch, as the host's clock says now.
pub(crate) fn wall_secs(now: Now) -> u64 {
    now.wall.0 / 1_000_000_000
}

/// What an op comes to: a status other than OK has no effect and no result.
pub(crate) type Reply = Result<Step, Status>;

/// The op's params, exactly as long as they are to be.
fn params<'a, T: Wire<'a>>(ask: &TimedRequest<'a>) -> Result<T, Status> {
    T::parse(ask.request.params).map_err(|_| Status::InvalidParams)
}

impl<H: Host> Node<H> {
    /// Executes one op.
    pub(crate) fn perform(&mut self, op: Op, ask: &TimedRequest<'_>) -> Reply {
        match op {
            Op::Ping => self.ping(ask),
            Op::GetInventory => self.get_inventory(ask),
            Op::GetIdentity => self.get_identity(ask),
            Op::EnrollRequest => self.enroll(ask),
            Op::GetThermal => self.get_thermal(ask),
            Op::SchedulerFenceSet => self.fence_set(ask),
            Op::SchedulerFenceGet => self.fence_get(ask),
            Op::LeaseExportHandle => self.lease_export(ask),
            Op::LeaseImportHandle => self.lease_import(ask),
            Op::LeaseRelocate => self.lease_relocate(ask),
            Op::CapRequest => self.cap_request(ask),
            Op::CapRefresh => self.cap_refresh(ask),
            Op::CapRevoke => self.cap_revoke(ask),
            Op::KeyRevoke => self.key_revoke(ask),
            Op::KeyList => self.key_list(ask),
            Op::LeaseAlloc => self.lease_alloc(ask),
            Op::LeaseFree => self.lease_free(ask),
            Op::LeaseRenew => self.lease_renew(ask),
            Op::LeaseQuery => self.lease_query(ask),
            Op::LeaseListActive => self.lease_list_active(ask),
            Op::LeaseBind => self.lease_bind(ask),
            Op::SvcTcpBind => self.svc_tcp_bind(ask),
            Op::SvcTcpQuery => self.svc_tcp_query(ask),
            // Their execution is not part of this node.
            Op::TaskletSubmit
            | Op::TaskletStatus
            | Op::TaskletFetchResult
            | Op::TaskletCancel
            | Op::GpuSubmit
            | Op::TaskletLeaseAlloc
            | Op::TaskletLeaseFree => Err(Status::UnsupportedOp),
        }
    }
}

/// Whether an op that is done must be in the journal.
pub(crate) fn needs_journal(op: Op) -> bool {
    matches!(
        op,
        Op::EnrollRequest
            | Op::SchedulerFenceSet
            | Op::LeaseExportHandle
            | Op::LeaseImportHandle
            | Op::LeaseRelocate
            | Op::CapRevoke
            | Op::KeyRevoke
            | Op::LeaseAlloc
            | Op::LeaseFree
            | Op::LeaseRenew
            | Op::LeaseBind
            | Op::SvcTcpBind
    )
}

/// Whether an op ends something, and never adds to what must be kept.
pub(crate) fn ends(op: Op) -> bool {
    matches!(op, Op::LeaseFree | Op::CapRevoke | Op::KeyRevoke | Op::SchedulerFenceSet)
}

impl Outcome {
    /// OK, with this result and no effect.
    fn ok(result: Vec<u8>) -> Step {
        Step::Done(Self::with(result))
    }

    /// The same, of an op whose work is done.
    pub(crate) fn with(result: Vec<u8>) -> Self {
        Self { answer: Answer { status: Status::Ok, result }, ..Self::default() }
    }
}

impl From<Outcome> for Step {
    fn from(outcome: Outcome) -> Self {
        Self::Done(outcome)
    }
}

impl From<Work> for Step {
    fn from(work: Work) -> Self {
        Self::Work(work)
    }
}
