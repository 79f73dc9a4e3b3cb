//! Counters of services and workers.

use berth_admission::Limit;
use berth_port::{Family, Tables};
use berth_wire::rpc::{HeaderError, status};

/// Declarations of the counters of services and workers, those of their rings aside.
pub const COUNTERS: Tables = &[Event::TABLE, CALLS, KERNELS, DECODERS];

const REFUSED: Family = Family::counter(
    "refused",
    "requests answered with a negative status, or with none where on_undispatchable says so",
);
const DROPPED: Family = Family::counter("dropped", "messages that are no request");
const HANDLER_ERRORS: Family =
    Family::counter("handler_errors", "requests answered with a status of the handler's own");
const UNANSWERED: Family = Family::counter(
    "unanswered",
    "refused requests that got no answer: on_undispatchable is drop, or there was no room to keep one in order",
);
const HANDLER_FAULTS: Family = Family::counter("handler_faults", "what handlers did wrong");
const OVERLOADED: Family = Family::counter("overloaded", "of the requests refused as overloaded: why");
const STAMPS: Family = Family::counter("bad_stamps", "requests whose PTP stamp cannot be compared");
const CALLS_OF: Family = Family::counter("calls", "calls of a function");
const EXHAUSTED: Family = Family::counter(
    "decoder_exhausted",
    "decodes by matching that were out of steps, so that union-find matched the rest",
);
const BAD_VALUES: Family = Family::counter(
    "decoder_bad_values",
    "shots that qec_decode refused, since an outcome of their readout has no meaning",
);
const ASTRAY: Family = Family::counter(
    "decoder_astray",
    "requests of the decoding server with rounds that were there before, which are ignored, or that rounds are missing before, \
     which are refused",
);
const UNDECIDED: Family = Family::counter(
    "decoder_undecided",
    "rounds that had arrived and were not decided when reset_decoder ended their experiment",
);
const MESSAGES: Family = Family::counter("kernel_messages", "messages to a ring kernel, each by what became of it");

berth_port::counters! {
    /// Per function: see [`FunctionTable`](crate::FunctionTable).
    const CALLS {
        "calls_*": CALLS_OF { function: * },
    }
}

berth_port::counters! {
    /// Per ring kernel, by the name of its message: see [`OUTCOMES`](berth_kernels::OUTCOMES).
    const KERNELS {
        "kernel_*_answered": MESSAGES { kernel: *, outcome: "answered" },
        "kernel_*_repeated": MESSAGES { kernel: *, outcome: "repeated" },
        "kernel_*_duplicate": MESSAGES { kernel: *, outcome: "duplicate" },
        "kernel_*_not_active": MESSAGES { kernel: *, outcome: "not_active" },
        "kernel_*_malformed": MESSAGES { kernel: *, outcome: "malformed" },
        "kernel_*_dropped": MESSAGES { kernel: *, outcome: "dropped" },
        "kernel_*_rejected": MESSAGES { kernel: *, outcome: "rejected" },
        "kernel_*_failed": MESSAGES { kernel: *, outcome: "failed" },
    }
}

berth_port::counters! {
    /// Per decoder.
    const DECODERS {
        "decoder_*_exhausted": EXHAUSTED { decoder: * },
        "decoder_*_bad_values": BAD_VALUES { decoder: * },
        "decoder_*_repeated": ASTRAY { decoder: *, rounds: "repeated" },
        "decoder_*_out_of_order": ASTRAY { decoder: *, rounds: "out_of_order" },
        "decoder_*_undecided": UNDECIDED { decoder: * },
    }
}

berth_port::counters! {
    /// A countable event. Those up to [`Event::HandlerFailed`] are outcomes: each request has exactly one, sooner or
    /// later. The others add detail to some of them.
    pub(crate) enum Event {
        Answered = answered: "requests answered with results",
        HandlerError = handler_error: HANDLER_ERRORS,
        BadMagic = bad_magic: DROPPED { reason: "bad_magic" },
        Truncated = truncated: DROPPED { reason: "truncated" },
        UnknownFunction = unknown_function: REFUSED { reason: "unknown_function" },
        BadLength = bad_length: REFUSED { reason: "bad_length" },
        SchemaMismatch = schema_mismatch: REFUSED { reason: "schema_mismatch" },
        ResultTooLarge = result_too_large: REFUSED { reason: "result_too_large" },
        Overloaded = overloaded: REFUSED { reason: "overloaded" },
        HandlerFailed = handler_failed: REFUSED { reason: "handler_failed" },
        Received = received: "messages received",
        DroppedUndispatchable = dropped_undispatchable: UNANSWERED,
        OverBudget = over_budget: HANDLER_FAULTS { fault: "over_budget" },
        Panicked = panicked: HANDLER_FAULTS { fault: "panicked" },
        Resting = resting: OVERLOADED { reason: "function_rests" },
        RingFull = ring_full: OVERLOADED { reason: "ring_full" },
        LimitedPeer = limited_peer: OVERLOADED { reason: "peer_limit" },
        LimitedCrowd = limited_crowd: OVERLOADED { reason: "crowd_limit" },
        LimitedPort = limited_port: OVERLOADED { reason: "port_limit" },
        OrderFull = order_full: OVERLOADED { reason: "order_full" },
        BadResult = bad_result: HANDLER_FAULTS { fault: "bad_result" },
        TimedOut = timed_out: HANDLER_FAULTS { fault: "timed_out" },
        LateAnswers = late_answers: "answers of workers that came after the request was answered for them",
        Unroutable = unroutable: "answers without a route to their peer",
        FutureStamps = future_stamps: STAMPS { reason: "future" },
        BadStamps = bad_stamps: STAMPS { reason: "malformed" },
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
pub(crate) struct Counts([u64; Event::TABLE.len()]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// Counts the outcome that a status stands for.
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
        Event::report(self.0, visit);
    }
}
