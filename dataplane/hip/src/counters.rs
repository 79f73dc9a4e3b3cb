//! What the sessions of a worker count together.
#![allow(missing_docs, reason = "each counter says its meaning")]

use berth_port::Family;

const REQUESTS: Family = Family::counter("requests", "HIP requests, by what became of them");
const CLOSED: Family = Family::counter("closed", "HIP connections that were closed for a header, by what was wrong");
const BYTES: Family = Family::counter("bytes", "bytes of data of HIP copies, by direction");
const DEFERRED: Family =
    Family::counter("deferred_errors", "errors of HIP kernels and of requests without reply, by what became of them");

berth_port::counters! {
    /// Counted by all sessions of a worker. Every request is one of answered, failed, done and deferred.
    pub struct Counters of Count {
        answered: REQUESTS { outcome: "answered" },
        failed: REQUESTS { outcome: "failed" },
        done: REQUESTS { outcome: "done" },
        deferred: REQUESTS { outcome: "deferred" },
        errors_kept: DEFERRED { fate: "kept" },
        errors_dropped: DEFERRED { fate: "dropped" },
        bad_magic: CLOSED { reason: "magic" },
        bad_version: CLOSED { reason: "version" },
        bad_length: CLOSED { reason: "length" },
        bytes_in: BYTES { direction: "in" },
        bytes_out: BYTES { direction: "out" },
        launches: "kernels that HIP sessions have started",
    }
}
