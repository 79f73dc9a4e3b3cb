//! What instructions compute, as functions of register slots. A slot has the bits of its register, and zeros above.

pub(crate) mod bits;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod int;

pub(crate) type Unary = fn(u64) -> u64;
pub(crate) type Binary = fn(u64, u64) -> u64;
pub(crate) type Ternary = fn(u64, u64, u64) -> u64;
pub(crate) type Quaternary = fn(u64, u64, u64, u64) -> u64;
