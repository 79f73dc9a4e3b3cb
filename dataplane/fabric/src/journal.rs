//! What a node journals before it answers, and how that is read back.
//!
//! A journal is an append-only file: a [`header`], then frames. A frame is one group commit: the records that became
//! durable together. The writer starts a frame only after the one before is durable. A damaged frame with a sound one
//! behind it therefore means that answered state is damaged ([`Corrupt`]). Damage at the very end is a write that a
//! crash cut short, of which nothing was answered ([`End::Torn`]).
//!
//! Compaction writes a new file and renames it over the old one: a header with a new id, and frames of records that add
//! up to the same state ([`Recovered::records`](crate::Recovered::records)). It gets that state by reading the old
//! file, so snapshots need neither a format of their own nor a copy of the state in memory.
//!
//! ```text
//! header  magic "BERTHJNL", version u32, zero u32, id u64, crc32c u32 of all before, zero u32          32 bytes
//! frame   magic "FBJF", len u32, sequence u64 from 1, crc32c u32 of id, len, sequence and records       20 bytes
//!         records, len bytes: kind u8, fields; all integers big-endian
//! ```

mod record;
mod window;

pub use record::{Grant, Handle, Record};

use std::io::{self, Read};

use thiserror::Error;

use window::Window;

/// Size of a journal's header in bytes.
pub const HEADER_LEN: usize = 32;

/// Size of a frame's header in bytes.
pub const FRAME_HEADER_LEN: usize = 20;

/// Limit on the records of one frame, in bytes.
pub const MAX_FRAME_LEN: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"BERTHJNL";
const VERSION: u32 = 2;
const FRAME_MAGIC: [u8; 4] = *b"FBJF";

/// Appends the encoded `record` to the records of a frame.
pub fn encode(record: &Record, out: &mut Vec<u8>) {
    record.encode(out);
}

/// Header of a new journal. `id` is random, so that left-over frames of another journal on the disk do not count as
/// frames of this one.
pub fn header(id: u64) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_be_bytes());
    header[16..24].copy_from_slice(&id.to_be_bytes());
    let crc = crc32c::crc32c(&header[..24]);
    header[24..28].copy_from_slice(&crc.to_be_bytes());
    header
}

/// Header of frame number `sequence`, counted from 1, in the journal `id`. `records` comes from [`encode`] and has at
/// most [`MAX_FRAME_LEN`] bytes.
pub fn frame_header(id: u64, sequence: u64, records: &[u8]) -> [u8; FRAME_HEADER_LEN] {
    assert!(records.len() <= MAX_FRAME_LEN, "a frame holds at most {MAX_FRAME_LEN} bytes of records");
    let mut header = [0; FRAME_HEADER_LEN];
    header[..4].copy_from_slice(&FRAME_MAGIC);
    header[4..8].copy_from_slice(&(records.len() as u32).to_be_bytes());
    header[8..16].copy_from_slice(&sequence.to_be_bytes());
    let crc = frame_crc(id, &header[4..16], records);
    header[16..].copy_from_slice(&crc.to_be_bytes());
    header
}

/// Length of the frame's records in bytes, as its header says; not checked.
pub fn frame_len(header: &[u8; FRAME_HEADER_LEN]) -> usize {
    be_u32(&header[4..8]) as usize
}

fn frame_crc(id: u64, len_and_sequence: &[u8], records: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&id.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, len_and_sequence), records)
}

/// Damage to a journal. Nothing of it may be used: a grant or a revocation could be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Corrupt {
    /// The header is damaged, or the file is not a journal.
    #[error("the first {HEADER_LEN} bytes are not the header of a journal")]
    Header,
    /// The header is sound, but of this other version.
    #[error("the journal has version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// A frame is damaged although a sound frame follows it, so it had become durable.
    #[error("the frame at byte {at} is damaged, and the frame at byte {next} after it is not")]
    Frame {
        /// Offset of the damaged frame in the file.
        at: u64,
        /// Offset of the sound frame.
        next: u64,
    },
    /// A frame's checksum is right, but it holds something that is not a record of this version.
    #[error("the frame at byte {at} is sound but holds an unknown record")]
    Record {
        /// Offset of the frame in the file.
        at: u64,
    },
}

/// Why a journal was not read to its end. Nothing that was read may be used.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// Its bytes are damaged.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// The file could not be read.
    #[error("the journal cannot be read: {0}")]
    Read(#[from] io::Error),
}

