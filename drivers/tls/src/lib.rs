//! Identities of the fabric, as files and as TLS certificates.
//!
//! An identity is an Ed25519 key. On disk it is a file that only its owner can read ([`key_file`]). In TLS 1.3 it is a
//! self-signed certificate in which only the key counts ([`quic`]): names, dates and signatures of certificates are
//! ignored, because the key itself is what was enrolled. Servers of other protocols have a certificate of their own
//! ([`stream`]).
#![forbid(unsafe_code)]

pub mod key_file;
pub mod quic;
pub mod stream;
