//! What a run measured: histograms and counts of one interval, filled by the hot loop without allocating.

use std::time::Duration;

use berth_port::Nanos;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency a histogram tells apart; longer ones are recorded as this.
pub const LONGEST: Duration = Duration::from_mins(2);

/// A histogram of nanoseconds with three significant digits, from 1 ns to [`LONGEST`]; it never grows.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3).expect("constant bounds are valid")
}

/// The events of a run. Every measured request ends as exactly one of `answered`, `refused`, `wrong` or `lost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Requests handed to the port.
    pub sent: u64,
    /// Requests answered in time with status 0 and the right bytes.
    pub answered: u64,
    /// Requests answered with another status; see [`Refusals`].
    pub refused: u64,
    /// Requests whose answer was not what it had to be.
    pub wrong: u64,
    /// Requests without an answer within the timeout.
    pub lost: u64,
    /// Lost requests that were answered after all.
    pub late: u64,
    /// Answers to requests that had been answered before.
    pub duplicates: u64,
    /// First answers that arrived after the answer to a later request.
    pub reordered: u64,
    /// Answers to requests so old that the table had forgotten them: duplicates or late ones.
    pub stale: u64,
    /// Wrong frames other than first answers to measured requests: a wrong magic, a number never sent, a bad duplicate.
    pub malformed: u64,
    /// Frames from another address than the peer's; ignored.
    #[serde(rename = "strangers")]
    pub other_source: u64,
    /// Open loop: requests whose time came before the end and that could not be sent until a timeout after it.
    pub unsent: u64,
    /// How often the port had no room for a request that was due.
    pub backpressure: u64,
    /// Predictions of decoders.
    pub predictions: u64,
    /// Predictions of shots that have none of the reference decoder.
    #[serde(default)]
    pub without_reference: u64,
    /// Predictions equal to the reference decoder's.
    pub agreements: u64,
    /// Predictions unlike the true observables.
    pub logical_errors: u64,
    /// The reference decoder's predictions of the same shots unlike the true observables.
    pub reference_logical_errors: u64,
}

impl Counts {
    /// Adds another interval's events.
    pub fn add(&mut self, other: &Self) {
        let Self {
            sent,
            answered,
            refused,
            wrong,
            lost,
            late,
            duplicates,
            reordered,
            stale,
            malformed,
            other_source,
            unsent,
            backpressure,
            predictions,
            without_reference,
            agreements,
            logical_errors,
            reference_logical_errors,
        } = other;
        self.sent += sent;
        self.answered += answered;
        self.refused += refused;
        self.wrong += wrong;
        self.lost += lost;
        self.late += late;
        self.duplicates += duplicates;
        self.reordered += reordered;
        self.stale += stale;
        self.malformed += malformed;
        self.other_source += other_source;
        self.unsent += unsent;
        self.backpressure += backpressure;
        self.predictions += predictions;
        self.without_reference += without_reference;
        self.agreements += agreements;
        self.logical_errors += logical_errors;
        self.reference_logical_errors += reference_logical_errors;
    }

    /// Frames that were not what they had to be: `wrong` and `malformed`.
    pub fn bad(&self) -> u64 {
        self.wrong.saturating_add(self.malformed)
    }

    /// Whether any frame was `wrong` or `malformed`.
    pub fn failed(&self) -> bool {
        self.bad() > 0
    }

    /// Predictions that were compared with the reference decoder's.
    pub fn compared(&self) -> u64 {
        self.predictions.saturating_sub(self.without_reference)
    }

    /// Requests that were lost, and answers that came once more: `lost`, `duplicates` and `stale`.
    pub fn lost_or_doubled(&self) -> u64 {
        self.lost + self.duplicates + self.stale
    }
}

/// How often each status other than 0 was answered; statuses beyond the first [`Refusals::KINDS`] share one count.
#[derive(Debug, Clone, Default)]
pub struct Refusals {
    counts: [(i32, u64); Self::KINDS],
    others: u64,
}

impl Refusals {
    /// How many statuses are told apart.
    pub const KINDS: usize = 16;

    /// Counts `times` answers of `status`.
    pub fn add(&mut self, status: i32, times: u64) {
        match self.counts.iter_mut().find(|(known, count)| *known == status || *count == 0) {
            Some(entry) => *entry = (status, entry.1 + times),
            None => self.others += times,
        }
    }

    /// Adds another interval's counts.
    pub fn merge(&mut self, other: &Self) {
        for (status, times) in other.iter() {
            self.add(status, times);
        }
        self.others += other.others;
    }

    /// Each status with its count, in order of first appearance.
    pub fn iter(&self) -> impl Iterator<Item = (i32, u64)> + '_ {
        self.counts.iter().copied().filter(|(_, count)| *count > 0)
    }

    /// Answers of statuses beyond the first [`Refusals::KINDS`].
    pub fn others(&self) -> u64 {
        self.others
    }
}

/// What one interval of one case measured.
#[derive(Debug, Clone)]
pub struct Interval {
    /// Which case of the run, counted from 0.
    pub case: usize,
    /// When the interval began.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
    /// When the last right answer came; the start where none did.
    pub last_answer: Nanos,
    /// Nanoseconds from the intended send to the answer, per step of the mix; right answers only.
    pub latency: Vec<Histogram<u64>>,
    /// Open loop: nanoseconds from the intended send to the real one, of every request.
    pub lag: Histogram<u64>,
    /// Open loop: nanoseconds from the real send to the answer; right answers only.
    pub from_sent: Histogram<u64>,
    /// Nanoseconds between two polls of the client's own loop.
    pub hiccups: Histogram<u64>,
    /// What became of the interval's requests.
    pub counts: Counts,
    /// Statuses other than 0 that were answered.
    pub refusals: Refusals,
}

impl Interval {
    /// An empty interval for a mix of `steps` steps.
    pub fn new(steps: usize) -> Self {
        Self {
            case: 0,
            start: Nanos(0),
            end: Nanos(0),
            last_answer: Nanos(0),
            latency: (0..steps).map(|_| histogram()).collect(),
            lag: histogram(),
            from_sent: histogram(),
            hiccups: histogram(),
            counts: Counts::default(),
            refusals: Refusals::default(),
        }
    }

    /// Empties the histograms and counts and keeps their memory; `case` and the times stay as they are.
    pub fn clear(&mut self) {
        let Self { latency, lag, from_sent, hiccups, .. } = self;
        for histogram in latency.iter_mut().chain([lag, from_sent, hiccups]) {
            histogram.reset();
        }
        self.counts = Counts::default();
        self.refusals = Refusals::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_tell_statuses_apart_and_count_the_rest_together() {
        let mut refusals = Refusals::default();
        for status in -20..0 {
            refusals.add(status, 2);
        }
        refusals.add(-20, 1);
        let mut total = Refusals::default();
        total.add(4, 1);
        total.merge(&refusals);
        let counts: Vec<_> = total.iter().collect();
        assert_eq!(counts[..2], [(4, 1), (-20, 3)]);
        assert_eq!(counts.len(), Refusals::KINDS);
        assert_eq!(counts.iter().map(|(_, n)| n).sum::<u64>() + total.others(), 42);
    }
}
