//! The narrow waist of the dataplane.
//!
//! A [`Port`] is one receive/transmit queue pair of whatever backend: a socket, an `io_uring`, a DPDK queue, memory.
//! A [`Service`] answers frames. A poll loop joins the two, monomorphised:
//!
//! ```text
//! port.rx(|frame| service.handle(frame, now))   one burst, lent in the port's own memory, answered in place
//! service.poll(&mut port, now)                  answers that come later, from another core
//! port.tx()                                     hand everything that was answered or posted to the device
//! ```
//!
//! `rx` lends frames to a closure instead of returning them: a frame cannot outlive the descriptor that holds it,
//! which the borrow checker then proves without any unsafe code above the drivers.
//!
//! What a core polls is a [`Task`]: such a loop, or anything else that takes turns.
//!
//! Byte streams have a waist of their own: a [`Session`] answers the messages of one connection, and whoever moves the
//! bytes is called a pump.
//!
//! Ports compose: [`Fault`] and [`Pcap`] wrap any port and are ports themselves, and [`Loopback`] joins two in one
//! process.
#![forbid(unsafe_code)]

mod counters;
pub mod families;
mod fault;
mod frame;
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
pub use frame::{Frame, ReplyTo, Verdict};
pub use loopback::Loopback;
pub use mailbox::{Mailbox, Sender, mailbox};
pub use pcap::Pcap;
pub use peer::Peer;
pub use sampler::{SAMPLE_AFTER, SAMPLE_EVERY, Sampler};
pub use session::{Next, Progress, Session};
pub use task::{Part, Task, Work};
pub use time::{Clock, Nanos, Now};

/// What the ports of this crate count.
pub const COUNTERS: Tables = &[loopback::Counters::TABLE, fault::COUNTERS, pcap::Counters::TABLE];

/// The most frames one call of [`Port::rx`] lends.
///
/// 32 keeps a burst's headers within an L1 cache (32 x 128 B) and amortises the doorbell of every driver here.
pub const BURST: usize = 32;

/// One receive/transmit queue pair, owned by one core.
pub trait Port {
    /// Lends the frames that have arrived, at most [`BURST`], in the port's own memory, one by one, and returns how
    /// many.
    ///
    /// A frame whose verdict is [`Verdict::Reply`] is queued towards the peer it came from, with the contents and
    /// length the handler left in it; every other frame is released. What is queued is transmitted after a frame that
    /// [is urgent](Frame::is_urgent). Never blocks.
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, handle: H) -> usize;

    /// Queues a frame that does not answer the current burst: a request, or an answer that comes later.
    ///
    /// `fill` writes into a buffer of [`Port::max_frame`] bytes and returns the length it used.
    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError>;

    /// Queues an answer to a frame that was received before, as [`Port::post`] does, by the way that the frame came.
    #[inline]
    fn reply<F: FnOnce(&mut [u8]) -> usize>(&mut self, to: ReplyTo, fill: F) -> Result<(), PostError> {
        self.post(to.peer(), fill)
    }

    /// Hands everything queued by [`Port::rx`] and [`Port::post`] to the device. Never blocks: what the device does
    /// not take stays queued, and is dropped and counted where the queue is full.
    fn tx(&mut self);

    /// The longest frame this port carries, in bytes of [`Frame::data`].
    fn max_frame(&self) -> usize;

    /// Where peers reach this port.
    fn local_addr(&self) -> SocketAddr;

    /// A descriptor that polls readable when [`Port::rx`] has work, for loops that sleep. `None`: the backend can
    /// only be polled, and a sleeping loop wakes by timer.
    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    /// Reports every counter that this port keeps: names are `snake_case`, values only ever grow. Reads memory and
    /// nothing else: the poll core calls it.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));

    /// What the device, or the kernel, counts for this port; `None` if it counts nothing, or for another port.
    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        None
    }
}

/// Counters that a system call or a device register tells: read by another thread than the port's, while the port
/// works. Dropped before the port.
pub trait DeviceCounters: Send {
    /// Reads every counter, as [`Port::counters`] reports them. May take long.
    fn read(&mut self, visit: &mut dyn FnMut(&'static str, u64));
}

/// Why [`Port::post`] did not queue a frame. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// No free transmit descriptor; try again after [`Port::tx`].
    #[error("the transmit queue is full")]
    Full,
    /// The peer's link-layer address is not known yet (a resolution is under way), or is of another family.
    #[error("no route to the peer")]
    Unreachable,
}

/// What answers the frames of a port. Owned by one core, like the port.
pub trait Service {
    /// Answers one frame in place.
    fn handle(&mut self, frame: &mut Frame<'_>, now: Now) -> Verdict;

    /// Posts the answers that have become ready since, and returns how many.
    fn poll<P: Port>(&mut self, port: &mut P, now: Now) -> usize {
        let _ = (port, now);
        0
    }

    /// How many requests were taken and not answered yet; a draining loop waits for zero.
    fn outstanding(&self) -> usize {
        0
    }

    /// Reports every counter of this service, as [`Port::counters`] does.
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64));
}
