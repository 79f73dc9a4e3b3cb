//! Decoding of files of shots, and the choice of an algorithm: what `berth decode` does.
//!
//! ```text
//! files    shots in and predictions out, in Stim's formats, of any length in bounded memory
//! batch    some shots at a time, by one decoder or by one on each of several threads, in the order of the file
//! rate     a share of shots, with its interval
//! sinter   results as sinter, Stim's tool for statistics, reads them
//! tune     the decoder that is most accurate within a deadline
//! ```

mod batch;
mod files;
mod rate;
mod sinter;
mod tune;

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use berth_qec::{
    Tables,
    gap::Gap,
    shots::{Bits, Format},
};

pub use files::format_of;
pub use rate::Rate;
pub use sinter::csv;
pub use tune::{Measured, Samples, best, measure};

use batch::{Batch, Decoders};
use files::{Predictions, Rows};

/// A file of shots.
#[derive(Debug, Clone)]
pub struct ShotFile {
    /// Where.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
}

/// What to decode.
#[derive(Debug, Clone)]
pub struct Job {
    /// The decoder's tables; each thread has a decoder of its own on them.
    pub tables: Arc<Tables>,
    /// Detection events, in rows of the tables' number of detectors.
    pub shots: ShotFile,
    /// Where the predictions go, if anywhere.
    pub predictions: Option<ShotFile>,
    /// Where the gap of each prediction goes, if anywhere: a binary32 in little-endian order for each shot, 0 for one without an
    /// answer. The gap is of the same tables.
    pub confidences: Option<(PathBuf, Arc<Gap>)>,
    /// The observables that were flipped, or what another decoder predicted.
    pub reference: Option<ShotFile>,
    /// Threads that decode: with 1, the one that calls.
    pub threads: usize,
}

/// What came of a [`Job`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Shots of the file.
    pub shots: u64,
    /// Those for which the decoder had no answer; no observable is flipped in their predictions.
    pub unanswered: u64,
    /// Those that took more steps than matching may, and were finished by union-find.
    pub exhausted: u64,
    /// Those whose prediction differs from the reference, or that have none; `None` without a reference.
    pub errors: Option<u64>,
    /// Time spent in the decoder, gaps included, summed over threads.
    pub decoding: Duration,
    /// Time from the first byte read to the last one written.
    pub elapsed: Duration,
}

impl Outcome {
    fn add(&mut self, batch: &Batch) {
        self.shots += batch.shots as u64;
        self.unanswered += batch.unanswered;
        self.exhausted += batch.exhausted;
        self.decoding += batch.took;
    }
}

/// Decodes a file from its beginning to its end. Predictions do not depend on the number of threads.
///
/// Where a shot is wrong, the error names the file, the shot and the byte; the predictions of the shots before it are written.
pub fn run(job: &Job) -> Result<Outcome> {
    let started = Instant::now();
    let detectors = job.tables.num_detectors();
    let observables = job.tables.num_observables();
    ensure!(observables > 0, "the model has no observables, so there is nothing to predict");
    let mut shots = Rows::open(&job.shots, Bits::Detectors, detectors)?;
    let mut reference =
        job.reference.as_ref().map(|file| Rows::open(file, Bits::Observables, observables)).transpose()?;
    let mut predictions = job.predictions.as_ref().map(|file| Predictions::create(file, observables)).transpose()?;
    let mut confidences = job.confidences.as_ref().map(|(path, _)| create(path)).transpose()?;
    let mut outcome = Outcome { errors: reference.as_ref().map(|_| 0), ..Outcome::default() };
    let read = std::thread::scope(|scope| -> Result<()> {
        let mut decoders = Decoders::start(scope, job);
        let mut settle = |batch: &Batch| -> Result<()> {
            if let (Some(rows), Some(errors)) = (&mut reference, &mut outcome.errors) {
                *errors += differences(batch, rows, &job.shots)?;
            }
            if let Some(predictions) = &mut predictions {
                predictions.write(batch.flips())?;
            }
            if let Some((path, file)) = &mut confidences {
                let written = batch.gaps().try_for_each(|gap| file.write_all(&gap.to_le_bytes()));
                written.with_context(|| path.display().to_string())?;
            }
            outcome.add(batch);
            Ok(())
        };
        // A fault of the file does not stop what was read before it.
        let mut fault = Ok(());
        loop {
            let mut batch = decoders.spare();
            fault = fault.and_then(|()| batch.fill(&mut shots));
            if batch.shots == 0 {
                break;
            }
            if let Some(done) = decoders.decode(batch) {
                settle(&done)?;
                decoders.give_back(done);
            }
        }
        while let Some(done) = decoders.finish() {
            settle(&done)?;
        }
        fault
    });
    let written = predictions.map_or(Ok(()), |predictions| predictions.finish(read.is_ok()));
    let flushed =
        confidences.map_or(Ok(()), |(path, mut file)| file.flush().with_context(|| path.display().to_string()));
    read.and(written).and(flushed)?;
    if let Some(rows) = &mut reference {
        let mut row = vec![0; observables.div_ceil(8)];
        ensure!(
            !rows.next(&mut row)?,
            "{} has more shots than the {} of {}",
            rows.path().display(),
            outcome.shots,
            job.shots.path.display()
        );
    }
    outcome.elapsed = started.elapsed();
    Ok(outcome)
}

fn create(path: &PathBuf) -> Result<(&PathBuf, BufWriter<File>)> {
    Ok((path, BufWriter::new(File::create(path).with_context(|| path.display().to_string())?)))
}

/// How many shots of a batch were predicted unlike the next ones of the reference, or not at all.
fn differences(batch: &Batch, reference: &mut Rows, shots: &ShotFile) -> Result<u64> {
    let mut errors = 0;
    let mut row = vec![0; batch.flips_per_shot()];
    for (predicted, answered) in batch.flips().zip(batch.answered()) {
        ensure!(
            reference.next(&mut row)?,
            "{} has {} shots; {} has more",
            reference.path().display(),
            reference.shots(),
            shots.path.display()
        );
        errors += u64::from(!answered || predicted != row);
    }
    Ok(errors)
}
