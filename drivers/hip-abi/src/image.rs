//! How long a code object is, of which C passes the begin alone.

use berth_wire::hip::Code;

use crate::args::Address;

/// Longest code object that is sent.
const MOST: u64 = 1 << 30;
/// Code objects of a bundle.
const ENTRIES: u64 = 4096;
/// Longest name of one.
const NAME: u64 = 4096;

fn u16_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The bytes of a code object: an ELF file to the end of its table of sections, a bundle of Clang's to the end of its last
/// entry, else a text to its NUL.
pub(crate) fn image<'a>(at: Address) -> Result<&'a [u8], Code> {
    if at.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let len = if at.starts_with(b"\x7fELF\x02") {
        elf(at.bytes(64))
    } else if at.starts_with(b"__CLANG_OFFLOAD_BUNDLE__") {
        bundle(at)
    } else {
        return at.text().map(std::ffi::CStr::to_bytes).ok_or(Code::INVALID_VALUE);
    };
    match len {
        Some(len) if len <= MOST => Ok(at.bytes(len as usize)),
        _ => Err(Code::INVALID_IMAGE),
    }
}

/// The length of a 64-bit ELF file with this header, whose sections are described at its end.
fn elf(header: &[u8]) -> Option<u64> {
    let (offset, size, count) = (u64_at(header, 40), u16_at(header, 58), u16_at(header, 60));
    offset.checked_add(size * count)
}

/// `"__CLANG_OFFLOAD_BUNDLE__"`, u64 count, then of each: u64 offset, u64 size, u64 length of its name, its name.
fn bundle(at: Address) -> Option<u64> {
    let count = u64_at(at.add(24).bytes(8), 0);
    let (mut entry, mut end) = (32, 32);
    for _ in 0..Some(count).filter(|count| *count <= ENTRIES)? {
        let fields = at.add(entry).bytes(24);
        end = end.max(u64_at(fields, 0).checked_add(u64_at(fields, 8))?);
        entry += 24 + Some(u64_at(fields, 16)).filter(|len| *len <= NAME)? as usize;
    }
    Some(end.max(entry as u64))
}
