//! The journal file, which outlives the process.

use berth_fabric::{
    Recovered,
    journal::{Record, Replay, encode, frame_header, header},
};
use fastrand::Rng;

/// A journal file, records that are not written yet, and the frame that is being written.
pub struct Journal {
    file: Vec<u8>,
    id: u64,
    sequence: u64,
    staged: Vec<u8>,
    /// Number of batches that were staged, and of those that are durable.
    pub staged_to: u64,
    pub durable_to: u64,
    writing: Option<(Vec<u8>, u64)>,
}

impl Journal {
    pub fn new(id: u64) -> Self {
        Self {
            file: header(id).to_vec(),
            id,
            sequence: 1,
            staged: Vec::new(),
            staged_to: 0,
            durable_to: 0,
            writing: None,
        }
    }

    /// Adds a batch and returns its number. It is durable once `durable_to` has reached that number.
    pub fn stage(&mut self, records: &[Record]) -> u64 {
        for record in records {
            encode(record, &mut self.staged);
        }
        self.staged_to += 1;
        self.staged_to
    }

    /// Begins to write what is staged. False if there is nothing, or a write is under way.
    pub fn begin(&mut self) -> bool {
        if self.writing.is_some() || self.durable_to == self.staged_to {
            return false;
        }
        let records = std::mem::take(&mut self.staged);
        let mut frame = frame_header(self.id, self.sequence, &records).to_vec();
        frame.extend(records);
        self.sequence += 1;
        self.writing = Some((frame, self.staged_to));
        true
    }

    /// Makes what is being written durable.
    pub fn end(&mut self) {
        let (frame, to) = self.writing.take().expect("a write ends once");
        self.file.extend(frame);
        self.durable_to = to;
    }

    /// Makes records durable at once.
    pub fn write_now(&mut self, records: &[Record]) {
        self.stage(records);
        assert!(self.begin());
        self.end();
    }

    /// Writes a new file with the same state.
    pub fn compact(&mut self, id: u64) {
        let mut state: Recovered = Replay::new(&self.file[..]).unwrap().map(Result::unwrap).collect();
        state.forget_lapsed();
        let mut compacted = Self::new(id);
        compacted.write_now(&state.records().collect::<Vec<_>>());
        (self.file, self.id, self.sequence) = (compacted.file, id, compacted.sequence);
    }

    /// The process dies: the frame that was being written may have reached the disk partly, or whole.
    pub fn crash(&mut self, random: &mut Rng) -> Recovered {
        if let Some((frame, to)) = self.writing.take() {
            let cut = random.usize(0..=frame.len());
            self.file.extend(&frame[..cut]);
            if cut == frame.len() {
                self.durable_to = to;
            }
        }
        self.staged.clear();
        let mut replay = Replay::new(&self.file[..]).expect("only the tail is torn");
        let recovered = replay.by_ref().map(|record| record.expect("only the tail is torn")).collect();
        self.sequence = replay.next_sequence();
        if let Some(berth_fabric::journal::End::Torn { at, .. }) = replay.end() {
            self.file.truncate(at as usize);
        }
        // What was staged and is not durable never will be.
        self.staged_to = self.durable_to;
        recovered
    }
}
