//! Decoders of quantum error correction, sans-IO: detection events in, predicted flips of logical observables out.
//!
//! A model comes from a Stim detector error model ([`dem`]). [`Decoder`] is the face of both algorithms: matching
//! ([`mwpm`]) and a table of small error sets ([`lut`]). [`sparse`] maps raw measurements to detection events;
//! [`mock`] answers recorded syndromes only.
#![forbid(unsafe_code)]

mod bits;
mod decoder;
pub mod dem;
mod distances;
mod graph;
pub mod lut;
pub mod mock;
pub mod mwpm;
mod search;
pub mod sparse;

pub use bits::BitsError;
pub use decoder::{Algorithm, DecodeError, Decoder, ModelError, Tables};
