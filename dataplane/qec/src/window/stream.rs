//! An experiment whose rounds arrive one by one.

use std::sync::Arc;

use super::{Pool, Windows, parallel::Parallel, rows::Rows};
use crate::{
    bits::{self, BitsError},
    decoder::{DecodeError, Decoder, Kind, Tables},
};

/// Why a round was not taken, or a stream cannot be as it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The round was there before.
    #[error("round {round} has arrived before; {next} is next")]
    Twice {
        /// The round that came.
        round: u64,
        /// The one that should.
        next: u64,
    },
    /// Rounds are missing before it.
    #[error("round {round} has arrived before {next}")]
    OutOfOrder {
        /// The round that came.
        round: u64,
        /// The one that should.
        next: u64,
    },
    /// All rounds of the experiment have arrived.
    #[error("the experiment has {0} rounds, and all are there")]
    Ended(u64),
    /// The events are not a bit string of the length for this round.
    #[error("events of a round: {0}")]
    Events(BitsError),
    /// A window could not be decoded.
    #[error(transparent)]
    Decode(DecodeError),
    /// A window could not be decoded before; only a reset clears that.
    #[error("a window of this experiment could not be decoded; reset the stream")]
    Failed,
    /// A reset has ended an experiment whose last rounds were not decided. The stream is at its beginning.
    #[error("{0} rounds had arrived that were not decided")]
    Undecided(u64),
    /// More measurements have come than the experiment has left.
    #[error("{count} measurements have arrived, the experiment has {left} left")]
    Beyond {
        /// Measurements that came.
        count: u64,
        /// Those that the experiment had left.
        left: u64,
    },
    /// A measurement map is of another model.
    #[error("the measurement map makes {map} detectors, the model has {model}")]
    Map {
        /// Rows of the map.
        map: usize,
        /// Number of detectors in the model.
        model: usize,
    },
    /// The map does not tell which measurements the rounds of a longer experiment are made of.
    #[error(
        "the measurements of round {0} differ from those of the round that it repeats; experiments with another number of rounds than \
         the model need the same ones, later"
    )]
    Measurements(u64),
    /// The tables are not those of [`Algorithm::Window`](crate::Algorithm::Window).
    #[error("streams need the algorithm window")]
    NoWindows,
    /// The model does not tell what an experiment of this length looks like.
    #[error(
        "the model has {model} rounds; experiments have as many, or, where two windows in its middle are alike, any multiple of \
         {step} more, or no end"
    )]
    Rounds {
        /// Rounds of the model.
        model: u64,
        /// Rounds from one window to the next.
        step: u64,
    },
}

/// An experiment that is decoded while its rounds arrive: a window as soon as its last round is there.
///
/// After it is made it allocates nothing.
#[derive(Debug)]
pub struct Stream {
    tables: Arc<Tables>,
    course: Course,
    order: Order,
    failed: bool,
}

/// How far an experiment is.
#[derive(Debug)]
pub(super) struct Course {
    /// Rounds of the experiment; `None` if it has no end.
    pub(super) total: Option<u64>,
    /// How often the periodic window comes in addition; of an experiment without end, for ever.
    pub(super) repeated: u64,
    /// Events of the rounds that windows may know of.
    pub(super) rows: Rows,
    /// Rounds that have arrived.
    pub(super) arrived: u64,
    /// Observables that the decided errors flip.
    pub(super) flips: Vec<u64>,
}

#[derive(Debug)]
enum Order {
    /// Windows that slide.
    Sliding {
        /// By slice.
        decoders: Vec<Decoder>,
        /// Windows that were decoded.
        decoded: u64,
    },
    Parallel(Box<Parallel>),
}

pub(super) fn windows(tables: &Tables) -> &Windows {
    let Kind::Windows(windows) = &tables.kind else { unreachable!("a stream is made of windows") };
    windows
}

impl Stream {
    /// A stream of experiments as long as the model. Errs where the tables are not of windows.
    pub fn new(tables: Arc<Tables>) -> Result<Self, StreamError> {
        let Kind::Windows(windows) = &tables.kind else { return Err(StreamError::NoWindows) };
        let rounds = windows.rounds.len() as u64;
        Self::with_rounds(tables, Some(rounds))
    }

