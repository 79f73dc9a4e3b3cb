//! How often in a second.

use std::{collections::HashMap, hash::Hash};

/// The most keys counted within one second.
pub const MAX_RATED: usize = 65_536;

/// Counts uses by key within each second of the caller's clock.
#[derive(Debug)]
pub struct Rates<K> {
    counts: HashMap<K, Count>,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    second: u64,
    uses: u32,
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self { counts: HashMap::new() }
    }
}

impl<K: Eq + Hash> Rates<K> {
    /// Counts so many uses of `key` that were admitted as one, where one was in `second`.
    pub fn charge(&mut self, key: &K, uses: u32, second: u64) {
        if let Some(count) = self.counts.get_mut(key).filter(|count| count.second == second) {
            count.uses = count.uses.saturating_add(uses);
        }
    }

    /// Counts one use of `key` in `second` and says whether it is within `limit` uses. Refused uses do not count.
    pub fn admit(&mut self, key: K, limit: u32, second: u64) -> bool {
        if self.counts.len() >= MAX_RATED && !self.counts.contains_key(&key) {
            self.counts.retain(|_, count| count.second == second);
            if self.counts.len() >= MAX_RATED {
                return false;
            }
        }
        let count = self.counts.entry(key).or_insert(Count { second, uses: 0 });
        if count.second != second {
            *count = Count { second, uses: 0 };
        }
        if count.uses >= limit {
            return false;
        }
        count.uses += 1;
        true
    }
}
