//! Ed25519 identities, certificates and capability tokens: authentication and authorisation, without I/O.
//!
//! It covers everything between a UDP datagram and an authenticated message. Time and randomness are arguments.
#![forbid(unsafe_code)]

mod certificate;
mod enrolled;
mod keys;
pub mod link;
mod rates;
mod revocations;
pub mod token;

pub use certificate::{CertificateError, certify, verify_certificate};
pub use enrolled::{EnrolError, Enrolled, Enrolment, Known, MAX_ENROLLED};
pub use keys::{Identity, KeyError, NodeId, PublicKey};
pub use rates::{MAX_RATED, Rates};
pub use revocations::{HolderRevoked, MAX_REVOCATIONS, Revocations, RevocationsFull};
