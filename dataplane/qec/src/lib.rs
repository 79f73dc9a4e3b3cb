//! Decoders for quantum error correction, sans-IO: detection events in, predicted flips of logical observables out.
//!
//! A model comes from a Stim detector error model ([`dem`]). [`Decoder`] is the common interface of all algorithms:
//! matching ([`mwpm`]), belief propagation ([`relay`], [`osd`]) and a table of small error sets ([`lut`]). [`sparse`] maps raw
//! measurements to detection events. [`window`] decodes rounds as they arrive, by any of them. [`readout`] is for outcomes that are not certain, [`gap`] for the confidence of an answer. [`gpu`] has `relay` and `lut` for GPUs. [`mock`] only answers recorded syndromes.
#![forbid(unsafe_code)]

mod belief;
mod bits;
mod correlated;
mod decoder;
pub mod dem;
mod few;
pub mod gap;
pub mod gpu;
mod graph;
mod hyper;
pub mod lut;
mod matching;
pub mod mock;
pub mod mwpm;
mod nearest;
pub mod osd;
mod overlay;
pub mod readout;
pub mod relay;
pub mod shots;
pub mod sparse;
pub mod window;

pub use bits::BitsError;
pub use decoder::{Algorithm, DecodeError, Decoder, ModelError, Tables};
