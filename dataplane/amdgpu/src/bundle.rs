//! Offload bundles of clang: a table of entries, each with the target that it is for.

use crate::{Error, Isa};

const MAGIC: &[u8; 24] = b"__CLANG_OFFLOAD_BUNDLE__";

/// Of bundles that are compressed.
const COMPRESSED: &[u8; 4] = b"CCOB";

/// Whether these bytes begin as a bundle does.
pub(crate) fn is_one(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC) || bytes.starts_with(COMPRESSED)
}

/// The first entry whose code runs on this GPU. By clang's rules no bundle has two that do.
pub(crate) fn entry<'a>(bytes: &'a [u8], gpu: &Isa<'_>) -> Result<&'a [u8], Error> {
    let Some(mut table) = bytes.strip_prefix(MAGIC) else {
        return Err(Error::Refused("a compressed bundle: make it with --no-offload-compress"));
    };
    let count = number(&mut table)?;
    for _ in 0..count {
        let (offset, size, len) = (number(&mut table)?, number(&mut table)?, number(&mut table)?);
        let id = usize::try_from(len).ok().and_then(|len| table.split_off(..len));
        let id = id.ok_or(Error::Broken("the table of a bundle is cut off"))?;
        let isa = std::str::from_utf8(id).ok().and_then(isa);
        if isa.is_some_and(|isa| isa.runs_on(gpu)) {
            let end = offset.checked_add(size).and_then(|end| usize::try_from(end).ok());
            let found = end.and_then(|end| bytes.get(offset as usize..end));
            return found.ok_or(Error::Broken("an entry of a bundle is not within it"));
        }
    }
    Err(Error::Foreign("no entry of the bundle is for this GPU"))
}

/// What the code of an entry is made for; `None` of the host's and of other kinds.
fn isa(id: &str) -> Option<Isa<'_>> {
    let (kind, target) = id.split_once('-')?;
    Isa::of_target(target).filter(|_| ["hip", "hipv4"].contains(&kind))
}

fn number(table: &mut &[u8]) -> Result<u64, Error> {
    let (number, rest) = table.split_first_chunk().ok_or(Error::Broken("the table of a bundle is cut off"))?;
    *table = rest;
    Ok(u64::from_le_bytes(*number))
}
