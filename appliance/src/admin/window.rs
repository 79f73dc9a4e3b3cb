//! Latencies of late: the difference between two readings of the histograms.

use std::time::{Duration, Instant};

use berth_engine::{Summary, Telemetry, Timed};
use serde::{Deserialize, Serialize};

use super::metrics::{HISTOGRAMS, family};

/// Readings are at least so far apart; those who ask more often see the same.
const SPAN: Duration = Duration::from_millis(900);

/// One stage of one lcore or worker, and how long it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The lcore or worker.
    pub thread: String,
    /// The port; `None` is the whole lcore.
    pub port: Option<String>,
    /// The name of the histogram, such as `service_time`; `kernel_time_NAME` is a ring kernel's.
    pub stage: String,
    /// What the window recorded, in nanoseconds.
    pub summary: Summary,
}

/// The last two readings.
#[derive(Debug, Default)]
pub struct Window {
    last: Option<(Instant, Vec<Timed>)>,
    span_s: f64,
    latencies: Vec<Latency>,
}

impl Window {
    /// How many seconds the window is long, and what was recorded in it: by port, in the order of a request's way. The
    /// first is as long as the uptime.
    pub(super) fn look(&mut self, telemetry: &Telemetry, started: Instant) -> (f64, Vec<Latency>) {
        let now = Instant::now();
        let since = self.last.as_ref().map_or(started, |(at, _)| *at);
        if self.last.is_none() || now - since >= SPAN {
            let readings = telemetry.histograms();
            let before = self.last.take().map(|(_, before)| before).unwrap_or_default();
            self.latencies = readings.iter().map(|timed| latency(timed, &before)).collect();
            let place = |latency: &Latency| HISTOGRAMS.iter().position(|(name, _)| *name == family(&latency.stage).0);
            self.latencies.sort_by_cached_key(|latency| (latency.port.clone(), place(latency), latency.thread.clone()));
            self.span_s = (now - since).as_secs_f64();
            self.last = Some((now, readings));
        }
        (self.span_s, self.latencies.clone())
    }
}

fn latency(timed: &Timed, before: &[Timed]) -> Latency {
    let same = |other: &&Timed| (&other.thread, &other.port, other.name) == (&timed.thread, &timed.port, timed.name);
    let mut recorded = timed.histogram.clone();
    if let Some(before) = before.iter().find(same) {
        // Counts only grow, so this cannot fail; if it did, the window would be the uptime.
        let _ = recorded.subtract(&before.histogram);
    }
    let (thread, port) = (timed.thread.clone(), timed.port.clone());
    Latency { thread, port, stage: timed.name.to_owned(), summary: recorded.into() }
}
