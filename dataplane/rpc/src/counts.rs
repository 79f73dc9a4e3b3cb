//! What services and workers count.

use berth_admission::Limit;
use berth_wire::rpc::{HeaderError, status};

berth_port::counters! {
    /// One countable thing. Up to [`Event::HandlerFailed`] they are outcomes: every request has exactly one, sooner or
    /// later. The others tell more about some of them.
    pub(crate) enum Event {
        Answered = "answered",
        HandlerError = "handler_error",
        BadMagic = "bad_magic",
        Truncated = "truncated",
        UnknownFunction = "unknown_function",
        BadLength = "bad_length",
        SchemaMismatch = "schema_mismatch",
        ResultTooLarge = "result_too_large",
        Overloaded = "overloaded",
        HandlerFailed = "handler_failed",
        Received = "received",
        DroppedUndispatchable = "dropped_undispatchable",
        OverBudget = "over_budget",
        Panicked = "panicked",
        Resting = "resting",
        RingFull = "ring_full",
        LimitedPeer = "limited_peer",
        LimitedCrowd = "limited_crowd",
        LimitedPort = "limited_port",
        OrderFull = "order_full",
        BadResult = "bad_result",
        TimedOut = "timed_out",
        LateAnswers = "late_answers",
        Unroutable = "unroutable",
        FutureStamps = "future_stamps",
        BadStamps = "bad_stamps",
    }
}

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
pub(crate) struct Counts([u64; Event::NAMES.len()]);

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
        for (name, &count) in Event::NAMES.iter().zip(&self.0) {
            visit(name, count);
        }
    }
}
