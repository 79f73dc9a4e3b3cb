//! Reads a file in pieces.

use std::io::{self, Read};

/// Bytes per read.
const PIECE: usize = 1 << 20;

/// The rest of a reader, with its next bytes in memory.
#[derive(Debug)]
pub(super) struct Window<R> {
    from: R,
    bytes: Vec<u8>,
    /// Number of these bytes that were passed.
    passed: usize,
    /// Number of bytes passed in all.
    at: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, bytes: Vec::new(), passed: 0, at: 0 }
    }

    /// Offset of the next byte in the file.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes: at least `len`, unless the file ends before.
    pub(super) fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        if self.bytes.len() - self.passed < len {
            self.bytes.drain(..self.passed);
            self.passed = 0;
            let more = len.max(PIECE) - self.bytes.len();
            self.bytes.reserve_exact(more);
            self.from.by_ref().take(more as u64).read_to_end(&mut self.bytes)?;
        }
        Ok(&self.bytes[self.passed..])
    }

    /// Moves past `len` bytes that a peek has returned.
    pub(super) fn pass(&mut self, len: usize) {
        self.passed += len;
        self.at += len as u64;
    }
}
