//! Identities of the fabric as files and as TLS certificates.
//!
//! An identity is an Ed25519 key. On disk it is a file of its owner alone ([`key_file`]); in TLS 1.3 it is a
//! self-signed certificate of which only the key counts ([`quic`]): names, dates and signatures of certificates are
//! not looked at, for the key itself is what was enrolled.
#![forbid(unsafe_code)]

pub mod key_file;
pub mod quic;
