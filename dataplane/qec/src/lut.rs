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
        /// Words per set.
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

/// For the syndrome of each set of up to `depth` errors, the observables that flip.
///
/// Sets are entered by size, and those of one size in lexicographic order of their errors; the first of several sets
/// with the same syndrome stays. No events, and events that are not in the table, mean that nothing flipped.
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
    pub fn from_model(model: &DetectorErrorModel, depth: usize) -> Result<Self, LutError> {
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
        table.fill(&columns, depth)?;
        Ok(table)
    }

    /// Makes the table from two matrices with one column per error: the detectors and the observables that it flips.
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

    /// Number of syndromes in the table.
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

    /// Enters the sets of 1 to `depth` columns.
    fn fill(&mut self, columns: &[u64], depth: usize) -> Result<(), LutError> {
        if depth == 0 {
            return Err(LutError::NoDepth);
        }
        let stride = self.stride;
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
            self.enter(columns, &mut sums, 0, size);
        }
        Ok(())
    }

    /// Enters every set of `size` columns from the first of `columns` on, each added to the first of `sums`.
    fn enter(&mut self, columns: &[u64], sums: &mut [u64], first: usize, size: usize) {
        let stride = self.stride;
        if size == 0 {
            self.insert(&sums[..stride]);
            return;
        }
        for at in first..=columns.len() / stride - size {
            let column = &columns[at * stride..][..stride];
            let (sum, next) = sums.split_at_mut(stride);
            for (next, (sum, word)) in next.iter_mut().zip(sum.iter().zip(column)) {
                *next = sum ^ word;
            }
            self.enter(columns, next, at + 1, size - 1);
        }
    }

    fn insert(&mut self, record: &[u64]) {
        let (syndrome, width, stride) = (&record[..self.width], self.width, self.stride);
        if syndrome.iter().all(|&word| word == 0) {
            return;
        }
        let number = (self.records.len() / stride) as u32;
        let stored = |&record: &u32| &self.records[record as usize * stride..][..width];
        let entry =
            self.index.entry(hash(syndrome), |record| stored(record) == syndrome, |record| hash(stored(record)));
        if let Entry::Vacant(vacant) = entry {
            vacant.insert(number);
            self.records.extend_from_slice(record);
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
