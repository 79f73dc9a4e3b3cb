//! The results of one case, gathered interval by interval.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::{
    bounce::Bounce,
    emulator::FirstMistake,
    tally::{Counts, Interval, Refusals, histogram},
};

/// A case while it is measured, and after.
#[derive(Debug, Clone)]
pub struct Case {
    /// What it does, for people.
    pub name: String,
    /// Payload bytes, where the mix has a function with a choice.
    pub payload: Option<usize>,
    /// Different shots that are decoded, over and over.
    pub shots: Option<usize>,
    /// Each called function with its latencies in nanoseconds, in the order of the mix's steps.
    pub functions: Vec<(&'static str, Histogram<u64>)>,
    /// The latencies of all functions, in nanoseconds.
    pub latency: Histogram<u64>,
    /// Open loop: how late requests were sent, in nanoseconds.
    pub lag: Histogram<u64>,
    /// Open loop: latencies from the moment a request was really sent, in nanoseconds.
    pub from_sent: Histogram<u64>,
    /// Gaps between the client's polls in nanoseconds.
    pub hiccups: Histogram<u64>,
    /// What became of its requests.
    pub counts: Counts,
    /// Statuses other than 0.
    pub refusals: Refusals,
    /// The time until the last right answer: what follows is waiting for lost ones.
    pub answering: Duration,
    /// The course of the case: a point for each interval.
    pub points: Vec<Point>,
    /// The bounce just before; `None` with a single CPU, or when one was busy throughout.
    pub bounce_before: Option<Bounce>,
    /// The bounce just after; `None` likewise.
    pub bounce_after: Option<Bounce>,
    /// How much each counter of the port grew meanwhile.
    pub port_counters: Vec<(&'static str, u64)>,
    /// The first answer that was not what it had to be.
    pub first_mistake: Option<FirstMistake>,
}

/// One interval of a case.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds from the start of the case to the start of the interval.
    pub at_s: f64,
    /// Length of the interval in seconds.
    pub seconds: f64,
    /// Requests answered right.
    pub answered: u64,
    /// Median latency in nanoseconds; 0 where nothing was answered.
    pub p50_ns: u64,
    /// 99th percentile in nanoseconds.
    pub p99_ns: u64,
    /// Longest latency in nanoseconds.
    pub max_ns: u64,
    /// Longest gap between two polls of the client in nanoseconds.
    pub hiccup_ns: u64,
}

impl Case {
    /// An empty case whose mix calls `functions`, in the order of its steps.
    pub fn new(name: String, payload: Option<usize>, functions: &[&'static str]) -> Self {
        Self {
            name,
            payload,
            shots: None,
            functions: functions.iter().map(|name| (*name, histogram())).collect(),
            latency: histogram(),
            lag: histogram(),
            from_sent: histogram(),
            hiccups: histogram(),
            counts: Counts::default(),
            refusals: Refusals::default(),
            answering: Duration::ZERO,
            points: Vec::new(),
            bounce_before: None,
            bounce_after: None,
            port_counters: Vec::new(),
            first_mistake: None,
        }
    }

    /// Adds what the next interval measured; intervals come in their order.
    pub fn add(&mut self, interval: &Interval) {
        let mut all = histogram();
        for ((_, total), latency) in self.functions.iter_mut().zip(&interval.latency) {
            total.add(latency).expect("equal bounds");
            all.add(latency).expect("equal bounds");
        }
        self.latency.add(&all).expect("equal bounds");
        self.lag.add(&interval.lag).expect("equal bounds");
        self.from_sent.add(&interval.from_sent).expect("equal bounds");
        self.hiccups.add(&interval.hiccups).expect("equal bounds");
        self.counts.add(&interval.counts);
        self.refusals.merge(&interval.refusals);
        if interval.counts.answered > 0 {
            self.answering = self.elapsed() + (interval.last_answer - interval.start);
        }
        self.points.push(Point {
            at_s: self.elapsed().as_secs_f64(),
            seconds: (interval.end - interval.start).as_secs_f64(),
            answered: interval.counts.answered,
            p50_ns: all.value_at_quantile(0.5),
            p99_ns: all.value_at_quantile(0.99),
            max_ns: all.max(),
            hiccup_ns: interval.hiccups.max(),
        });
    }

    /// Right answers to a function.
    pub fn answered(&self, function: &str) -> u64 {
        self.functions.iter().filter(|(name, _)| *name == function).map(|(_, latency)| latency.len()).sum()
    }

    /// The time measured so far: the end of the last point.
    pub fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.points.last().map_or(0.0, |point| point.at_s + point.seconds))
    }
}
