//! The `io_uring` port: one multishot receive into a ring of provided buffers, answered from the very same buffers.
//!
//! The receive request stays armed; the kernel runs it, and posts completions, only when the owning thread enters the
//! ring (`SINGLE_ISSUER`, `DEFER_TASKRUN`). Until there is something to run or to send, a poll is a read of shared
//! memory (`TASKRUN_FLAG`) and no system call at all; a poll that finds work makes one, and so does sending a burst.
//!
//! [`UringStreams`] serves byte streams on a poll core, with a receive and a send of each connection in a ring; [`serve`]
//! accepts them and hands them over.
//!
//! A ring belongs to the thread that created it. So the socket is bound first, anywhere, and becomes a port on the
//! thread that polls it: [`UringSocket::bind`], then [`UringSocket::into_port`].

mod accept;
mod buffers;
mod handover;
mod local;
mod port;
mod setup;
mod streams;

pub use accept::{Host, serve};
pub use berth_host::{BindError, UdpConfig};
pub use handover::{Handover, ToCore, handover};
pub use local::{LOCAL_MOST, RingUser, UserId, join, start};
pub use port::UringPort;
pub use setup::{UringError, probe, ring};
pub use streams::{Connection, UringStreams};

use std::net::SocketAddr;

use berth_host::UdpSocket;
use berth_port::{Family, Tables};

/// Declarations of the counters of ports, beside those of their sockets.
pub const COUNTERS: Tables = &[port::Counters::TABLE, streams::Counters::TABLE];

const RING_ERRORS: Family = Family::counter("ring_errors", "calls into an io_uring that failed");

/// A bound UDP socket that is not polled yet. It may be made on any thread.
#[derive(Debug)]
pub struct UringSocket {
    socket: UdpSocket,
    max_frame: usize,
}

impl UringSocket {
    /// Binds a UDP socket; what arrives waits in the kernel until [`UringSocket::into_port`].
    pub fn bind(config: &UdpConfig) -> Result<Self, BindError> {
        Ok(Self { socket: UdpSocket::bind(config)?, max_frame: config.max_frame })
    }

    /// The address that is bound, with the port that the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Creates the ring and starts to receive. The port stays on the calling thread.
    pub fn into_port(self) -> Result<UringPort, UringError> {
        UringPort::new(self.socket, self.max_frame)
    }
}
