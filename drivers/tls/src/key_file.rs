//! Key files (profile, decision 26): PKCS#8 PEM, or one line of 64 hex digits (the seed), mode 0600.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use berth_identity::{Identity, KeyError};
use zeroize::Zeroizing;

/// Limit on the length of a key file, in bytes.
const MAX_LEN: u64 = 4096;

/// Why a key could not be read or made.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read or created.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the key file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The group or others may read or write the file.
    #[error("{} is open to others (mode {mode:04o}): run `chmod 600 {}`", path.display(), path.display())]
    Open {
        /// Path of the key file.
        path: PathBuf,
        /// Permission bits of the file; 0600 is required.
        mode: u32,
    },
    /// The file does not contain a key.
    #[error("{}: {source}", path.display())]
    NoKey {
        /// Path of the key file.
        path: PathBuf,
        /// What is wrong with its contents.
        source: KeyError,
    },
}

impl KeyFileError {
    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }
}

/// Reads a key. The mode is checked on the open file, so that the file checked is the file read.
pub fn read(path: &Path) -> Result<Identity, KeyFileError> {
    let io = |e| KeyFileError::io(path, e);
    let file = File::open(path).map_err(io)?;
    let mode = file.metadata().map_err(io)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open { path: path.to_path_buf(), mode });
    }
    let mut text = Zeroizing::new(Vec::new());
    file.take(MAX_LEN).read_to_end(&mut text).map_err(io)?;
    let key = str::from_utf8(&text).map_err(|_| KeyError::NoKey).and_then(Identity::from_text);
    key.map_err(|source| KeyFileError::NoKey { path: path.to_path_buf(), source })
}

/// Makes a random key.
pub fn generate() -> io::Result<Identity> {
    Ok(Identity::generate(getrandom::fill)?)
}

/// Writes a key as PKCS#8 PEM to a new file of mode 0600, durably. If the file exists, it is left alone, and this
/// fails.
pub fn create(path: &Path, key: &Identity) -> Result<(), KeyFileError> {
    let io = |e| KeyFileError::io(path, e);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
    let written = file.write_all(key.to_pem().as_bytes()).and_then(|()| file.sync_all());
    if let Err(e) = written {
        // Half a key would be in the way of the next try.
        let _ = fs::remove_file(path);
        return Err(io(e));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

/// Reads the key at `path`. If there is no such file, makes a random key there.
pub fn read_or_create(path: &Path) -> Result<Identity, KeyFileError> {
    match read(path) {
        Err(e) if e.is_missing() => {
            let key = generate().map_err(|e| KeyFileError::io(path, e))?;
            create(path, &key)?;
            Ok(key)
        }
        found => found,
    }
}
