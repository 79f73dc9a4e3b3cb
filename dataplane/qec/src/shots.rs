//! Shots in Stim's result formats: a bit for each detector or observable, shot after shot.
//!
//! | format | a shot |
//! |---|---|
//! | `01` | a line of `0` and `1` |
//! | `b8` | whole bytes, least significant bit first, padded with zeros |
//! | `r8` | before each set bit, and before a bit that would follow the last one, a byte with the number of unset ones; 255 stands for 255 unset bits and no set one |
//! | `dets` | a line `shot D3 D17`, with `L` for observables |
//! | `ptb64` | 64 shots together: for each bit, eight bytes with that bit of every shot, least significant first |

use std::str::FromStr;

use crate::bits;

/// A format of shots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `01`
    Text,
    /// `b8`
    B8,
    /// `r8`
    R8,
    /// `dets`
    Dets,
    /// `ptb64`
    Ptb64,
}

impl Format {
    /// All formats, by name.
    pub const ALL: [(&str, Self); 5] =
        [("01", Self::Text), ("b8", Self::B8), ("r8", Self::R8), ("dets", Self::Dets), ("ptb64", Self::Ptb64)];
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, format)| *format).ok_or_else(|| format!("\"{name}\" is none of 01, b8, r8, dets and ptb64"))
    }
}

/// A fault in a file of shots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shot {shot}: {message}")]
pub struct ShotError {
    /// The shot, from 0.
    pub shot: u64,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// What the bits of a shot stand for: the letter in `dets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// Detection events.
    Detectors,
    /// Flips of observables.
    Observables,
}

impl Bits {
    fn letter(self) -> char {
        match self {
            Self::Detectors => 'D',
            Self::Observables => 'L',
        }
    }
}

/// Reads shots of a fixed number of bits.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    format: Format,
    bits: Bits,
    width: usize,
    shot: u64,
}

impl<'a> Reader<'a> {
    /// A reader of a whole file of shots of `width` bits.
    pub fn new(file: &'a [u8], format: Format, bits: Bits, width: usize) -> Self {
        Self { rest: file, format, bits, width, shot: 0 }
    }

    /// Reads the next shot into `ceil(width / 8)` bytes, as in `b8`. False at the end.
    pub fn next(&mut self, row: &mut [u8]) -> Result<bool, ShotError> {
        let fail = |message: String| ShotError { shot: self.shot, message };
        bits::check_length(row, self.width).map_err(|error| fail(error.to_string()))?;
        if self.rest.is_empty() || (self.width == 0 && matches!(self.format, Format::B8 | Format::Ptb64)) {
            return Ok(false);
        }
        row.fill(0);
        match self.format {
            Format::Text => self.text(row),
            Format::B8 => self.b8(row),
            Format::R8 => self.r8(row),
            Format::Dets => self.dets(row),
            Format::Ptb64 => self.ptb64(row),
        }
        .map_err(|message| ShotError { shot: self.shot, message })?;
        self.shot += 1;
        Ok(true)
    }

    /// Takes a line, without its end.
    fn line(&mut self) -> &'a [u8] {
        let end = self.rest.iter().position(|byte| *byte == b'\n');
        let (line, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.get(1..).unwrap_or_default();
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or("the file ends within it")?;
        self.rest = rest;
        Ok(taken)
    }

    fn text(&mut self, row: &mut [u8]) -> Result<(), String> {
        let line = self.line();
        if line.len() != self.width {
            return Err(format!("its line has {} characters; the model has {} bits", line.len(), self.width));
        }
        for (at, byte) in line.iter().enumerate() {
            match byte {
                b'0' => {}
                b'1' => set(row, at),
                _ => return Err("a line has 0 and 1 alone".into()),
            }
        }
        Ok(())
    }

    fn b8(&mut self, row: &mut [u8]) -> Result<(), String> {
        row.copy_from_slice(self.take(row.len())?);
        bits::check(row, self.width).map_err(|error| error.to_string())
    }

    fn r8(&mut self, row: &mut [u8]) -> Result<(), String> {
        let mut at = 0;
        loop {
            let unset = self.take(1)?[0];
            at += usize::from(unset);
            if at > self.width {
                return Err(format!("it has more than the model's {} bits", self.width));
            }
            if unset < 255 {
                if at == self.width {
                    return Ok(());
                }
                set(row, at);
                at += 1;
            }
        }
    }

