//! Sleeping until a port has work, for poll loops that do not spin.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::Arc,
    time::Duration,
};

/// Sleeps until one of several descriptors is readable, a [`Waker`] is called, or time is up.
#[derive(Debug)]
pub struct Sleeper {
    /// Descriptors of the ports, followed by the waker's.
    fds: Vec<libc::pollfd>,
    event: Arc<OwnedFd>,
}

/// Wakes one [`Sleeper`] from any thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// A descriptor is readable, or has an error to be read.
    Ready,
    /// A waker was called, during the sleep or before it.
    Called,
    /// The timeout passed, or a signal was handled.
    Elapsed,
}

impl Sleeper {
    /// Watches `fds`, which the caller must keep open.
    pub fn new(fds: impl IntoIterator<Item = RawFd>) -> io::Result<Self> {
        // SAFETY: eventfd takes no pointer.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let event = Arc::new(unsafe { OwnedFd::from_raw_fd(event) });
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let fds = fds.into_iter().chain([event.as_raw_fd()]).map(watch).collect();
        Ok(Self { fds, event })
    }

    /// A handle that ends the present sleep, or the next one if there is none.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.event))
    }

    /// Sleeps for at most `timeout`; `None` sleeps until there is something to do.
    pub fn sleep(&mut self, timeout: Option<Duration>) -> Wake {
        let timeout = timeout.map(|timeout| libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the array is as long as said and the timeout is null or lives until the call returns.
        let ready = unsafe { libc::ppoll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, timeout, ptr::null()) };
        if ready <= 0 {
            return Wake::Elapsed;
        }
        if self.fds.last().is_some_and(|event| event.revents != 0) {
            let mut calls = 0u64;
            // SAFETY: an eventfd writes 8 bytes.
            unsafe { libc::read(self.event.as_raw_fd(), (&raw mut calls).cast(), size_of_val(&calls)) };
            return Wake::Called;
        }
        Wake::Ready
    }
}

impl Waker {
    /// Ends the present sleep, or the next one. Several calls before a sleep count as one.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: an eventfd reads 8 bytes. It only refuses them when 2^64 calls are pending, and then it is readable.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of_val(&one)) };
    }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, thread, time::Instant};

    use super::*;

    #[test]
    fn wakes_for_data_calls_and_time() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a loopback address");
        let mut sleeper = Sleeper::new([socket.as_raw_fd()]).expect("an eventfd");
        let start = Instant::now();
        assert_eq!(sleeper.sleep(Some(Duration::from_micros(1500))), Wake::Elapsed);
        assert!(start.elapsed() >= Duration::from_micros(1500));

        let waker = sleeper.waker();
        waker.wake();
        waker.wake();
        assert_eq!(sleeper.sleep(None), Wake::Called);
        assert_eq!(sleeper.sleep(Some(Duration::ZERO)), Wake::Elapsed);

        let addr = socket.local_addr().expect("bound");
        let sender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            UdpSocket::bind("127.0.0.1:0").and_then(|peer| peer.send_to(b"x", addr)).expect("sent");
            thread::sleep(Duration::from_millis(20));
            waker.wake();
        });
        assert_eq!(sleeper.sleep(None), Wake::Ready);
        socket.recv(&mut [0]).expect("the byte that woke");
        assert_eq!(sleeper.sleep(None), Wake::Called);
        sender.join().expect("no panic");
    }
}
