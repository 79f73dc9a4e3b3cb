//! Cubins: ELF files with a section `.nv.info.NAME` for each kernel, whose records tell its parameters.

use std::collections::HashMap;

use super::{ELF, number, part};

/// `EM_CUDA`
const MACHINE: u64 = 190;
/// A section header, and `SHT_SYMTAB`.
const SECTION: usize = 64;
const SYMBOLS: u64 = 2;
/// A symbol, `STT_FUNC`, and the bit of `st_other` of those that are kernels.
const SYMBOL: usize = 24;
const FUNCTION: u64 = 2;
const ENTRY: u64 = 0x10;
/// Longest name, in bytes.
const NAME_MAX: usize = 8 << 10;
/// Most kernels of a cubin.
const KERNELS_MAX: usize = 4096;
/// Most parameters of a kernel that are told.
const PARAMETERS_MAX: usize = 1024;

/// Records of `.nv.info`: the one format that has bytes behind it, and what they are of a parameter (`EIATTR_KPARAM_INFO`), or of
/// one of a kernel that takes more than 4 KiB (`EIATTR_KPARAM_INFO_V2`): a word, ordinal and offset, and a word with the size.
const SIZED: u64 = 4;
const PARAMETER: u64 = 0x17;
const LARGE_PARAMETER: u64 = 0x45;
const PARAMETER_LEN: u64 = 12;

/// A kernel, and what it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Offset and size of each parameter in the argument buffer, in bytes, in order.
    pub parameters: Vec<(u32, u32)>,
}

struct Section<'a> {
    name: &'a str,
    kind: u64,
    bytes: &'a [u8],
    link: u64,
}

/// A text that ends with a zero.
fn text(strings: &[u8], at: u64) -> Option<&str> {
    let rest = strings.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().take(NAME_MAX).position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

fn sections(image: &[u8]) -> Option<Vec<Section<'_>>> {
    if !image.starts_with(ELF) || image.get(4) != Some(&2) || number(image, 18, 2)? != MACHINE {
        return None;
    }
    let (at, size, count) = (number(image, 40, 8)?, number(image, 58, 2)?, number(image, 60, 2)?);
    if size != SECTION as u64 {
        return None;
    }
    let headers: Vec<_> = part(image, at, count * size)?.chunks_exact(SECTION).collect();
    // What takes no place in the file has none to be looked for.
    let bytes = |header: &[u8]| part(image, number(header, 24, 8)?, number(header, 32, 8)?);
    let names = bytes(headers.get(number(image, 62, 2)? as usize)?)?;
    let section = |header: &&[u8]| {
        let (name, kind, link) = (number(header, 0, 4)?, number(header, 4, 4)?, number(header, 40, 4)?);
        Some(Section { name: text(names, name)?, kind, bytes: bytes(header).unwrap_or_default(), link })
    };
    headers.iter().map(section).collect()
}

/// The parameters that a section tells of; `None` where it does not add up.
fn parameters(mut info: &[u8]) -> Option<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    while !info.is_empty() {
        let (format, attribute, len) = (number(info, 0, 1)?, number(info, 1, 1)?, number(info, 2, 2)?);
        let len = if format == SIZED { len } else { 0 };
        let value = part(info, 4, len)?;
        if [PARAMETER, LARGE_PARAMETER].contains(&attribute) {
            if len != PARAMETER_LEN || found.len() == PARAMETERS_MAX {
                return None;
            }
            let word = number(value, 8, 4)? as u32;
            let size = if attribute == PARAMETER { word >> 18 } else { word & 0xFFFF };
            found.push((number(value, 4, 2)?, (number(value, 6, 2)? as u32, size)));
        }
        info = &info[4 + value.len()..];
    }
    // They come in any order, each with its ordinal.
    found.sort_unstable();
    let is_whole = found.iter().enumerate().all(|(index, (ordinal, _))| index as u64 == *ordinal);
    is_whole.then(|| found.into_iter().map(|(_, parameter)| parameter).collect())
}

/// The kernels of a cubin, behind which other bytes may stand. `None` for what is no cubin, or does not tell.
pub fn kernels(image: &[u8]) -> Option<Vec<Kernel>> {
    let sections = sections(image)?;
    let symbols = sections.iter().find(|section| section.kind == SYMBOLS)?;
    let names = sections.get(symbols.link as usize)?.bytes;
    let infos: HashMap<&str, &[u8]> = sections.iter().map(|section| (section.name, section.bytes)).collect();
    let (mut kernels, mut read) = (Vec::new(), 0);
    for symbol in symbols.bytes.chunks_exact(SYMBOL) {
        if number(symbol, 4, 1)? & 0xF != FUNCTION || number(symbol, 5, 1)? & ENTRY == 0 {
            continue;
        }
        let name = text(names, number(symbol, 0, 4)?)?;
        let info = infos.get(format!(".nv.info.{name}").as_str())?;
        // Sections of one file do not overlap.
        read += info.len();
        if read > image.len() || kernels.len() == KERNELS_MAX {
            return None;
        }
        kernels.push(Kernel { name: name.to_owned(), parameters: parameters(info)? });
    }
    Some(kernels)
}
