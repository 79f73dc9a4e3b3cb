//! Long answers over UDP: they go to whatever address a datagram names as its source, so that they are charged.

use std::{collections::HashMap, time::Duration};

/// Bytes that one sender may be ahead of what it has paid off, and all together.
const MOST: (u64, u64) = (4 << 20, 32 << 20);

/// Bytes that a sender pays off in a second.
const RATE: u64 = 1 << 20;

/// What each sender's long answers have cost and time has not paid off yet, in bytes. Senders are enrolled keys.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    of: HashMap<u128, u64>,
    all: u64,
}

impl Debts {
    /// Whether a sender may have one more long answer: while it owes less than it may, and less than is left for all.
    pub(crate) fn may(&self, sender: u128) -> bool {
        self.of.get(&sender).copied().unwrap_or(0) < MOST.0.min(MOST.1.saturating_sub(self.all))
    }

    pub(crate) fn charge(&mut self, sender: u128, bytes: usize) {
        *self.of.entry(sender).or_default() += bytes as u64;
        self.all += bytes as u64;
    }

    /// An answer was so many bytes shorter than what was charged for it.
    pub(crate) fn refund(&mut self, sender: u128, bytes: usize) {
        if let Some(owed) = self.of.get_mut(&sender) {
            let back = (bytes as u64).min(*owed);
            *owed -= back;
            self.all -= back;
        }
    }

    /// So much time has passed.
    pub(crate) fn pay(&mut self, passed: Duration) {
        let paid = RATE * passed.as_millis() as u64 / 1000;
        self.of.retain(|_, owed| {
            *owed = owed.saturating_sub(paid);
            *owed > 0
        });
        self.all = self.of.values().sum();
    }
}
