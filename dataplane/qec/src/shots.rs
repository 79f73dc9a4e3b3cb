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

use crate::bits::{self, BitsError};

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
#[error("shot {shot}, from byte {byte}: {message}")]
pub struct ShotError {
    /// The shot, from 0.
    pub shot: u64,
    /// Where in the file the shot begins, in `ptb64` its 64 shots.
    pub byte: u64,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// A file of `ptb64` would have this number of shots, which is no multiple of 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ptb64 holds multiples of 64 shots, not {0}; choose another format")]
pub struct NotOf64(pub u64);

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

    fn word(self) -> &'static str {
        match self {
            Self::Detectors => "detectors",
            Self::Observables => "observables",
        }
    }
}

/// What a call of [`Reader::next`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A shot, which is now in `row`.
    Shot,
    /// A part of a shot: more of the file is needed.
    Part,
    /// The end of the file.
    End,
}

/// Reads shots of a fixed number of bits from a file that comes in pieces.
#[derive(Debug)]
pub struct Reader {
    format: Format,
    bits: Bits,
    width: usize,
    shot: u64,
    byte: u64,
}

/// Why there is no shot: more bytes are needed, or it is wrong.
enum Fault {
    Short,
    Wrong(String),
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::Wrong(message)
    }
}

impl Reader {
    /// A reader of shots of `width` bits.
    pub fn new(format: Format, bits: Bits, width: usize) -> Self {
        Self { format, bits, width, shot: 0, byte: 0 }
    }

    /// Reads the next shot into `ceil(width / 8)` bytes, as in `b8`, and takes from `input` what has been read. `input` begins
    /// where the call before left it, and has the file's end if it is the `last` piece. What is no shot is found in pieces
    /// of any size at most a little longer than the longest shot, or 64 of `ptb64`.
    pub fn next(&mut self, input: &mut &[u8], last: bool, row: &mut [u8]) -> Result<Found, ShotError> {
        let fail = |message: String| ShotError { shot: self.shot, byte: self.byte, message };
        bits::check_length(row, self.width).map_err(|error| fail(error.to_string()))?;
        if input.is_empty() {
            // In the middle of 64 shots their bytes are still there.
            return Ok(if last { Found::End } else { Found::Part });
        }
        row.fill(0);
        let read = match self.format {
            Format::Text => self.text(input, last, row),
            Format::B8 => self.b8(input, row),
            Format::R8 => self.r8(input, row),
            Format::Dets => self.dets(input, last, row),
            Format::Ptb64 => self.ptb64(input, row),
        };
        let taken = match read {
            Ok(taken) => taken,
            Err(Fault::Short) if !last => return Ok(Found::Part),
            Err(Fault::Short) => return Err(fail(self.cut_off(input.len()))),
            Err(Fault::Wrong(message)) => return Err(fail(message)),
        };
        *input = &input[taken..];
        self.byte += taken as u64;
        self.shot += 1;
        Ok(Found::Shot)
    }

    /// What to say of a file that ends within a shot.
    fn cut_off(&self, found: usize) -> String {
        let (width, word) = (self.width, self.bits.word());
        match self.format {
            Format::B8 => format!("the file ends after {found} of its {} bytes for {width} {word}", width.div_ceil(8)),
            Format::Ptb64 => {
                format!("the file ends after {found} of the {} bytes for {width} {word} of 64 shots", 8 * width)
            }
            Format::Text | Format::R8 | Format::Dets => format!("the file ends before the last of its {width} {word}"),
        }
    }

    /// The line at the beginning, without its end, and its length with it. The last one may lack its end.
    fn line(input: &[u8], last: bool, longest: usize) -> Result<(&[u8], usize), Fault> {
        let (line, taken) = match input.iter().take(longest + 2).position(|byte| *byte == b'\n') {
            Some(end) => (&input[..end], end + 1),
            None if input.len() > longest + 1 => {
                return Err(format!("its line has more than {longest} characters").into());
            }
            None if last => (input, input.len()),
            None => return Err(Fault::Short),
        };
        Ok((line.strip_suffix(b"\r").unwrap_or(line), taken))
    }

