//! Accounting of long answers over UDP, because a datagram can name any address as its source.

use std::{collections::HashMap, time::Duration};

/// Limits on unpaid bytes, of one sender and of all together.
const MOST: (u64, u64) = (4 << 20, 32 << 20);

/// Bytes per second that a sender pays off.
const RATE: u64 = 1 << 20;

/// Bytes of long answers that each sender has not paid off by waiting. Senders are enrolled keys.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    of: HashMap<u128, u64>,
    all: u64,
}

impl Debts {
    /// Whether a sender may have one more long answer: it owes less than its limit, and less than what is left for all.
    pub(crate) fn may(&self, sender: u128) -> bool {
        self.of.get(&sender).copied().unwrap_or(0) < MOST.0.min(MOST.1.saturating_sub(self.all))
    }

    pub(crate) fn charge(&mut self, sender: u128, bytes: usize) {
        *self.of.entry(sender).or_default() += bytes as u64;
        self.all += bytes as u64;
    }

    /// Gives back the difference if an answer was shorter than charged.
    pub(crate) fn refund(&mut self, sender: u128, bytes: usize) {
        if let Some(owed) = self.of.get_mut(&sender) {
            let back = (bytes as u64).min(*owed);
            *owed -= back;
            self.all -= back;
        }
    }

    /// Pays off what `passed` is worth.
    pub(crate) fn pay(&mut self, passed: Duration) {
        let paid = RATE * passed.as_millis() as u64 / 1000;
        self.of.retain(|_, owed| {
            *owed = owed.saturating_sub(paid);
            *owed > 0
        });
        self.all = self.of.values().sum();
    }
}
