//! An experiment as it is measured: bits of any number at a time, which make rounds, which make windows.

use std::{ops::Range, sync::Arc};

use super::{Pool, Stream, StreamError, stream::windows};
use crate::{
    bits,
    decoder::{Kind, Tables},
    sparse::MeasurementMap,
};

/// Which measurements make up the rounds of an experiment. It never changes, so that sessions on many cores share it.
///
/// A round is complete with the last measurement that one of its detectors, or of an earlier round's, is made of; the last one with
/// the last measurement. In the part of a longer experiment that repeats, the measurements repeat with the rounds.
#[derive(Debug)]
pub struct Experiment {
    tables: Arc<Tables>,
    total: Option<u64>,
    repeated: u64,
    /// Of the model: how many measurements there are before each round, and in all.
    starts: Vec<u32>,
    /// Measurements of the rounds that repeat; 0 if none do.
    period: u64,
    /// Of each round of the model its first measurement, if its events are the measurements from there on.
    runs: Vec<Option<u32>>,
    /// The first detector of each round, by round and place, and the end of the last one's.
    rounds: Vec<u32>,
    /// Where the measurements of each detector begin, and the end of the last one's.
    detectors: Vec<u32>,
    measurements: Vec<u32>,
    /// Words of the measurements that a round can be made of, a power of two.
    words: usize,
}

impl Experiment {
    /// The experiments of a model that are measured in this order, of so many rounds, or without an end; see
    /// [`Stream::with_rounds`].
    pub fn new(tables: Arc<Tables>, map: &MeasurementMap, total: Option<u64>) -> Result<Self, StreamError> {
        let Kind::Windows(of_tables) = &tables.kind else { return Err(StreamError::NoWindows) };
        let repeated = of_tables.repeats(total)?;
        if map.num_detectors() != tables.num_detectors {
            return Err(StreamError::Map { map: map.num_detectors(), model: tables.num_detectors });
        }
        let single: Vec<u32> = (0..tables.num_detectors as u32).collect();
        let rows: Vec<&[u32]> = match map.matrix() {
            Some(matrix) => matrix.rows().collect(),
            None => single.chunks(1).collect(),
        };
        let (mut starts, mut runs, mut rounds) = (vec![0], Vec::new(), vec![0]);
        let (mut detectors, mut measurements) = (vec![0], Vec::new());
        let (mut end, mut back) = (0, 0);
        for (round, of_round) in of_tables.rounds.iter().enumerate() {
            let first = measurements.len();
            for detector in of_round {
                measurements.extend(rows[*detector as usize]);
                detectors.push(measurements.len() as u32);
            }
            rounds.push(detectors.len() as u32 - 1);
            let all: &[u32] = &measurements[first..];
            end = all.iter().max().map_or(0, |last| last + 1).max(end);
            if round + 1 == of_tables.rounds.len() {
                end = map.num_measurements() as u32;
            }
            starts.push(end);
            back = all.iter().map(|at| end - at).max().map_or(back, |most| most.max(back));
            let is_run = of_round.iter().all(|detector| rows[*detector as usize].len() == 1)
                && all.array_windows::<2>().all(|[one, next]| one + 1 == *next);
            runs.push(all.first().copied().filter(|_| is_run));
        }
        let words = (back as usize).div_ceil(64).next_power_of_two();
        let edge = of_tables.edge().filter(|_| repeated > 0);
        let step = of_tables.step;
        let mut made =
            Self { tables, total, repeated, starts, period: 0, runs, rounds, detectors, measurements, words };
        if let Some(edge) = edge {
            made.period = made.repeating(edge as usize, step)?;
        }
        Ok(made)
    }

    /// Measurements of the `step` rounds from `edge` on, which are made of them as the rounds before are of others.
    fn repeating(&self, edge: usize, step: usize) -> Result<u64, StreamError> {
        let period = self.starts[edge] - self.starts[edge - step];
        for (before, round) in (edge - step..edge).zip(edge..) {
            let (one, other) = (self.places(before), self.places(round));
            let alike = one.len() == other.len()
                && one.zip(other).all(|(one, other)| {
                    self.parity(one).iter().map(|at| at + period).eq(self.parity(other).iter().copied())
                });
            if period == 0 || self.starts[round + 1] - self.starts[before + 1] != period || !alike {
                return Err(StreamError::Measurements(round as u64));
            }
        }
        Ok(period.into())
    }

