//! `[port.limits]`: what a port takes, and what waits for it.

use berth_admission::{Admission, Rate};
use berth_keys::Table;
use berth_port::BURST;

/// `[port.limits]`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Requests of each peer, which is an IP address; `None`: no limit.
    pub per_peer: Option<Bucket>,
    /// Requests of all peers together; `None`: no limit.
    pub all: Option<Bucket>,
    /// How many frames may wait before each queue of the port.
    pub queue: Option<u32>,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Requests per second in the long run.
    pub rps: u64,
    /// Requests at once after a pause; by default a hundredth of `rps`, and at least 32.
    pub burst: u64,
}

impl Limits {
    /// What each of a port's `queues` admits, which they share; nothing where nothing is limited.
    pub fn admission(&self, queues: usize) -> Vec<Admission> {
        let [per_peer, all] = [self.per_peer, self.all].map(|limit| limit.map(|at| Rate::new(at.rps, at.burst)));
        if per_peer.is_none() && all.is_none() {
            return Vec::new();
        }
        Admission::of_port(berth_admission::Limits { per_peer, all }, queues)
    }
}

/// A hundredth of a second at the full rate, and at least what one call of a driver brings.
fn default_burst(rps: u64) -> u64 {
    (rps / 100).max(BURST as u64)
}

pub(super) fn limits(mut t: Table<'_, '_>, has_slots: bool) -> Limits {
    let mut bucket = |rps_key: &'static str, burst_key: &'static str| {
        let (rps, burst) = (t.integer(rps_key), t.integer(burst_key));
        if rps.is_none() {
            t.refuse(&[burst_key], format_args!("it is the burst of `{rps_key}`, which is not given"));
        }
        let rps = rps?.value;
        Some(Bucket { rps, burst: burst.map_or_else(|| default_burst(rps), |at| at.value) })
    };
    let (per_peer, all) = (bucket("per_peer_rps", "per_peer_burst"), bucket("rps", "burst"));
    if has_slots {
        t.refuse(&["queue"], "what waits is in the slots of each peer; set `slots`");
    }
    let queue = t.integer("queue").map(|at| at.value as u32);
    t.finish();
    Limits { per_peer, all, queue }
}
