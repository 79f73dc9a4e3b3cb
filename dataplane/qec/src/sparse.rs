//! Sparse binary matrices, and the map from measurements to detectors.

use crate::bits::{self, BitsError};

/// Limit on the rows, on the columns and on the entries of a matrix.
pub const MAX_SPARSE: usize = 1 << 20;

/// Why numbers are not a sparse matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SparseError {
    /// A number is neither a column index nor the end of a row.
    #[error("entry {at} is {value}: expected a column below {columns}, or -1 at the end of a row")]
    Entry {
        /// Index of the number in the input.
        at: usize,
        /// The number itself.
        value: i64,
        /// Number of columns of the matrix.
        columns: usize,
    },
    /// The last row has no end.
    #[error("the last row does not end: -1 is missing")]
    Unterminated,
    /// The matrix exceeds [`MAX_SPARSE`].
    #[error("the matrix has more than {MAX_SPARSE} rows, columns or entries")]
    TooLarge,
}

/// A binary matrix, stored as the columns of each row that are 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseMatrix {
    num_columns: usize,
    ends: Vec<u32>,
    columns: Vec<u32>,
}

impl SparseMatrix {
    /// Reads a matrix in CUDA-Q QEC's flat form: the columns of each row in turn, and -1 after each row.
    ///
    /// If `num_columns` is `None`, it is one more than the highest column. A column that a row names twice cancels.
    pub fn from_flat(flat: &[i64], num_columns: Option<usize>) -> Result<Self, SparseError> {
        let limit = num_columns.unwrap_or(MAX_SPARSE);
        let rows = flat.iter().filter(|&&value| value == -1).count();
        if rows.max(flat.len() - rows).max(limit) > MAX_SPARSE {
            return Err(SparseError::TooLarge);
        }
        let mut matrix = Self { num_columns: num_columns.unwrap_or(0), ends: Vec::new(), columns: Vec::new() };
        let mut start = 0;
        for (at, &value) in flat.iter().enumerate() {
            match usize::try_from(value) {
                Ok(column) if column < limit => {
                    matrix.columns.push(column as u32);
                    matrix.num_columns = matrix.num_columns.max(column + 1);
                }
                Err(_) if value == -1 => {
                    let kept = crate::dem::cancel_pairs(&mut matrix.columns[start..]);
                    start += kept;
                    matrix.columns.truncate(start);
                    matrix.ends.push(start as u32);
                }
                _ => return Err(SparseError::Entry { at, value, columns: limit }),
            }
        }
        if matrix.columns.len() > start || flat.last().is_some_and(|&last| last != -1) {
            return Err(SparseError::Unterminated);
        }
        Ok(matrix)
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.ends.len()
    }

    /// Number of columns.
    pub fn num_columns(&self) -> usize {
        self.num_columns
    }

    /// For each row the columns that are 1, ascending.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let row = &self.columns[start..end as usize];
            start = end as usize;
            row
        })
    }
}

/// How raw measurements make detection events: each detector is the parity of some measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasurementMap {
    num_measurements: usize,
    num_detectors: usize,
    /// `None` if the measurements are the detectors.
    matrix: Option<SparseMatrix>,
}

impl MeasurementMap {
    /// Makes a map from a matrix with the measurements of one detector in each row: CUDA-Q QEC's `D_sparse`.
    pub fn new(matrix: SparseMatrix) -> Self {
        Self { num_measurements: matrix.num_columns(), num_detectors: matrix.num_rows(), matrix: Some(matrix) }
    }

    /// Makes a map for a source that already sends detection events.
    pub fn identity(num_detectors: usize) -> Self {
        Self { num_measurements: num_detectors, num_detectors, matrix: None }
    }

    /// Number of measurements in one volume.
    pub fn num_measurements(&self) -> usize {
        self.num_measurements
    }

    /// Number of detection events in one volume.
    pub fn num_detectors(&self) -> usize {
        self.num_detectors
    }

    /// The measurements of each detector; `None` if the measurements are the detectors.
    pub(crate) fn matrix(&self) -> Option<&SparseMatrix> {
        self.matrix.as_ref()
    }

    /// Computes the events of one volume. Both are bit strings, least significant bit first, of exactly the required
    /// length.
    pub fn apply(&self, measurements: &[u8], events: &mut [u8]) -> Result<(), BitsError> {
        bits::check(measurements, self.num_measurements)?;
        bits::check_length(events, self.num_detectors)?;
        let Some(matrix) = &self.matrix else {
            events.copy_from_slice(measurements);
            return Ok(());
        };
        events.fill(0);
        for (detector, row) in matrix.rows().enumerate() {
            let parity = row.iter().fold(false, |parity, &at| parity ^ bits::get(measurements, at as usize));
            events[detector / 8] |= u8::from(parity) << (detector % 8);
        }
        Ok(())
    }
}
