//! A task as a core polls it.

use std::num::NonZeroU32;

use crate::Recorder;

/// A task with what its core knows of it: where telemetry shows it, its weight, and its histograms.
///
/// It is `Send` where the task is, so it can be built on any thread and added to an [`Lcore`](crate::Lcore) on the one
/// that runs it.
#[derive(Debug)]
pub struct Polled<T> {
    pub(crate) task: T,
    pub(crate) shown: Shown,
    pub(crate) weight: NonZeroU32,
    pub(crate) histograms: Vec<(&'static str, Recorder)>,
}

/// Where telemetry shows a task.
#[derive(Debug, Clone)]
pub(crate) enum Shown {
    /// Among the lanes of its lcore.
    Lane(String),
    /// Among the workers.
    Worker { name: String, port: String },
}

impl<T> Polled<T> {
    /// A task that serves a port by itself. The name appears in telemetry.
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

    /// How much of the core's time this task gets, relative to the others, while they all have work; 1 unless said.
    #[must_use]
    pub fn weight(self, weight: NonZeroU32) -> Self {
        Self { weight, ..self }
    }

    /// Shows, under `name`, a histogram that the task records into.
    #[must_use]
    pub fn histogram(mut self, name: &'static str, recorder: &Recorder) -> Self {
        self.histograms.push((name, recorder.clone()));
        self
    }
}
