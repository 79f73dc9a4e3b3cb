//! What a node writes down before it answers, and how it is read back.
//!
//! A journal is a file that only grows: a [`header`], then frames. A frame is one group commit: the records that became
//! durable together. The writer starts a frame only after the one before it is durable, so a damaged frame with a sound
//! one behind it is damage to something that was answered ([`Corrupt`]), while damage at the very end is a write that a
//! crash cut short and nobody was answered about ([`End::Torn`]).
//!
//! Compaction writes a new file: a header with a new id and frames of the records that add up to the same state
//! ([`Recovered::records`](crate::Recovered::records)), and renames it over the old one. A snapshot needs no format of
//! its own, and the writer can keep that state itself, from the records it writes.
//!
//! ```text
//! header  magic "BERTHJNL", version u32, zero u32, id u64, crc32c u32 of all before, zero u32          32 bytes
//! frame   magic "FBJF", len u32, sequence u64 from 1, crc32c u32 of id, len, sequence and records       20 bytes
//!         records, len bytes: kind u8, fields; all integers big-endian
//! ```

mod record;

pub use record::{Grant, Handle, Proxy, Record};

use thiserror::Error;

/// Bytes of a journal's header.
pub const HEADER_LEN: usize = 32;

/// Bytes of a frame before its records.
pub const FRAME_HEADER_LEN: usize = 20;

/// Most bytes of records in one frame.
pub const MAX_FRAME_LEN: usize = 16 << 20;

const MAGIC: [u8; 8] = *b"BERTHJNL";
const VERSION: u32 = 1;
const FRAME_MAGIC: [u8; 4] = *b"FBJF";

/// Appends the encoding of `record` to the records of a frame.
pub fn encode(record: &Record, out: &mut Vec<u8>) {
    record.encode(out);
}

/// The first bytes of a new journal. `id` is random: frames of another journal, such as what an older file left on the
/// disk, are not frames of this one.
pub fn header(id: u64) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_be_bytes());
    header[16..24].copy_from_slice(&id.to_be_bytes());
    let crc = crc32c::crc32c(&header[..24]);
    header[24..28].copy_from_slice(&crc.to_be_bytes());
    header
}

/// What stands before `records` (of [`encode`], at most [`MAX_FRAME_LEN`] bytes) in the journal `id` as its frame
/// number `sequence`, counted from 1.
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

fn frame_crc(id: u64, len_and_sequence: &[u8], records: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&id.to_be_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(crc, len_and_sequence), records)
}

/// Why a journal cannot be replayed. Nothing of it may be used: a grant or a revocation could be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Corrupt {
    /// The header is damaged or is no journal's.
    #[error("the first {HEADER_LEN} bytes are not the header of a journal")]
    Header,
    /// The header is sound but of another version.
    #[error("the journal has version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// A frame that had become durable is damaged: a sound frame follows it.
    #[error("the frame at byte {at} is damaged, and the frame at byte {next} after it is not")]
    Frame {
        /// Where the damaged frame starts.
        at: u64,
        /// Where a sound frame starts.
        next: u64,
    },
    /// A frame with a sound checksum holds something that is not a record of this version.
    #[error("the frame at byte {at} is sound but holds an unknown record")]
    Record {
        /// Where the frame starts.
        at: u64,
    },
}

/// How a journal that can be replayed ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Behind a whole frame.
    Clean,
    /// With bytes that are not a frame: a write that was cut short. The file is to be cut at `at`.
    Torn {
        /// The length of the sound part.
        at: u64,
        /// Bytes behind it.
        lost: u64,
    },
}

/// Reads a journal's bytes.
#[derive(Debug)]
pub struct Replay<'a> {
    bytes: &'a [u8],
    id: u64,
    /// Where the next frame starts.
    at: usize,
    /// The next frame's number.
    sequence: u64,
    /// Records of the current frame that are still to come, and where that frame started.
    records: &'a [u8],
    frame_at: usize,
    end: Option<End>,
}

impl<'a> Replay<'a> {
    /// Begins to read a whole journal file.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Corrupt> {
        let Some(found) = bytes.first_chunk::<HEADER_LEN>() else { return Err(Corrupt::Header) };
        let id = be_u64(&found[16..24]);
        if found[..8] == MAGIC && be_u32(&found[24..28]) == crc32c::crc32c(&found[..24]) {
            let version = be_u32(&found[8..12]);
            if version != VERSION {
                return Err(Corrupt::Version(version));
            }
        }
        if *found != header(id) {
            return Err(Corrupt::Header);
        }
        Ok(Self { bytes, id, at: HEADER_LEN, sequence: 1, records: &[], frame_at: HEADER_LEN, end: None })
    }

    /// The journal's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the frame to append next; meaningful once [`Replay::end`] is known.
    pub fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// How the journal ends; known once the iteration has.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The records of a sound frame that starts at `at`, and its number.
    fn frame(&self, at: usize) -> Option<(u64, &'a [u8])> {
        let (found, rest) = self.bytes.get(at..)?.split_first_chunk::<FRAME_HEADER_LEN>()?;
        let len = be_u32(&found[4..8]) as usize;
        if found[..4] != FRAME_MAGIC || len > MAX_FRAME_LEN {
            return None;
        }
        let records = rest.get(..len)?;
        let sound = frame_crc(self.id, &found[4..16], records) == be_u32(&found[16..]);
        sound.then(|| (be_u64(&found[8..16]), records))
    }

    /// Goes to the next frame; false at the end.
    fn advance(&mut self) -> Result<bool, Corrupt> {
        if let Some((sequence, records)) = self.frame(self.at)
            && sequence == self.sequence
        {
            self.frame_at = self.at;
            self.records = records;
            self.at += FRAME_HEADER_LEN + records.len();
            self.sequence += 1;
            return Ok(true);
        }
        let rest = &self.bytes[self.at..];
        // A sound frame anywhere behind means that the one that ought to be here was durable once.
        let magics = rest.windows(FRAME_MAGIC.len()).enumerate().filter(|(_, window)| **window == FRAME_MAGIC);
        for next in magics.map(|(offset, _)| self.at + offset) {
            if self.frame(next).is_some() {
                return Err(Corrupt::Frame { at: self.at as u64, next: next as u64 });
            }
        }
        let lost = rest.len() as u64;
        self.end = Some(if lost == 0 { End::Clean } else { End::Torn { at: self.at as u64, lost } });
        Ok(false)
    }
}

impl Iterator for Replay<'_> {
    type Item = Result<Record, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.records.is_empty() {
            if self.end.is_some() {
                return None;
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(corrupt) => return Some(Err(corrupt)),
            }
        }
        let record = Record::decode(&mut self.records);
        Some(record.ok_or(Corrupt::Record { at: self.frame_at as u64 }))
    }
}

fn be_u32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn be_u64(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().expect("eight bytes"))
}
