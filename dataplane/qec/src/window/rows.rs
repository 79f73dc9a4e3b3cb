//! What is known of the detectors of the last rounds.

/// A bit for each detector of the last rounds, 64 in a word.
#[derive(Debug)]
pub(super) struct Rows {
    words: Vec<u64>,
    of_row: usize,
    count: u64,
}

impl Rows {
    pub(super) fn new(count: usize, of_row: usize) -> Self {
        Self { words: vec![0; count.max(1) * of_row], of_row, count: count.max(1) as u64 }
    }

    /// Number of rounds that it holds.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn at(&self, round: u64) -> usize {
        (round % self.count) as usize * self.of_row
    }

    pub(super) fn row(&mut self, round: u64) -> &mut [u64] {
        let at = self.at(round);
        &mut self.words[at..at + self.of_row]
    }

    pub(super) fn word(&self, round: u64, at: usize) -> u64 {
        self.words[self.at(round) + at]
    }

    pub(super) fn flip(&mut self, round: u64, place: u32) {
        self.row(round)[place as usize / 64] ^= 1 << (place % 64);
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }
}
