//! What the report of a suite holds beside its cases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    json::{Latency, Schedule},
    sparse::Sparse,
};
use crate::{bounce::Bounce, hiccup::Hiccups, tally::Counts};

/// A suite as it ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuiteFacts {
    /// Its name: that of its file, without `.toml`.
    pub name: String,
    /// What it is for: `about` of its file.
    pub about: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What it left out, and why.
    pub missing: Vec<Missing>,
    /// What was judged.
    pub verdicts: Vec<Verdict>,
    /// Each case with what it was measured against.
    pub contests: Vec<Contest>,
    /// Figures of programs that bring their own client.
    pub programs: Vec<Program>,
    /// Load step by step, past saturation.
    pub overload: Option<OverloadReport>,
    /// Hours, not seconds: memory, descriptors and books.
    pub soak: Option<SoakReport>,
}

/// Something that was not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The name of a case or a load, `baseline NAME`, `overload` or `soak`.
    pub what: String,
    /// Why, and what would help.
    pub why: String,
}

/// One judgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What must hold.
    pub what: String,
    /// Whether it does.
    pub passed: bool,
    /// With which figures.
    pub detail: String,
}

/// A case and a baseline of it, by the turns in which the two cores stood alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Contest {
    /// The case's name.
    pub case: String,
    /// The baseline's name.
    pub baseline: String,
    /// `near`, `far`; `-` where the bounce was not measured.
    pub state: String,
    /// Turns of both in that state; too few of them give no ratios ([`FEWEST`](crate::compare::FEWEST)).
    pub pairs: usize,
    /// The case's median over the baseline's.
    pub p50: Option<Estimate>,
    /// The case's 99th percentile over the baseline's.
    pub p99: Option<Estimate>,
    /// The case's answers per second over the baseline's.
    pub rate: Option<Estimate>,
}

/// A ratio, and where it lies with the confidence of comparisons ([`CONFIDENCE`](crate::compare::CONFIDENCE)).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// New over base.
    pub ratio: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// A program that measures itself, turn by turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The baseline's name.
    pub baseline: String,
    /// What the figure is: `figure.what` of the baseline.
    pub what: String,
    /// Its unit, after scaling.
    pub unit: String,
    /// The case that it is printed beside.
    pub case: String,
    /// One figure per turn.
    pub figures: Vec<f64>,
}

/// One turn of a case: the unit that comparisons resample, for what lies within a turn is not independent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Seconds from the start of the suite.
    pub at_s: f64,
    /// Seconds from the start of the measurement to the last right answer.
    pub seconds: f64,
    /// Right answers per second.
    pub answered_per_s: f64,
    /// What became of its requests.
    pub counts: Counts,
    /// Latency of right answers.
    pub latency: Latency,
    /// The same, value by value.
    pub histogram: Sparse,
    /// Gaps between the client's polls.
    pub hiccups: Hiccups,
    /// Cache-line round trip just before.
    pub bounce_before: Option<Bounce>,
    /// Cache-line round trip just after.
    pub bounce_after: Option<Bounce>,
}

impl Turn {
    /// `near` or `far` where the cores stood so before and after, `mixed` where that changed, `-` where it is unknown.
    pub fn state(&self) -> &'static str {
        match (self.bounce_before, self.bounce_after) {
            (Some(before), Some(after)) if before.state == after.state => before.state.name(),
            (Some(_), Some(_)) => "mixed",
            _ => "-",
        }
    }
}

/// How a server does as more is offered than it can answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverloadReport {
    /// Right answers per second at saturation, measured with a closed loop.
    pub saturation_per_s: f64,
    /// The most goodput of any step.
    pub peak_per_s: f64,
    /// The longest that an admitted request may take at the 99th percentile, by the configured queue, in nanoseconds; what
    /// the client was kept from polling comes on top.
    pub bound_ns: u64,
    /// Step by step, rising.
    pub steps: Vec<Step>,
}

/// One offered load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// In parts of saturation.
    pub load: f64,
    /// Requests due per second.
    pub offered_per_s: f64,
    /// Right answers per second.
    pub goodput_per_s: f64,
    /// Latency of those, from the moment each was due.
    pub latency: Latency,
    /// How the client kept its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Requests answered `overloaded`, or with another status.
    pub refused: u64,
    /// Requests without an answer within the timeout.
    pub dropped: u64,
    /// Requests that the client could not send before its patience ended.
    pub unsent: u64,
    /// The longest that the client itself was kept from polling, which no server can help, in nanoseconds.
    pub hiccup_ns: u64,
}

/// What a soak saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoakReport {
    /// One at the start, one every `soak.every` seconds, and one after the loads have ended.
    pub samples: Vec<Sample>,
    /// What each load did, all its runs together.
    pub loads: Vec<SoakLoad>,
    /// Each port's books.
    pub books: Vec<Book>,
}

/// The server at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds from the start.
    pub at_s: f64,
    /// Memory that is resident, in KiB.
    pub rss_kib: u64,
    /// Open descriptors of the server's process.
    pub descriptors: u64,
    /// Threads of the server's process.
    pub threads: u64,
    /// Counters above 0 of lanes, ports, services, the control plane and HIP Remote; names as `PORT.service.answered`.
    pub counters: BTreeMap<String, u64>,
}

/// One load of a soak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoakLoad {
    /// Its name in the suite's file.
    pub name: String,
    /// How often its client ran.
    pub runs: u64,
    /// What became of the requests of all runs.
    pub counts: Counts,
    /// Latency of all right answers.
    pub latency: Latency,
}

/// What a port received, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// The port's name; its queues are added up.
    pub port: String,
    /// Frames that its service was given.
    pub received: u64,
    /// Frames answered as asked.
    pub answered: u64,
    /// Frames answered with a refusal, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Frames without an answer, by reason.
    pub dropped: BTreeMap<String, u64>,
}

impl Book {
    /// Received less all that became of it: 0 where the books add up.
    pub fn missing(&self) -> i128 {
        let sum = |counts: &BTreeMap<String, u64>| counts.values().map(|count| i128::from(*count)).sum::<i128>();
        i128::from(self.received) - i128::from(self.answered) - sum(&self.refused) - sum(&self.dropped)
    }
}
