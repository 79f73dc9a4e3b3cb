//! Digests and HMACs with whichever hash was agreed on.

use std::ops::Deref;

use berth_wire::nvme::auth::Hash;
use hmac::{Hmac, Mac, digest::KeyInit};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A digest; wiped when it is dropped.
pub(super) struct Digest {
    bytes: Zeroizing<[u8; Hash::LEN_MAX]>,
    len: usize,
}

impl Digest {
    /// Up to 64 bytes.
    pub(super) fn new(from: &[u8]) -> Self {
        let mut bytes = Zeroizing::new([0; Hash::LEN_MAX]);
        bytes[..from.len()].copy_from_slice(from);
        Self { bytes, len: from.len() }
    }

    /// Whether `response` is this digest, in a time that does not depend on where they differ.
    pub(super) fn is(&self, response: &[u8]) -> bool {
        self.ct_eq(response).into()
    }
}

impl Deref for Digest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The digest of `bytes`.
pub(super) fn digest(hash: Hash, bytes: &[u8]) -> Digest {
    match hash {
        Hash::Sha256 => Digest::new(&Sha256::digest(bytes)),
        Hash::Sha384 => Digest::new(&Sha384::digest(bytes)),
        Hash::Sha512 => Digest::new(&Sha512::digest(bytes)),
    }
}

/// The HMAC of `parts` one after another.
pub(super) fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Digest {
    match hash {
        Hash::Sha256 => hmac_with::<Hmac<Sha256>>(key, parts),
        Hash::Sha384 => hmac_with::<Hmac<Sha384>>(key, parts),
        Hash::Sha512 => hmac_with::<Hmac<Sha512>>(key, parts),
    }
}

fn hmac_with<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    Digest::new(&mac.finalize().into_bytes())
}
