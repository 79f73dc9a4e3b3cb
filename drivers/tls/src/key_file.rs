//! Key files (profile, decision 26): PKCS#8 PEM, or one line of 64 hex digits (the seed), mode 0600.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use ed25519_dalek::{
    SigningKey, VerifyingKey,
    pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, spki::der::pem::LineEnding},
};
use zeroize::Zeroizing;

/// No key file is longer, in bytes.
const MAX_LEN: u64 = 4096;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read, or not be made.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The group or others may read or write the file.
    #[error("{} is open to others (mode {mode:04o}): run `chmod 600 {}`", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The contents are no key.
    #[error("{} is no key: PKCS#8 PEM of an Ed25519 key, or one line of 64 hex digits, is wanted", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
}

impl KeyFileError {
    /// Whether there is no such file.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }
}

/// Reads a key. The mode is asked of the open file, so that the file that was checked is the one that is read.
pub fn read(path: &Path) -> Result<SigningKey, KeyFileError> {
    let io = |e| KeyFileError::io(path, e);
    let file = File::open(path).map_err(io)?;
    let mode = file.metadata().map_err(io)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open { path: path.to_path_buf(), mode });
    }
    let mut text = Zeroizing::new(Vec::new());
    file.take(MAX_LEN).read_to_end(&mut text).map_err(io)?;
    let key = str::from_utf8(&text).ok().and_then(parse);
    key.ok_or_else(|| KeyFileError::NoKey { path: path.to_path_buf() })
}

fn parse(text: &str) -> Option<SigningKey> {
    let text = text.trim();
    match hex(text) {
        Some(seed) => Some(SigningKey::from_bytes(&Zeroizing::new(seed))),
        None => SigningKey::from_pkcs8_pem(text).ok(),
    }
}

/// Makes a key at random.
pub fn generate() -> io::Result<SigningKey> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *seed)?;
    Ok(SigningKey::from_bytes(&seed))
}

/// Writes a key as PKCS#8 PEM to a new file of mode 0600, durably. A file that is there stays as it is: that is an
/// error.
pub fn create(path: &Path, key: &SigningKey) -> Result<(), KeyFileError> {
    let io = |e| KeyFileError::io(path, e);
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(|e| io(io::Error::other(e)))?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(io)?;
    let written = file.write_all(pem.as_bytes()).and_then(|()| file.sync_all());
    if let Err(e) = written {
        // Half a key would be in the way of the next try.
        let _ = fs::remove_file(path);
        return Err(io(e));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

/// Reads the key at `path`, or makes one there.
pub fn read_or_create(path: &Path) -> Result<SigningKey, KeyFileError> {
    match read(path) {
        Err(e) if e.is_missing() => {
            let key = generate().map_err(|e| KeyFileError::io(path, e))?;
            create(path, &key)?;
            Ok(key)
        }
        found => found,
    }
}

/// A public key as configurations list it: 64 hex digits. `None` where it is not one.
pub fn public_key(text: &str) -> Option<VerifyingKey> {
    VerifyingKey::from_bytes(&hex(text)?).ok().filter(|key| !key.is_weak())
}

/// The 64 hex digits of 32 bytes, as [`public_key`] reads them.
pub fn to_hex(bytes: &[u8; 32]) -> String {
    let (high, low) = bytes.split_at(16);
    let half = |half: &[u8]| half.iter().fold(0, |word: u128, byte| word << 8 | u128::from(*byte));
    format!("{:032x}{:032x}", half(high), half(low))
}

fn hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}
