//! LEASE_LIST_ACTIVE in parts, so that no other operation waits while a node looks at all of its leases.

use berth_lease::LeaseId;
use berth_port::Now;
use berth_wire::fabric::{LeaseEntry, LeaseList, MAX_LISTED, Status, Wire as _};

use super::{Reply, TimedRequest};
use crate::{
    host::Host,
    node::Node,
    request::{Answer, Step},
};

/// Limit on the places for leases that one part looks at.
const PART: usize = 256;

/// Entries that count as one further request of the presenter: one KiB of the answer.
const ENTRIES_PER_REQUEST: usize = 16;

/// A LEASE_LIST_ACTIVE under way.
#[derive(Debug)]
pub struct Listing {
    presenter: u128,
    /// Place at which the next part begins; `None` once all were looked at.
    next: Option<usize>,
    entries: Vec<LeaseEntry>,
}

impl Listing {
    /// Whether every lease was looked at, or as many were found as a message can hold.
    pub fn is_whole(&self) -> bool {
        self.next.is_none()
    }

    /// The answer: every lease that was active throughout, by key; at most [`MAX_LISTED`]. It takes a millisecond or
    /// two for so many, and does not need the node.
    pub fn answer(mut self) -> Answer {
        self.entries.sort_unstable_by_key(|entry| LeaseId(entry.lease_id).key());
        let (status, result) = match LeaseList::of(&self.entries) {
            Ok(list) => (Status::Ok, list.to_vec()),
            Err(_) => (Status::InternalError, Vec::new()),
        };
        Answer { status, result }
    }
}

impl<H: Host> Node<H> {
    #[expect(clippy::unused_self, reason = "as every op")]
    pub(super) fn lease_list_active(&mut self, ask: &TimedRequest<'_>) -> Reply {
        ask.no_params()?;
        Ok(Step::List(Listing { presenter: ask.request.presenter, next: Some(0), entries: Vec::new() }))
    }

    /// Looks at the next part of the leases, for some tens of microseconds.
    pub fn list(&mut self, listing: &mut Listing, now: Now) {
        let Some(first) = listing.next else { return };
        let before = listing.entries.len();
        // Nobody may know a lease whose bytes are not zero yet.
        let active = self.leases.active_among(first..first + PART, now.mono);
        let answered = active.filter(|lease| !self.is_being_zeroed(lease.id)).take(MAX_LISTED - before);
        listing.entries.extend(answered.map(|lease| LeaseEntry {
            lease_id: lease.id.0,
            resource_id: self.lease_resource(&lease),
            holder: lease.holder,
            expires_at: self.clock.unix_secs(lease.expires),
            alloc_bytes: self.arena_of(lease.id).unwrap_or(lease.len),
        }));
        let after = listing.entries.len();
        listing.next = Some(first + PART).filter(|next| *next < self.leases.places() && after < MAX_LISTED);
        self.charge(listing.presenter, after.div_ceil(ENTRIES_PER_REQUEST) - before.div_ceil(ENTRIES_PER_REQUEST), now);
    }
}
