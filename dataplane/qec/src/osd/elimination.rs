//! Elimination of errors, likeliest first, and the sweep.

use super::OsdTables;
use crate::{decoder::DecodeError, hyper::flip};

pub(super) const NONE: u32 = u32::MAX;

/// The transform under which each pivot flips one row alone, and what follows from it.
///
/// It is a square matrix over the detectors, at first the identity. It is kept twice, by column and by row: a sum over the
/// detectors of an error is that of a few columns, and a row tells which columns a pivot changes.
#[derive(Debug)]
pub(super) struct Elimination {
    /// Words of a row or column.
    words: usize,
    columns: Vec<u64>,
    rows: Vec<u64>,
    /// The pivot of each row, and its weight once all are known.
    pivots: Vec<u32>,
    weights: Vec<u32>,
    /// Rows that have one, a bit each.
    pivoted: Vec<u64>,
    /// Errors that were taken and are no pivots, in order.
    others: Vec<u32>,
    /// The events, transformed.
    syndrome: Vec<u64>,
    /// The detectors of one error, transformed.
    column: Vec<u64>,
    /// Those of the first others.
    swept: Vec<u64>,
}

/// The lightest set so far: its weight, and the errors in it that are no pivots.
#[derive(Clone, Copy)]
struct Best {
    weight: u64,
    others: [u32; 2],
}

impl Elimination {
    pub(super) fn new(tables: &OsdTables) -> Self {
        let (detectors, errors) = (tables.graph.detector_starts.len() - 1, tables.graph.num_errors());
        let words = detectors.div_ceil(64);
        let mut elimination = Self {
            words,
            columns: vec![0; detectors * words],
            rows: vec![0; detectors * words],
            pivots: vec![NONE; detectors],
            weights: vec![0; detectors],
            pivoted: vec![0; words],
            others: Vec::with_capacity(errors),
            syndrome: vec![0; words],
            column: vec![0; words],
            swept: vec![0; words * tables.parameters.order],
        };
        elimination.reset(0..detectors);
        elimination
    }

    /// Flips the observables of the lightest set found that makes the events; returns its weight. `weights` are those of the
    /// errors. Call it when enough errors were taken.
    pub(super) fn finish(
        &mut self,
        tables: &OsdTables,
        weights: &[u32],
        flips: &mut [u64],
    ) -> Result<u64, DecodeError> {
        if self.left() > 0 {
            return Err(DecodeError::Unmatchable);
        }
        for row in ones(&self.pivoted) {
            self.weights[row] = weights[self.pivots[row] as usize];
        }
        let mut best = Best { weight: self.weight(&self.syndrome, u64::MAX), others: [NONE; 2] };
        if tables.parameters.order > 0 {
            self.sweep(tables, weights, &mut best);
        }
        for other in best.others.into_iter().filter(|other| *other != NONE) {
            self.transform(tables, other);
            flip(&mut self.syndrome, &self.column);
            flip(flips, tables.graph.flips(other as usize));
        }
        ones(&self.syndrome).for_each(|row| flip(flips, tables.graph.flips(self.pivots[row] as usize)));
        Ok(best.weight)
    }

    /// Takes back what was done to these detectors, which are all that the errors of the last shot had.
    pub(super) fn reset(&mut self, detectors: impl Iterator<Item = usize>) {
        for at in detectors {
            for matrix in [&mut self.columns, &mut self.rows] {
                let line = &mut matrix[at * self.words..][..self.words];
                line.fill(0);
                line[at / 64] = 1 << (at % 64);
            }
            self.pivots[at] = NONE;
            self.pivoted[at / 64] &= !(1 << (at % 64));
        }
    }

    /// Begins with these events.
    pub(super) fn start(&mut self, events: &[u64]) {
        self.others.clear();
        self.syndrome.copy_from_slice(events);
    }

    /// How many events are left, transformed, that no pivot makes.
    pub(super) fn left(&self) -> u32 {
        self.syndrome.iter().zip(&self.pivoted).map(|(events, pivoted)| (events & !pivoted).count_ones()).sum()
    }

    /// Takes an error: as a pivot, if its detectors are independent of those of the pivots before it.
    pub(super) fn take(&mut self, tables: &OsdTables, error: u32) {
        self.transform(tables, error);
        let free = self.column.iter().zip(&self.pivoted).map(|(column, pivoted)| column & !pivoted);
        let Some((word, free)) = free.enumerate().find(|(_, free)| *free != 0) else {
            self.others.push(error);
            return;
        };
        let row = word * 64 + free.trailing_zeros() as usize;
        self.pivots[row] = error;
        self.pivoted[word] |= 1 << (row % 64);
        self.clear(row);
    }

