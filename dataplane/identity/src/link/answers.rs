//! What was answered, for retransmissions (profile, "Replay").

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use berth_port::Nanos;

use super::Message;
use crate::NodeId;

/// How long an answer is kept.
pub const ANSWER_LIFE: Duration = Duration::from_secs(30);
/// The most memory that answers take, in bytes. At the limit the oldest goes; its op still never runs twice, as its
/// nonce stays used.
pub const MAX_ANSWER_BYTES: usize = 64 << 20;

/// What an answer costs beyond its payload, in bytes.
const ANSWER_COST: usize = 512;

/// Which request an answer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) sender: NodeId,
    pub(super) request_id: u64,
    pub(super) nonce: u64,
}

#[derive(Debug)]
pub(super) struct Answered {
    /// Where the first copy of the request came from.
    pub(super) to: SocketAddr,
    pub(super) message: Arc<Message<'static>>,
}

#[derive(Debug, Default)]
pub(super) struct Answers {
    kept: HashMap<Asked, Answered>,
    by_age: VecDeque<(Nanos, Asked)>,
    bytes: usize,
}

impl Answers {
    pub(super) fn get(&self, asked: &Asked) -> Option<&Answered> {
        self.kept.get(asked)
    }

    /// Keeps the first answer to a request.
    pub(super) fn keep(&mut self, asked: Asked, answered: Answered, now: Nanos) {
        if self.kept.contains_key(&asked) {
            return;
        }
        self.bytes += cost(&answered);
        self.kept.insert(asked, answered);
        self.by_age.push_back((now, asked));
        while self.bytes > MAX_ANSWER_BYTES {
            self.drop_oldest();
        }
    }

    pub(super) fn expire(&mut self, now: Nanos) {
        while self.by_age.front().is_some_and(|(since, _)| *since + ANSWER_LIFE <= now) {
            self.drop_oldest();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn drop_oldest(&mut self) {
        if let Some((_, asked)) = self.by_age.pop_front()
            && let Some(answered) = self.kept.remove(&asked)
        {
            self.bytes -= cost(&answered);
        }
    }
}

fn cost(answered: &Answered) -> usize {
    ANSWER_COST + answered.message.payload.len()
}
