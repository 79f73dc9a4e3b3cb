//! What `/status` says of HIP Remote, and how `berth status` prints it.

use std::{fmt::Write as _, net::IpAddr};

use berth_hip_worker::WorkerSeen;
use serde::{Deserialize, Serialize};

/// Sessions that are told one by one; all are counted.
const TOLD: usize = 32;

/// The HIP Remote worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HipStatus {
    /// The devices, in the order of their ids.
    pub devices: Vec<HipDevice>,
    /// Sessions that have sent a request.
    pub sessions: u64,
    /// The busiest of them, by requests, 32 at most.
    pub busiest: Vec<HipSession>,
    /// Classes of operations that were used.
    pub classes: Vec<HipClass>,
}

/// A device of the worker: bytes that sessions use, and may use in all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HipDevice {
    pub used: u64,
    pub total: u64,
}

/// A session: its age in seconds, and its device memory in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HipSession {
    pub peer: IpAddr,
    pub age_s: u64,
    pub requests: u64,
    pub errors: u64,
    pub memory: u64,
    /// The id of the lease that it uses, in 32 hex digits.
    pub lease: Option<String>,
}

/// What became of the requests of a class, and the bytes of their payloads and answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HipClass {
    pub name: String,
    pub answered: u64,
    pub failed: u64,
    pub done: u64,
    pub deferred: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl HipClass {
    /// Its requests of all four outcomes.
    pub(crate) fn requests(&self) -> u64 {
        self.answered + self.failed + self.done + self.deferred
    }
}

impl From<WorkerSeen> for HipStatus {
    fn from(seen: WorkerSeen) -> Self {
        let WorkerSeen { devices, classes, mut sessions } = seen;
        let count = sessions.len() as u64;
        sessions.sort_by_key(|session| std::cmp::Reverse(session.requests));
        sessions.truncate(TOLD);
        let class = |(name, counts)| {
            let [answered, failed, done, deferred, bytes_in, bytes_out] = counts;
            HipClass { name, answered, failed, done, deferred, bytes_in, bytes_out }
        };
        let session = |one: berth_hip_worker::SessionSeen| {
            let berth_hip_worker::SessionSeen { peer, age_s, requests, errors, memory, lease } = one;
            let lease = lease.map(|lease| format!("{lease:032x}"));
            HipSession { peer, age_s, requests, errors, memory, lease }
        };
        Self {
            devices: devices.into_iter().map(|[used, total]| HipDevice { used, total }).collect(),
            sessions: count,
            busiest: sessions.into_iter().map(session).collect(),
            classes: classes.into_iter().map(class).collect(),
        }
    }
}

impl HipStatus {
    /// Appends its tables.
    pub(super) fn table(&self, out: &mut String) {
        // Writing to a string succeeds.
        let _ = writeln!(out, "\n{:<12} {:>16} {:>16}", "hip device", "bytes used", "of");
        for (id, HipDevice { used, total }) in self.devices.iter().enumerate() {
            let _ = writeln!(out, "{id:<12} {used:>16} {total:>16}");
        }
        if !self.classes.is_empty() {
            let _ = writeln!(
                out,
                "\n{:<12} {:>12} {:>12} {:>12} {:>12} {:>16} {:>16}",
                "hip op", "answered", "failed", "done", "deferred", "bytes in", "bytes out"
            );
        }
        for HipClass { name, answered, failed, done, deferred, bytes_in, bytes_out } in &self.classes {
            let _ = writeln!(
                out,
                "{name:<12} {answered:>12} {failed:>12} {done:>12} {deferred:>12} {bytes_in:>16} {bytes_out:>16}"
            );
        }
        let _ = writeln!(
            out,
            "\n{:<40} {:>8} {:>14} {:>10} {:>16}  lease",
            format!("hip sessions: {}", self.sessions),
            "seconds",
            "requests",
            "errors",
            "bytes used"
        );
        for HipSession { peer, age_s, requests, errors, memory, lease } in &self.busiest {
            let (peer, lease) = (peer.to_string(), lease.as_deref().unwrap_or("-"));
            let _ = writeln!(out, "{peer:<40} {age_s:>8} {requests:>14} {errors:>10} {memory:>16}  {lease}");
        }
    }
}
