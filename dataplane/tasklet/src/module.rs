//! The cache of compiled modules (T9).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::run::Module;

/// SHA-256 of a module's bytes.
pub type Hash = [u8; 32];

/// What the books of a module cost, beside its code.
const BOOKS: u64 = 512;
/// What the books of a presenter who submitted it cost.
const PRESENTER: u64 = 64;

/// Compiled modules by hash, each for those who submitted its bytes. The least recently used go when a limit in bytes is
/// exceeded.
#[derive(Debug)]
pub struct Modules {
    limit: u64,
    bytes: u64,
    by_hash: BTreeMap<Hash, Cached>,
    /// Hashes by the number of their last use, the least recent first.
    order: BTreeMap<u64, Hash>,
    uses: u64,
}

#[derive(Debug)]
struct Cached {
    module: Arc<dyn Module>,
    presenters: BTreeSet<u128>,
    used: u64,
}

impl Cached {
    fn bytes(&self) -> u64 {
        self.module.size() + BOOKS + PRESENTER * self.presenters.len() as u64
    }
}

impl Modules {
    /// An empty cache of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, bytes: 0, by_hash: BTreeMap::new(), order: BTreeMap::new(), uses: 0 }
    }

    /// The module, if this presenter has submitted its bytes before.
    pub fn find(&mut self, hash: &Hash, presenter: u128) -> Option<Arc<dyn Module>> {
        if !self.by_hash.get(hash)?.presenters.contains(&presenter) {
            return None;
        }
        self.touch(hash)
    }

    /// The module, for a presenter who has just proved to have its bytes.
    pub fn claim(&mut self, hash: &Hash, presenter: u128) -> Option<Arc<dyn Module>> {
        let module = self.touch(hash)?;
        let cached = self.by_hash.get_mut(hash)?;
        if cached.presenters.insert(presenter) {
            self.bytes += PRESENTER;
            self.evict();
        }
        Some(module)
    }

    /// Adds a module that was compiled for a presenter, in place of any with this hash; then evicts down to the limit.
    pub fn insert(&mut self, hash: Hash, presenter: u128, module: Arc<dyn Module>) {
        self.remove(&hash);
        let cached = Cached { module, presenters: BTreeSet::from([presenter]), used: self.uses };
        self.bytes += cached.bytes();
        self.order.insert(self.uses, hash);
        self.by_hash.insert(hash, cached);
        self.uses += 1;
        self.evict();
    }

    /// Bytes held: each module's size and 512, and 64 for each of its presenters.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of modules; one that several presenters submitted counts once.
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    fn touch(&mut self, hash: &Hash) -> Option<Arc<dyn Module>> {
        let cached = self.by_hash.get_mut(hash)?;
        self.order.remove(&cached.used);
        cached.used = self.uses;
        self.order.insert(self.uses, *hash);
        self.uses += 1;
        Some(cached.module.clone())
    }

    fn evict(&mut self) {
        while self.bytes > self.limit
            && let Some((_, hash)) = self.order.first_key_value()
        {
            let hash = *hash;
            self.remove(&hash);
        }
    }

    fn remove(&mut self, hash: &Hash) {
        if let Some(cached) = self.by_hash.remove(hash) {
            self.order.remove(&cached.used);
            self.bytes -= cached.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hostcall::Hostcalls,
        run::{Limits, Outcome},
    };

    #[derive(Debug)]
    struct Sized(u64);

    impl Module for Sized {
        fn size(&self) -> u64 {
            self.0
        }

        fn takes_input(&self) -> bool {
            true
        }

        fn run(&self, _: &[u8], _: &Limits, _: &mut dyn Hostcalls) -> Outcome {
            unreachable!("nothing runs here")
        }
    }

    fn of(size: u64) -> Arc<dyn Module> {
        Arc::new(Sized(size))
    }

    #[test]
    fn nobody_finds_by_hash_what_another_submitted() {
        let mut modules = Modules::new(10_000);
        modules.insert([1; 32], 7, of(100));
        assert!(modules.find(&[1; 32], 7).is_some());
        assert!(modules.find(&[1; 32], 8).is_none());
        assert!(modules.claim(&[1; 32], 8).is_some(), "who brings the bytes needs no second compilation");
        assert!(modules.find(&[1; 32], 8).is_some());
        assert!(modules.find(&[2; 32], 7).is_none());
    }

    #[test]
    fn the_least_recently_used_goes_at_the_limit() {
        let each = 1000 + BOOKS + PRESENTER;
        let mut modules = Modules::new(2 * each);
        modules.insert([1; 32], 7, of(1000));
        modules.insert([2; 32], 7, of(1000));
        assert_eq!(modules.bytes(), 2 * each);
        modules.find(&[1; 32], 7).unwrap();
        modules.insert([3; 32], 7, of(1000));
        assert_eq!((modules.len(), modules.bytes()), (2, 2 * each));
        assert!(modules.find(&[2; 32], 7).is_none());
        assert!(modules.find(&[1; 32], 7).is_some());
        // A second presenter makes one too much of it.
        modules.claim(&[1; 32], 8).unwrap();
        assert!(modules.find(&[3; 32], 7).is_none());
        modules.insert([4; 32], 7, of(3 * each));
        assert!(modules.is_empty() && modules.bytes() == 0, "one that is longer than the cache displaces all");
    }

    #[test]
    fn a_module_that_comes_again_is_counted_once() {
        let mut modules = Modules::new(10_000);
        modules.insert([1; 32], 7, of(100));
        let bytes = modules.bytes();
        modules.insert([1; 32], 7, of(100));
        modules.claim(&[1; 32], 7).unwrap();
        assert_eq!(modules.bytes(), bytes);
    }
}
