//! The JSON document: every figure of a run. `docs/perf-report.md` describes it for readers.

use std::collections::BTreeMap;

use berth_wire::rpc::status;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{
    case::{Case, Point},
    sparse::Sparse,
    stream::Stream,
    suite::{SuiteFacts, Turn},
};
use crate::{
    bounce::Bounce,
    decode::Rate,
    environment::Environment,
    hiccup::Hiccups,
    job::Job,
    load::{Limit, Pacing},
    tally::{Counts, histogram},
};

/// The document's version: it grows when a field changes its meaning or goes; new fields do not change it.
pub const SCHEMA_VERSION: u32 = 1;

/// The results of `berth perf rpc`, `lease`, `nvme`, `hip`, `stream` or `suite`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Where it was measured.
    pub environment: Environment,
    /// What all cases share; `null` for a suite, whose cases have setups of their own.
    pub setup: Option<Setup>,
    /// Case by case, in the order they ran.
    pub cases: Vec<CaseReport>,
    /// What a suite found beside its cases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<SuiteFacts>,
}

/// What all cases of a run share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The client's port driver, as `--port` has it.
    pub port: String,
    /// Address and port of the server.
    pub peer: String,
    /// `v24` or `v16`; `two-sided` for leases; `nvme` and its digests for disks; `hip-remote`.
    pub header: String,
    /// `ns`, `sec_nsec` or `off`.
    pub ptp: String,
    /// Whether the server sent requests back unchanged.
    pub echo: bool,
    /// Number of the CPU that the client polls on.
    pub cpu: usize,
    /// `closed` or `open`.
    pub pacing: String,
    /// Closed loop: requests outstanding at most.
    pub window: Option<u64>,
    /// Open loop: requests per second.
    pub rate_per_s: Option<f64>,
    /// Open loop: requests per tick.
    pub burst: Option<u32>,
    /// Requests to measure per case, or `null` where a time was set.
    pub count: Option<u64>,
    /// Seconds to measure per case, or `null` where a count was set.
    pub duration_s: Option<f64>,
    /// Seconds before anything was measured.
    pub warmup_s: f64,
    /// Milliseconds until a request counted as lost.
    pub timeout_ms: u64,
    /// The shots' common prefix, as `--shots` has it.
    pub shots: Option<String>,
    /// The injected faults, as given.
    pub fault: Option<String>,
}

/// One case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// What it does, for people.
    pub name: String,
    /// Payload bytes of `rpc_increment`, or bytes of each access or copy; `null` where nothing has a size.
    pub payload_bytes: Option<usize>,
    /// Different shots that were decoded, over and over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shots: Option<usize>,
    /// Seconds from the start of the measurement to the last right answer.
    pub seconds: f64,
    /// Right answers per second.
    pub answered_per_s: f64,
    /// What became of its requests.
    pub counts: Counts,
    /// Statuses other than 0.
    pub refusals: Vec<Refusal>,
    /// Latency of right answers.
    pub latency: Latency,
    /// Open loop: how the client kept its schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Latency function by function; empty where turns of a suite were merged.
    pub functions: Vec<FunctionReport>,
    /// Gaps between the client's own polls.
    pub hiccups: Hiccups,
    /// Cache-line round trip just before; `null` with a single CPU, or when one was busy throughout.
    pub bounce_before: Option<Bounce>,
    /// Cache-line round trip just after; `null` likewise.
    pub bounce_after: Option<Bounce>,
    /// How much each counter of the client's port grew during the case.
    pub port_counters: BTreeMap<String, u64>,
    /// The first answer that was not what it had to be.
    pub first_mistake: Option<String>,
    /// `[quantile, nanoseconds]`, finer towards 1.
    pub spectrum: Vec<(f64, u64)>,
    /// The course of the case, interval by interval.
    pub timeline: Vec<Point>,
    /// Every latency, in nanoseconds.
    #[serde(default)]
    pub histogram: Sparse,
    /// Every gap between the client's polls, in nanoseconds.
    #[serde(default)]
    pub hiccup_histogram: Sparse,
    /// Streams: the experiment; of suites that of each turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<Stream>,
    /// Suites: the distance of the code that rounds are of, as the file has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distance: Option<u32>,
    /// Suites: the case that this is the baseline of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline_of: Option<String>,
    /// Suites: who answered: `berth`, or a baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contestant: Option<String>,
    /// Suites: the server that it asked, as the file names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Suites: how the client was called, before anything was filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Suites: this case's own setup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
    /// Suites: turn by turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
}

/// How often a status was answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The status; `null` for all beyond the first 16 different ones.
    pub status: Option<i32>,
    /// Its name, for the protocol's own statuses.
    pub name: Option<String>,
    /// Answers with this status.
    pub count: u64,
}

/// One function of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// The function's name.
    pub name: String,
    /// Latency of its right answers.
    pub latency: Latency,
}

/// A latency distribution in nanoseconds, with three significant digits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Latencies recorded.
    pub n: u64,
    /// The shortest.
    pub min: u64,
    /// Their mean.
    pub mean: f64,
    /// The median.
    pub p50: u64,
    /// 90 % are not longer.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p99_9: u64,
    /// 99.99 %.
    pub p99_99: u64,
    /// The longest.
    pub max: u64,
}

impl Latency {
    /// Summarises a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Self {
            n: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            p99_99: at(0.9999),
            max: histogram.max(),
        }
    }
}

