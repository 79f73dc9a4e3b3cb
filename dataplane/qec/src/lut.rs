//! Decoding by table: the syndromes of all small error sets, computed in advance.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    bits,
    dem::{DetectorErrorModel, MAX_OBSERVABLES},
    sparse::SparseMatrix,
};

/// Limit on the words of a table: 256 MiB of syndromes and flips.
pub const MAX_TABLE_WORDS: u64 = 1 << 25;

/// Why errors do not make a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LutError {
    /// The table would be larger than [`MAX_TABLE_WORDS`].
    #[error(
        "a table of depth {depth} over {errors} errors has {sets} sets of {words} words, \
         more than {MAX_TABLE_WORDS} words in all; use a smaller depth"
    )]
    TooLarge {
        /// Depth asked for.
        depth: usize,
        /// Number of errors in the model.
        errors: usize,
        /// Number of sets of 1 to `depth` errors, saturated.
        sets: u64,
        /// 64-bit words per set, of its syndrome and its flips.
        words: u64,
    },
    /// The depth is 0: such a table would correct nothing.
    #[error("the depth of a table is at least 1")]
    NoDepth,
    /// The two matrices differ in their number of columns, so they are not of the same errors.
    #[error("the syndrome matrix has {syndrome} columns and the observable matrix {observable}: one each per error")]
    Columns {
        /// Columns of the syndrome matrix.
        syndrome: usize,
        /// Columns of the observable matrix.
        observable: usize,
    },
    /// There are more observables than an answer holds.
    #[error("{0} observables, at most {MAX_OBSERVABLES} are possible")]
    Observables(usize),
}

/// Which of several sets of errors with the same syndrome says what flips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// All sets together: what is likeliest to have flipped. Of equally likely answers that of the first set.
    Likeliest,
    /// The first by size, and of one size in lexicographic order of their errors: the rule of CUDA-Q QEC's `multi_error_lut`.
    First,
}

/// For the syndrome of each set of up to `depth` errors, the observables that flip.
///
/// No events, and events that are not in the table, mean that nothing flipped.
#[derive(Debug)]
pub struct Lut {
    num_detectors: usize,
    num_observables: usize,
    /// Words per syndrome.
    width: usize,
    /// Words of a syndrome and its flips together.
    stride: usize,
    /// Records of a syndrome and its flips.
    records: Vec<u64>,
    /// Indices of the records, by the hash of their syndromes.
    index: HashTable<u32>,
}

impl Lut {
    /// Makes the table of a detector error model. Each mechanism is one error; its parts are taken together.
    pub fn from_model(model: &DetectorErrorModel, depth: usize, rule: Rule) -> Result<Self, LutError> {
        let mut table = Self::empty(model.num_detectors(), model.num_observables());
        let mut columns = vec![0; model.mechanisms().len() * table.stride];
        for (mechanism, column) in model.mechanisms().zip(columns.chunks_exact_mut(table.stride)) {
            for part in mechanism.parts() {
                for &detector in part.detectors {
                    column[detector as usize / 64] ^= 1 << (detector % 64);
                }
                part.flip(&mut column[table.width..]);
            }
        }
        match rule {
            Rule::First => table.fill(&columns, depth)?,
            Rule::Likeliest => {
                let odds: Vec<_> = model.mechanisms().map(|mechanism| odds(mechanism.probability())).collect();
                table.fill_likeliest(&columns, depth, &odds)?;
            }
        }
        Ok(table)
    }

    /// Makes the table from two matrices with one column per error: the detectors and the observables that it flips. Of sets with the
    /// same syndrome the first is taken, as in [`Rule::First`].
    pub fn from_matrices(syndrome: &SparseMatrix, observable: &SparseMatrix, depth: usize) -> Result<Self, LutError> {
        if syndrome.num_columns() != observable.num_columns() {
            let (syndrome, observable) = (syndrome.num_columns(), observable.num_columns());
            return Err(LutError::Columns { syndrome, observable });
        }
        if observable.num_rows() > MAX_OBSERVABLES as usize {
            return Err(LutError::Observables(observable.num_rows()));
        }
        let mut table = Self::empty(syndrome.num_rows(), observable.num_rows());
        let stride = table.stride;
        let mut columns = vec![0; syndrome.num_columns() * stride];
        for (row, errors) in syndrome.rows().enumerate() {
            for &error in errors {
                columns[error as usize * stride + row / 64] ^= 1 << (row % 64);
            }
        }
        for (row, errors) in observable.rows().enumerate() {
            for &error in errors {
                columns[error as usize * stride + table.width + row / 64] ^= 1 << (row % 64);
            }
        }
        table.fill(&columns, depth)?;
        Ok(table)
    }

    fn empty(num_detectors: usize, num_observables: usize) -> Self {
        let width = bits::words_for(num_detectors);
        let stride = width + bits::words_for(num_observables).max(1);
        Self { num_detectors, num_observables, width, stride, records: Vec::new(), index: HashTable::new() }
    }

    /// Length of a syndrome in bits.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// Length of an answer in bits.
    pub fn num_observables(&self) -> usize {
        self.num_observables
    }

    /// Number of syndromes in the table; the one without events is never among them.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether the table has no syndromes.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Flips for a syndrome of `width` words; none if it is unknown.
    #[inline]
    pub(crate) fn decode(&self, syndrome: &[u64], flips: &mut [u64]) {
        flips.fill(0);
        if syndrome.iter().all(|&word| word == 0) {
            return;
        }
        if let Some(&record) = self.index.find(hash(syndrome), |&record| self.syndrome(record) == syndrome) {
            flips.copy_from_slice(&self.records[record as usize * self.stride..][self.width..self.stride]);
        }
    }

