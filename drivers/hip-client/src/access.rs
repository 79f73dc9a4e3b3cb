//! What a client shows a worker, and whom it takes for the worker.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_identity::Identity;
use berth_tls::{
    key_file,
    stream::{self, ClientConfig, TlsError},
};

/// A lease of a device, and what proves that it is the client's.
#[derive(Clone)]
pub struct Lease {
    /// Its id, sent big-endian.
    pub id: u128,
    /// A token of its holder with EXEC, for the device or for the lease.
    pub token: Vec<u8>,
    /// Its holder's key, which signs the worker's nonce.
    pub holder: Arc<Identity>,
}

/// How a worker is reached: by default without a lease, in plain text.
#[derive(Clone, Default)]
pub struct Access {
    pub(crate) lease: Option<Lease>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease = self.lease.as_ref().map(|lease| format!("{:032x}", lease.id));
        write!(f, "Access(lease {lease:?}, tls {})", self.tls.is_some())
    }
}

impl Access {
    /// Sessions use a lease: its device alone, and its bytes.
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Connections are under TLS, to a worker that has one of the certificates in `pem`: the very same, whatever its names
    /// and dates. `key` is for workers that let in certain keys alone.
    ///
    /// # Errors
    /// What is wrong with the certificates or the key.
    pub fn tls(mut self, pem: &[u8], key: Option<&Identity>) -> Result<Self, TlsError> {
        self.tls = Some(stream::client(pem, key)?);
        Ok(self)
    }

    /// What the environment says: `BERTH_HIP_TLS`, a PEM file of [`Access::tls`]; `BERTH_HIP_LEASE`, the id of a lease, and
    /// `BERTH_HIP_TOKEN`, a file with the token, as `berth token request` prints it; `BERTH_KEY`, the file with the client's
    /// key, for either.
    ///
    /// # Errors
    /// What is missing, or is not what it should be.
    pub fn from_env() -> Result<Self, EnvError> {
        let mut access = Self::default();
        let key = match file(KEY) {
            Some(path) => Some(Arc::new(key_file::read(&path).map_err(|error| wrong(KEY, error))?)),
            None => None,
        };
        if let Some(path) = file(TLS) {
            access = access.tls(&read(TLS, &path)?, key.as_deref()).map_err(|error| wrong(TLS, error))?;
        }
        if let Some(id) = env::var_os(LEASE) {
            let id = id.to_str().and_then(|id| u128::from_str_radix(id, 16).ok());
            let id = id.ok_or_else(|| wrong(LEASE, "is not the id of a lease: up to 32 hex digits"))?;
            let path = file(TOKEN).ok_or_else(|| wrong(LEASE, "needs BERTH_HIP_TOKEN, a file with a token for it"))?;
            let token = unhex(&read(TOKEN, &path)?).ok_or_else(|| wrong(TOKEN, "holds no token in hex digits"))?;
            let holder = key.ok_or_else(|| wrong(LEASE, "needs BERTH_KEY, the file with its holder's key"))?;
            access = access.lease(Lease { id, token, holder });
        }
        Ok(access)
    }
}

const KEY: &str = "BERTH_KEY";
const TLS: &str = "BERTH_HIP_TLS";
const LEASE: &str = "BERTH_HIP_LEASE";
const TOKEN: &str = "BERTH_HIP_TOKEN";

/// What is wrong with a variable of the environment.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {why}")]
pub struct EnvError {
    variable: &'static str,
    why: String,
}

fn wrong(variable: &'static str, why: impl fmt::Display) -> EnvError {
    EnvError { variable, why: why.to_string() }
}

fn file(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn read(variable: &'static str, path: &Path) -> Result<Vec<u8>, EnvError> {
    fs::read(path).map_err(|error| wrong(variable, format_args!("{}: {error}", path.display())))
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.trim_ascii().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}
