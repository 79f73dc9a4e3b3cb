//! Certificates: a node's signed statement that a key is enrolled with it (section "Certificate encoding").

use berth_wire::fabric::{CLOCK_SKEW, Certificate, FabricError, List, SIGNATURE_LEN, Tlv8, Wire as _};

use crate::{Identity, NodeId, PublicKey};

/// Why a certificate is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// It does not parse as a certificate.
    #[error("the certificate is malformed: {0}")]
    Malformed(#[from] FabricError),
    /// The subject is not the id of the key, or the key is invalid.
    #[error("the certificate's subject is not the id of its key")]
    Subject,
    /// The issuer did not sign it, or it was changed since.
    #[error("the certificate does not bear the signature of the expected issuer")]
    Signature,
    /// The time is not within its validity.
    #[error("the certificate is not valid at this time")]
    Time,
}

/// Certifies `subject` from `issued_at` until before `expires_at`, in seconds since the Unix epoch.
pub fn certify(
    issuer: &Identity,
    subject: &PublicKey,
    issued_at: u64,
    expires_at: u64,
    extensions: &[Tlv8<'_>],
) -> Result<Vec<u8>, FabricError> {
    let mut certificate = Certificate {
        subject: subject.id().0,
        issuer: issuer.id().0,
        issued_at,
        expires_at,
        public_key: *subject.as_bytes(),
        extensions: List::of(extensions)?,
        signature: [0; SIGNATURE_LEN],
    };
    certificate.signature = issuer.sign(&certificate.signed_bytes());
    Ok(certificate.to_vec())
}

/// The key that `issuer` certifies with these bytes, once everything is verified.
pub fn verify_certificate(bytes: &[u8], issuer: &PublicKey, now_secs: u64) -> Result<PublicKey, CertificateError> {
    let certificate = Certificate::parse(bytes)?;
    let key = PublicKey::from_bytes(&certificate.public_key).map_err(|_| CertificateError::Subject)?;
    if NodeId(certificate.subject) != key.id() {
        return Err(CertificateError::Subject);
    }
    if NodeId(certificate.issuer) != issuer.id()
        || !issuer.verifies(&certificate.signed_bytes(), &certificate.signature)
    {
        return Err(CertificateError::Signature);
    }
    if certificate.issued_at > now_secs.saturating_add(CLOCK_SKEW) || certificate.expires_at <= now_secs {
        return Err(CertificateError::Time);
    }
    Ok(key)
}