    /// A stream of experiments of so many rounds, or without an end. Where that is more than the model has, the windows in its
    /// middle repeat.
    pub fn with_rounds(tables: Arc<Tables>, total: Option<u64>) -> Result<Self, StreamError> {
        let Kind::Windows(windows) = &tables.kind else { return Err(StreamError::NoWindows) };
        let repeated = windows.repeats(total)?;
        let order = match &windows.gaps {
            None => Order::Sliding {
                decoders: windows.slices.iter().map(|slice| Decoder::new(slice.tables.clone())).collect(),
                decoded: 0,
            },
            Some(_) => Order::Parallel(Box::new(Parallel::new(windows, None))),
        };
        let rows = match &order {
            Order::Sliding { .. } => windows.reach,
            Order::Parallel(parallel) => parallel.rounds(),
        };
        Ok(Self {
            course: Course {
                total,
                repeated,
                rows: Rows::new(rows, windows.round_words),
                arrived: 0,
                flips: vec![0; bits::words_for(windows.num_observables).max(1)],
            },
            order,
            failed: false,
            tables,
        })
    }

    /// Has other cores decode windows that are parallel, up to `cores` with this one; nothing of the predictions changes. To be
    /// called before the first round.
    #[must_use]
    pub fn helped(mut self, pool: &Pool, cores: usize) -> Self {
        if let Order::Parallel(parallel) = &mut self.order {
            let windows = windows(&self.tables);
            **parallel = Parallel::new(windows, Some((pool, cores)));
            self.course.rows = Rows::new(parallel.rounds(), windows.round_words);
        }
        self
    }

    /// Number of detectors in a round; 0 behind the last one.
    pub fn num_detectors(&self, round: u64) -> usize {
        let windows = windows(&self.tables);
        let round = windows.in_model(round, self.course.repeated);
        windows.rounds.get(round as usize).map_or(0, Vec::len)
    }

    /// Takes the events of a round, a bit for each of its detectors, in the order of the model, least significant bit first, and
    /// decodes the windows that it completes. Rounds come in order; what is refused changes nothing.
    pub fn round(&mut self, round: u64, events: &[u8]) -> Result<(), StreamError> {
        let next = self.course.arrived;
        if self.failed {
            return Err(StreamError::Failed);
        }
        if let Some(total) = self.course.total.filter(|total| next == *total) {
            return Err(StreamError::Ended(total));
        }
        match round {
            _ if round < next => return Err(StreamError::Twice { round, next }),
            _ if round > next => return Err(StreamError::OutOfOrder { round, next }),
            _ => {}
        }
        bits::check(events, self.num_detectors(round)).map_err(StreamError::Events)?;
        let taken = self.next_round(|row| {
            for (word, bytes) in row.iter_mut().zip(events.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word ^= u64::from_le_bytes(whole);
            }
        });
        taken.map_err(StreamError::Decode)
    }

    /// Takes the events of the next round from those of the whole model, and decodes the windows that it completes.
    pub(crate) fn round_of(&mut self, detectors: &[u32], events: &[u64]) -> Result<(), DecodeError> {
        self.next_round(|row| {
            for (at, detector) in detectors.iter().enumerate() {
                row[at / 64] ^= (events[*detector as usize / 64] >> (detector % 64) & 1) << (at % 64);
            }
        })
    }

    /// Takes the next round, whose events `add` adds to a row of words, and decodes the windows that it completes.
    pub(super) fn next_round(&mut self, add: impl FnOnce(&mut [u64])) -> Result<(), DecodeError> {
        // A window that panics leaves it failed as well.
        self.failed = true;
        let Self { tables, course, order, .. } = self;
        let windows = windows(tables);
        if let Order::Parallel(parallel) = order {
            parallel.make_room(windows, course)?;
        }
        add(course.rows.row(course.arrived));
        course.arrived += 1;
        match order {
            Order::Sliding { decoders, decoded } => course.slide(windows, decoders, decoded)?,
            Order::Parallel(parallel) => parallel.arrive(windows, course)?,
        }
        self.failed = false;
        Ok(())
    }

