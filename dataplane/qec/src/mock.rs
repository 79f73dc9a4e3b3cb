//! `mock_decode`: recorded syndromes with recorded answers, to test the path from FPGA to decoder and back.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// Limit on the measurements of all shots in a file together.
pub const MAX_MEASUREMENTS: usize = 1 << 24;

/// A fault in a syndrome file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct SyndromeFileError {
    /// Line in the text, from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// The shots of a syndrome text file, in the format of CUDA-Q QEC's playback tools.
///
/// ```text
/// NUM_DATA: 9
/// NUM_LOGICAL: 1
/// SHOT_START 0
/// ROUND_START 0        optional, wherever a round starts
/// 0                    a measurement per line
/// 1
/// CORRECTIONS_START
/// 1                    a correction per shot
/// CORRECTIONS_END      what follows is not read
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyndromeFile {
    num_data: u64,
    num_logical: u64,
    num_measurements: usize,
    measurements: Vec<u8>,
    corrections: Vec<u8>,
}

#[derive(PartialEq)]
enum Section {
    Header,
    Shot,
    Corrections,
}

impl SyndromeFile {
    /// Parses the text of a syndrome file; the first faulty line ends that.
    pub fn parse(text: &str) -> Result<Self, SyndromeFileError> {
        let mut file = Self {
            num_data: 0,
            num_logical: 0,
            num_measurements: 0,
            measurements: Vec::new(),
            corrections: Vec::new(),
        };
        let (mut has_data, mut has_logical) = (false, false);
        let mut section = Section::Header;
        let mut shots = 0;
        let mut shot_start = 0;
        let mut last = 0;
        for (index, text) in text.lines().enumerate() {
            last = index + 1;
            let fail = |message: String| SyndromeFileError { line: last, message };
            let mut words = text.split(|c: char| c.is_whitespace() || c == ':').filter(|word| !word.is_empty());
            let (word, value, extra) = (words.next(), words.next(), words.next());
            let Some(word) = word else { continue };
            if extra.is_some() {
                return Err(fail("expected a word and at most one number".into()));
            }
            let number = |what: &str| {
                value
                    .and_then(|value| value.parse::<u64>().ok())
                    .ok_or_else(|| fail(format!("expected a number after {word}: {what}")))
            };
            if value.is_some() && (word == "0" || word == "1" || word.starts_with("CORRECTIONS")) {
                return Err(fail(format!("expected nothing after {word}")));
            }
            match (word, &section) {
                ("NUM_DATA", Section::Header) => (file.num_data, has_data) = (number("the data qubits")?, true),
                ("NUM_LOGICAL", Section::Header) => {
                    (file.num_logical, has_logical) = (number("the logical qubits")?, true);
                }
                ("SHOT_START", Section::Header | Section::Shot) => {
                    number("the shot")?;
                    if !has_data || !has_logical {
                        return Err(fail("NUM_DATA and NUM_LOGICAL come before the first shot".into()));
                    }
                    file.end_shot(shots, shot_start).map_err(fail)?;
                    shots += 1;
                    shot_start = file.measurements.len();
                    section = Section::Shot;
                }
                ("ROUND_START", Section::Shot) => {
                    if value.is_some() {
                        number("the round")?;
                    }
                }
                ("0" | "1", Section::Shot) => {
                    if file.measurements.len() == MAX_MEASUREMENTS {
                        return Err(fail(format!("more than {MAX_MEASUREMENTS} measurements")));
                    }
                    file.measurements.push(u8::from(word == "1"));
                }
                ("CORRECTIONS_START", Section::Shot) => {
                    file.end_shot(shots, shot_start).map_err(fail)?;
                    section = Section::Corrections;
                }
                ("0" | "1", Section::Corrections) => {
                    if file.corrections.len() == shots {
                        return Err(fail(format!("more corrections than the {shots} shots")));
                    }
                    file.corrections.push(u8::from(word == "1"));
                }
                ("CORRECTIONS_END", Section::Corrections) => {
                    if file.corrections.len() != shots {
                        return Err(fail(format!("{} corrections for {shots} shots", file.corrections.len())));
                    }
                    return Ok(file);
                }
                (_, section) => {
                    return Err(fail(match section {
                        Section::Header => "expected NUM_DATA, NUM_LOGICAL or SHOT_START".into(),
                        Section::Shot => "expected 0, 1, ROUND_START, SHOT_START or CORRECTIONS_START".into(),
                        Section::Corrections => "expected 0, 1 or CORRECTIONS_END".into(),
                    }));
                }
            }
        }
        Err(SyndromeFileError { line: last + 1, message: "the file ends before CORRECTIONS_END".into() })
    }