    /// The detectors of a round of the model, by round and place.
    fn places(&self, round: usize) -> Range<usize> {
        self.rounds[round] as usize..self.rounds[round + 1] as usize
    }

    /// The measurements of a detector.
    fn parity(&self, place: usize) -> &[u32] {
        &self.measurements[self.detectors[place] as usize..self.detectors[place + 1] as usize]
    }

    /// Numbers of the detectors of the model's rounds.
    pub(super) fn round_lens(&self) -> impl Iterator<Item = usize> {
        self.rounds.array_windows::<2>().map(|[first, end]| (end - first) as usize)
    }

    /// The round of the model that this one is like, and how many measurements later this one's are.
    pub(super) fn in_model(&self, round: u64) -> (usize, u64) {
        let windows = windows(&self.tables);
        let like = windows.in_model(round, self.repeated);
        (like as usize, ((round - like) / windows.step as u64).saturating_mul(self.period))
    }

    /// Rounds of the experiment; `None` if it has no end.
    pub fn rounds(&self) -> Option<u64> {
        self.total
    }

    /// Number of detectors in a round. Panics behind the last one.
    pub fn num_detectors(&self, round: u64) -> usize {
        self.places(self.in_model(round).0).len()
    }

    /// Number of measurements before a round; before the one behind the last, of all.
    pub fn measurements_before(&self, round: u64) -> u64 {
        let (like, later) = self.in_model(round);
        later.saturating_add(self.starts[like].into())
    }
}

/// Where measurements belong whose first round has a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// They are the next ones, of whole rounds.
    Next,
    /// They were there before.
    Before,
    /// Others are missing before them, or they are not of whole rounds.
    Elsewhere,
}

/// An experiment that is decoded while it is measured.
///
/// After it is made it allocates nothing.
#[derive(Debug)]
pub struct Intake {
    experiment: Arc<Experiment>,
    stream: Stream,
    /// The measurements that rounds can be made of, 64 in a word; the one at p in word p / 64 modulo the number of words.
    ring: Vec<u64>,
    /// Measurements that have come.
    position: u64,
    /// The position at which the next round is complete.
    end: u64,
}

impl Intake {
    /// At the beginning of an experiment.
    pub fn new(experiment: Arc<Experiment>) -> Self {
        let stream = Stream::with_rounds(experiment.tables.clone(), experiment.total);
        let mut intake = Self {
            stream: stream.expect("the experiment was checked"),
            ring: vec![0; experiment.words],
            position: 0,
            end: 0,
            experiment,
        };
        intake.end = intake.next_end();
        intake
    }

    /// Has other cores decode windows; see [`Stream::helped`].
    #[must_use]
    pub fn helped(self, pool: &Pool, cores: usize) -> Self {
        Self { stream: self.stream.helped(pool, cores), ..self }
    }

    /// Goes on where another one is, which is at its end then; see [`Stream::take_over`]. Both have the same measurement map.
    pub fn take_over(&mut self, other: &mut Self) {
        self.stream.take_over(&mut other.stream);
        std::mem::swap(&mut self.ring, &mut other.ring);
        (self.position, self.end) = (other.position, other.end);
    }

    /// Takes the next measurements, so many bits, least significant bit first; those behind them do not matter. Decodes the windows
    /// that they complete. More than the experiment has left change nothing.
    pub fn take(&mut self, bytes: &[u8], count: usize) -> Result<(), StreamError> {
        if self.stream.has_failed() {
            return Err(StreamError::Failed);
        }
        bits::check_length(bytes, count).map_err(StreamError::Events)?;
        let left = self.left();
        if count as u64 > left {
            return Err(StreamError::Beyond { count: count as u64, left });
        }
        let mut at = 0;
        loop {
            while self.position == self.end {
                self.complete()?;
            }
            let room = (64 - self.position % 64).min(self.end - self.position);
            let taken = room.min((count - at) as u64) as usize;
            if taken == 0 {
                return Ok(());
            }
            let mask = (u64::MAX >> (64 - taken)) << (self.position % 64);
            let word = (self.position as usize / 64) & (self.ring.len() - 1);
            let new = read(bytes, at) << (self.position % 64);
            self.ring[word] = self.ring[word] & !mask | new & mask;
            self.position += taken as u64;
            at += taken;
        }
    }

