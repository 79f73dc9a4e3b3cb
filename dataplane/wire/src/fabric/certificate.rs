//! Certificates (result of ENROLL_REQUEST) and revocation broadcasts.

use super::{
    SIGNATURE_LEN,
    codec::{FabricError, List, Reader, Wire},
    macros::wire,
    tlv::Tlv8,
};

/// Prefix of the bytes that a certificate's signature covers.
pub const CERT_DOMAIN: &[u8] = b"fabricBIOS-cert-v0\0";
/// Limit on the extensions of a certificate.
pub const MAX_EXTENSIONS: usize = 32;
/// Limit on the token ids of one broadcast.
pub const MAX_REVOKED: usize = 1024;

wire! {
    /// A node's signed statement that a key is enrolled with it (section "Certificate encoding").
    pub struct Certificate<'a> {
        /// Id of the certified key: the first 16 bytes of its SHA-256.
        pub subject: u128,
        /// Id of the node that signs.
        pub issuer: u128,
        /// Seconds since the Unix epoch.
        pub issued_at: u64,
        /// Seconds since the Unix epoch.
        pub expires_at: u64,
        /// The certified Ed25519 key.
        pub public_key: [u8; 32],
        /// v0 defines none; unknown ones are skipped.
        pub extensions: List<'a, Tlv8<'a>, MAX_EXTENSIONS>,
        /// The issuer's Ed25519 signature over [`Certificate::signed_bytes`].
        pub signature: [u8; SIGNATURE_LEN],
    }

    /// Payload of REVOKE_BROADCAST and result of CAP_REVOKE (section "Revocation broadcast payload").
    pub struct RevokeBroadcast<'a> {
        /// Id of the node or admin key that revokes; equal to the frame's sender (decision 24).
        pub issuer: u128,
        /// `token_id`s of the revoked tokens.
        pub token_ids: List<'a, u128, MAX_REVOKED>,
        /// Receivers remember the ids until this time, in seconds since the Unix epoch.
        pub until: u64,
    }
}

impl Certificate<'_> {
    /// The bytes the signature covers: the domain and every field before the signature.
    pub fn signed_bytes(&self) -> Vec<u8> {
        let mut signed = CERT_DOMAIN.to_vec();
        self.write(&mut signed);
        signed.truncate(signed.len() - SIGNATURE_LEN);
        signed
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    #[test]
    fn certificates_are_laid_out_and_signed_as_documented() {
        let extensions = [Tlv8::of(0xEE, &[1]).unwrap()];
        let certificate = Certificate {
            subject: 1,
            issuer: 2,
            issued_at: 3,
            expires_at: 4,
            public_key: [0x44; 32],
            extensions: List::of(&extensions).unwrap(),
            signature: [0x55; 64],
        };
        let unsigned = format!(
            "00000000000000000000000000000001 00000000000000000000000000000002 0000000000000003 0000000000000004
             {} 0001 ee000101",
            "44".repeat(32)
        );
        exact(&certificate, &format!("{unsigned} {}", "55".repeat(64)));
        let domain = "66616272696342494f532d636572742d763000";
        assert_eq!(certificate.signed_bytes(), hex(&format!("{domain} {unsigned}")));
    }

    #[test]
    fn revocations_are_laid_out_as_documented() {
        let revoked = RevokeBroadcast { issuer: 1, token_ids: List::of(&[2, 3]).unwrap(), until: 4 };
        exact(
            &revoked,
            "00000000000000000000000000000001 0002 00000000000000000000000000000002
             00000000000000000000000000000003 0000000000000004",
        );
    }
}
