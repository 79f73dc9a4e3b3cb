//! A relay's knowledge of other nodes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use berth_port::{Family, Nanos};
use berth_wire::fabric::{Announce, FabricError, MAX_ANNOUNCE, Wire as _, Withdraw};

/// Limit on the nodes whose announcements a relay holds.
pub const MAX_NODES: usize = 4096;
/// Limit on the announcements that a relay holds, in bytes.
pub const MAX_RELAY_BYTES: usize = 16 << 20;

/// Limit on how long an announcement is kept, whatever its `ttl_secs` says: nodes announce themselves again.
pub const MAX_TTL: Duration = Duration::from_hours(1);

/// The newest announcement of each node, until its `ttl_secs` have passed.
///
/// At [`MAX_NODES`], a newcomer replaces the node that was heard longest ago. At [`MAX_RELAY_BYTES`], it replaces the
/// node with the longest announcement, unless its own is longer. A node that tries to fill the relay must therefore
/// repeat everything over and over, and displaces only nodes that are as greedy.
#[derive(Debug, Default)]
pub struct Relay {
    /// By node id.
    announcements: BTreeMap<u128, Announcement>,
    bytes: usize,
    /// Last sequence of every node, kept when its announcement is gone. Signers are enrolled, so the number is bounded.
    sequences: HashMap<u128, u64>,
    /// Id at which the next snapshot begins: the first node that the last one had no room for.
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

/// Why an announcement or withdrawal was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It does not parse, or is too long to be relayed.
    #[error("malformed: {0}")]
    Malformed(#[from] FabricError),
    /// It is about a node other than its sender.
    #[error("it is about another node than its sender")]
    Foreign,
    /// Its sequence is not above the node's last one.
    #[error("its sequence is not above the last one")]
    Old,
    /// [`MAX_RELAY_BYTES`] is reached, and everything that the relay holds is shorter.
    #[error("the relay holds {MAX_RELAY_BYTES} bytes, and takes nothing that is longer than what it holds")]
    Full,
}

impl Relay {
    /// Takes the payload of an ANNOUNCE whose signature by `sender` was verified.
    pub fn announced(&mut self, sender: u128, payload: &[u8], now: Nanos) -> Result<(), Ignored> {
        let taken = self.announce(sender, payload, now);
        self.count(taken, |counts| &mut counts.announced)
    }

    /// Takes the payload of a WITHDRAW whose signature by `sender` was verified. The form without a sequence is obeyed.
    pub fn withdrawn(&mut self, sender: u128, payload: &[u8]) -> Result<(), Ignored> {
        let taken = self.withdraw(sender, payload);
        self.count(taken, |counts| &mut counts.withdrawn)
    }

    /// Drops announcements whose `ttl_secs` have passed.
    pub fn expire(&mut self, now: Nanos) {
        let over = self.announcements.extract_if(.., |_, announcement| announcement.expires <= now);
        self.bytes -= over.map(|(_, announcement)| announcement.payload.len()).sum::<usize>();
    }

    /// Number of announcements held, expired ones that were not dropped yet included.
    pub fn len(&self) -> usize {
        self.announcements.len()
    }

    /// Whether no announcement is held.
    pub fn is_empty(&self) -> bool {
        self.announcements.is_empty()
    }

    /// Announcements of all nodes but `own`, starting with the one that the last answer left out.
    pub(super) fn all(&self, own: u128, now: Nanos) -> impl Iterator<Item = (u128, Arc<[u8]>)> {
        let all = self.announcements.range(self.begin..).chain(self.announcements.range(..self.begin));
        let counts = all.filter(move |(id, announcement)| **id != own && announcement.expires > now);
        counts.map(|(id, announcement)| (*id, announcement.payload.clone()))
    }

    /// Makes the next answer start with this node, for which there was no room.
    pub(super) fn begin_with(&mut self, id: u128) {
        self.begin = id;
    }

    /// Calls `visit` with the name and value of each counter.
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

    /// Drops announcements of others to make room for `len` bytes of `sender`.
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

    /// Whether one more node would exceed [`MAX_NODES`].
    fn crowded(&self, sender: u128) -> bool {
        self.announcements.len() >= MAX_NODES && !self.announcements.contains_key(&sender)
    }

    /// Whether `len` bytes in place of the sender's earlier announcement would exceed [`MAX_RELAY_BYTES`].
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
