//! Data that is sent from where it lies.

use berth_lease_io::Buffers;
use berth_memory::Part;
use berth_port::Lent;

/// Pieces that are lent at once, at most.
const PIECES: usize = 64;

/// Bytes that are lent at once, at most: what the socket has no room for is copied.
const MOST: usize = 256 << 10;

/// Bytes that are read at once for a digest.
const STEP: usize = 4096;

/// What one send takes from where it lies.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    /// Whoever moves the bytes takes it.
    pub(crate) wanted: bool,
    pieces: Vec<Lent>,
    bytes: usize,
    /// Those of commands that are over.
    buffers: Vec<Buffers>,
    /// Lists that keep their room.
    spare: Vec<Buffers>,
}

impl Lending {
    /// How many of `left` bytes in buffers can be lent more.
    pub(crate) fn room(&self, left: usize) -> usize {
        let pieces = PIECES - self.pieces.len();
        // The first and the last piece may be parts of chunks.
        let len = left.min(MOST - self.bytes).min(pieces.saturating_sub(1) * berth_lease_io::CHUNK);
        if len < left { len - len % 512 } else { len }
    }

    /// Lends a piece that belongs at byte `at` of the output.
    pub(crate) fn push(&mut self, at: usize, part: Part) {
        self.bytes += part.size();
        self.pieces.push(Lent { at, part });
    }

    /// Keeps the buffers of a command, and leaves it none.
    pub(crate) fn keep(&mut self, buffers: &mut Buffers) {
        let none = self.spare.pop().unwrap_or_default();
        self.buffers.push(std::mem::replace(buffers, none));
    }

    pub(crate) fn pieces(&self) -> &[Lent] {
        &self.pieces
    }

    /// All that was lent is sent or copied.
    pub(crate) fn end(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
        self.buffers.iter_mut().for_each(Buffers::clear);
        self.spare.append(&mut self.buffers);
    }
}

/// The CRC-32C of `len` bytes from `at` on.
pub(crate) fn digest(buffers: &Buffers, at: usize, len: usize) -> u32 {
    let (mut step, mut digest) = ([0; STEP], 0);
    for from in (0..len).step_by(STEP) {
        let piece = &mut step[..STEP.min(len - from)];
        buffers.read_at(at + from, piece);
        digest = crc32c::crc32c_append(digest, piece);
    }
    digest
}
