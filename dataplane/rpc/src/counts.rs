//! What services and workers count.

use berth_admission::Limit;
use berth_wire::rpc::{HeaderError, status};

/// One countable thing. Up to [`Event::HandlerFailed`] they are outcomes: every request has exactly one, sooner or
/// later. The others tell more about some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Answered,
    HandlerError,
    BadMagic,
    Truncated,
    UnknownFunction,
    BadLength,
    SchemaMismatch,
    ResultTooLarge,
    Overloaded,
    HandlerFailed,
    Received,
    DroppedUndispatchable,
    OverBudget,
    Panicked,
    Resting,
    RingFull,
    LimitedPeer,
    LimitedCrowd,
    LimitedPort,
    OrderFull,
    BadResult,
    TimedOut,
    LateAnswers,
    Unroutable,
    FutureStamps,
    BadStamps,
}

/// The counters' names, in the order of [`Event`].
const NAMES: [&str; 26] = [
    "answered",
    "handler_error",
    "bad_magic",
    "truncated",
    "unknown_function",
    "bad_length",
    "schema_mismatch",
    "result_too_large",
    "overloaded",
    "handler_failed",
    "received",
    "dropped_undispatchable",
    "over_budget",
    "panicked",
    "resting",
    "ring_full",
    "limited_peer",
    "limited_crowd",
    "limited_port",
    "order_full",
    "bad_result",
    "timed_out",
    "late_answers",
    "unroutable",
    "future_stamps",
    "bad_stamps",
];

impl From<HeaderError> for Event {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::WrongMagic => Self::BadMagic,
            HeaderError::Truncated => Self::Truncated,
        }
    }
}

impl From<Limit> for Event {
    fn from(limit: Limit) -> Self {
        match limit {
            Limit::Peer => Self::LimitedPeer,
            Limit::Crowd => Self::LimitedCrowd,
            Limit::All => Self::LimitedPort,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Counts([u64; NAMES.len()]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Counts an answer by its status.
    #[inline]
    pub(crate) fn add_status(&mut self, status: i32) {
        self.add(match status {
            status::OK => Event::Answered,
            1.. => Event::HandlerError,
            status::UNKNOWN_FUNCTION => Event::UnknownFunction,
            status::BAD_LENGTH => Event::BadLength,
            status::SCHEMA_MISMATCH => Event::SchemaMismatch,
            status::RESULT_TOO_LARGE => Event::ResultTooLarge,
            status::OVERLOADED => Event::Overloaded,
            _ => Event::HandlerFailed,
        });
    }

    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        for (name, &count) in NAMES.iter().zip(&self.0) {
            visit(name, count);
        }
    }
}
