//! Discovery: ANNOUNCE, WITHDRAW and SOLICIT, for a node and for a relay (section "Relay discovery profile", decisions
//! 23 and 24).
//!
//! A node answers SOLICIT with its own announcement. A relay adds those of the other nodes that announce themselves to
//! it. The link checks signatures and replays: see `berth_identity::link`.

mod own;
mod relay;

use std::sync::Arc;

use berth_port::{Family, Nanos};
use berth_wire::fabric::{
    Announce, MAX_MESSAGE, MAX_RELAYED, Solicit, Wire as _, Withdraw, WithdrawDetail, WithdrawReason,
};

pub(crate) use relay::Counts as RelayCounts;
pub use relay::{Ignored, MAX_NODES, MAX_RELAY_BYTES, MAX_TTL, Relay};

/// `ttl_secs` of this node's announcements. They are to be repeated at a third of it.
pub const ANNOUNCE_TTL_SECS: u32 = 30;

/// Limit on the work that unsigned solicitations cause per second, in steps of [`work`]: about a tenth of a second of
/// one core. Signed ones count towards their sender's requests instead.
const UNSIGNED_WORK: u64 = 20_000_000;

/// Steps of [`work`] that count as one further request of the key that signed a solicitation.
pub(crate) const STEPS_PER_REQUEST: u64 = 2_000;

/// Limit on the steps of [`work`] in one call of [`Search::step`].
const WORK_AT_ONCE: u64 = 50_000;

/// Makes this node's announcements and answers solicitations.
#[derive(Debug, Default)]
pub struct Discovery {
    /// Sequence of the last announcement or withdrawal.
    sequence: u64,
    /// The current second, and the work that unsigned solicitations have caused in it.
    worked: (u64, u64),
    counts: Counts,
}

const SOLICITS_DROPPED: Family =
    Family::counter("solicits_dropped", "questions for announcements that were not answered");

berth_port::counters! {
    pub(crate) struct Counts {
        answered = solicits_answered: "questions for announcements that were answered",
        malformed = solicits_malformed: SOLICITS_DROPPED { reason: "malformed" },
        unpadded = solicits_unpadded: SOLICITS_DROPPED { reason: "unpadded" },
        over_budget = solicits_over_budget: SOLICITS_DROPPED { reason: "over_budget" },
    }
}

impl Discovery {
    /// Payload of an announcement that is newer than all before, those of earlier runs included unless Unix time went
    /// back. The sequence is set here; the one in `announce` is ignored.
    pub fn announcement(&mut self, announce: Announce<'_>, unix: Nanos) -> Vec<u8> {
        Announce { sequence: self.next_sequence(unix), ..announce }.to_vec()
    }

    /// Payload of a withdrawal that is newer than all announcements before.
    pub fn withdrawal(&mut self, node_id: u128, reason: WithdrawReason, unix: Nanos) -> Vec<u8> {
        let detail = WithdrawDetail { sequence: self.next_sequence(unix), reason: reason.code() };
        Withdraw { node_id, detail: Some(detail) }.to_vec()
    }

    /// Begins to answer a SOLICIT; no announcement is looked at yet.
    ///
    /// `own` is this node's announcement. Pass `relay` if the SOLICIT came to the relay's port. `None` if it must be
    /// dropped: it is malformed, or it is unsigned and such ones have caused enough work in this second.
    pub fn begin(
        &mut self,
        payload: &[u8],
        signed: bool,
        own: Vec<u8>,
        relay: Option<&Relay>,
        now: Nanos,
    ) -> Option<Search> {
        let Ok(solicit) = Solicit::parse(payload) else {
            self.counts.malformed += 1;
            return None;
        };
        let second = now.0 / 1_000_000_000;
        if self.worked.0 != second {
            self.worked = (second, 0);
        }
        if !signed && self.worked.1 >= UNSIGNED_WORK {
            self.counts.over_budget += 1;
            return None;
        }
        let id = Announce::parse(&own).map_or(0, |announce| announce.node_id);
        let mut announcements = vec![(id, Arc::from(own))];
        announcements.extend(relay.into_iter().flat_map(|relay| relay.all(id, now)));
        let work: u64 = announcements.iter().map(|(_, announcement)| work(&solicit, announcement)).sum();
        if !signed {
            self.worked.1 += work;
        }
        let room = if signed { MAX_MESSAGE } else { payload.len() };
        let snapshot = Snapshot { count: 0, items: Vec::new(), room };
        Some(Search { question: payload.into(), signed, announcements, next: 0, work, snapshot, left_out: None })
    }

