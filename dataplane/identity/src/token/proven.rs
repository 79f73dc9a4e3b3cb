//! Signatures that were verified before.

use sha2::{Digest as _, Sha256};

use crate::PublicKey;

/// Number of places, 128 KiB in all, allocated as they are used.
const PLACES: usize = 4096;

/// Verified signatures, so that a token is verified once and not at each use. Only the validity of the signature is
/// remembered, which never changes. Whether its key and token are still accepted is checked each time.
#[derive(Debug)]
pub(super) struct Proven {
    /// Digests of key, signature and signed bytes, each at the place that its first bytes determine. A new one replaces
    /// the one before it.
    digests: Box<[[u8; 32]]>,
}

impl Default for Proven {
    fn default() -> Self {
        Self { digests: vec![[0; 32]; PLACES].into() }
    }
}

impl Proven {
    /// Whether the holder of `key` signed these bytes.
    pub(super) fn verifies(&mut self, key: &PublicKey, signed: &[u8], signature: &[u8; 64]) -> bool {
        let digest = Sha256::new_with_prefix(key.as_bytes()).chain_update(signature).chain_update(signed).finalize();
        let digest: [u8; 32] = digest.into();
        let [first, second, ..] = digest;
        let place = &mut self.digests[usize::from(u16::from_be_bytes([first, second])) % PLACES];
        if *place == digest {
            return true;
        }
        let good = key.verifies(signed, signature);
        if good {
            *place = digest;
        }
        good
    }
}
