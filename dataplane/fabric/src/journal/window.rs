//! A file that is read in pieces.

use std::io::{self, Read};

/// How much is read at a time, in bytes.
const PIECE: usize = 1 << 20;

/// What a reader has yet to give, its next bytes in memory.
#[derive(Debug)]
pub(super) struct Window<R> {
    from: R,
    bytes: Vec<u8>,
    /// How many of these bytes were passed.
    passed: usize,
    /// How many bytes were passed in all.
    at: u64,
}

impl<R: Read> Window<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from, bytes: Vec::new(), passed: 0, at: 0 }
    }

    /// Where in the file the next byte is.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next bytes, at least `len` of them unless the file ends before.
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

    /// Passes `len` bytes, of those that a peek gave.
    pub(super) fn pass(&mut self, len: usize) {
        self.passed += len;
        self.at += len as u64;
    }
}
