//! The interface between ports and services.
//!
//! A [`Port`] is one receive/transmit queue pair of any backend: a socket, an `io_uring`, a DPDK queue, memory. A
//! [`Service`] answers frames. A poll loop joins the two, monomorphised:
//!
//! ```text
//! port.rx(|frame| service.handle(frame, now))   one burst, lent in the port's own memory, answered in place
//! service.poll(&mut port, now)                  answers that come later, from another core
//! port.tx()                                     hand everything that was answered or posted to the device
//! ```
//!
//! `rx` lends frames to a closure instead of returning them. A frame therefore cannot outlive the descriptor that holds
//! it, which the borrow checker proves without unsafe code above the drivers.
//!
//! A core polls [`Task`]s: such loops, or anything else that takes turns.
//!
//! Byte streams have an interface of their own: a [`Session`] answers the messages of one connection, and a pump moves
//! its bytes.
//!
//! Ports compose: [`Fault`] and [`Pcap`] wrap any port and are ports themselves. [`Loopback`] joins two in one process.
#![forbid(unsafe_code)]

mod counters;
pub mod families;
mod fault;
mod frame;
mod histogram;
mod kept;
mod loopback;
mod mailbox;
mod pcap;
mod peer;
mod sampler;
mod session;
mod task;
mod time;

use std::{net::SocketAddr, os::fd::RawFd};

pub use counters::{Count, Counter, Family, Tables};
pub use fault::{Fault, FaultSpec, Faults};
pub use frame::{Frame, Place, ReplyTo, Verdict};
pub use histogram::{HIGHEST_NS, Reader, Recorder, SIGNIFICANT_DIGITS};
pub use kept::{Kept, Vacancy};
pub use loopback::Loopback;
pub use mailbox::{Mailbox, Sender, mailbox};
pub use pcap::Pcap;
pub use peer::Peer;
pub use sampler::{SAMPLE_AFTER, SAMPLE_EVERY, Sampler};
pub use session::{Next, Progress, Session};
pub use task::{Part, Task, Work};
pub use time::{Clock, Nanos, Now};

/// Declarations of the counters of this crate's ports.
pub const COUNTERS: Tables = &[loopback::Counters::TABLE, fault::COUNTERS, pcap::Counters::TABLE];

/// Limit on the frames that one call of [`Port::rx`] lends.
///
/// 32 keeps a burst's headers within an L1 cache (32 x 128 B) and amortises the doorbell of every driver here.
pub const BURST: usize = 32;

/// One receive/transmit queue pair, owned by one core.
pub trait Port {
    /// Lends the frames that have arrived, one by one and at most [`BURST`], in the port's own memory. Returns their
    /// number.
    ///
    /// A frame with verdict [`Verdict::Reply`] is queued towards its sender, with the contents and length that the
    /// handler left in it; one with [`Verdict::Keep`] stays where it is; other frames are released. After a frame that
    /// [is urgent](Frame::is_urgent), everything queued is transmitted. Never blocks.
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, handle: H) -> usize;

    /// Queues a frame that does not answer the current burst: a request, or a late answer.
    ///
    /// `fill` writes into a buffer of [`Port::max_frame`] bytes and returns the number of bytes written.
    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError>;

    /// Queues a late answer to an earlier frame, like [`Port::post`], but by the way that the frame came.
    #[inline]
    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, to: ReplyTo, fill: F) -> Result<(), PostError> {
        self.post(to.peer(), fill)
    }

    /// Takes back the frame that was kept ([`Verdict::Keep`]) under this number. Ports that keep none ignore it.
    #[inline]
    fn release(&mut self, number: u32) {
        let _ = number;
    }

    /// Hands everything that [`Port::rx`] and [`Port::post`] queued to the device. Never blocks. What the device does
    /// not take stays queued; if the queue is full, frames are dropped and counted.
    fn tx(&mut self);

    /// Limit on a frame's [`Frame::data`], in bytes.
    fn max_frame(&self) -> usize;

    /// The address at which peers reach this port.
    fn local_addr(&self) -> SocketAddr;

    /// A descriptor that becomes readable when [`Port::rx`] has work, for loops that sleep. `None` if the backend can
    /// only be polled; a sleeping loop then wakes by timer.
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Calls `visit` with the name and value of every counter of this port. Names are `snake_case`, values never fall.
    /// It must only read memory, as the poll core calls it.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));

    /// Counters kept by the device or the kernel for this port. `None` if there are none, or another port reports them.
    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        None
    }
}

/// Counters that need a system call or a device register. A thread other than the port's reads them while the port
/// works. Dropped before the port.
pub trait DeviceCounters: Send {
    /// Calls `visit` as [`Port::counters`] does. May take long.
    fn read(&mut self, visit: &mut dyn FnMut(&'static str, u64));
}

/// Why [`Port::post`] did not queue a frame. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No transmit descriptor is free; try again after [`Port::tx`].
    #[error("the transmit queue is full")]
    Full,
    /// The peer's link-layer address is not known yet (it is being resolved), or its address is of another family.
    #[error("no route to the peer")]
    Unreachable,
}

/// Answers the frames of a port. Owned by one core, like the port.
pub trait Service {
    /// Handles one frame. A [`Verdict::Reply`] sends the answer written into it.
    fn handle(&mut self, frame: &mut Frame<'_>, now: Now) -> Verdict;

    /// Posts late answers that are ready; returns their number.
    fn poll<P: Port>(&mut self, port: &mut P, now: Now) -> usize {
        let _ = (port, now);
        0
    }

    /// Number of requests taken and not answered yet; a draining loop waits for zero.
    fn outstanding(&self) -> usize {
        0
    }

    /// Calls `visit` with the name and value of every counter, as [`Port::counters`] does.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));

    /// Calls `visit` with the name and recorder of each histogram that comes and goes with the program, such as that of a
    /// ring kernel.
    fn histograms(&self, visit: &mut dyn FnMut(&'static str, &Recorder)) {
        let _ = visit;
    }
}