    /// All syndromes and their flips.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&[u64], &[u64])> {
        self.records.chunks_exact(self.stride).map(|record| record.split_at(self.width))
    }

    #[inline]
    fn syndrome(&self, record: u32) -> &[u64] {
        let start = record as usize * self.stride;
        &self.records[start..start + self.width]
    }

    /// Enters the sets of 1 to `depth` columns, the first of those with the same syndrome.
    fn fill(&mut self, columns: &[u64], depth: usize) -> Result<(), LutError> {
        for_each_set(columns, self.stride, depth, &[], |sum, _| {
            self.insert(sum);
        })
    }

    /// Enters the likeliest flips of all sets of 1 to `depth` columns with the same syndrome; `odds` are those of the columns.
    fn fill_likeliest(&mut self, columns: &[u64], depth: usize, odds: &[f64]) -> Result<(), LutError> {
        // Sets with the same syndrome and the same flips.
        let (mut cosets, mut sums) = (Self { width: self.stride, ..Self::empty(0, 0) }, Vec::<f64>::new());
        cosets.stride = self.stride;
        for_each_set(columns, self.stride, depth, odds, |sum, odds| {
            // Without events nothing has flipped.
            if sum[..self.width].iter().any(|&word| word != 0) {
                let coset = cosets.insert(sum);
                sums.resize(sums.len().max(coset + 1), 0.0);
                sums[coset] += odds;
            }
        })?;
        let mut likeliest: Vec<f64> = Vec::new();
        for (coset, odds) in cosets.records.chunks_exact(self.stride).zip(sums) {
            let at = self.insert(coset);
            match likeliest.get_mut(at) {
                None => likeliest.push(odds),
                // Equally likely ones may differ by how their sums were rounded.
                Some(best) if odds > *best * (1.0 + 1e-9) => {
                    *best = odds;
                    self.records[at * self.stride..][..self.stride].copy_from_slice(coset);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Enters a record, unless its syndrome is there; returns the place of the syndrome. No events have none.
    fn insert(&mut self, record: &[u64]) -> usize {
        let (syndrome, width, stride) = (&record[..self.width], self.width, self.stride);
        if syndrome.iter().all(|&word| word == 0) {
            return usize::MAX;
        }
        let number = (self.records.len() / stride) as u32;
        let stored = |&record: &u32| &self.records[record as usize * stride..][..width];
        let entry =
            self.index.entry(hash(syndrome), |record| stored(record) == syndrome, |record| hash(stored(record)));
        match entry {
            Entry::Occupied(known) => *known.get() as usize,
            Entry::Vacant(vacant) => {
                vacant.insert(number);
                self.records.extend_from_slice(record);
                number as usize
            }
        }
    }
}

/// How much likelier it is that an error happens than that it does not: no odds are zero or infinite.
fn odds(probability: f64) -> f64 {
    (probability / (1.0 - probability)).clamp(f64::MIN_POSITIVE, 1e300)
}

/// Visits the sum of each set of 1 to `depth` columns, by size and in lexicographic order, and the product of their odds; 1 without odds.
fn for_each_set(
    columns: &[u64],
    stride: usize,
    depth: usize,
    odds: &[f64],
    mut visit: impl FnMut(&[u64], f64),
) -> Result<(), LutError> {
    if depth == 0 {
        return Err(LutError::NoDepth);
    }
    let errors = columns.len() / stride;
    let sizes = 1..=depth.min(errors);
    let words = stride as u64;
    let sets = count_sets(errors as u64, sizes.clone());
    if sets.saturating_mul(words) > MAX_TABLE_WORDS {
        return Err(LutError::TooLarge { depth, errors, sets, words });
    }
    // The bound keeps the depth below 26 wherever it is not the number of errors itself, which it then bounds too.
    let mut sums = vec![0; stride * (sizes.end() + 1)];
    for size in sizes {
        Sets { columns, stride, odds, visit: &mut visit }.visit(&mut sums, 0, size, 1.0);
    }
    Ok(())
}

/// Sets of columns on the way to a visitor.
struct Sets<'a, V> {
    columns: &'a [u64],
    stride: usize,
    odds: &'a [f64],
    visit: &'a mut V,
}

impl<V: FnMut(&[u64], f64)> Sets<'_, V> {
    /// Visits every set of `size` columns from `first` on, each added to the first of `sums`.
    fn visit(&mut self, sums: &mut [u64], first: usize, size: usize, odds: f64) {
        let stride = self.stride;
        if size == 0 {
            (self.visit)(&sums[..stride], odds);
            return;
        }
        for at in first..=self.columns.len() / stride - size {
            let column = &self.columns[at * stride..][..stride];
            let (sum, next) = sums.split_at_mut(stride);
            for (next, (sum, word)) in next.iter_mut().zip(sum.iter().zip(column)) {
                *next = sum ^ word;
            }
            self.visit(next, at + 1, size - 1, odds * self.odds.get(at).copied().unwrap_or(1.0));
        }
    }
}

/// The operator's model determines the table and peers only look up, so a fixed, fast hash is safe.
#[inline]
fn hash(syndrome: &[u64]) -> u64 {
    FixedState::default().hash_one(syndrome)
}

/// Number of sets of these sizes among `errors` errors, saturated.
fn count_sets(errors: u64, sizes: std::ops::RangeInclusive<usize>) -> u64 {
    let mut all = 0u64;
    let mut of_size = 1u64;
    for size in sizes {
        let size = size as u64;
        // C(n, k) = C(n, k-1) * (n-k+1) / k, exact in this order.
        of_size =
            u64::try_from(u128::from(of_size) * u128::from(errors + 1 - size) / u128::from(size)).unwrap_or(u64::MAX);
        all = all.saturating_add(of_size);
        if all > MAX_TABLE_WORDS {
            return all;
        }
    }
    all
}
