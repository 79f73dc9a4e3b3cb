//! Shared memory objects, which are files in `/dev/shm`.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, FromRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use crate::{HugePage, PagesError};

/// A file that is locked while it is in use, and removed on drop.
#[derive(Debug)]
pub(crate) struct SharedFile {
    file: File,
    path: PathBuf,
}

impl SharedFile {
    /// Makes a file of `size` zeros that only this user can access. It replaces a file that nobody uses any more.
    pub(crate) fn create(name: &str, size: u64) -> Result<Self, PagesError> {
        let path = Path::new("/dev/shm").join(name);
        let failed = |what| {
            let path = path.clone();
            move |error| PagesError::File { what, path, error }
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        match options.open(&path) {
            Ok(left) => {
                lock(&left, &path)?;
                fs::remove_file(&path).map_err(failed("cannot remove"))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed("cannot open")(error)),
        }
        let file = options.create_new(true).open(&path).map_err(failed("cannot make"))?;
        lock(&file, &path)?;
        let made = Self { file, path: path.clone() };
        // SAFETY: no pointers. What is not there now would be a fault later.
        if unsafe { libc::fallocate(made.file.as_raw_fd(), 0, 0, size as libc::off_t) } != 0 {
            return Err(failed("cannot have the memory of")(io::Error::last_os_error()));
        }
        Ok(made)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

pub(crate) fn failed(what: &'static str) -> impl Fn(io::Error) -> PagesError {
    move |error| PagesError::File { what, path: PathBuf::from("/memfd:berth"), error }
}

/// Makes a file of `size` zeros in memory that has no name, and that nobody can make shorter or longer. It is of whole
/// huge pages if `page` says of which.
pub(crate) fn unnamed(size: usize, page: Option<HugePage>) -> Result<File, PagesError> {
    // To find that out at the end would take all pages there are meanwhile.
    if let Some(missing) = page.and_then(|page| page.missing(size)) {
        return Err(missing);
    }
    let huge = page.map_or(0, |page| libc::MFD_HUGETLB | page.flag() as libc::c_uint);
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"berth".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge) };
    if fd < 0 {
        return Err(failed("cannot make")(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor was just made, and is nobody else's.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: no pointers. What is not there now would be a fault later.
    if unsafe { libc::fallocate(fd, 0, 0, size as libc::off_t) } != 0 {
        return Err(failed("cannot have the memory of")(io::Error::last_os_error()));
    }
    seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
    Ok(file)
}

/// Adds seals to a file of [`unnamed`].
pub(crate) fn seal(file: &File, seals: libc::c_int) -> Result<(), PagesError> {
    // SAFETY: no pointers.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(failed("cannot seal")(io::Error::last_os_error()));
    }
    Ok(())
}

/// Locks a file for as long as it is open.
fn lock(file: &File, path: &Path) -> Result<(), PagesError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => PagesError::InUse(path.to_owned()),
        TryLockError::Error(error) => PagesError::File { what: "cannot lock", path: path.to_owned(), error },
    })
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // Nobody else can have made one of this name: the lock is still held.
        let _ = fs::remove_file(&self.path);
    }
}
