//! What a relay knows of other nodes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use berth_port::{Family, Nanos};
use berth_wire::fabric::{Announce, FabricError, MAX_ANNOUNCE, Wire as _, Withdraw};

/// The most nodes that a relay holds announcements of.
pub const MAX_NODES: usize = 4096;
/// The most bytes of announcements that a relay holds.
pub const MAX_RELAY_BYTES: usize = 16 << 20;

/// The longest that an announcement counts, whatever its `ttl_secs` says: nodes announce themselves again.
pub const MAX_TTL: Duration = Duration::from_hours(1);

/// The newest announcement of each node, for as long as its `ttl_secs` says.
///
/// At [`MAX_NODES`] the node that was heard longest ago gives way to a newcomer, and at [`MAX_RELAY_BYTES`] the one with
/// the longest announcement, unless the newcomer's is longer: whoever fills the relay must say everything again and
/// again, and crowds out those who are as greedy.
#[derive(Debug, Default)]
pub struct Relay {
    /// By id.
    announcements: BTreeMap<u128, Announcement>,
    bytes: usize,
    /// The last sequence of every node, also when its announcement is gone. Signers are enrolled, so it is bounded.
    sequences: HashMap<u128, u64>,
    /// Where the next snapshot begins: at the first node that the last one had no room for.
    begin: u128,
    counts: Counts,
}

#[derive(Debug)]
struct Announcement {
    heard: Nanos,
    expires: Nanos,
    payload: Arc<[u8]>,
}

const TAKEN: Family = Family::counter("announcements", "announcements of other nodes that the relay took");
const DROPPED: Family =
    Family::counter("announcements_dropped", "announcements of other nodes that the relay did not take");

berth_port::counters! {
    pub(crate) struct Counts {
        announced = relay_announcements_taken: TAKEN { kind: "announce" },
        withdrawn = relay_withdrawals_taken: TAKEN { kind: "withdraw" },
        malformed = relay_announcements_malformed: DROPPED { reason: "malformed" },
        foreign = relay_announcements_foreign: DROPPED { reason: "foreign" },
        old = relay_announcements_old: DROPPED { reason: "old" },
        full = relay_announcements_full: DROPPED { reason: "full" },
        displaced = relay_announcements_displaced: DROPPED { reason: "displaced" },
    }
}

/// Why an announcement or a withdrawal was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// Not the encoding, or too long to be relayed.
    #[error("malformed: {0}")]
    Malformed(#[from] FabricError),
    /// It is about another node than its sender.
    #[error("it is about another node than its sender")]
    Foreign,
    /// Its sequence is not above the last one.
    #[error("its sequence is not above the last one")]
    Old,
    /// [`MAX_RELAY_BYTES`] is reached, and all that the relay holds is shorter.
    #[error("the relay holds {MAX_RELAY_BYTES} bytes, and takes nothing that is longer than what it holds")]
    Full,
}

impl Relay {
    /// Takes the payload of an ANNOUNCE that `sender` signed.
    pub fn announced(&mut self, sender: u128, payload: &[u8], now: Nanos) -> Result<(), Ignored> {
        let taken = self.announce(sender, payload, now);
        self.count(taken, |counts| &mut counts.announced)
    }

    /// Takes the payload of a WITHDRAW that `sender` signed. The older form, without a sequence, is obeyed.
    pub fn withdrawn(&mut self, sender: u128, payload: &[u8]) -> Result<(), Ignored> {
        let taken = self.withdraw(sender, payload);
        self.count(taken, |counts| &mut counts.withdrawn)
    }

    /// Forgets announcements whose time is over.
    pub fn expire(&mut self, now: Nanos) {
        let over = self.announcements.extract_if(.., |_, announcement| announcement.expires <= now);
        self.bytes -= over.map(|(_, announcement)| announcement.payload.len()).sum::<usize>();
    }

    /// How many nodes are announced, with those whose time is over and that were not forgotten yet.
    pub fn len(&self) -> usize {
        self.announcements.len()
    }

    /// Whether no node is announced.
    pub fn is_empty(&self) -> bool {
        self.announcements.is_empty()
    }

