//! Shots in, predictions out.

use std::{
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use berth_qec::shots::{Bits, Format, Found, Reader, Writer};

use super::ShotFile;

/// The format that a file's suffix names.
pub fn format_of(path: &Path) -> Option<Format> {
    path.extension()?.to_str()?.parse().ok()
}

/// Bytes that are read at once at least. More are held only where one shot, or 64 of `ptb64`, is longer.
const PIECE: usize = 1 << 18;

/// The shots of a file, one after the other.
pub(super) struct Rows {
    path: PathBuf,
    file: File,
    reader: Reader,
    buffer: Vec<u8>,
    /// What of the buffer has not been read yet.
    from: usize,
    to: usize,
    ended: bool,
    shots: u64,
}

impl Rows {
    pub(super) fn open(file: &ShotFile, bits: Bits, width: usize) -> Result<Self> {
        let path = file.path.clone();
        let reader = Reader::new(file.format, bits, width);
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, file, reader, buffer: vec![0; PIECE], from: 0, to: 0, ended: false, shots: 0 })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// How many have been read.
    pub(super) fn shots(&self) -> u64 {
        self.shots
    }

    /// Reads the next shot; false at the end.
    pub(super) fn next(&mut self, row: &mut [u8]) -> Result<bool> {
        loop {
            let mut rest = &self.buffer[self.from..self.to];
            let found =
                self.reader.next(&mut rest, self.ended, row).with_context(|| self.path.display().to_string())?;
            self.from = self.to - rest.len();
            match found {
                Found::Shot => {
                    self.shots += 1;
                    return Ok(true);
                }
                Found::End => return Ok(false),
                Found::Part => self.more().with_context(|| self.path.display().to_string())?,
            }
        }
    }

    /// Reads more of the file behind what is there.
    fn more(&mut self) -> std::io::Result<()> {
        self.buffer.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        if self.to == self.buffer.len() {
            self.buffer.resize(2 * self.to, 0);
        }
        loop {
            match self.file.read(&mut self.buffer[self.to..]) {
                Ok(read) => {
                    self.to += read;
                    self.ended = read == 0;
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

/// A file that predictions are written to.
pub(super) struct Predictions {
    path: PathBuf,
    file: File,
    writer: Writer,
}

impl Predictions {
    pub(super) fn create(file: &ShotFile, observables: usize) -> Result<Self> {
        let path = file.path.clone();
        let writer = Writer::new(file.format, Bits::Observables, observables);
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Self { path, file, writer })
    }

    pub(super) fn write<'a>(&mut self, rows: impl Iterator<Item = &'a [u8]>) -> Result<()> {
        for row in rows {
            self.writer.push(row).with_context(|| self.path.display().to_string())?;
        }
        self.file.write_all(&self.writer.drain()).with_context(|| self.path.display().to_string())
    }

    /// Writes what is left; where the shots were cut off, only what makes a whole file.
    pub(super) fn finish(mut self, whole: bool) -> Result<()> {
        match self.writer.finish() {
            Ok(rest) => self.file.write_all(&rest).with_context(|| self.path.display().to_string()),
            Err(_) if !whole => Ok(()),
            Err(ragged) => Err(ragged).with_context(|| self.path.display().to_string()),
        }
    }
}
