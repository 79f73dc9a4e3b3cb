//! Landlock: which files a process may open from now on, and as what.

use std::{
    ffi::{c_int, c_long},
    fs::OpenOptions,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::Path,
    ptr,
};

use super::{done, no_new_privileges};

/// What is allowed of a file, or of all that a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum May {
    /// Names are listed, files read and mapped as code.
    Read,
    /// Files are read and written, and devices told by ioctl.
    Use,
    /// Files are made and removed, too.
    Change,
}

const EXECUTE: u64 = 1;
const WRITE: u64 = 1 << 1;
const READ: u64 = 1 << 2;
const LIST: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_FOLDER: u64 = 1 << 7;
const MAKE_FILE: u64 = 1 << 8;
const TRUNCATE: u64 = 1 << 14;
const IOCTL: u64 = 1 << 15;

/// Rights that a rule of a file, not a folder, may have.
const OF_FILES: u64 = EXECUTE | WRITE | READ | TRUNCATE | IOCTL;

impl May {
    fn rights(self) -> u64 {
        match self {
            Self::Read => EXECUTE | READ | LIST,
            Self::Use => READ | LIST | WRITE | TRUNCATE | IOCTL,
            Self::Change => READ | LIST | WRITE | TRUNCATE | MAKE_FOLDER | MAKE_FILE | REMOVE_FILE,
        }
    }
}

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    rights: u64,
    parent: c_int,
}

/// Handles all that this kernel's Landlock knows, and allows this alone. What is not there is left out.
pub fn landlock(allowed: &[(&Path, May)]) -> io::Result<()> {
    const VERSION: c_long = 1;
    const PATH_BENEATH: c_int = 1;
    let nothing = ptr::null::<Ruleset>();
    // SAFETY: it asks for a number.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, VERSION) };
    // Rights of files, and bytes of the attributes, by version.
    let (files, len) = match version {
        ..1 => return Err(io::Error::last_os_error()),
        1 => (13, 8),
        2 => (14, 8),
        3 => (15, 8),
        4 => (15, 16),
        5 => (16, 16),
        _ => (16, 24),
    };
    let attributes = Ruleset { files: (1 << files) - 1, network: 0b11, scopes: 0b11 };
    // SAFETY: the attributes are as long as this version's, and outlive the call.
    let rules = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, len as usize, 0) };
    if rules < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it.
    let rules = unsafe { OwnedFd::from_raw_fd(rules as c_int) };
    for (path, may) in allowed {
        let Ok(parent) = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path) else { continue };
        let kind = if parent.metadata()?.is_dir() { u64::MAX } else { OF_FILES };
        let rule = Beneath { rights: may.rights() & kind & attributes.files, parent: parent.as_raw_fd() };
        // SAFETY: the rule outlives the call.
        done(unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, rules.as_raw_fd(), PATH_BENEATH, &raw const rule, 0)
        })?;
    }
    no_new_privileges()?;
    // SAFETY: numbers are passed.
    done(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
}