    /// Makes the events of the next round of the measurements.
    fn complete(&mut self) -> Result<(), StreamError> {
        let Self { experiment, stream, ring, .. } = self;
        let (round, later) = experiment.in_model(stream.arrived());
        let word = |at: u64| ring[(at as usize / 64) & (ring.len() - 1)];
        let places = experiment.places(round);
        let made = stream.next_round(|row| match experiment.runs[round] {
            Some(first) => {
                let mut left = places.len();
                for (row, from) in row.iter_mut().zip((later + u64::from(first)..).step_by(64)) {
                    let bits = match from % 64 {
                        0 => word(from),
                        shift => word(from) >> shift | word(from + 64) << (64 - shift),
                    };
                    *row ^= if left < 64 { bits & !(u64::MAX << left) } else { bits };
                    left = left.saturating_sub(64);
                }
            }
            None => {
                for (at, place) in places.enumerate() {
                    let bit = |at: &u32| word(later + u64::from(*at)) >> ((later + u64::from(*at)) % 64) & 1;
                    row[at / 64] ^=
                        experiment.parity(place).iter().map(bit).fold(0, |parity, bit| parity ^ bit) << (at % 64);
                }
            }
        });
        made.map_err(StreamError::Decode)?;
        self.end = self.next_end();
        Ok(())
    }

    /// The position at which the next round will be complete; none if there is no next round.
    fn next_end(&self) -> u64 {
        if self.has_ended() { u64::MAX } else { self.experiment.measurements_before(self.stream.arrived() + 1) }
    }

    /// Where so many measurements belong whose first round has this number, modulo 65536.
    pub fn arrival(&self, round: u16, count: usize) -> Arrival {
        let (next, count) = (self.stream.arrived(), count as u64);
        let before = |round: u64| self.experiment.measurements_before(round);
        let early = round.wrapping_sub(next as u16).cast_signed();
        let is_last = |round: u64| self.experiment.total.is_some_and(|total| round >= total);
        if early < 0 {
            let first = next.checked_sub(early.unsigned_abs().into());
            let was_there = first.is_some_and(|first| before(first) + count <= self.position);
            return if was_there { Arrival::Before } else { Arrival::Elsewhere };
        }
        if early > 0 || self.position != before(next) {
            return Arrival::Elsewhere;
        }
        let mut end = next;
        while before(end) < self.position + count && !is_last(end) {
            end += 1;
        }
        if before(end) == self.position + count { Arrival::Next } else { Arrival::Elsewhere }
    }

    /// Measurements that the experiment has left; `u64::MAX` if it has no end.
    pub fn left(&self) -> u64 {
        self.experiment.total.map_or(u64::MAX, |total| self.experiment.measurements_before(total) - self.position)
    }

    /// Whether all rounds of the experiment have come, and are decided.
    pub fn has_ended(&self) -> bool {
        self.experiment.total == Some(self.stream.arrived())
    }

    /// Rounds that have arrived whole.
    pub fn arrived(&self) -> u64 {
        self.stream.arrived()
    }

    /// Rounds whose errors are decided.
    pub fn decided(&self) -> u64 {
        self.stream.decided()
    }

    /// Observables that the decided errors flip, 64 in a word.
    pub fn flips(&self) -> &[u64] {
        self.stream.flips()
    }

    /// Waits for the windows that other cores decode; see [`Stream::settle`].
    pub fn settle(&mut self) -> Result<(), StreamError> {
        self.stream.settle()
    }

    /// Begins anew. Returns how many rounds had arrived that were not decided.
    pub fn reset(&mut self) -> u64 {
        let undecided = match self.stream.reset() {
            Err(StreamError::Undecided(rounds)) => rounds,
            _ => 0,
        };
        self.position = 0;
        self.end = self.next_end();
        undecided
    }

    /// Limits the steps of each window; see [`Decoder::within`](crate::Decoder::within).
    pub fn set_steps(&mut self, steps: u64) {
        self.stream.set_steps(steps);
    }

    /// The limit on the steps of a window, where there is one.
    pub fn steps(&self) -> Option<u64> {
        self.stream.steps()
    }

    /// Number of windows that were out of steps since this was made; a reset keeps it.
    pub fn exhausted(&self) -> u64 {
        self.stream.exhausted()
    }
}

/// Up to 64 bits from bit `at` on; zeros behind the last byte.
fn read(bytes: &[u8], at: usize) -> u64 {
    let from = &bytes[at / 8..];
    let mut whole = [0; 16];
    let len = from.len().min(9);
    whole[..len].copy_from_slice(&from[..len]);
    (u128::from_le_bytes(whole) >> (at % 8)) as u64
}
