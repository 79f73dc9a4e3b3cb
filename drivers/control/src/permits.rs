//! Limits on what a presenter has of the control plane at a time, so that nobody waits for what another holds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use berth_stream::{self as stream, Place, Shares};
use berth_wire::fabric::{MsgType, Op, Request, Wire as _};

use crate::debts::Debts;

/// Messages and answers longer than this count as long, in bytes.
pub(crate) const LONG: usize = 16 << 10;

/// Number of threads for blocking work.
pub(crate) const BLOCKING: usize = 8;

/// Number of threads for teardowns.
pub(crate) const TEARDOWNS: usize = 8;

/// Number of threads for answers that look at all leases.
pub(crate) const WALKS: usize = 2;

/// Stands for every sender that nothing has verified.
pub(crate) const ANYBODY: u128 = 0;

/// Places of each kind, shared out among presenters.
#[derive(Debug)]
pub(crate) struct Permits {
    /// Messages in hand: from before one is read or accepted until its answer is taken.
    pub(crate) messages: Arc<Shares<u128>>,
    /// Those among them that are long or have long answers, up to 1 MiB each way.
    pub(crate) long: Arc<Shares<u128>>,
    /// Turns on the threads for blocking work.
    pub(crate) blocking: Arc<Shares<u128>>,
    /// Turns on the threads for teardowns, so that no end waits behind what its holder begins.
    pub(crate) teardowns: Arc<Shares<u128>>,
    /// QUIC data streams that are served, with buffers of 64 KiB each way.
    pub(crate) accesses: Arc<Shares<u128>>,
    /// Those among them with buffers of up to 1 MiB each way.
    pub(crate) long_accesses: Arc<Shares<u128>>,
    /// Turns to look at all leases, or at all announcements of a relay.
    pub(crate) walks: Arc<Shares<u128>>,
    /// QUIC connections with wide windows.
    pub(crate) wide: Arc<Shares<u128>>,
    /// Unpaid long answers over UDP.
    debts: Mutex<Debts>,
    /// Operations that run.
    ops: Arc<Shares<u128>>,
    /// A reserve for operations that end or keep leases.
    urgent: Arc<Shares<u128>>,
}

impl Permits {
    pub(crate) fn new() -> Self {
        Self {
            messages: Shares::new(8192, 1024),
            long: Shares::new(256, 32),
            blocking: Shares::new(BLOCKING, 2),
            teardowns: Shares::new(TEARDOWNS, TEARDOWNS / 2),
            accesses: Shares::new(4096, 512),
            long_accesses: Shares::new(stream::LONG.0, stream::LONG.1),
            walks: Shares::new(WALKS, 1),
            wide: Shares::new(128, 16),
            debts: Mutex::default(),
            ops: Shares::new(1024, 256),
            urgent: Shares::new(256, 32),
        }
    }

    /// The permit for what a message asks for. Drop it when that is done, before the answer is written. May be
    /// cancelled. cancelled.
    pub(crate) async fn begin(&self, presenter: u128, asks: Asks) -> Place<u128> {
        if !asks.urgent {
            return self.ops.enter(presenter).await;
        }
        match self.ops.try_enter(presenter) {
            Some(permit) => permit,
            None => self.urgent.enter(presenter).await,
        }
    }

    /// Unpaid long answers over UDP.
    pub(crate) fn debts(&self) -> MutexGuard<'_, Debts> {
        self.debts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nothing begin any more, and waits until what runs has ended.
    pub(crate) async fn close(&self) {
        self.ops.close().await;
        self.urgent.close().await;
    }
}

/// What a message needs, known before any of it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asks {
    /// It ends leases or keeps them.
    pub(crate) urgent: bool,
    /// Its answer may be long.
    pub(crate) lists: bool,
}

impl Asks {
    /// The needs of a message of this type with this payload.
    pub(crate) fn of(kind: MsgType, payload: &[u8]) -> Self {
        let op = match kind {
            MsgType::Request => Request::parse(payload).ok().and_then(|request| Op::from_code(request.op)),
            _ => None,
        };
        let ends = matches!(
            op,
            Some(
                Op::CapRevoke
                    | Op::KeyRevoke
                    | Op::SchedulerFenceSet
                    | Op::LeaseRenew
                    | Op::LeaseFree
                    | Op::TaskletCancel
                    | Op::TaskletLeaseFree
            )
        );
        let outputs =
            matches!(op, Some(Op::TaskletSubmit | Op::TaskletFetchResult | Op::TaskletFetchLogs | Op::GpuSubmit));
        Self {
            urgent: ends || kind == MsgType::RevokeBroadcast,
            lists: outputs || matches!(op, Some(Op::LeaseListActive | Op::KeyList)) || kind == MsgType::Solicit,
        }
    }
}
