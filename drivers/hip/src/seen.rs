//! The sessions of a worker, for people who look.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use berth_hip_session::Activity;
use berth_port::{Family, Nanos};

const USED: Family = Family::gauge("device_used_bytes", "device memory that HIP sessions use, by device");

berth_port::counters! {
    /// What is told of the present.
    pub(crate) const GAUGES {
        "sessions": gauge "HIP sessions that have sent a request",
        "device_*_used_bytes": USED { device: * },
    }
}

/// What a worker does.
#[derive(Debug, Clone, Default)]
pub struct WorkerSeen {
    /// Of each device: the bytes that sessions use, and may use in all.
    pub devices: Vec<[u64; 2]>,
    /// By class of operation: requests that were answered, failed, done, deferred, and payload bytes in and out.
    pub classes: Vec<(String, [u64; 6])>,
    /// The sessions that have sent a request, oldest first.
    pub sessions: Vec<SessionSeen>,
}

/// What a session does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSeen {
    /// Where it comes from.
    pub peer: IpAddr,
    /// Seconds since it connected.
    pub age_s: u64,
    /// Requests that were answered, failed, done without a reply or deferred.
    pub requests: u64,
    /// Those that failed, with or without a reply.
    pub errors: u64,
    /// Bytes of device memory that it had when it was last served.
    pub memory: u64,
    /// The lease that it uses; `None` without one.
    pub lease: Option<u128>,
}

struct Entry {
    peer: IpAddr,
    began: Nanos,
    activity: Weak<Activity>,
}

/// Who connected, and may still be there.
#[derive(Default)]
pub(crate) struct Seen(Mutex<Vec<Entry>>);

impl Seen {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        // Each entry is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, peer: IpAddr, began: Nanos, activity: &Arc<Activity>) {
        let mut entries = self.lock();
        // Only when it would grow: each entry is looked at a few times in all.
        if entries.len() == entries.capacity() {
            entries.retain(|entry| entry.activity.strong_count() > 0);
        }
        entries.push(Entry { peer, began, activity: Arc::downgrade(activity) });
    }

    /// Those that have sent a request.
    pub(crate) fn sessions(&self, now: Nanos) -> Vec<SessionSeen> {
        let entries = self.lock();
        let seen = entries.iter().filter_map(|Entry { peer, began, activity }| {
            let activity = activity.upgrade()?;
            let (requests, errors, memory) = (activity.requests(), activity.errors(), activity.memory());
            let age_s = now.0.saturating_sub(began.0) / 1_000_000_000;
            let lease = activity.lease();
            (requests > 0).then_some(SessionSeen { peer: *peer, age_s, requests, errors, memory, lease })
        });
        seen.collect()
    }
}
