//! The secret of a host or of a controller.

use berth_wire::nvme::auth::{self, Hash, SECRET_TEXT_MAX};
use zeroize::Zeroizing;

use super::hash::{Digest, hmac};

/// A secret; wiped when it is dropped. No debug form: nothing prints it by mistake.
#[derive(Clone)]
pub struct Secret {
    transform: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// A new secret of 32 bytes from the kernel's generator, which is transformed with SHA-256 before use.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self { transform: Some(Hash::Sha256), key: Zeroizing::new(bytes.to_vec()) }
    }

    /// Reads the text of a secret, `DHHC-1:hh:BASE64:`; `None` where it is none.
    pub fn parse(text: &str) -> Option<Self> {
        let mut room = Zeroizing::new([0; 68]);
        let secret = auth::Secret::parse(text, &mut room)?;
        Some(Self { transform: secret.transform, key: Zeroizing::new(secret.key.to_vec()) })
    }

    /// The secret's text as [`Secret::parse`] reads it; wiped when it is dropped.
    pub fn text(&self) -> Zeroizing<String> {
        let mut room = Zeroizing::new([0; SECRET_TEXT_MAX]);
        let secret = auth::Secret { transform: self.transform, key: &self.key };
        Zeroizing::new(secret.write(&mut room).expect("a key of one of the lengths").to_owned())
    }

    /// The key that whoever has the name `nqn` uses.
    pub(super) fn transformed(&self, nqn: &[u8]) -> Digest {
        match self.transform {
            Some(hash) => hmac(hash, &self.key, &[nqn, b"NVMe-over-Fabrics"]),
            None => Digest::new(&self.key),
        }
    }
}
