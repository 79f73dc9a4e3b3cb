//! Code objects of NVIDIA's compilers, as far as they tell what kernels take: cubins and fat binaries. Nobody documents their
//! layout; it is what `ptxas` and `fatbinary` of CUDA 12 and 13 write.

mod cubin;
mod fat;

pub use self::{
    cubin::{Kernel, kernels},
    fat::{Entry, entries},
};

/// What each of them begins with.
const ELF: &[u8] = b"\x7FELF";
const FAT: &[u8] = b"\x50\xED\x55\xBA";

/// A number of so many bytes, the lowest first.
fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// So many bytes from a place on.
fn part(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(len)?).ok()?)
}
