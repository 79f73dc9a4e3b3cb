//! A task with what its core needs to poll it.

use std::num::NonZeroU32;

use berth_port::Recorder;

/// A task with its name in telemetry, its weight and its histograms.
///
/// It is `Send` if the task is, so it can be built on any thread and added to an [`Lcore`](crate::Lcore) on the one
/// that runs it.
#[derive(Debug)]
pub struct Polled<T> {
    pub(crate) task: T,
    pub(crate) shown: Shown,
    pub(crate) weight: NonZeroU32,
    pub(crate) histograms: Vec<(&'static str, Recorder)>,
}

/// Where telemetry lists a task.
#[derive(Debug, Clone)]
pub(crate) enum Shown {
    /// Among the lanes of its lcore.
    Lane(String),
    /// Among the workers, with the port that it serves.
    Worker { name: String, port: String },
}

impl<T> Polled<T> {
    /// A task that serves a port by itself. `name` appears in telemetry.
    pub fn port(name: impl Into<String>, task: T) -> Self {
        Self::new(Shown::Lane(name.into()), task)
    }

    /// A task that runs handlers for the requests of `port`.
    pub fn worker(name: impl Into<String>, port: impl Into<String>, task: T) -> Self {
        Self::new(Shown::Worker { name: name.into(), port: port.into() }, task)
    }

    pub(crate) fn new(shown: Shown, task: T) -> Self {
        Self { task, shown, weight: NonZeroU32::MIN, histograms: Vec::new() }
    }

    /// Sets the task's share of the core's time, relative to the others, while all of them have work. The default is 1.
    #[must_use]
    pub fn weight(self, weight: NonZeroU32) -> Self {
        Self { weight, ..self }
    }

    /// Adds a histogram that the task records into to telemetry, under `name`.
    #[must_use]
    pub fn histogram(mut self, name: &'static str, recorder: &Recorder) -> Self {
        self.histograms.push((name, recorder.clone()));
        self
    }
}
