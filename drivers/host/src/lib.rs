//! Services of the host for the dataplane: a clock, pinned threads, sleeping, sockets, and facts about the hardware.

mod clock;
mod facts;
mod files;
mod memory;
mod pin;
mod sleep;
mod sockaddr;
mod socket;
#[cfg(test)]
mod test_tree;
mod thermal;

pub use clock::TscClock;
pub use facts::{Gpu, NumaNode, gpus, has_ecc, numa_nodes};
pub use files::raise_file_limit;
pub use memory::release_free_memory;
pub use pin::{PinError, keep_current_thread, pin_current_thread};
pub use sleep::{Sleeper, Wake, Waker};
pub use sockaddr::{PACKET_INFO, RawAddr, answer_from_destination};
pub use socket::{BindError, COUNTERS, SocketCounters, UdpConfig, UdpSocket};
pub use thermal::{Sensor, Thermal};