    /// Adds the row to all others in which the pivot's column is not 0.
    fn clear(&mut self, row: usize) {
        let words = self.words;
        let (word, bit) = (row / 64, 1 << (row % 64));
        self.column[word] &= !bit;
        for at in ones(&self.rows[row * words..][..words]) {
            flip(&mut self.columns[at * words..][..words], &self.column);
        }
        for other in ones(&self.column) {
            let [row, other] = self
                .rows
                .get_disjoint_mut([row * words..(row + 1) * words, other * words..(other + 1) * words])
                .expect("a row is not added to itself");
            flip(other, row);
        }
        if self.syndrome[word] & bit != 0 {
            flip(&mut self.syndrome, &self.column);
        }
    }

    /// Puts the transformed detectors of an error in `column`.
    #[inline]
    fn transform(&mut self, tables: &OsdTables, error: u32) {
        self.column.fill(0);
        for detector in tables.graph.detectors(error as usize) {
            flip(&mut self.column, &self.columns[*detector as usize * self.words..][..self.words]);
        }
    }

    /// Weight of the pivots of some rows, or `limit` if they weigh no less.
    #[inline]
    fn weight(&self, rows: &[u64], limit: u64) -> u64 {
        self.weight_of(rows.iter().copied(), 0, limit)
    }

    #[inline]
    fn weight_of(&self, rows: impl Iterator<Item = u64>, start: u64, limit: u64) -> u64 {
        let mut sum = start;
        for (weights, mut word) in self.weights.chunks(64).zip(rows) {
            while word != 0 {
                sum += u64::from(weights[word.trailing_zeros() as usize]);
                word &= word - 1;
            }
            if sum >= limit {
                return limit;
            }
        }
        sum
    }

    /// Tries each other error, and pairs of the first of them.
    fn sweep(&mut self, tables: &OsdTables, weights: &[u32], best: &mut Best) {
        let words = self.words;
        let order = tables.parameters.order.min(self.others.len());
        for at in 0..self.others.len() {
            let other = self.others[at];
            let start = u64::from(weights[other as usize]);
            if at >= order && start >= best.weight {
                continue;
            }
            self.transform(tables, other);
            if at < order {
                self.swept[at * words..][..words].copy_from_slice(&self.column);
            }
            let rows = self.syndrome.iter().zip(&self.column).map(|(syndrome, column)| syndrome ^ column);
            let weight = self.weight_of(rows, start, best.weight);
            if weight < best.weight {
                *best = Best { weight, others: [other, NONE] };
            }
        }
        for (at, one) in self.swept.chunks_exact(words).take(order).enumerate() {
            for (second, two) in self.swept.chunks_exact(words).enumerate().take(order).skip(at + 1) {
                let others = [self.others[at], self.others[second]];
                let start = others.iter().map(|other| u64::from(weights[*other as usize])).sum();
                let rows = self.syndrome.iter().zip(one).zip(two).map(|((syndrome, one), two)| syndrome ^ one ^ two);
                let weight = self.weight_of(rows, start, best.weight);
                if weight < best.weight {
                    *best = Best { weight, others };
                }
            }
        }
    }
}

/// Errors in the order of their marginals, likeliest first.
#[derive(Debug)]
pub(super) struct Order(Vec<u64>);

impl Order {
    pub(super) fn new(tables: &OsdTables) -> Self {
        Self(vec![0; tables.graph.num_errors()])
    }

    /// Lets elimination take errors: all of them for a sweep, or as many as the events demand, since later ones would not be
    /// of use.
    pub(super) fn eliminate(
        &mut self,
        tables: &OsdTables,
        marginals: &[f32],
        events: &[u64],
        elimination: &mut Elimination,
    ) {
        for (at, (entry, marginal)) in self.0.iter_mut().zip(marginals).enumerate() {
            *entry = u64::from(place(*marginal)) << 32 | at as u64;
        }
        self.0.sort_unstable();
        elimination.reset(0..elimination.pivots.len());
        elimination.start(events);
        for entry in &self.0 {
            if tables.parameters.order == 0 && elimination.left() == 0 {
                return;
            }
            elimination.take(tables, *entry as u32);
        }
    }
}

/// An integer of the same order as a marginal.
pub(super) fn place(marginal: f32) -> u32 {
    let bits = marginal.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// Positions of the bits that are set.
pub(super) fn ones(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
    words.iter().enumerate().flat_map(|(at, word)| {
        let mut word = *word;
        std::iter::from_fn(move || {
            let bit = word.trailing_zeros() as usize;
            (word != 0).then(|| {
                word &= word - 1;
                at * 64 + bit
            })
        })
    })
}