    /// Checks the shot just read, if any. The first one determines how many measurements each has.
    fn end_shot(&mut self, shots: usize, start: usize) -> Result<(), String> {
        let found = self.measurements.len() - start;
        match shots {
            0 => return Ok(()),
            1 => self.num_measurements = found,
            _ => {}
        }
        if found == 0 {
            return Err("the shot before this has no measurement".into());
        }
        if found != self.num_measurements {
            let expected = self.num_measurements;
            return Err(format!("the shot before this has {found} measurements, the first one {expected}"));
        }
        Ok(())
    }

    /// Number of data qubits, as `NUM_DATA` says.
    pub fn num_data(&self) -> u64 {
        self.num_data
    }

    /// Number of logical qubits, as `NUM_LOGICAL` says.
    pub fn num_logical(&self) -> u64 {
        self.num_logical
    }

    /// Number of measurements in each shot; at least 1.
    pub fn num_measurements(&self) -> usize {
        self.num_measurements
    }

    /// Measurements of each shot, one byte of 0 or 1 each, and its correction, 0 or 1.
    pub fn shots(&self) -> impl ExactSizeIterator<Item = (&[u8], u8)> {
        self.measurements.chunks_exact(self.num_measurements).zip(self.corrections.iter().copied())
    }
}

/// An entry has another length than the others of a [`MockTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the entry has {found} bytes of {what}, the table takes {expected}")]
pub struct MockEntryError {
    /// `measurements` or `corrections`.
    pub what: &'static str,
    /// Length that the table requires, in bytes.
    pub expected: usize,
    /// Length of the entry, in bytes.
    pub found: usize,
}

/// The table of `mock_decode`, which finds exact matches only.
#[derive(Debug)]
pub struct MockTable {
    num_measurements: usize,
    num_observables: usize,
    answers: HashMap<Box<[u8]>, Box<[u8]>, FixedState>,
}

impl MockTable {
    /// Makes an empty table for requests and answers of these lengths in bytes.
    pub fn new(num_measurements: usize, num_observables: usize) -> Self {
        Self { num_measurements, num_observables, answers: HashMap::default() }
    }

    /// Makes the table of a syndrome file, with one observable: the shot's correction.
    pub fn from_file(file: &SyndromeFile) -> Self {
        let mut table = Self::new(file.num_measurements(), 1);
        for (measurements, correction) in file.shots() {
            table.enter(measurements, &[correction]);
        }
        table
    }

    /// Adds an answer: one byte per measurement and one byte per observable. If the measurements have an answer
    /// already, that stays.
    pub fn insert(&mut self, measurements: &[u8], corrections: &[u8]) -> Result<(), MockEntryError> {
        let check = |what, expected, found| {
            if expected == found { Ok(()) } else { Err(MockEntryError { what, expected, found }) }
        };
        check("measurements", self.num_measurements, measurements.len())?;
        check("corrections", self.num_observables, corrections.len())?;
        self.enter(measurements, corrections);
        Ok(())
    }

    fn enter(&mut self, measurements: &[u8], corrections: &[u8]) {
        self.answers.entry(measurements.into()).or_insert_with(|| corrections.into());
    }

    /// Length of a request in bytes, one for each measurement.
    pub fn num_measurements(&self) -> usize {
        self.num_measurements
    }

    /// Length of an answer in bytes, one for each observable.
    pub fn num_observables(&self) -> usize {
        self.num_observables
    }

    /// Writes the entry's corrections, or zeros if the table has none. Returns whether it has one.
    ///
    /// # Panics
    /// If `corrections` does not have `num_observables` bytes.
    #[inline]
    pub fn answer(&self, measurements: &[u8], corrections: &mut [u8]) -> bool {
        assert_eq!(corrections.len(), self.num_observables, "a byte for each observable");
        let Some(answer) = self.answers.get(measurements) else {
            corrections.fill(0);
            return false;
        };
        corrections.copy_from_slice(answer);
        true
    }
}
