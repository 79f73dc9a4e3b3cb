//! Results of runs that have ended, for a time and up to a limit in bytes (T3).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use berth_port::Nanos;
use berth_wire::fabric::TaskletStatus;

use crate::{log::Log, schedule::RunId};

/// What the books of a result and of a log record cost.
const BOOKS: u64 = 128;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// Who submitted it; nobody else finds it.
    pub presenter: u128,
    /// 0 or 3 to 6.
    pub status: TaskletStatus,
    /// Empty unless the run was OK, or the tasklet failed by itself (T5).
    pub output: Vec<u8>,
    /// The run's log with the node's own record, if there is one.
    pub log: Log,
}

impl Ended {
    fn bytes(&self) -> u64 {
        (self.output.len() + self.log.bytes()) as u64 + BOOKS * (1 + self.log.records().len() as u64)
    }
}

/// Results by run. The oldest go when a limit in bytes is exceeded, or when their time is over.
#[derive(Debug)]
pub struct Results {
    limit: u64,
    keep: Duration,
    bytes: u64,
    by_run: BTreeMap<RunId, (Nanos, Arc<Ended>)>,
    /// Runs by the time of their end.
    order: BTreeSet<(Nanos, RunId)>,
}

impl Results {
    /// Keeps at most `limit` bytes, each result for `keep`.
    pub fn new(limit: u64, keep: Duration) -> Self {
        Self { limit, keep, bytes: 0, by_run: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// Adds the result of a run that ended now, then drops the oldest down to the limit in bytes.
    pub fn insert(&mut self, run: RunId, ended: Arc<Ended>, now: Nanos) {
        self.bytes += ended.bytes();
        self.order.insert((now, run));
        self.by_run.insert(run, (now, ended));
        while self.bytes > self.limit && self.drop_first(|_| true) {}
    }

    /// The result of a run; `None` if it is another presenter's, past its time or not kept any more.
    pub fn find(&self, run: RunId, presenter: u128, now: Nanos) -> Option<&Arc<Ended>> {
        let (at, ended) = self.by_run.get(&run)?;
        (ended.presenter == presenter && now < *at + self.keep).then_some(ended)
    }

    /// Drops the results that ended at least the time to keep before `now`.
    pub fn tick(&mut self, now: Nanos) {
        let keep = self.keep;
        while self.drop_first(|at| now >= at + keep) {}
    }

    /// Bytes kept: outputs, log messages, and 128 for each result and each log record.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of results, those past their time but not dropped by a tick included.
    pub fn len(&self) -> usize {
        self.by_run.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_run.is_empty()
    }

    fn drop_first(&mut self, goes: impl Fn(Nanos) -> bool) -> bool {
        let Some((at, run)) = self.order.first().copied().filter(|(at, _)| goes(*at)) else { return false };
        self.order.remove(&(at, run));
        if let Some((_, ended)) = self.by_run.remove(&run) {
            self.bytes -= ended.bytes();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(presenter: u128, len: usize) -> Arc<Ended> {
        let log = Log::default();
        Arc::new(Ended { presenter, status: TaskletStatus::Ok, output: vec![0; len], log })
    }

    #[test]
    fn a_result_is_its_presenters_and_for_its_time() {
        let mut results = Results::new(10_000, Duration::from_nanos(300));
        results.insert(5, ended(7, 10), Nanos(1000));
        assert!(results.find(5, 7, Nanos(1299)).is_some());
        assert!(results.find(5, 8, Nanos(1000)).is_none());
        assert!(results.find(6, 7, Nanos(1000)).is_none());
        assert!(results.find(5, 7, Nanos(1300)).is_none());
        results.tick(Nanos(1299));
        assert_eq!(results.len(), 1);
        results.tick(Nanos(1300));
        assert!(results.is_empty() && results.bytes() == 0);
    }

    #[test]
    fn the_oldest_go_first() {
        let mut results = Results::new(2 * (100 + BOOKS), Duration::from_secs(1));
        // Ids do not tell the order of ends.
        for (run, at) in [(9, 1), (3, 2), (5, 3)] {
            results.insert(run, ended(7, 100), Nanos(at));
        }
        let kept = [9, 3, 5].map(|run| results.find(run, 7, Nanos(4)).is_some());
        assert_eq!((kept, results.bytes()), ([false, true, true], 2 * (100 + BOOKS)));
        results.insert(6, ended(7, 1000), Nanos(4));
        assert!(results.is_empty() && results.bytes() == 0, "one that is longer than all room displaces all");
    }
}
