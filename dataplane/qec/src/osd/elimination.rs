//! Ordered statistics: elimination of the errors in the order of their marginals, and the sweep.

use super::OsdTables;
use crate::{decoder::DecodeError, hyper::flip};

const NONE: u32 = u32::MAX;

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
    /// Errors, each behind its marginal, which is turned into an integer of the same order.
    order: Vec<u64>,
    /// The pivot of each row, and its weight.
    pivots: Vec<u32>,
    weights: Vec<u32>,
    /// Rows that have one, a bit each.
    pivoted: Vec<u64>,
    /// Errors that are no pivots, in order.
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
        Self {
            words,
            columns: vec![0; detectors * words],
            rows: vec![0; detectors * words],
            order: vec![0; errors],
            pivots: vec![NONE; detectors],
            weights: vec![0; detectors],
            pivoted: vec![0; words],
            others: Vec::with_capacity(errors),
            syndrome: vec![0; words],
            column: vec![0; words],
            swept: vec![0; words * tables.parameters.order],
        }
    }

    /// Flips the observables of the lightest set found that makes the events; returns its weight. `weights` are those of the errors.
    pub(super) fn run(
        &mut self,
        tables: &OsdTables,
        weights: &[u32],
        marginals: &[f32],
        events: &[u64],
        flips: &mut [u64],
    ) -> Result<u64, DecodeError> {
        self.start(marginals, events);
        self.eliminate(tables, weights);
        if self.left() {
            return Err(DecodeError::Unmatchable);
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

    fn start(&mut self, marginals: &[f32], events: &[u64]) {
        for (at, (entry, marginal)) in self.order.iter_mut().zip(marginals).enumerate() {
            let bits = marginal.to_bits();
            let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
            *entry = u64::from(ordered) << 32 | at as u64;
        }
        self.order.sort_unstable();
        self.columns.fill(0);
        self.rows.fill(0);
        for at in 0..self.pivots.len() {
            let place = at * self.words + at / 64;
            self.columns[place] = 1 << (at % 64);
            self.rows[place] = 1 << (at % 64);
        }
        self.pivots.fill(NONE);
        self.pivoted.fill(0);
        self.others.clear();
        self.syndrome.copy_from_slice(events);
    }

    /// Whether events are left that no pivot makes.
    fn left(&self) -> bool {
        self.syndrome.iter().zip(&self.pivoted).any(|(events, pivoted)| events & !pivoted != 0)
    }

    /// Makes pivots: all of them for a sweep, or as many as the events demand, since later ones would not be taken.
    fn eliminate(&mut self, tables: &OsdTables, weights: &[u32]) {
        let sweeps = tables.parameters.order > 0;
        for at in 0..self.order.len() {
            if !sweeps && !self.left() {
                return;
            }
            let error = self.order[at] as u32;
            self.transform(tables, error);
            let free = self.column.iter().zip(&self.pivoted).map(|(column, pivoted)| column & !pivoted);
            let Some((word, free)) = free.enumerate().find(|(_, free)| *free != 0) else {
                self.others.push(error);
                continue;
            };
            let row = word * 64 + free.trailing_zeros() as usize;
            self.pivots[row] = error;
            self.weights[row] = weights[error as usize];
            self.pivoted[word] |= 1 << (row % 64);
            self.clear(row);
        }
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

/// Positions of the bits that are set.
fn ones(words: &[u64]) -> impl Iterator<Item = usize> + '_ {
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