/// How a sound journal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Directly behind a whole frame.
    Clean,
    /// With part of a frame: a write that was cut short. Truncate the file to `at` bytes.
    Torn {
        /// Length of the sound part in bytes.
        at: u64,
        /// Number of bytes behind it.
        lost: u64,
    },
}

/// Reads a journal piece by piece. Memory use is bounded by the longest frame.
#[derive(Debug)]
pub struct Replay<R> {
    file: Window<R>,
    id: u64,
    /// Sequence of the next frame.
    sequence: u64,
    /// Bytes left of the current frame's records, and the offset of that frame.
    left: usize,
    frame_at: u64,
    end: Option<End>,
}

impl<R: Read> Replay<R> {
    /// Begins to read a journal from the start of its file.
    pub fn new(file: R) -> Result<Self, ReplayError> {
        let mut file = Window::new(file);
        let Some(found) = file.peek(HEADER_LEN)?.first_chunk::<HEADER_LEN>() else {
            return Err(Corrupt::Header.into());
        };
        let id = be_u64(&found[16..24]);
        if found[..8] == MAGIC && be_u32(&found[24..28]) == crc32c::crc32c(&found[..24]) {
            let version = be_u32(&found[8..12]);
            if version != VERSION {
                return Err(Corrupt::Version(version).into());
            }
        }
        if *found != header(id) {
            return Err(Corrupt::Header.into());
        }
        file.pass(HEADER_LEN);
        Ok(Self { file, id, sequence: 1, left: 0, frame_at: 0, end: None })
    }

    /// The journal's id, from its header.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sequence of the frame to append next; valid once [`Replay::end`] is `Some`.
    pub fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// How the journal ends; `None` until the iteration is over.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Sequence and length of the frame that comes next, if it is sound.
    fn frame(&mut self) -> io::Result<Option<(u64, usize)>> {
        let ahead = self.file.peek(FRAME_HEADER_LEN)?;
        let Some(found) = ahead.first_chunk::<FRAME_HEADER_LEN>() else { return Ok(None) };
        let len = be_u32(&found[4..8]) as usize;
        if found[..4] != FRAME_MAGIC || len > MAX_FRAME_LEN {
            return Ok(None);
        }
        let ahead = self.file.peek(FRAME_HEADER_LEN + len)?;
        let Some((found, records)) = ahead.get(..FRAME_HEADER_LEN + len).map(|frame| frame.split_at(FRAME_HEADER_LEN))
        else {
            return Ok(None);
        };
        let sound = frame_crc(self.id, &found[4..16], records) == be_u32(&found[16..]);
        Ok(sound.then(|| (be_u64(&found[8..16]), len)))
    }

    /// Advances to the next frame; false at the end.
    fn advance(&mut self) -> Result<bool, ReplayError> {
        let at = self.file.at();
        if let Some((sequence, len)) = self.frame()?
            && sequence == self.sequence
        {
            self.file.pass(FRAME_HEADER_LEN);
            (self.frame_at, self.left) = (at, len);
            self.sequence += 1;
            return Ok(true);
        }
        // A sound frame anywhere behind means that the one that ought to be here was durable once.
        let end = loop {
            let ahead = self.file.peek(FRAME_MAGIC.len())?;
            let len = ahead.len();
            if len < FRAME_MAGIC.len() {
                break self.file.at() + len as u64;
            }
            match ahead.windows(FRAME_MAGIC.len()).position(|window| *window == FRAME_MAGIC) {
                Some(magic) => {
                    self.file.pass(magic);
                    if self.frame()?.is_some() {
                        return Err(Corrupt::Frame { at, next: self.file.at() }.into());
                    }
                    self.file.pass(1);
                }
                // The last bytes may be the first of one.
                None => self.file.pass(len - (FRAME_MAGIC.len() - 1)),
            }
        };
        let lost = end - at;
        self.end = Some(if lost == 0 { End::Clean } else { End::Torn { at, lost } });
        Ok(false)
    }

    /// Takes the next record of the current frame.
    fn record(&mut self) -> Result<Record, ReplayError> {
        let mut records = &self.file.peek(self.left)?[..self.left];
        let record = Record::decode(&mut records).ok_or(Corrupt::Record { at: self.frame_at })?;
        let left = records.len();
        self.file.pass(self.left - left);
        self.left = left;
        Ok(record)
    }
}

impl<R: Read> Iterator for Replay<R> {
    type Item = Result<Record, ReplayError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.left == 0 {
            if self.end.is_some() {
                return None;
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(self.record())
    }
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn be_u64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}