    /// The announcement of each node but `own`, beginning with the one that the last answer left out.
    pub(super) fn all(&self, own: u128, now: Nanos) -> impl Iterator<Item = (u128, Arc<[u8]>)> {
        let all = self.announcements.range(self.begin..).chain(self.announcements.range(..self.begin));
        let counts = all.filter(move |(id, announcement)| **id != own && announcement.expires > now);
        counts.map(|(id, announcement)| (*id, announcement.payload.clone()))
    }

    /// The next answer begins with this node: there was no room for it.
    pub(super) fn begin_with(&mut self, id: u128) {
        self.begin = id;
    }

    /// Reports every counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counts.report(visit);
    }

    fn announce(&mut self, sender: u128, payload: &[u8], now: Nanos) -> Result<(), Ignored> {
        if payload.len() > MAX_ANNOUNCE {
            return Err(FabricError::Limit("ANNOUNCE").into());
        }
        let announce = Announce::parse(payload)?;
        self.check_sequence(sender, announce.node_id, announce.sequence)?;
        self.make_room(sender, payload.len(), now)?;
        let expires = now + Duration::from_secs(announce.ttl_secs.into()).min(MAX_TTL);
        self.forget(sender);
        self.bytes += payload.len();
        self.announcements.insert(sender, Announcement { heard: now, expires, payload: payload.into() });
        self.sequences.insert(sender, announce.sequence);
        Ok(())
    }

    /// Has others give way to an announcement of `sender` with so many bytes.
    fn make_room(&mut self, sender: u128, len: usize, now: Nanos) -> Result<(), Ignored> {
        if self.crowded(sender) || self.overflows(sender, len) {
            self.expire(now);
        }
        let others = || self.announcements.iter().filter(|(id, _)| **id != sender);
        let gives_way = if self.overflows(sender, len) {
            let longest = others().max_by_key(|(_, other)| (other.payload.len(), std::cmp::Reverse(other.heard)));
            Some(longest.filter(|(_, other)| other.payload.len() >= len).ok_or(Ignored::Full)?)
        } else if self.crowded(sender) {
            others().min_by_key(|(_, other)| other.heard)
        } else {
            None
        };
        if let Some(id) = gives_way.map(|(id, _)| *id) {
            self.counts.displaced += 1;
            self.forget(id);
        }
        Ok(())
    }

    /// Whether one more node would be too many.
    fn crowded(&self, sender: u128) -> bool {
        self.announcements.len() >= MAX_NODES && !self.announcements.contains_key(&sender)
    }

    /// Whether so many bytes in the place of what `sender` announced before would be too many.
    fn overflows(&self, sender: u128, len: usize) -> bool {
        let before = self.announcements.get(&sender).map_or(0, |before| before.payload.len());
        self.bytes - before + len > MAX_RELAY_BYTES
    }

    fn withdraw(&mut self, sender: u128, payload: &[u8]) -> Result<(), Ignored> {
        let withdraw = Withdraw::parse(payload)?;
        match withdraw.detail {
            Some(detail) => {
                self.check_sequence(sender, withdraw.node_id, detail.sequence)?;
                self.sequences.insert(sender, detail.sequence);
            }
            None if withdraw.node_id != sender => return Err(Ignored::Foreign),
            None => {}
        }
        self.forget(sender);
        Ok(())
    }

    fn check_sequence(&self, sender: u128, node_id: u128, sequence: u64) -> Result<(), Ignored> {
        if node_id != sender {
            return Err(Ignored::Foreign);
        }
        if self.sequences.get(&sender).is_some_and(|last| sequence <= *last) {
            return Err(Ignored::Old);
        }
        Ok(())
    }

    fn forget(&mut self, node_id: u128) {
        if let Some(announcement) = self.announcements.remove(&node_id) {
            self.bytes -= announcement.payload.len();
        }
    }

    fn count(
        &mut self,
        taken: Result<(), Ignored>,
        of_success: impl FnOnce(&mut Counts) -> &mut u64,
    ) -> Result<(), Ignored> {
        let counts = &mut self.counts;
        *match taken {
            Ok(()) => of_success(counts),
            Err(Ignored::Malformed(_)) => &mut counts.malformed,
            Err(Ignored::Foreign) => &mut counts.foreign,
            Err(Ignored::Old) => &mut counts.old,
            Err(Ignored::Full) => &mut counts.full,
        } += 1;
        taken
    }
}
