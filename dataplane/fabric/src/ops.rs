//! The operations of the control plane, one file per subject. Each is a method of [`Node`](crate::Node).

mod bind;
mod composite;
mod gpu;
mod handle;
mod hip;
mod hostcall;
mod key;
mod lease;
mod list;
mod node;
mod service;
mod tasklet;
mod token;
mod unit;

use berth_port::Now;
use berth_wire::fabric::{Op, Status, Wire};

pub(crate) use bind::Attempt;
pub(crate) use gpu::{Queued, Submit};
pub(crate) use handle::STILL_CONNECTED;
pub use hip::{HipClaim, HipGrant, HipSession};
pub(crate) use hostcall::call_failed;
pub use hostcall::{LeaseCall, answered};
pub use list::Listing;
pub use service::Proxy;
pub(crate) use tasklet::{Submission, cancelled};

use crate::{
    host::Host,
    node::Node,
    request::{Answer, Outcome, Request, Step, Work},
};

/// A request and its time of arrival.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedRequest<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) now: Now,
}

impl TimedRequest<'_> {
    /// Unix seconds by the host's clock, which tokens use.
    pub(crate) fn wall_secs(&self) -> u64 {
        wall_secs(self.now)
    }

    /// Checks that the params are empty.
    fn no_params(&self) -> Result<(), Status> {
        if self.request.params.is_empty() { Ok(()) } else { Err(Status::InvalidParams) }
    }
}

/// Unix seconds by the host's clock.
pub(crate) fn wall_secs(now: Now) -> u64 {
    now.wall.0 / 1_000_000_000
}

/// Result of an operation. With a status other than OK it had no effect.
pub(crate) type Reply = Result<Step, Status>;

/// Parses the params, which must have exactly the length of `T`.
fn params<'a, T: Wire<'a>>(ask: &TimedRequest<'a>) -> Result<T, Status> {
    T::parse(ask.request.params).map_err(|_| Status::InvalidParams)
}

impl<H: Host> Node<H> {
    /// Dispatches one operation.
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
            Op::TaskletSubmit => self.tasklet_submit(ask),
            Op::TaskletStatus => self.tasklet_status(ask),
            Op::TaskletFetchResult => self.tasklet_fetch_result(ask),
            Op::TaskletCancel => self.tasklet_cancel(ask),
            Op::TaskletFetchLogs => self.tasklet_fetch_logs(ask),
            Op::TaskletLeaseAlloc => self.tasklet_lease_alloc(ask),
            Op::TaskletLeaseFree => self.tasklet_lease_free(ask),
            // Its execution is not part of this node.
            Op::GpuSubmit => self.gpu_submit(ask),
        }
    }
}

/// Whether an operation that succeeds must be journaled.
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
            | Op::TaskletSubmit
            | Op::GpuSubmit
            | Op::TaskletLeaseAlloc
            | Op::TaskletLeaseFree
    )
}

/// Whether an operation ends something and never adds to what must be kept.
pub(crate) fn ends(op: Op) -> bool {
    matches!(op, Op::LeaseFree | Op::TaskletLeaseFree | Op::CapRevoke | Op::KeyRevoke | Op::SchedulerFenceSet)
}

impl Outcome {
    /// OK with this result and no effect.
    fn ok(result: Vec<u8>) -> Step {
        Step::Done(Self::with(result))
    }

    /// The same as an outcome, for an operation whose work is done.
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