/// How an open loop's client kept its schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// From the moment a request was due to the moment it was sent, of every request.
    pub lag: Latency,
    /// Latency from the moment a request was sent: without what the client itself was late.
    pub from_sent: Latency,
    /// Every lag, in nanoseconds.
    pub lag_histogram: Sparse,
    /// Every latency from the sending, in nanoseconds.
    pub from_sent_histogram: Sparse,
}

impl Schedule {
    /// Of its two histograms; `None` where nothing was sent on a schedule.
    pub fn of(lag: &Histogram<u64>, from_sent: &Histogram<u64>) -> Option<Self> {
        (!lag.is_empty()).then(|| Self {
            lag: Latency::of(lag),
            from_sent: Latency::of(from_sent),
            lag_histogram: Sparse::of(lag),
            from_sent_histogram: Sparse::of(from_sent),
        })
    }

    /// That of several runs together; `None` where none of them had one.
    pub fn merged<'a>(runs: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let (mut lag, mut from_sent) = (histogram(), histogram());
        for run in runs {
            lag.add(run.lag_histogram.histogram()).expect("equal bounds");
            from_sent.add(run.from_sent_histogram.histogram()).expect("equal bounds");
        }
        Self::of(&lag, &from_sent)
    }
}

/// Points of the spectrum per halving of the distance to quantile 1.
const SPECTRUM_TICKS: u32 = 8;

impl CaseReport {
    /// Summarises a case; what only a suite knows stays empty.
    pub fn of(case: &Case) -> Self {
        let seconds = case.answering.as_secs_f64();
        let answered = case.counts.answered as f64;
        let refusal = |(code, count)| Refusal { status: Some(code), name: status::name(code).map(Into::into), count };
        let others = case.refusals.others();
        let others = (others > 0).then_some(Refusal { status: None, name: None, count: others });
        Self {
            name: case.name.clone(),
            payload_bytes: case.payload,
            shots: case.shots,
            seconds,
            answered_per_s: if seconds > 0.0 { answered / seconds } else { 0.0 },
            counts: case.counts,
            refusals: case.refusals.iter().map(refusal).chain(others).collect(),
            latency: Latency::of(&case.latency),
            schedule: Schedule::of(&case.lag, &case.from_sent),
            functions: case
                .functions
                .iter()
                .map(|(name, histogram)| FunctionReport { name: (*name).into(), latency: Latency::of(histogram) })
                .collect(),
            hiccups: Hiccups::of(&case.hiccups),
            bounce_before: case.bounce_before,
            bounce_after: case.bounce_after,
            port_counters: case.port_counters.iter().map(|(name, value)| ((*name).into(), *value)).collect(),
            first_mistake: case.first_mistake.map(|first| first.to_string()),
            spectrum: spectrum(&case.latency),
            timeline: case.points.clone(),
            histogram: Sparse::of(&case.latency),
            hiccup_histogram: Sparse::of(&case.hiccups),
            streams: Vec::new(),
            distance: None,
            baseline_of: None,
            contestant: None,
            server: None,
            client: None,
            setup: None,
            turns: Vec::new(),
        }
    }
}

impl CaseReport {
    /// Logical errors of the shots that were decoded: a shot that was decoded again tells nothing new. `None` where there are
    /// none.
    pub fn logical_errors(&self) -> Option<Rate> {
        let Counts { predictions, logical_errors, .. } = self.counts;
        let shots = predictions.min(self.shots? as u64);
        let errors = (logical_errors as f64 / predictions as f64 * shots as f64).round() as u64;
        (shots > 0).then_some(Rate { errors, shots })
    }
}

/// The quantiles that the recorded values tell apart.
pub(crate) fn spectrum(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let steps = histogram.iter_quantiles(SPECTRUM_TICKS);
    steps.map(|step| (step.quantile_iterated_to(), step.value_iterated_to().min(histogram.max()))).collect()
}

impl Report {
    /// What it is called where there is no better name: the suite, or the port.
    pub fn name(&self) -> &str {
        let suite = self.suite.as_ref().map(|suite| suite.name.as_str());
        suite.or(self.setup.as_ref().map(|setup| setup.port.as_str())).unwrap_or("report")
    }

    /// The results of a run, whose cases share one setup.
    pub(crate) fn new(environment: Environment, job: &Job, cpu: usize, cases: &[Case]) -> Self {
        let Job { pace: args, way, spoken, .. } = job;
        let (pacing, window, rate_per_s, burst) = match job.pacing {
            Pacing::Closed { window } => ("closed", Some(window as u64), None, None),
            Pacing::Open { rate, burst } => ("open", None, Some(rate), Some(burst)),
        };
        let (count, duration_s) = match args.limit() {
            Limit::Count(count) => (Some(count), None),
            Limit::Duration(duration) => (None, Some(duration.as_secs_f64())),
        };
        let setup = Setup {
            port: way.name().to_owned(),
            peer: way.peer().to_string(),
            header: spoken.header.clone(),
            ptp: spoken.ptp.into(),
            echo: spoken.echo,
            cpu,
            pacing: pacing.into(),
            window,
            rate_per_s,
            burst,
            count,
            duration_s,
            warmup_s: args.warmup.as_secs_f64(),
            timeout_ms: args.timeout,
            shots: spoken.shots.clone(),
            fault: way.fault().map(|fault| fault.text.clone()),
        };
        let cases = cases.iter().map(CaseReport::of).collect();
        Self { schema_version: SCHEMA_VERSION, environment, setup: Some(setup), cases, suite: None }
    }
}
