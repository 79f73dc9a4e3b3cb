//! Ed25519 identities, certificates and capability tokens: who may ask, and for what.
#![forbid(unsafe_code)]