    fn dets(&mut self, row: &mut [u8]) -> Result<(), String> {
        let letter = self.bits.letter();
        let line = std::str::from_utf8(self.line()).map_err(|_| "its line is no text".to_owned())?;
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("shot") {
            return Err(format!("its line does not begin with \"shot\": {line:?}"));
        }
        for word in words {
            let number = word.strip_prefix(letter).and_then(|number| number.parse().ok());
            match number {
                Some(at) if at < self.width => set(row, at),
                _ => return Err(format!("{word:?} is none of {letter}0 to {letter}{}", self.width.saturating_sub(1))),
            }
        }
        Ok(())
    }

    /// A group of 64 shots is left when its last one is read.
    fn ptb64(&mut self, row: &mut [u8]) -> Result<(), String> {
        let group = self.rest.get(..8 * self.width).ok_or("the file ends within its 64 shots")?;
        let (at, bit) = ((self.shot % 64 / 8) as usize, self.shot % 8);
        for (index, word) in group.chunks_exact(8).enumerate() {
            if word[at] >> bit & 1 == 1 {
                set(row, index);
            }
        }
        if self.shot % 64 == 63 {
            self.rest = &self.rest[group.len()..];
        }
        Ok(())
    }
}

/// Writes shots of a fixed number of bits.
#[derive(Debug)]
pub struct Writer {
    file: Vec<u8>,
    format: Format,
    bits: Bits,
    width: usize,
    shots: u64,
}

impl Writer {
    /// A writer of shots of `width` bits.
    pub fn new(format: Format, bits: Bits, width: usize) -> Self {
        Self { file: Vec::new(), format, bits, width, shots: 0 }
    }

    /// Appends a shot of `ceil(width / 8)` bytes, as in `b8`.
    pub fn push(&mut self, row: &[u8]) -> Result<(), ShotError> {
        bits::check(row, self.width).map_err(|error| ShotError { shot: self.shots, message: error.to_string() })?;
        let mut set_bits = (0..self.width).filter(|at| bits::get(row, *at));
        match self.format {
            Format::Text => {
                self.file.extend((0..self.width).map(|at| b'0' + u8::from(bits::get(row, at))));
                self.file.push(b'\n');
            }
            Format::B8 => self.file.extend_from_slice(row),
            Format::R8 => {
                let mut from = 0;
                for at in set_bits.chain([self.width]) {
                    self.file.extend(std::iter::repeat_n(255, (at - from) / 255));
                    self.file.push(((at - from) % 255) as u8);
                    from = at + 1;
                }
            }
            Format::Dets => {
                self.file.extend_from_slice(b"shot");
                for at in set_bits {
                    self.file.extend_from_slice(format!(" {}{at}", self.bits.letter()).as_bytes());
                }
                self.file.push(b'\n');
            }
            Format::Ptb64 => {
                if self.shots.is_multiple_of(64) {
                    self.file.resize(self.file.len() + 8 * self.width, 0);
                }
                let group = self.file.len() - 8 * self.width;
                let (byte, bit) = ((self.shots % 64 / 8) as usize, self.shots % 8);
                set_bits.by_ref().for_each(|at| self.file[group + 8 * at + byte] |= 1 << bit);
            }
        }
        self.shots += 1;
        Ok(())
    }

    /// What has been written so far, to be written elsewhere; whole shots, and of `ptb64` all or nothing.
    pub fn drain(&mut self) -> Vec<u8> {
        if self.format == Format::Ptb64 && !self.shots.is_multiple_of(64) {
            return Vec::new();
        }
        std::mem::take(&mut self.file)
    }

    /// The rest of the file. `ptb64` has a multiple of 64 shots, as in Stim.
    pub fn finish(self) -> Result<Vec<u8>, ShotError> {
        if self.format == Format::Ptb64 && !self.shots.is_multiple_of(64) {
            return Err(ShotError { shot: self.shots, message: "ptb64 holds multiples of 64 shots".into() });
        }
        Ok(self.file)
    }
}

fn set(row: &mut [u8], at: usize) {
    row[at / 8] |= 1 << (at % 8);
}
