//! Answers that are kept for retransmissions (profile, "Replay").

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use berth_port::Nanos;

use super::Message;
use crate::NodeId;

/// How long an answer is kept.
pub const ANSWER_LIFE: Duration = Duration::from_secs(30);
/// Limit on the memory of all kept answers, in bytes. At the limit, the sender with the most bytes loses its oldest
/// answer; the operation still never runs twice, as its nonce stays used.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Memory of an answer beyond its payload, in bytes.
const ANSWER_COST: usize = 512;

/// Identifies the request that an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) sender: NodeId,
    pub(super) request_id: u64,
    pub(super) nonce: u64,
}

#[derive(Debug)]
pub(super) struct Answered {
    /// Address that the first copy of the request came from.
    pub(super) to: SocketAddr,
    pub(super) message: Arc<Message<'static>>,
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    kept: HashMap<Asked, Answered>,
    /// Time and request of each answer, by its number, which rises.
    by_age: BTreeMap<u64, (Nanos, Asked)>,
    senders: HashMap<NodeId, Sender>,
    /// Pairs of bytes and sender, to find the sender with the most.
    by_bytes: BTreeSet<(usize, NodeId)>,
    bytes: usize,
    next: u64,
}

#[derive(Debug, Default)]
struct Sender {
    /// Numbers of its answers, oldest first.
    answers: VecDeque<u64>,
    bytes: usize,
}

impl Answers {
    pub(super) fn get(&self, asked: &Asked) -> Option<&Answered> {
        self.kept.get(asked)
    }

    /// Keeps an answer unless the request has one already.
    pub(super) fn keep(&mut self, asked: Asked, answered: Answered, now: Nanos) {
        if self.kept.contains_key(&asked) {
            return;
        }
        let number = self.next;
        self.next += 1;
        let of = asked.sender;
        self.senders.entry(of).or_default().answers.push_back(number);
        self.count(of, |bytes| bytes + cost(&answered));
        self.kept.insert(asked, answered);
        self.by_age.insert(number, (now, asked));
        while self.bytes > MAX_ANSWER_BYTES
            && let Some((_, greediest)) = self.by_bytes.last().copied()
        {
            self.drop_oldest(greediest);
        }
    }

    pub(super) fn expire(&mut self, now: Nanos) {
        while let Some((_, (_, asked))) =
            self.by_age.first_key_value().filter(|(_, (since, _))| *since + ANSWER_LIFE <= now)
        {
            self.drop_oldest(asked.sender);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn drop_oldest(&mut self, of: NodeId) {
        let number = self.senders.get_mut(&of).and_then(|sender| sender.answers.pop_front());
        if let Some((_, asked)) = number.and_then(|number| self.by_age.remove(&number))
            && let Some(answered) = self.kept.remove(&asked)
        {
            self.count(of, |bytes| bytes - cost(&answered));
        }
    }

    /// Changes the bytes that a sender's answers take.
    fn count(&mut self, of: NodeId, change: impl FnOnce(usize) -> usize) {
        let Some(sender) = self.senders.get_mut(&of) else { return };
        self.by_bytes.remove(&(sender.bytes, of));
        self.bytes -= sender.bytes;
        sender.bytes = change(sender.bytes);
        self.bytes += sender.bytes;
        if sender.bytes > 0 {
            self.by_bytes.insert((sender.bytes, of));
        } else {
            self.senders.remove(&of);
        }
    }
}

fn cost(answered: &Answered) -> usize {
    ANSWER_COST + answered.message.payload.len()
}
