//! Codecs.
#![forbid(unsafe_code)]
