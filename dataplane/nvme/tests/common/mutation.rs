//! Bytes that were sound.

use fastrand::Rng;

/// Changes, drops or flips a few of the bytes, up to two times, with a further byte for each.
pub fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.usize(0..3) {
        let at = rng.usize(0..bytes.len());
        match rng.u32(0..3) {
            0 => bytes[at] = rng.u8(..),
            1 => drop(bytes.drain(at..bytes.len().min(at + rng.usize(0..100)))),
            _ => bytes[at] ^= 1 << rng.u32(0..8),
        }
        bytes.push(0);
    }
}
