//! Signatures that were found good.

use sha2::{Digest as _, Sha256};

use crate::PublicKey;

/// How many are remembered: 128 KiB, touched as they come.
const PLACES: usize = 4096;

/// Signatures that were verified, so that a token is verified once, and not at each use. What is remembered is only that
/// the signature is good, which it stays; whether its key and its token still count is asked each time.
#[derive(Debug)]
pub(super) struct Proven {
    /// Digests of key, signature and what is signed, each at the place that its first bytes name. Another one that comes
    /// there takes the place.
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