    /// Waits for the windows that other cores decode, and helps them. Until then neither [`Stream::flips`] knows of them, nor a failure.
    pub fn settle(&mut self) -> Result<(), StreamError> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StreamError::Failed);
        }
        if let Order::Parallel(parallel) = &mut self.order {
            parallel.settle(windows(&self.tables), &mut self.course).map_err(StreamError::Decode)?;
        }
        self.failed = false;
        Ok(())
    }

    /// Goes on where another stream is, which is at its end then. What is decided stays; what is not is decided by the tables of
    /// this one, which has to be at its beginning. The experiments are alike: see [`Tables::is_alike`].
    pub fn take_over(&mut self, other: &mut Self) {
        // It may have failed, and stays so.
        let _ = other.settle();
        std::mem::swap(&mut self.course.rows, &mut other.course.rows);
        std::mem::swap(&mut self.course.flips, &mut other.course.flips);
        (self.course.arrived, self.failed) = (other.course.arrived, other.failed);
        match (&mut self.order, &mut other.order) {
            (Order::Sliding { decoded, .. }, Order::Sliding { decoded: before, .. }) => *decoded = *before,
            (Order::Parallel(parallel), Order::Parallel(before)) => parallel.take_over(before),
            _ => unreachable!("their windows are alike"),
        }
    }

    /// Whether a window could not be decoded.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Rounds that have arrived.
    pub fn arrived(&self) -> u64 {
        self.course.arrived
    }

    /// Rounds whose errors are decided.
    pub fn decided(&self) -> u64 {
        let Course { total, repeated, arrived, .. } = &self.course;
        let windows = windows(&self.tables);
        match (&self.order, total) {
            (Order::Sliding { decoded, .. }, Some(total)) if *decoded == windows.count(*repeated) => *total,
            (Order::Sliding { decoded, .. }, _) => *decoded * windows.step as u64,
            (Order::Parallel(_), Some(total)) if arrived == total => *total,
            (Order::Parallel(_), _) => Parallel::decided(windows, *repeated, *arrived),
        }
    }

    /// Observables that the decided errors flip, 64 in a word.
    pub fn flips(&self) -> &[u64] {
        &self.course.flips
    }

    /// Begins anew. If rounds have arrived that were not decided, that is an error, and the stream begins anew as well.
    pub fn reset(&mut self) -> Result<(), StreamError> {
        let undecided = self.arrived() - self.decided().min(self.arrived());
        match &mut self.order {
            Order::Sliding { decoded, .. } => *decoded = 0,
            Order::Parallel(parallel) => parallel.reset(),
        }
        self.course.rows.clear();
        self.course.flips.fill(0);
        (self.course.arrived, self.failed) = (0, false);
        if undecided == 0 { Ok(()) } else { Err(StreamError::Undecided(undecided)) }
    }

    /// Limits the steps of each window; see [`Decoder::within`].
    pub(crate) fn set_steps(&mut self, steps: u64) {
        match &mut self.order {
            Order::Sliding { decoders, .. } => decoders.iter_mut().for_each(|decoder| decoder.set_steps(steps)),
            Order::Parallel(parallel) => parallel.set_steps(steps),
        }
    }

    /// The limit on the steps of a window, where there is one.
    pub(crate) fn steps(&self) -> Option<u64> {
        match &self.order {
            Order::Sliding { decoders, .. } => decoders.first()?.steps(),
            Order::Parallel(parallel) => parallel.steps(),
        }
    }

    /// Number of windows that were out of steps since this was made.
    pub(crate) fn exhausted(&self) -> u64 {
        match &self.order {
            Order::Sliding { decoders, .. } => decoders.iter().map(Decoder::exhausted).sum(),
            Order::Parallel(parallel) => parallel.exhausted(),
        }
    }
}

impl Course {
    /// Decodes the windows that have arrived whole, one after the other.
    fn slide(&mut self, windows: &Windows, decoders: &mut [Decoder], decoded: &mut u64) -> Result<(), DecodeError> {
        let count = windows.count(self.repeated);
        while *decoded < count {
            let first = *decoded * windows.step as u64;
            let is_last = *decoded + 1 == count;
            let is_whole =
                if is_last { self.total == Some(self.arrived) } else { self.arrived >= first + windows.window as u64 };
            if !is_whole {
                break;
            }
            let index = windows.slice(*decoded, self.repeated);
            let (slice, decoder) = (&windows.slices[index], &mut decoders[index]);
            slice.load(decoder.events_mut(), |round, at| self.rows.word(first + round, at));
            let answer = decoder.decode_words()?;
            // What is decided of later rounds is as if it had not happened.
            slice.tell(answer, windows.num_observables, &mut self.flips, |round, place| {
                self.rows.flip(first + round, place);
            });
            let decided = if is_last { self.arrived - first } else { windows.step as u64 };
            (first..first + decided).for_each(|round| self.rows.row(round).fill(0));
            *decoded += 1;
        }
        Ok(())
    }
}
