//! Keys and the ids derived from them (profile, "Frame", identity, and decision 26).

use std::{fmt, str::FromStr};

use ed25519_dalek::{
    Signature, Signer as _, SigningKey, VerifyingKey,
    pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, KeypairBytes, spki::der::pem::LineEnding},
};
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// Id of a node or presenter: the first 16 bytes of its public key's SHA-256, as a big-endian number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u128);

impl NodeId {
    /// The id that belongs to a public key.
    pub fn of(key: &[u8; 32]) -> Self {
        let digest: [u8; 32] = Sha256::digest(key).into();
        Self(digest[..16].iter().fold(0, |id, byte| id << 8 | u128::from(*byte)))
    }
}

/// 32 lower-case hex digits.
impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeId({self})")
    }
}

impl FromStr for NodeId {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        hex::<16>(text).map(|bytes| Self(u128::from_be_bytes(bytes))).ok_or(KeyError::NoId)
    }
}

/// Why a text or bytes are not a key or an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Neither PKCS#8 PEM nor 64 hex digits.
    #[error("no private key: PKCS#8 PEM of an Ed25519 key, or one line of 64 hex digits, is wanted")]
    NoKey,
    /// Not a point of the curve, or one of small order, for which any signature verifies.
    #[error("no public key: 64 hex digits of an Ed25519 key are wanted")]
    NoPublicKey,
    /// Not 32 hex digits.
    #[error("no id: 32 hex digits are wanted")]
    NoId,
}

/// An Ed25519 public key that is safe to verify with, and its id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey {
    key: VerifyingKey,
    id: NodeId,
}

impl PublicKey {
    /// Decompresses and checks the 32 bytes of a key.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, KeyError> {
        VerifyingKey::from_bytes(bytes).map_err(|_| KeyError::NoPublicKey)?.try_into()
    }

    /// Derived from the key; see [`NodeId`].
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The compressed point, as on the wire.
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.key.as_bytes()
    }

    /// Whether the holder of the key signed these bytes. The check is strict: keys of small order and non-canonical
    /// signatures do not pass.
    pub fn verifies(&self, signed: &[u8], signature: &[u8; 64]) -> bool {
        self.key.verify_strict(signed, &Signature::from_bytes(signature)).is_ok()
    }
}

impl TryFrom<VerifyingKey> for PublicKey {
    type Error = KeyError;

    fn try_from(key: VerifyingKey) -> Result<Self, KeyError> {
        if key.is_weak() {
            return Err(KeyError::NoPublicKey);
        }
        Ok(Self { key, id: NodeId::of(key.as_bytes()) })
    }
}

/// 64 lower-case hex digits, as configurations list keys.
impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&hex(text).ok_or(KeyError::NoPublicKey)?)
    }
}

/// An Ed25519 private key, the identity of a node or presenter. Its memory is zeroed on drop.
#[derive(Clone)]
pub struct Identity {
    key: SigningKey,
    public: PublicKey,
}

impl Identity {
    /// The key that belongs to a 32-byte seed.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        SigningKey::from_bytes(seed).into()
    }

    /// Makes a new key. `fill` must fill 32 bytes from a cryptographically secure source.
    pub fn generate<E>(fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<Self, E> {
        let mut seed = Zeroizing::new([0; 32]);
        fill(&mut *seed)?;
        Ok(Self::from_seed(&seed))
    }

    /// Reads the text of a key file: PKCS#8 PEM, or one line of 64 hex digits (the seed).
    pub fn from_text(text: &str) -> Result<Self, KeyError> {
        let text = text.trim();
        match hex(text).map(Zeroizing::new) {
            Some(seed) => Ok(Self::from_seed(&seed)),
            None => SigningKey::from_pkcs8_pem(text).map(Self::from).map_err(|_| KeyError::NoKey),
        }
    }

    /// The key as PKCS#8 PEM, which [`Self::from_text`] reads. It is version 1, without the public key, because OpenSSL
    /// 3.0 reads no other.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let key = KeypairBytes { secret_key: self.key.to_bytes(), public_key: None };
        key.to_pkcs8_pem(LineEnding::LF).expect("an Ed25519 key has a PKCS#8 form")
    }

    /// The public key of this private key.
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// The id of the public key.
    pub fn id(&self) -> NodeId {
        self.public.id
    }

    /// The private key itself, for TLS.
    pub fn signing_key(&self) -> &SigningKey {
        &self.key
    }

    /// 32 bytes that whoever lacks this key cannot guess, another for each `purpose` and `parts`: HMAC-SHA-256 with the
    /// key's seed. Parts of varying length do not follow one another.
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let seed = Zeroizing::new(self.key.to_bytes());
        let mut mac = Hmac::<Sha256>::new_from_slice(&*seed).expect("HMAC takes keys of any length");
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        for part in parts {
            mac.update(part);
        }
        Zeroizing::new(mac.finalize().into_bytes().into())
    }

    /// The signature of these bytes.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.key.sign(bytes).to_bytes()
    }
}

impl From<SigningKey> for Identity {
    fn from(key: SigningKey) -> Self {
        let public = PublicKey { key: key.verifying_key(), id: NodeId::of(key.verifying_key().as_bytes()) };
        Self { key, public }
    }
}

/// Prints only the id, nothing secret.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public.id)
    }
}

/// Reads exactly 2 N hex digits.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}
