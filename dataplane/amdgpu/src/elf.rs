//! The ELF file of a code object.

use zerocopy::{
    FromBytes, Immutable, KnownLayout,
    little_endian::{U16, U32, U64},
};

use crate::Error;

/// 64 bits, little-endian, of version 1.
const IDENT: &[u8; 7] = b"\x7FELF\x02\x01\x01";

const EM_AMDGPU: u16 = 224;

/// `PT_NOTE`
const NOTES: u32 = 4;

/// The note with the metadata of a code object of version 3 or later: owner and type.
const METADATA: (&[u8], u32) = (b"AMDGPU\0", 32);

const BROKEN: Error = Error::Broken("an ELF file that is cut off or damaged");

/// `Elf64_Ehdr`
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    ident: [u8; 16],
    kind: U16,
    machine: U16,
    version: U32,
    entry: U64,
    segments_at: U64,
    sections_at: U64,
    flags: U32,
    length: U16,
    segment_size: U16,
    segments: U16,
    section_size: U16,
    sections: U16,
    names: U16,
}

/// `Elf64_Phdr`
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Segment {
    kind: U32,
    flags: U32,
    offset: U64,
    address: U64,
    physical: U64,
    size: U64,
    memory: U64,
    align: U64,
}

/// `Elf64_Nhdr`
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Note {
    owner: U32,
    size: U32,
    kind: U32,
}

/// What the note of the metadata says.
pub(crate) fn metadata(elf: &[u8]) -> Result<&[u8], Error> {
    if !elf.starts_with(&IDENT[..4]) {
        return Err(Error::Broken("neither a bundle nor an ELF file"));
    }
    let (header, _) = Header::ref_from_prefix(elf).map_err(|_| BROKEN)?;
    if !header.ident.starts_with(IDENT) || header.machine != EM_AMDGPU {
        return Err(Error::Foreign("an ELF file for other processors"));
    }
    // The driver is not told how long the file is, and goes by what is told there.
    let sections = u64::from(header.sections.get()) * u64::from(header.section_size.get());
    range(elf, header.sections_at.get(), sections)?;
    if usize::from(header.segment_size.get()) != size_of::<Segment>() {
        return Err(BROKEN);
    }
    let segments =
        range(elf, header.segments_at.get(), u64::from(header.segments.get()) * size_of::<Segment>() as u64)?;
    let segments = <[Segment]>::ref_from_bytes(segments).map_err(|_| BROKEN)?;
    for segment in segments {
        range(elf, segment.offset.get(), segment.size.get())?;
    }
    // Linkers make one, and more would be read over and over.
    let noted = segments.iter().find(|segment| segment.kind == NOTES);
    let mut notes = noted.map_or(Ok(&[][..]), |segment| range(elf, segment.offset.get(), segment.size.get()))?;
    while !notes.is_empty() {
        let (note, rest) = Note::ref_from_prefix(notes).map_err(|_| BROKEN)?;
        let (owner, rest) = padded(rest, note.owner.get())?;
        let (said, rest) = padded(rest, note.size.get())?;
        if (owner, note.kind.get()) == METADATA {
            return Ok(said);
        }
        notes = rest;
    }
    Err(Error::Refused("no metadata: a code object of version 3 or later is needed"))
}

fn range(elf: &[u8], at: u64, len: u64) -> Result<&[u8], Error> {
    let end = at.checked_add(len).filter(|end| *end <= elf.len() as u64).ok_or(BROKEN)?;
    Ok(&elf[at as usize..end as usize])
}

/// So many bytes, and what follows them at a multiple of 4.
fn padded(bytes: &[u8], len: u32) -> Result<(&[u8], &[u8]), Error> {
    let (taken, rest) = bytes.split_at_checked(len as usize).ok_or(BROKEN)?;
    let padding = taken.len().next_multiple_of(4) - taken.len();
    Ok((taken, rest.get(padding..).unwrap_or_default()))
}
