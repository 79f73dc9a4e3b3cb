//! Tokens, certificates and revocations: whatever parses is written back as it was, and says what each signature covers.
#![no_main]

use berth_wire::fabric::{
    CAP_DOMAIN, CERT_DOMAIN, CapabilityToken, Certificate, LINK_DOMAIN, RevokeBroadcast, SIGNATURE_LEN, Wire,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(token) = CapabilityToken::parse(bytes) {
        assert_eq!(token.to_vec(), bytes);
        let signed = token.signed_bytes();
        let unsigned = signed.strip_prefix(CAP_DOMAIN).expect("the domain comes first");
        assert!(bytes.starts_with(unsigned));
        let links = token.links.len();
        assert_eq!(token.link_signed_bytes(links), None);
        for link in 0..links {
            let signed = token.link_signed_bytes(link).expect("there is such a link");
            let then = signed.strip_prefix(LINK_DOMAIN).expect("the domain comes first");
            if link + 1 == links {
                assert_eq!(then, &bytes[..bytes.len() - SIGNATURE_LEN]);
            }
        }
    }
    if let Ok(certificate) = Certificate::parse(bytes) {
        assert_eq!(certificate.to_vec(), bytes);
        let signed = certificate.signed_bytes();
        assert_eq!(signed.strip_prefix(CERT_DOMAIN), Some(&bytes[..bytes.len() - SIGNATURE_LEN]));
    }
    if let Ok(revoked) = RevokeBroadcast::parse(bytes) {
        assert_eq!(revoked.to_vec(), bytes);
    }
});
