//! Rate limits per key and second.

use std::{collections::HashMap, hash::Hash};

/// Limit on the keys counted within one second.
pub const MAX_RATED: usize = 65_536;

/// Counts uses per key within each second of the caller's clock.
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
    /// Counts `uses` further uses of `key`, if one was admitted in `second`.
    pub fn charge(&mut self, key: &K, uses: u32, second: u64) {
        if let Some(count) = self.counts.get_mut(key).filter(|count| count.second == second) {
            count.uses = count.uses.saturating_add(uses);
        }
    }

    /// Counts one use of `key` in `second`; false if that exceeds `limit`. Refused uses do not count.
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
