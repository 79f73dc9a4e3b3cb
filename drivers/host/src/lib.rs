//! What the dataplane needs of the host: a clock, pinned threads, huge pages, a way to sleep.

mod clock;
mod socket;

pub use clock::TscClock;
pub use socket::{BindError, UdpConfig, UdpSocket};
