//! Windows that many cores decode at once.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::{
    MAX_CORES, Pool, Windows,
    plan::{Gaps, Slice},
    pool::{Done, Job, Place, Work},
    rows::Rows,
    stream::Course,
};
use crate::decoder::{DecodeError, Decoder};

/// Which parallel windows of an experiment are decoded, and by whom.
///
/// Each window is made of the events as they came, and each gap of these and what the windows beside it have decided. So
/// nothing depends on which core is ready first.
#[derive(Debug)]
pub(super) struct Parallel {
    /// By slice, those that nobody has: as many as windows are decoded at a time.
    #[expect(clippy::vec_box, reason = "they are handed over")]
    idle: Vec<Vec<Box<Decoder>>>,
    pool: Option<Pool>,
    /// Windows that others may have at a time; 0 without a pool.
    most: usize,
    /// Those that others have decoded.
    done: Arc<ArrayQueue<Done>>,
    /// Those that others have.
    out: usize,
    /// Windows and gaps that were begun.
    windows: u64,
    gaps: u64,
    /// Which of the windows from `gaps` on are decided, a bit each.
    decided: u64,
    /// Detectors that decided errors flip, of the rounds whose gaps were not begun.
    flipped: Rows,
    /// The limit on the steps of a window, where there is one.
    steps: Option<u64>,
    /// Windows that were out of steps.
    exhausted: u64,
}

fn gaps(windows: &Windows) -> &Gaps {
    windows.gaps.as_ref().expect("the windows are parallel")
}

impl Parallel {
    /// At the beginning of an experiment; a pool with the number of cores that may decode its windows, with this one.
    pub(super) fn new(windows: &Windows, pool: Option<(&Pool, usize)>) -> Self {
        let most = pool.map_or(0, |(pool, cores)| pool.helpers().min(cores.clamp(1, MAX_CORES) - 1));
        let decoder = |slice: &Slice| Box::new(Decoder::new(slice.tables.clone()));
        let idle: Vec<Vec<_>> =
            windows.slices.iter().map(|slice| (0..=most).map(|_| decoder(slice)).collect()).collect();
        // Those of the windows that others may have, of the one before them, of the one that arrives, and the most that the last
        // one is longer.
        let whole = if windows.edge().is_some() { usize::MAX } else { windows.rounds.len() };
        let rounds = (most + 3).saturating_mul(windows.window).min(whole);
        Self {
            steps: idle[0][0].steps(),
            idle,
            pool: pool.map(|(pool, _)| pool.clone()),
            most,
            done: Arc::new(ArrayQueue::new(most.max(1))),
            out: 0,
            windows: 0,
            gaps: 0,
            decided: 0,
            flipped: Rows::new(rounds, windows.round_words),
            exhausted: 0,
        }
    }

    /// Rounds whose events are needed at a time.
    pub(super) fn rounds(&self) -> usize {
        self.flipped.count() as usize
    }

    /// Rounds whose errors are decided once all windows are decoded that have arrived, but the last.
    pub(super) fn decided(windows: &Windows, repeated: u64, arrived: u64) -> u64 {
        let whole = (arrived / windows.window as u64).min(windows.count(repeated) - 1);
        whole.checked_sub(1).map_or(0, |last| last * windows.window as u64 + gaps(windows).until as u64)
    }

    /// Waits until the row of the next round is not needed any more, and clears it.
    pub(super) fn make_room(&mut self, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        while self.oldest(windows, course) + course.rows.count() <= course.arrived {
            self.wait(windows, course)?;
        }
        course.rows.row(course.arrived).fill(0);
        Ok(())
    }

    /// The first round whose events are needed.
    fn oldest(&self, windows: &Windows, course: &Course) -> u64 {
        let of_window = self.windows * windows.window as u64;
        let gap = self.gaps * windows.window as u64 + gaps(windows).until as u64;
        if self.gaps + 1 < windows.count(course.repeated) { of_window.min(gap) } else { of_window }
    }

    /// Begins the windows that have arrived whole.
    pub(super) fn arrive(&mut self, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        while let Some(done) = self.done.pop() {
            self.out -= 1;
            self.finish(done, windows, course)?;
        }
        let count = windows.count(course.repeated);
        while self.windows < count {
            let first = self.windows * windows.window as u64;
            let is_last = self.windows + 1 == count;
            let is_whole = if is_last {
                course.total == Some(course.arrived)
            } else {
                course.arrived >= first + windows.window as u64
            };
            if !is_whole {
                break;
            }
            let slice = windows.slice(self.windows, course.repeated);
            let mut work = self.work(Place::Window(self.windows), slice);
            let word = |round, at| course.rows.word(first + round, at);
            windows.slices[slice].load(work.decoder.events_mut(), word);
            self.windows += 1;
            self.begin(work, windows, course)?;
        }
        Ok(())
    }

