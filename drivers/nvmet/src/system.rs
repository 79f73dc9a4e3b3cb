//! What the kernel offers for it: a configfs tree, and loop devices.

use std::{
    any::Any,
    fmt::Debug,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::loops;

/// The configfs tree of the kernel's NVMe target, and loop devices; tests have another. Paths are below the root of the tree.
pub trait System: Debug + Send + Sync + 'static {
    /// Makes a folder: an object of the kernel's.
    ///
    /// # Errors
    /// What the kernel says; `AlreadyExists` where it is there.
    fn make(&self, folder: &str) -> io::Result<()>;

    /// Removes a folder.
    ///
    /// # Errors
    /// What the kernel says.
    fn remove(&self, folder: &str) -> io::Result<()>;

    /// Makes a link to a folder.
    ///
    /// # Errors
    /// What the kernel says; for a port, also why it cannot be listened on.
    fn link(&self, folder: &str, link: &str) -> io::Result<()>;

    /// Removes a link.
    ///
    /// # Errors
    /// What the kernel says.
    fn unlink(&self, link: &str) -> io::Result<()>;

    /// The names in a folder; none where there is no such folder.
    ///
    /// # Errors
    /// What the kernel says.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Sets an attribute.
    ///
    /// # Errors
    /// What the kernel says.
    fn write(&self, attribute: &str, value: &str) -> io::Result<()>;

    /// Reads an attribute, without white space around it.
    ///
    /// # Errors
    /// What the kernel says.
    fn read(&self, attribute: &str) -> io::Result<String>;

    /// Makes `len` bytes of a file or device from `at` on a block device of 512-byte blocks. It is there until nobody has it
    /// open any more. `name`: what [`System::is_attached`] knows it by, at most 63 bytes.
    ///
    /// # Errors
    /// What the kernel says; where the file ends before, too.
    fn attach(&self, backing: &Path, at: u64, len: u64, name: &str) -> io::Result<Attached>;

    /// Whether a block device is still the one of this name; true where that cannot be found out.
    fn is_attached(&self, device: &str, name: &str) -> bool;
}

/// A block device that is held open.
#[derive(Debug)]
pub struct Attached {
    /// Its path, such as `/dev/loop0`.
    pub device: String,
    /// Holds it open. The device is gone when nobody else has it open either.
    pub hold: Box<dyn Any + Send>,
}

/// The kernel that this process runs on.
#[derive(Debug)]
pub struct Linux {
    root: PathBuf,
    /// Locked: no other process configures the target.
    _lock: File,
}

impl Linux {
    /// Where the target is configured.
    pub const ROOT: &str = "/sys/kernel/config/nvmet";

    /// Takes the tree at `root`, [`Linux::ROOT`] where nothing else is said, for this process alone.
    ///
    /// # Errors
    /// `NotFound`: the kernel has no target, or its module is not loaded. `ResourceBusy`: another appliance has it.
    pub fn open(root: PathBuf) -> io::Result<Self> {
        let lock = File::open(&root)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => ErrorKind::ResourceBusy.into(),
            TryLockError::Error(error) => error,
        })?;
        Ok(Self { root, _lock: lock })
    }
}

impl System for Linux {
    fn make(&self, folder: &str) -> io::Result<()> {
        fs::create_dir(self.root.join(folder))
    }

    fn remove(&self, folder: &str) -> io::Result<()> {
        fs::remove_dir(self.root.join(folder))
    }

    fn link(&self, folder: &str, link: &str) -> io::Result<()> {
        symlink(self.root.join(folder), self.root.join(link))
    }

    fn unlink(&self, link: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(link))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.root.join(folder)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Attributes are files.
            if !entry.file_type()?.is_file() {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(names)
    }

    fn write(&self, attribute: &str, value: &str) -> io::Result<()> {
        // In one call, and only where the kernel made it.
        OpenOptions::new().write(true).open(self.root.join(attribute))?.write_all(value.as_bytes())
    }

    fn read(&self, attribute: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.root.join(attribute))?.trim().to_owned())
    }

    fn attach(&self, backing: &Path, at: u64, len: u64, name: &str) -> io::Result<Attached> {
        let (device, hold) = loops::attach(backing, at, len, name)?;
        Ok(Attached { device, hold: Box::new(hold) })
    }

    fn is_attached(&self, device: &str, name: &str) -> bool {
        loops::is_attached(device, name)
    }
}
