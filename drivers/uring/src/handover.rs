//! How connections come to a poll core, and back.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, FromRawFd as _, RawFd},
    sync::Arc,
};

use berth_port::{Mailbox, Sender, mailbox};

use crate::Connection;

type Handed<S> = Box<Connection<S>>;

/// Hands connections to a poll core, and takes them back when they are over.
pub struct ToCore<S> {
    sender: Sender<Handed<S>, Handed<S>>,
    wake: Arc<Wake>,
}

/// The poll core's end. Its thread makes [`crate::UringStreams`] of it.
pub struct Handover<S> {
    pub(crate) mailbox: Mailbox<Handed<S>, Handed<S>>,
    pub(crate) wake: Arc<Wake>,
}

impl<S> fmt::Debug for ToCore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToCore({} may wait)", self.sender.room())
    }
}

impl<S> fmt::Debug for Handover<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handover")
    }
}

/// Both ends for a core that has `most` connections at once.
///
/// # Errors
/// The system has no descriptor left.
pub fn handover<S>(most: usize) -> io::Result<(ToCore<S>, Handover<S>)> {
    let (sender, mailbox) = mailbox(most, most);
    let wake = Arc::new(Wake::new()?);
    Ok((ToCore { sender, wake: wake.clone() }, Handover { mailbox, wake }))
}

impl<S> ToCore<S> {
    /// Hands a connection over and wakes the core; gives it back where the core has no room for it.
    pub fn send(&mut self, connection: Box<Connection<S>>) -> Result<(), Box<Connection<S>>> {
        self.sender.send(connection)?;
        self.wake.call();
        Ok(())
    }

    /// Connections that are over, for the caller to drop.
    pub fn returned(&mut self) -> impl Iterator<Item = Box<Connection<S>>> {
        self.sender.returned()
    }
}

/// A descriptor that is readable when a core that sleeps has something to do.
pub(crate) struct Wake(File);

impl std::task::Wake for Wake {
    fn wake(self: Arc<Self>) {
        self.call();
    }
}

impl Wake {
    fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Makes it readable.
    pub(crate) fn call(&self) {
        // It fails only when 2^64 calls are pending, and then it is readable.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // Nothing to read: it was not readable.
        let _ = (&self.0).read(&mut [0; 8]);
    }
}
