//! Some shots at a time, decoded by the calling thread or by several.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::Scope,
    time::{Duration, Instant},
};

use anyhow::Result;
use berth_qec::{Decoder, Tables};

use super::{Job, files::Rows};

/// Bytes of detection events in a batch, unless a single shot has more.
const EVENTS: usize = 1 << 16;
/// The most shots of a batch.
const SHOTS: usize = 4096;
/// Batches of each thread that are under way.
const AHEAD: usize = 2;

/// Shots, and what a decoder made of them.
#[derive(Debug)]
pub(super) struct Batch {
    events: Vec<u8>,
    flips: Vec<u8>,
    answered: Vec<bool>,
    gaps: Vec<f32>,
    events_per_shot: usize,
    flips_per_shot: usize,
    pub(super) shots: usize,
    pub(super) unanswered: u64,
    pub(super) exhausted: u64,
    pub(super) took: Duration,
}

impl Batch {
    fn new(tables: &Tables) -> Self {
        let (events_per_shot, flips_per_shot) =
            (tables.num_detectors().div_ceil(8), tables.num_observables().div_ceil(8));
        let shots = (EVENTS / events_per_shot.max(1)).clamp(1, SHOTS);
        Self {
            events: vec![0; shots * events_per_shot],
            flips: vec![0; shots * flips_per_shot],
            answered: vec![false; shots],
            gaps: vec![0.0; shots],
            events_per_shot,
            flips_per_shot,
            shots: 0,
            unanswered: 0,
            exhausted: 0,
            took: Duration::ZERO,
        }
    }

    /// Reads shots until it is full, the file ends or a shot is wrong; those before that one are there.
    pub(super) fn fill(&mut self, rows: &mut Rows) -> Result<()> {
        while self.shots < self.answered.len() {
            let at = self.shots * self.events_per_shot;
            if !rows.next(&mut self.events[at..at + self.events_per_shot])? {
                break;
            }
            self.shots += 1;
        }
        Ok(())
    }

    fn decode(&mut self, decoder: &mut Decoder) {
        let (started, exhausted) = (Instant::now(), decoder.exhausted());
        self.unanswered = 0;
        for shot in 0..self.shots {
            let events = &self.events[shot * self.events_per_shot..][..self.events_per_shot];
            let flips = &mut self.flips[shot * self.flips_per_shot..][..self.flips_per_shot];
            let answered = decoder.decode(events, flips).is_ok();
            if !answered {
                flips.fill(0);
                self.unanswered += 1;
            }
            self.answered[shot] = answered;
            self.gaps[shot] = decoder.gap().filter(|_| answered).unwrap_or(0.0) as f32;
        }
        self.took = started.elapsed();
        self.exhausted = decoder.exhausted() - exhausted;
    }

    pub(super) fn flips_per_shot(&self) -> usize {
        self.flips_per_shot
    }

    /// The prediction of each shot.
    pub(super) fn flips(&self) -> impl Iterator<Item = &[u8]> {
        self.flips.chunks_exact(self.flips_per_shot).take(self.shots)
    }

    /// The gap of each prediction, 0 without an answer.
    pub(super) fn gaps(&self) -> impl Iterator<Item = f32> {
        self.gaps.iter().copied().take(self.shots)
    }

    /// Whether each shot had an answer.
    pub(super) fn answered(&self) -> impl Iterator<Item = bool> {
        self.answered.iter().copied().take(self.shots)
    }
}

/// A thread with a decoder of its own.
struct Worker {
    batches: SyncSender<Batch>,
    done: Receiver<Batch>,
}

/// Decodes batches; they come back in the order in which they went.
pub(super) struct Decoders {
    tables: Arc<Tables>,
    own: Option<Decoder>,
    workers: Vec<Worker>,
    /// The workers of the batches under way, the oldest first.
    under_way: VecDeque<usize>,
    next: usize,
    spare: Vec<Batch>,
}

impl Decoders {
    pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, job: &Job) -> Self {
        let Job { tables, confidences, threads, .. } = job;
        let make = || {
            let decoder = Decoder::new(tables.clone());
            match confidences {
                Some((_, gap)) => decoder.with_gap(gap.clone()),
                None => decoder,
            }
        };
        let worker = |_| {
            let (batches, work) = sync_channel::<Batch>(AHEAD);
            let (finished, done) = sync_channel(AHEAD);
            let mut decoder = make();
            scope.spawn(move || {
                for mut batch in work {
                    batch.decode(&mut decoder);
                    // Whoever does not listen any more wants none.
                    let _ = finished.send(batch);
                }
            });
            Worker { batches, done }
        };
        let workers = if *threads > 1 { (0..*threads).map(worker).collect() } else { Vec::new() };
        let own = workers.is_empty().then(make);
        Self { tables: tables.clone(), own, workers, under_way: VecDeque::new(), next: 0, spare: Vec::new() }
    }

    /// An empty batch.
    pub(super) fn spare(&mut self) -> Batch {
        self.spare.pop().unwrap_or_else(|| Batch::new(&self.tables))
    }

    /// Takes back a batch that is of no more use.
    pub(super) fn give_back(&mut self, mut batch: Batch) {
        batch.shots = 0;
        self.spare.push(batch);
    }

    /// Takes on a batch, and returns one that is decoded where enough are under way.
    pub(super) fn decode(&mut self, mut batch: Batch) -> Option<Batch> {
        if let Some(decoder) = &mut self.own {
            batch.decode(decoder);
            return Some(batch);
        }
        let done = if self.under_way.len() == AHEAD * self.workers.len() { self.finish() } else { None };
        self.workers[self.next].batches.send(batch).expect("workers end only when nobody sends any more");
        self.under_way.push_back(self.next);
        self.next = (self.next + 1) % self.workers.len();
        done
    }

    /// The oldest batch under way, once it is decoded.
    pub(super) fn finish(&mut self) -> Option<Batch> {
        let worker = self.under_way.pop_front()?;
        Some(self.workers[worker].done.recv().expect("a worker answers every batch"))
    }
}
