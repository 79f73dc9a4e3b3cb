//! What blocks are kept on: a file or a block device, opened for this process alone.

use std::{
    ffi::CString,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Seek, SeekFrom},
    mem::zeroed,
    os::{
        fd::AsRawFd,
        unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use berth_lease::GRANULE;
use berth_uring::UringError;

/// Why a region of blocks is not opened.
#[derive(Debug, thiserror::Error)]
pub enum BlockOpenError {
    /// It is 0, no multiple of [`GRANULE`], or beyond `i64::MAX`.
    #[error("a block region of {0} bytes cannot be: give it a multiple of {GRANULE} bytes")]
    Size(u64),
    /// Another process, or a mounted file system, has it.
    #[error("{} is in use: it is mounted, or another node has it; every block region needs a file or device of its own", .0.display())]
    InUse(PathBuf),
    /// It is neither a file nor a block device.
    #[error("{} is neither a file nor a block device", .0.display())]
    NotBlocks(PathBuf),
    /// The device is smaller than the region.
    #[error("{} has {has} bytes, and the region {need}: make the region smaller", .path.display())]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Its size in bytes.
        has: u64,
        /// The region's size in bytes.
        need: u64,
    },
    /// Its sectors are larger than this engine's buffers.
    #[error("{} wants direct I/O in units of {align} bytes, which are too large", .path.display())]
    Sectors {
        /// The device or file.
        path: PathBuf,
        /// The unit of direct I/O in bytes, which is more than [`GRANULE`].
        align: u64,
    },
    /// The system refused.
    #[error("{what} {}: {source}", .path.display())]
    Io {
        /// The step that failed, for people.
        what: &'static str,
        /// The device or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no ring to work through.
    #[error("block regions work through io_uring: {0}")]
    Uring(#[from] UringError),
}

/// An open file or device, which is locked against other processes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) file: File,
    /// In units of how many bytes it must be accessed: 1 where the page cache is used.
    pub(crate) align: u64,
    /// In memory aligned to how many bytes.
    pub(crate) memory_align: u64,
    /// In units of how many bytes space can be given back, if it can be.
    pub(crate) discard: Option<u32>,
}

impl Target {
    /// Opens `path` for a region of `len` bytes. A file is made where there is none, and made longer where it is too
    /// short; its space is reserved.
    pub(crate) fn open(path: &Path, len: u64) -> Result<Self, BlockOpenError> {
        if len == 0 || !len.is_multiple_of(GRANULE) || i64::try_from(len).is_err() {
            return Err(BlockOpenError::Size(len));
        }
        let failed = |what| move |source| BlockOpenError::Io { what, path: path.to_owned(), source };
        let kind = match fs::metadata(path) {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed("cannot look at")(error)),
        };
        let is_device = kind.is_some_and(|kind| kind.is_block_device());
        if !is_device && kind.is_some_and(|kind| !kind.is_file()) {
            return Err(BlockOpenError::NotBlocks(path.to_owned()));
        }
        // On a device, O_EXCL keeps mounts and other exclusive users out.
        let open = |flags: i32| {
            let flags = if is_device { flags | libc::O_EXCL } else { flags };
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(!is_device).truncate(false).mode(0o600).custom_flags(flags).open(path)
        };
        let mut opened = open(libc::O_DIRECT).map(|file| (direct_unit(&file), file));
        let refused = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
        if matches!(&opened, Ok((None, _))) || opened.as_ref().is_err_and(refused) {
            drop(opened);
            opened = open(0).map(|file| (Some((1, 1)), file));
        }
        let ((align, memory_align), mut file) = match opened {
            Ok((units, file)) => (units.unwrap_or((1, 1)), file),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(BlockOpenError::InUse(path.to_owned()));
            }
            Err(error) => return Err(failed("cannot open")(error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(BlockOpenError::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed("cannot lock")(error)),
        }
        if align > GRANULE {
            return Err(BlockOpenError::Sectors { path: path.to_owned(), align });
        }
        if is_device {
            let has = file.seek(SeekFrom::End(0)).map_err(failed("cannot measure"))?;
            if has < len {
                return Err(BlockOpenError::TooSmall { path: path.to_owned(), has, need: len });
            }
        } else {
            reserve(&file, len).map_err(failed("cannot reserve the region's space in"))?;
        }
        let discard = if is_device { device_discard(&file) } else { file_discard(&file) };
        Ok(Self { file, align, memory_align, discard })
    }
}

/// Makes a file at least `len` bytes long, with space for all of them where the file system can promise that.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    // SAFETY: no pointers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() != Some(libc::EOPNOTSUPP) {
        return Err(error);
    }
    if file.metadata()?.len() < len { file.set_len(len) } else { Ok(()) }
}

/// The file system's block size in bytes, if holes can be punched.
fn file_discard(file: &File) -> Option<u32> {
    let metadata = file.metadata().ok()?;
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let behind = metadata.len().next_multiple_of(GRANULE) as libc::off_t;
    // SAFETY: no pointers. Behind the end there is nothing to lose.
    let punched = unsafe { libc::fallocate(file.as_raw_fd(), mode, behind, GRANULE as libc::off_t) };
    (punched == 0).then_some(metadata.blksize() as u32)
}

/// The unit of a device's discards, as sysfs tells it of the device or of the one that it is a partition of.
fn device_discard(file: &File) -> Option<u32> {
    let device = file.metadata().ok()?.rdev();
    let folder = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    let read = |path| fs::read_to_string(format!("{folder}/{path}/discard_granularity")).ok();
    let unit = read("queue").or_else(|| read("../queue"))?.trim().parse().ok()?;
    (unit > 0).then_some(unit)
}

/// The units of direct I/O on an open file, in it and in memory: none, if the file system has none after all.
fn direct_unit(file: &File) -> Option<(u64, u64)> {
    let empty = CString::default();
    // SAFETY: zeros are a valid statx.
    let mut found: libc::statx = unsafe { zeroed() };
    // SAFETY: the path ends in a zero, and the kernel writes a statx.
    let answered = unsafe {
        libc::statx(file.as_raw_fd(), empty.as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &raw mut found)
    };
    if answered != 0 || found.stx_mask & libc::STATX_DIOALIGN == 0 {
        // Kernels and file systems that do not tell: a page is enough for all that Linux knows.
        return Some((GRANULE, GRANULE));
    }
    match (found.stx_dio_mem_align, found.stx_dio_offset_align) {
        (memory @ 1..=4096, unit @ 1..) => Some((unit.into(), memory.into())),
        _ => None,
    }
}
