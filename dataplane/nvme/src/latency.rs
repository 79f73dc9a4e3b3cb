//! How long I/O commands take, stage by stage, by the clock reading of each turn.

use std::fmt;

use berth_port::{Nanos, Recorder};

use crate::queue::Slot;

/// Histograms of the stages of I/O commands, in nanoseconds. Clones are the same histograms, of one poll core.
///
/// ```text
///  capsule          data is there          blocks are done         answer is sent
///     │◀── data_time ───▶│◀──── access_time ────▶│◀──── answer_time ────▶│
///     │◀──────────────────────── command_time ─────────────────────────▶│
/// ```
#[derive(Debug, Clone, Default)]
pub struct Latencies {
    data: Recorder,
    access: Recorder,
    answer: Recorder,
    command: Recorder,
}

impl Latencies {
    /// The histograms with their names, in the order of a command's way.
    pub fn histograms(&self) -> [(&'static str, &Recorder); 4] {
        [
            ("data_time", &self.data),
            ("access_time", &self.access),
            ("answer_time", &self.answer),
            ("command_time", &self.command),
        ]
    }
}

/// The turns in which a command got on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stages {
    accepted: Nanos,
    /// All its data was there; `None` where it brings none.
    ready: Option<Nanos>,
    /// Its last access to blocks had ended; `None` where it is about memory, or nothing.
    accessed: Option<Nanos>,
}

/// Of one connection: commands whose answers are written and not sent yet, alike ones together. At most as many entries as
/// the queue has commands, and one.
pub(crate) struct Timing {
    latencies: Latencies,
    answered: Vec<(Stages, u64)>,
}

impl fmt::Debug for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timing({} answered)", self.answered.len())
    }
}

impl Timing {
    pub(crate) fn new(latencies: Latencies) -> Self {
        Self { latencies, answered: Vec::new() }
    }

    /// The answer of a command has been written.
    #[inline]
    pub(crate) fn answered(&mut self, slot: &Slot) {
        let Slot { accepted, ready, accessed, .. } = *slot;
        let stages = Stages { accepted, ready, accessed };
        match self.answered.last_mut() {
            Some((last, count)) if *last == stages => *count += 1,
            _ => self.answered.push((stages, 1)),
        }
    }

    /// What was written has been sent.
    #[inline]
    pub(crate) fn sent(&mut self, now: Nanos) {
        let Self { latencies: Latencies { data, access, answer, command }, answered } = self;
        for (Stages { accepted, ready, accessed }, count) in answered.drain(..) {
            let record = |to: &Recorder, from: Nanos, until: Nanos| to.record_n(until.0.saturating_sub(from.0), count);
            if let Some(ready) = ready {
                record(data, accepted, ready);
            }
            let ready = ready.unwrap_or(accepted);
            if let Some(accessed) = accessed {
                record(access, ready, accessed);
            }
            record(answer, accessed.unwrap_or(ready), now);
            record(command, accepted, now);
        }
    }
}
