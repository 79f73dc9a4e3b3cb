//! Fat binaries: cubins and PTX of one program, of which a driver takes what its GPU runs.

use super::{FAT, number, part};

/// Kinds of entries.
const PTX: u64 = 1;
const CUBIN: u64 = 2;
/// Flags of an entry that is compressed, by one method or the other.
const COMPRESSED: u64 = 0x2000 | 0x8000;
/// Most entries.
const ENTRIES_MAX: usize = 1024;

/// What is in a fat binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// PTX text, perhaps with zeros behind it.
    Ptx(&'a [u8]),
    /// A cubin, perhaps with zeros behind it.
    Cubin(&'a [u8]),
    /// What is compressed, or of another kind.
    Other,
}

/// The entries of a fat binary, behind which other bytes may stand. `None` for what is none, or does not add up.
pub fn entries(image: &[u8]) -> Option<Vec<Entry<'_>>> {
    if !image.starts_with(FAT) {
        return None;
    }
    let mut rest = part(image, number(image, 6, 2)?, number(image, 8, 8)?)?;
    let mut entries = Vec::new();
    while !rest.is_empty() {
        let (kind, header, len) = (number(rest, 0, 2)?, number(rest, 4, 4)?, number(rest, 8, 8)?);
        let (flags, bytes) = (number(rest, 40, 8)?, part(rest, header, len)?);
        if header == 0 || entries.len() == ENTRIES_MAX {
            return None;
        }
        entries.push(match kind {
            _ if flags & COMPRESSED != 0 => Entry::Other,
            PTX => Entry::Ptx(bytes),
            CUBIN => Entry::Cubin(bytes),
            _ => Entry::Other,
        });
        rest = &rest[header as usize + bytes.len()..];
    }
    Some(entries)
}