    /// Payload of the RESPONSE to a SOLICIT whose search is complete. What had no room comes first in the next answer.
    /// `None` if it must be dropped: it is unsigned and shorter than its answer.
    pub fn end(&mut self, search: Search, relay: Option<&mut Relay>) -> Option<Vec<u8>> {
        let Search { signed, snapshot, left_out, .. } = search;
        if let Some((relay, id)) = relay.zip(left_out) {
            relay.begin_with(id);
        }
        if !signed && left_out.is_some() && usize::from(snapshot.count) < MAX_RELAYED {
            self.counts.unpadded += 1;
            return None;
        }
        self.counts.answered += 1;
        Some([&snapshot.count.to_be_bytes()[..], &snapshot.items].concat())
    }

    /// Answers a SOLICIT in one call; see [`Discovery::begin`] and [`Discovery::end`].
    pub fn solicited(
        &mut self,
        payload: &[u8],
        signed: bool,
        own: &[u8],
        relay: Option<&mut Relay>,
        now: Nanos,
    ) -> Option<Vec<u8>> {
        let mut search = self.begin(payload, signed, own.to_vec(), relay.as_deref(), now)?;
        while !search.step() {}
        self.end(search, relay)
    }

    /// Calls `visit` with the name and value of each counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counts.report(visit);
    }

    fn next_sequence(&mut self, unix: Nanos) -> u64 {
        self.sequence = (self.sequence + 1).max(unix.0 / 1_000);
        self.sequence
    }
}

/// A SOLICIT whose answer is being put together. The node need not be held meanwhile.
#[derive(Debug)]
pub struct Search {
    question: Box<[u8]>,
    signed: bool,
    /// By node id: this node's announcement, then those of others.
    announcements: Vec<(u128, Arc<[u8]>)>,
    next: usize,
    work: u64,
    snapshot: Snapshot,
    /// First node whose announcement had no room in the answer.
    left_out: Option<u128>,
}

impl Search {
    /// Cost of the whole search: how many times a filter looks at a resource, at worst.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Looks at some more announcements, for a few hundred microseconds at most; true once all are done.
    pub fn step(&mut self) -> bool {
        let Ok(solicit) = Solicit::parse(&self.question) else { return true };
        let mut done = 0;
        while let Some((id, announcement)) = self.announcements.get(self.next).filter(|_| self.left_out.is_none()) {
            if done >= WORK_AT_ONCE {
                return false;
            }
            done += work(&solicit, announcement);
            self.left_out = (!self.snapshot.offer(&solicit, announcement)).then_some(*id);
            self.next += 1;
        }
        true
    }
}

/// The answer as far as it is put together.
#[derive(Debug)]
struct Snapshot {
    count: u16,
    /// Encoded announcements, each behind its length.
    items: Vec<u8>,
    /// Limit on `items`, in bytes.
    room: usize,
}

impl Snapshot {
    /// Adds an announcement if it matches. False if it does not fit.
    fn offer(&mut self, solicit: &Solicit<'_>, announcement: &[u8]) -> bool {
        let wanted = Announce::parse(announcement).is_ok_and(|announce| solicit.matches(&announce));
        if !wanted {
            return true;
        }
        let len = 2 + self.items.len() + 4 + announcement.len();
        if len > self.room || usize::from(self.count) == MAX_RELAYED {
            return false;
        }
        self.count += 1;
        self.items.extend_from_slice(&(announcement.len() as u32).to_be_bytes());
        self.items.extend_from_slice(announcement);
        true
    }
}

/// Cost of one announcement: at worst, every filter is applied to every 36-byte resource.
fn work(solicit: &Solicit<'_>, announcement: &[u8]) -> u64 {
    (1 + announcement.len() as u64 / 36) * (1 + solicit.filters.len() as u64)
}
