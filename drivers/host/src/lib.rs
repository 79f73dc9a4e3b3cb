//! What the dataplane needs of the host: a clock, pinned threads, huge pages, a way to sleep.

mod clock;
mod pin;
mod region;
mod sleep;
mod sockaddr;
mod socket;

pub use clock::TscClock;
pub use pin::{PinError, pin_current_thread};
pub use region::{HugePage, HugeRegion, HugeRegionError};
pub use sleep::{Sleeper, Wake, Waker};
pub use sockaddr::{PACKET_INFO, RawAddr, answer_from_destination};
pub use socket::{BindError, UdpConfig, UdpSocket};
