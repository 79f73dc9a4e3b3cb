//! `[[region]]`: memory and blocks of this host that can be leased.

use std::path::{Path, PathBuf};

use berth_keys::Table;

use super::{name, unique};

/// One region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Unique name.
    pub name: String,
    /// What it is leased as.
    pub kind: Kind,
    /// Its length in bytes; `None` is the length of the file or device it lies in.
    pub size: Option<u64>,
    /// Where its bytes are.
    pub backing: Backing,
    /// The NUMA node its memory is to come from.
    pub numa: Option<u32>,
}

/// `region.kind`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes.
    Memory,
    /// Blocks of 512 bytes.
    Block,
}

/// `region.backing`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages.
    Ram,
    /// Huge pages.
    Hugepages,
    /// A file or a block device.
    Path(PathBuf),
}

/// Lengths of regions are multiples of this many bytes.
const GRANULE: u64 = 4096;

pub(super) fn read_all(root: &mut Table<'_, '_>, folder: &Path) -> Vec<Region> {
    let mut names = Vec::new();
    let mut regions = Vec::new();
    for mut t in root.tables("region").unwrap_or_default() {
        let name = name(&mut t, "scratch");
        let kind = t.choice("kind", &[("memory", Kind::Memory), ("block", Kind::Block)]);
        let kind = t.require("kind", kind, "kind = \"memory\" or \"block\"");
        let size = t.size("size");
        if let Some(at) = size.as_ref().filter(|at| at.value % GRANULE != 0) {
            t.sink().wrong(at, format_args!("is {} bytes; a multiple of {GRANULE} is wanted", at.value));
        }
        let backing = t.text("backing");
        let found = backing.as_ref().map_or(Backing::Ram, |at| match at.value {
            "ram" => Backing::Ram,
            "hugepages" => Backing::Hugepages,
            path => Backing::Path(folder.join(path)),
        });
        if let (Some(at), Backing::Path(_)) = (&backing, &found) {
            if kind.as_ref().is_some_and(|kind| kind.value == Kind::Memory) {
                let message = format_args!("\"{}\" is a path, and memory is \"ram\" or \"hugepages\"", at.value);
                t.sink().wrong(at, message);
            }
            t.refuse(&["numa"], "a path has no NUMA node");
        } else {
            // A wrong size was reported already.
            t.require("size", size.as_ref(), "size = \"64 MiB\"");
        }
        let numa = t.integer("numa").map(|at| at.value as u32);
        t.finish();
        names.extend(name.clone());
        if let (Some(name), Some(kind)) = (name, kind) {
            let size = size.map(|at| at.value);
            regions.push(Region { name: name.value, kind: kind.value, size, backing: found, numa });
        }
    }
    unique(root.sink(), names.iter());
    regions
}
