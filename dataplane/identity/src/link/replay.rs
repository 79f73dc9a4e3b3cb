//! Replay protection: the nonces used by each sender (profile, "Replay").

use std::collections::HashMap;

use crate::NodeId;

/// Number of nonces, counted down from the highest, that are still accepted once each.
pub const REPLAY_WINDOW: u64 = 1024;

const WORDS: usize = REPLAY_WINDOW as usize / 64;

/// The nonces of every sender. Only verified messages may touch it, so the number of enrolled keys bounds it.
#[derive(Debug)]
pub struct Replay {
    senders: HashMap<NodeId, Window>,
    /// Upper bound on the nonces that are accepted.
    most: u64,
}

impl Default for Replay {
    fn default() -> Self {
        Self { senders: HashMap::new(), most: u64::MAX }
    }
}

#[derive(Debug)]
struct Window {
    highest: u64,
    /// One bit per nonce of the window, at the nonce modulo the window's size.
    used: [u64; WORDS],
    /// Highest nonce that [`Replay::risen`] has reported.
    told: Option<u64>,
}

impl Replay {
    /// Whether a message with this nonce would be accepted now.
    pub fn is_fresh(&self, sender: NodeId, nonce: u64) -> bool {
        nonce <= self.most && self.senders.get(&sender).is_none_or(|window| window.is_fresh(nonce))
    }

    /// Refuses nonces above `most` from now on. Without it, a sender whose clock was years ahead would shut out its own
    /// key.
    pub fn accept_up_to(&mut self, most: u64) {
        self.most = most;
    }

    /// Accepts the nonce of a verified message, once. False if it was used, or is below the window.
    pub fn accept(&mut self, sender: NodeId, nonce: u64) -> bool {
        nonce <= self.most && self.senders.entry(sender).or_insert_with(|| Window::new(nonce)).accept(nonce)
    }

    /// The highest nonce of each sender whose nonce has risen since the last call, in no order. A node stores them, to
    /// refuse old messages after a restart, too.
    pub fn risen(&mut self) -> Vec<(NodeId, u64)> {
        let risen = self.senders.iter_mut().filter(|(_, window)| window.told != Some(window.highest));
        let tell = risen.map(|(sender, window)| {
            window.told = Some(window.highest);
            (*sender, window.highest)
        });
        tell.collect()
    }

    /// Refuses every nonce of `sender` up to this one, as after a restart. A nonce above the general upper bound
    /// counts as the bound, because higher ones are refused anyway.
    pub fn refuse_up_to(&mut self, sender: NodeId, nonce: u64) {
        let nonce = nonce.min(self.most);
        let window = self.senders.entry(sender).or_insert_with(|| Window::new(nonce));
        if window.highest <= nonce {
            *window = Window { used: [u64::MAX; WORDS], told: Some(nonce), ..Window::new(nonce) };
        }
    }
}

impl Window {
    fn new(highest: u64) -> Self {
        Self { highest, used: [0; WORDS], told: None }
    }

    fn is_fresh(&self, nonce: u64) -> bool {
        match self.highest.checked_sub(nonce) {
            None => true,
            Some(below) => below < REPLAY_WINDOW && self.used[word(nonce)] & bit(nonce) == 0,
        }
    }

    fn accept(&mut self, nonce: u64) -> bool {
        if !self.is_fresh(nonce) {
            return false;
        }
        if nonce > self.highest {
            if nonce - self.highest >= REPLAY_WINDOW {
                self.used = [0; WORDS];
            } else {
                (self.highest + 1..=nonce).for_each(|skipped| self.used[word(skipped)] &= !bit(skipped));
            }
            self.highest = nonce;
        }
        self.used[word(nonce)] |= bit(nonce);
        true
    }
}

fn word(nonce: u64) -> usize {
    (nonce % REPLAY_WINDOW / 64) as usize
}

fn bit(nonce: u64) -> u64 {
    1 << (nonce % 64)
}
