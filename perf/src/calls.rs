//! A session of HIP Remote as a port: its frames are calls.

mod port;
mod wire;

pub(crate) use port::Calls;

/// The function of a request that measures.
pub(crate) const CALL: u32 = 0;
/// The function of a request that reads everything back.
pub(crate) const READ_BACK: u32 = 1;
