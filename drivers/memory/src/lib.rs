//! Memory of the system: ordinary or huge pages, private or shared with another process, and on a NUMA node if
//! required.

mod dma;
mod file;
mod foreign;
mod huge;
mod mapping;
mod numa;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    ptr::NonNull,
};

use berth_host::numa_nodes;
use berth_memory::Memory;

pub use dma::{DmaBufs, DmaMemory};
use file::SharedFile;
pub use foreign::Foreign;
pub use huge::HugePage;
use mapping::Mapping;

/// Kinds of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Ordinary pages; transparent huge ones if the kernel finds any.
    Ordinary,
    /// Reserved huge pages: few TLB misses, and physically contiguous for devices.
    Huge(HugePage),
    /// Ordinary pages of a new POSIX shared memory object with this name, which is removed with them. Processes of the
    /// same user may map it.
    Shared(String),
    /// Ordinary pages of a file without a name, whose size is sealed: another process has them if it is given
    /// [`Pages::file`].
    Unnamed,
    /// As [`Unnamed`](Self::Unnamed), but others can map the file only to read it, and nobody can write it by a system
    /// call. Of reserved huge pages if their size is given, whole ones, as in the file. Needs Linux 5.1, and 5.13 for
    /// huge pages.
    Readable(Option<HugePage>),
}

/// Zeroed memory in pages that are resident from the start, so that no access has to wait for one.
#[derive(Debug)]
pub struct Pages {
    mapping: Mapping,
    size: usize,
    file: Option<Kept>,
}

/// The file that pages are of.
#[derive(Debug)]
enum Kept {
    Named { _file: SharedFile },
    Unnamed(File),
}

/// Why memory could not be had.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The size is 0, or exceeds the address space.
    #[error("{0} bytes of memory cannot be: give it a size from 1 byte to {max} bytes", max = isize::MAX)]
    Size(u64),
    /// Too few huge pages are reserved and free.
    #[error(
        "{need} huge pages of {page} are needed and {free} are free; reserve them with: echo {reserve} > {}/nr_hugepages",
        page.sysfs()
    )]
    NotReserved {
        /// Size of the pages.
        page: HugePage,
        /// Number of pages needed.
        need: usize,
        /// Number of free pages.
        free: usize,
        /// Number of reserved pages that would be enough.
        reserve: usize,
    },
    /// The kernel does not support pages of this size.
    #[error("this machine has no huge pages of {0}; use the other size or ordinary memory")]
    Unsupported(HugePage),
    /// The machine has no such NUMA node.
    #[error("there is no memory node {node}: the nodes are {nodes:?}")]
    NoSuchNode {
        /// Number of the node.
        node: u32,
        /// Numbers of the nodes that are online.
        nodes: Vec<u32>,
    },
    /// There is not enough free memory.
    #[error("{need} bytes of memory are needed and {available} are available: make the region smaller")]
    Short {
        /// Bytes needed.
        need: u64,
        /// Bytes that are free, or file cache that can be dropped.
        available: u64,
    },
    /// Another process uses the shared memory object with this name.
    #[error("{} is in use by another process: give one of them another name", .0.display())]
    InUse(PathBuf),
    /// A shared memory object could not be made.
    #[error("{what} {}: {error}", .path.display())]
    File {
        /// The step that failed.
        what: &'static str,
        /// Path of the object's file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The kernel refused for another reason.
    #[error("cannot map {len} bytes: {error}")]
    Map {
        /// Bytes to be mapped.
        len: usize,
        /// The system's error.
        error: io::Error,
    },
}

impl Pages {
    /// Maps `size` bytes, on NUMA node `numa` if it is given. A machine with a single node has only node 0.
    pub fn new(size: u64, backing: &Backing, numa: Option<u32>) -> Result<Self, PagesError> {
        let len = usize::try_from(size).ok().filter(|len| (1..=isize::MAX as usize).contains(len));
        let Some(len) = len else { return Err(PagesError::Size(size)) };
        let nodes = numa_nodes(Path::new("/sys"));
        let node = numa.and_then(|id| nodes.iter().find(|node| node.id == id));
        if let (Some(id), None) = (numa, node)
            // Where sysfs tells of no nodes there is one.
            && (id, nodes.len()) != (0, 0)
        {
            return Err(PagesError::NoSuchNode { node: id, nodes: nodes.iter().map(|node| node.id).collect() });
        }
        let node = node.filter(|_| nodes.len() > 1);
        let map = || match backing {
            Backing::Ordinary => {
                // Beyond this, the kernel would kill processes to find pages, this one perhaps.
                let available = node.map_or_else(available, |node| Some(node.available));
                match available.filter(|&available| size > available) {
                    Some(available) => Err(PagesError::Short { need: size, available }),
                    None => Mapping::ordinary(len).map(|mapping| (mapping, None)),
                }
            }
            Backing::Huge(page) => Mapping::huge(len, *page).map(|mapping| (mapping, None)),
            Backing::Shared(name) => {
                let file = SharedFile::create(name, size)?;
                Ok((Mapping::shared(len, file.file())?, Some(Kept::Named { _file: file })))
            }
            Backing::Unnamed => {
                let file = file::unnamed(len, None)?;
                file::seal(&file, libc::F_SEAL_SEAL)?;
                Ok((Mapping::shared(len, &file)?, Some(Kept::Unnamed(file))))
            }
            Backing::Readable(page) => {
                let len = page.map_or(len, |page| page.whole(len));
                let file = file::unnamed(len, *page)?;
                // The seal spares what is mapped before it.
                let mapping = Mapping::shared(len, &file)?;
                file::seal(&file, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)?;
                // Older kernels take the seal of a file in huge pages and do not keep it.
                match Mapping::of(len, &file) {
                    Err(denied) if denied.kind() == io::ErrorKind::PermissionDenied => {}
                    other => {
                        let error = other.err().unwrap_or_else(|| io::ErrorKind::Unsupported.into());
                        return Err(file::failed("cannot seal")(error));
                    }
                }
                Ok((mapping, Some(Kept::Unnamed(file))))
            }
        };
        let (mapping, file) = match node {
            Some(node) => numa::on_node(node.id, map).map_err(|error| PagesError::Map { len, error })??,
            None => map()?,
        };
        Ok(Self { mapping, size: len, file })
    }

    /// The file of [`Backing::Unnamed`] and [`Backing::Readable`], for another process.
    pub fn file(&self) -> Option<&File> {
        match &self.file {
            Some(Kept::Unnamed(file)) => Some(file),
            _ => None,
        }
    }
}

// SAFETY: the mapping is zeroed by the kernel, stays where it is until drop, and is only ever handed out as a pointer.
unsafe impl Memory for Pages {
    #[inline]
    fn base(&self) -> NonNull<u8> {
        self.mapping.base
    }

    #[inline]
    fn size(&self) -> usize {
        self.size
    }
}

/// Bytes that the kernel can provide without swapping; `None` if it does not tell.
fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}
