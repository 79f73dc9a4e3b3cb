//! MemoryPack: bytes worked out by hand, round trips, bad input, and another implementation.

mod derived;
mod everything;
mod hostile;
mod peer;
mod round_trip;
mod tree;
mod vectors;
