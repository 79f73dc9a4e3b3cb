//! An experiment whose rounds arrive one by one.

use std::sync::Arc;

use super::Windows;
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
         {commit} more, or no end"
    )]
    Rounds {
        /// Rounds of the model.
        model: u64,
        /// Rounds that a window decides.
        commit: u64,
    },
}

/// An experiment that is decoded while its rounds arrive: a window as soon as its last round is there.
///
/// After it is made it allocates nothing.
#[derive(Debug)]
pub struct Stream {
    tables: Arc<Tables>,
    /// By slice.
    decoders: Vec<Decoder>,
    /// Rounds of the experiment; `None` if it has no end.
    total: Option<u64>,
    /// How often the periodic window comes in addition; of an experiment without end, for ever.
    repeated: u64,
    /// Events of the rounds that a window may know of, the round r at r modulo their number.
    ring: Vec<u64>,
    /// Rounds that have arrived.
    arrived: u64,
    /// Windows that were decoded.
    decoded: u64,
    flips: Vec<u64>,
    failed: bool,
}

fn windows(tables: &Tables) -> &Windows {
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
        Ok(Self {
            decoders: windows.slices.iter().map(|slice| Decoder::new(slice.tables.clone())).collect(),
            total,
            repeated,
            ring: vec![0; windows.reach.max(1) * windows.round_words],
            arrived: 0,
            decoded: 0,
            flips: vec![0; bits::words_for(windows.num_observables).max(1)],
            failed: false,
            tables,
        })
    }

    /// Number of detectors in a round; 0 behind the last one.
    pub fn num_detectors(&self, round: u64) -> usize {
        let windows = windows(&self.tables);
        let round = windows.in_model(round, self.repeated);
        windows.rounds.get(round as usize).map_or(0, Vec::len)
    }

    /// Takes the events of a round, a bit for each of its detectors, in the order of the model, least significant bit first, and
    /// decodes the windows that it completes. Rounds come in order; what is refused changes nothing.
    pub fn round(&mut self, round: u64, events: &[u8]) -> Result<(), StreamError> {
        let next = self.arrived;
        if self.failed {
            return Err(StreamError::Failed);
        }
        if let Some(total) = self.total.filter(|total| next == *total) {
            return Err(StreamError::Ended(total));
        }
        match round {
            _ if round < next => return Err(StreamError::Twice { round, next }),
            _ if round > next => return Err(StreamError::OutOfOrder { round, next }),
            _ => {}
        }
        bits::check(events, self.num_detectors(round)).map_err(StreamError::Events)?;
        let row = self.row(round);
        for (word, bytes) in self.ring[row].iter_mut().zip(events.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word ^= u64::from_le_bytes(whole);
        }
        self.arrive().map_err(StreamError::Decode)
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
        let row = self.row(self.arrived);
        add(&mut self.ring[row]);
        self.arrive()
    }

    /// Whether a window could not be decoded.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Where the events of a round stand.
    fn row(&self, round: u64) -> std::ops::Range<usize> {
        let windows = windows(&self.tables);
        let words = windows.round_words;
        let at = (round % windows.reach.max(1) as u64) as usize * words;
        at..at + words
    }

    fn arrive(&mut self) -> Result<(), DecodeError> {
        self.arrived += 1;
        let (window, commit) = (windows(&self.tables).window as u64, windows(&self.tables).commit as u64);
        while self.decoded < self.count() {
            let first = self.decoded * commit;
            let is_last = self.decoded + 1 == self.count();
            let ready = if is_last { self.total == Some(self.arrived) } else { self.arrived >= first + window };
            if !ready {
                break;
            }
            // A window that panics leaves it failed as well.
            self.failed = true;
            self.decode(first, is_last)?;
            self.failed = false;
        }
        Ok(())
    }

    /// Number of windows of the experiment.
    fn count(&self) -> u64 {
        (windows(&self.tables).plan.len() as u64).saturating_add(self.repeated)
    }

    /// Decodes the next window, which begins with the round `first`.
    fn decode(&mut self, first: u64, is_last: bool) -> Result<(), DecodeError> {
        let tables = self.tables.clone();
        let windows = windows(&tables);
        let at = match windows.periodic.map(|at| at as u64).filter(|_| self.repeated > 0) {
            Some(periodic) if self.decoded > periodic => self.decoded.saturating_sub(self.repeated).max(periodic),
            _ => self.decoded,
        };
        let index = windows.plan[at as usize] as usize;
        let slice = &windows.slices[index];
        let decoder = &mut self.decoders[index];
        let events = decoder.events_mut();
        events.fill(0);
        for (round, bounds) in slice.starts.array_windows::<2>().enumerate() {
            let start = (first as usize + round) % windows.reach.max(1) * windows.round_words;
            let detectors = &slice.detectors[bounds[0] as usize..bounds[1] as usize];
            for (detectors, mut word) in detectors.chunks(64).zip(&self.ring[start..]).map(|(of, word)| (of, *word)) {
                while word != 0 {
                    let detector = detectors[word.trailing_zeros() as usize];
                    events[detector as usize / 64] |= 1 << (detector % 64);
                    word &= word - 1;
                }
            }
        }
        let flips = decoder.decode_words()?;
        for (at, word) in flips.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let bit = at * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                if let Some(later) = bit.checked_sub(windows.num_observables) {
                    let (round, place) = slice.later[later];
                    let row = (first as usize + round as usize) % windows.reach.max(1) * windows.round_words;
                    self.ring[row + place as usize / 64] ^= 1 << (place % 64);
                } else {
                    self.flips[bit / 64] ^= 1 << (bit % 64);
                }
            }
        }
        let decided = if is_last { self.arrived - first } else { windows.commit as u64 };
        for round in first..first + decided {
            let row = self.row(round);
            self.ring[row].fill(0);
        }
        self.decoded += 1;
        Ok(())
    }

    /// Rounds that have arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Rounds whose errors are decided.
    pub fn decided(&self) -> u64 {
        match self.total {
            Some(total) if self.decoded == self.count() => total,
            _ => self.decoded * windows(&self.tables).commit as u64,
        }
    }

    /// Observables that the decided errors flip, 64 in a word.
    pub fn flips(&self) -> &[u64] {
        &self.flips
    }

    /// Begins anew. If rounds have arrived that were not decided, that is an error, and the stream begins anew as well.
    pub fn reset(&mut self) -> Result<(), StreamError> {
        let undecided = self.arrived - self.decided().min(self.arrived);
        self.ring.fill(0);
        self.flips.fill(0);
        (self.arrived, self.decoded, self.failed) = (0, 0, false);
        if undecided == 0 { Ok(()) } else { Err(StreamError::Undecided(undecided)) }
    }

    /// One decoder for each slice.
    pub(crate) fn decoders(&self) -> &[Decoder] {
        &self.decoders
    }

    pub(crate) fn decoders_mut(&mut self) -> &mut [Decoder] {
        &mut self.decoders
    }
}