    /// Begins the gaps both of whose windows are decided.
    fn close_gaps(&mut self, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        while self.decided & 0b11 == 0b11 {
            let first = self.gaps * windows.window as u64 + gaps(windows).until as u64;
            let slice = windows.gap(gaps(windows), self.gaps, course.repeated);
            let mut work = self.work(Place::Gap(self.gaps), slice);
            let word = |round, at| course.rows.word(first + round, at) ^ self.flipped.word(first + round, at);
            windows.slices[slice].load(work.decoder.events_mut(), word);
            let rounds = windows.slices[slice].starts.len() as u64 - 1;
            (first..first + rounds).for_each(|round| self.flipped.row(round).fill(0));
            self.gaps += 1;
            self.decided >>= 1;
            self.begin(work, windows, course)?;
        }
        Ok(())
    }

    /// An idle decoder, which limits its steps from now on.
    fn work(&mut self, place: Place, slice: usize) -> Work {
        let mut decoder = self.idle[slice].pop().expect("there are as many as windows are decoded at a time");
        if let Some(steps) = self.steps {
            decoder.set_steps(steps);
        }
        Work { place, slice, exhausted: decoder.exhausted(), decoder }
    }

    /// Hands a window to another core if these have not enough, else decodes it.
    fn begin(&mut self, work: Work, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        let work = match &self.pool {
            Some(pool) if self.out < self.most => match pool.push(Job { work, done: self.done.clone() }) {
                Ok(()) => {
                    self.out += 1;
                    return Ok(());
                }
                Err(job) => job.work,
            },
            _ => work,
        };
        self.finish(work.run(), windows, course)
    }

    /// Takes what a window has decided.
    fn finish(&mut self, done: Done, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        let Done { work: Work { place, slice: index, decoder, exhausted }, outcome } = done;
        self.exhausted += decoder.exhausted() - exhausted;
        let decoded = outcome.map(|outcome| {
            outcome.map(|()| {
                let first = match place {
                    Place::Window(at) => at * windows.window as u64,
                    Place::Gap(_) => 0,
                };
                let (slice, observables) = (&windows.slices[index], windows.num_observables);
                slice.tell(decoder.answer(), observables, &mut course.flips, |round, place| {
                    self.flipped.flip(first + round, place);
                });
            })
        });
        self.idle[index].push(decoder);
        decoded.expect("the decoder of a window panicked")?;
        let Place::Window(at) = place else { return Ok(()) };
        self.decided |= 1 << (at - self.gaps);
        self.close_gaps(windows, course)
    }

    /// Takes a window that another core has decoded, or decodes one of those that wait.
    fn wait(&mut self, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        if let Some(done) = self.done.pop() {
            self.out -= 1;
            return self.finish(done, windows, course);
        }
        self.help();
        Ok(())
    }

    /// Decodes one of the windows that wait, if there is one.
    fn help(&self) {
        if !self.pool.as_ref().is_some_and(Pool::help) {
            std::hint::spin_loop();
        }
    }

    /// Waits for all that others decode.
    pub(super) fn settle(&mut self, windows: &Windows, course: &mut Course) -> Result<(), DecodeError> {
        while self.out > 0 {
            self.wait(windows, course)?;
        }
        Ok(())
    }

    /// Goes on where another one is, of which nobody decodes a window.
    pub(super) fn take_over(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.flipped, &mut other.flipped);
        (self.windows, self.gaps, self.decided) = (other.windows, other.gaps, other.decided);
    }

    /// Begins anew, once nobody decodes a window of it.
    pub(super) fn reset(&mut self) {
        while self.out > 0 {
            match self.done.pop() {
                None => self.help(),
                Some(Done { work, .. }) => {
                    self.out -= 1;
                    self.exhausted += work.decoder.exhausted() - work.exhausted;
                    self.idle[work.slice].push(work.decoder);
                }
            }
        }
        (self.windows, self.gaps, self.decided) = (0, 0, 0);
        self.flipped.clear();
    }

    pub(super) fn set_steps(&mut self, steps: u64) {
        self.steps = self.steps.map(|_| steps);
    }

    pub(super) fn steps(&self) -> Option<u64> {
        self.steps
    }

    /// Windows that were out of steps, of those that are back.
    pub(super) fn exhausted(&self) -> u64 {
        self.exhausted
    }
}