    fn text(&self, input: &[u8], last: bool, row: &mut [u8]) -> Result<usize, Fault> {
        let (width, word) = (self.width, self.bits.word());
        let wrong = |characters: String| format!("its line has {characters} characters; the model has {width} {word}");
        let (line, taken) = match Self::line(input, last, width) {
            Err(Fault::Wrong(_)) => return Err(wrong(format!("more than {width}")).into()),
            line => line?,
        };
        if line.len() != width {
            return Err(wrong(line.len().to_string()).into());
        }
        for (at, byte) in line.iter().enumerate() {
            match byte {
                b'0' => {}
                b'1' => set(row, at),
                _ => return Err("a line has 0 and 1 alone".to_owned().into()),
            }
        }
        Ok(taken)
    }

    fn b8(&self, input: &[u8], row: &mut [u8]) -> Result<usize, Fault> {
        if row.is_empty() {
            return Err(format!("the model has no {}", self.bits.word()).into());
        }
        row.copy_from_slice(input.get(..row.len()).ok_or(Fault::Short)?);
        bits::check(row, self.width).map_err(|_| {
            format!("a bit after the model's {} {} is set; is it of another model?", self.width, self.bits.word())
        })?;
        Ok(row.len())
    }

    fn r8(&self, input: &[u8], row: &mut [u8]) -> Result<usize, Fault> {
        let mut at = 0;
        for (index, unset) in input.iter().enumerate() {
            at += usize::from(*unset);
            if at > self.width {
                return Err(format!("it has more than the model's {} {}", self.width, self.bits.word()).into());
            }
            if *unset < 255 {
                if at == self.width {
                    return Ok(index + 1);
                }
                set(row, at);
                at += 1;
            }
        }
        Err(Fault::Short)
    }

    fn dets(&self, input: &[u8], last: bool, row: &mut [u8]) -> Result<usize, Fault> {
        // "shot", then of each bit a space, the letter and up to seven digits; and as many spaces again.
        let (line, taken) = Self::line(input, last, 64 + 18 * self.width)?;
        let letter = self.bits.letter();
        let line = std::str::from_utf8(line).map_err(|_| "its line is no text".to_owned())?;
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("shot") {
            return Err(format!("its line does not begin with \"shot\": {:?}", shortened(line)).into());
        }
        for word in words {
            let number = word.strip_prefix(letter).and_then(|number| number.parse().ok());
            match number {
                Some(at) if at < self.width => set(row, at),
                _ if self.width == 0 => {
                    return Err(format!("{:?}: the model has no {}", shortened(word), self.bits.word()).into());
                }
                _ => {
                    return Err(
                        format!("{:?} is none of {letter}0 to {letter}{}", shortened(word), self.width - 1).into()
                    );
                }
            }
        }
        Ok(taken)
    }

    /// A group of 64 shots is left when its last one is read.
    fn ptb64(&self, input: &[u8], row: &mut [u8]) -> Result<usize, Fault> {
        if row.is_empty() {
            return Err(format!("the model has no {}", self.bits.word()).into());
        }
        let group = input.get(..8 * self.width).ok_or(Fault::Short)?;
        let (at, bit) = ((self.shot % 64 / 8) as usize, self.shot % 8);
        for (index, word) in group.chunks_exact(8).enumerate() {
            if word[at] >> bit & 1 == 1 {
                set(row, index);
            }
        }
        Ok(if self.shot % 64 == 63 { group.len() } else { 0 })
    }
}

/// The beginning of a text that may be long.
fn shortened(text: &str) -> &str {
    text.get(..text.floor_char_boundary(40)).unwrap_or(text)
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
    pub fn push(&mut self, row: &[u8]) -> Result<(), BitsError> {
        bits::check(row, self.width)?;
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
    pub fn finish(self) -> Result<Vec<u8>, NotOf64> {
        if self.format == Format::Ptb64 && !self.shots.is_multiple_of(64) {
            return Err(NotOf64(self.shots));
        }
        Ok(self.file)
    }
}

fn set(row: &mut [u8], at: usize) {
    row[at / 8] |= 1 << (at % 8);
}
