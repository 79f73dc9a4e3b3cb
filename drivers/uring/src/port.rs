//! The port itself: completions in, frames lent, requests out.

use std::{
    io::{self, ErrorKind},
    mem::ManuallyDrop,
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
};

use berth_host::UdpSocket;
use berth_port::{
    BURST, DeviceCounters, Frame, Peer, Port, PostError, Verdict,
    families::{ICMP_ERRORS, RX_ERRORS, RX_FRAMES, RX_TRUNCATED, TX_DROPPED, TX_FRAMES},
};
use io_uring::{
    IoUring, cqueue, opcode, squeue,
    types::{CancelBuilder, Fixed},
};

use crate::{
    RING_ERRORS, UringError,
    buffers::{Buffers, Message, Slot},
    setup,
};

/// Buffers lent to the kernel. The socket's own buffer holds what exceeds them.
const RX_BUFFERS: u16 = 8 * BURST as u16;

/// Buffers for frames that answer nothing.
const TX_BUFFERS: u16 = 4 * BURST as u16;

/// Room for a request of every buffer and the receive; the completion queue is twice as long. A buffer has one
/// request or one completion at a time, so neither queue can overflow.
const ENTRIES: u32 = (RX_BUFFERS as u32 + TX_BUFFERS as u32 + 1).next_power_of_two();

/// The one registered file, the one group of buffers.
const SOCKET: Fixed = Fixed(0);
const GROUP: u16 = 0;

/// `user_data` of the receive; that of a send is its buffer, plus [`FAILURE`] for each time it failed.
const RECEIVE: u64 = u64::MAX;
const FAILURE: u64 = 1 << 16;

/// The kernel reports an error about an earlier frame in place of a send, which is worth another try; a frame that is
/// refused this often is at fault itself.
const MAX_FAILURES: u64 = 4;

/// One UDP socket behind an `io_uring` as a [`Port`]. Stays on the thread that made it.
///
/// Counters: `rx_frames`, `rx_truncated` (longer than `max_frame`, lent with the length cut), `rx_errors` (failed receives), `rx_rearms` (times the receive ended and was
/// started again), `rx_no_buffers` (those for want of a free buffer), `tx_frames` (sent), `tx_errors` (refused by the
/// kernel and dropped), `icmp_errors` (reports of peers that are gone, and other errors about frames already sent),
/// `cq_overflows` (times completions waited for room in the queue), `ring_errors` (failed calls to enter the ring); of the
/// kernel's own, `rx_overrun` (dropped before the ring saw them).
pub struct UringPort {
    ring: IoUring,
    socket: UdpSocket,
    max_frame: usize,
    /// Freed by `drop`, where the kernel is known to have let go of it.
    buffers: ManuallyDrop<Buffers>,
    /// Buffers for [`Port::post`].
    free: Vec<Slot>,
    /// Buffers lent to the kernel now.
    provided: u16,
    /// Whether the multishot receive is under way.
    armed: bool,
    /// Sends under way.
    sending: usize,
    counters: Counters,
}

berth_port::counters! {
    pub(crate) struct Counters {
        rx_frames: RX_FRAMES,
        rx_truncated: RX_TRUNCATED,
        rx_errors: RX_ERRORS,
        rx_rearms: "times the receive of an io_uring ended and was started again",
        rx_no_buffers: "times that receive found no free buffer; the socket keeps the frames",
        tx_frames: TX_FRAMES,
        tx_errors: TX_DROPPED { reason: "error" },
        icmp_errors: ICMP_ERRORS,
        cq_overflows: "completions of an io_uring that the kernel held back",
        ring_errors: RING_ERRORS,
    }
}

impl UringPort {
    pub(crate) fn new(socket: UdpSocket, max_frame: usize) -> Result<Self, UringError> {
        Self::with_buffers(socket, max_frame, RX_BUFFERS)
    }

    fn with_buffers(socket: UdpSocket, max_frame: usize, rx_buffers: u16) -> Result<Self, UringError> {
        let io = |what| move |source| UringError::Io { what, source };
        let ring = setup::ring(ENTRIES)?;
        let submitter = ring.submitter();
        submitter.register_files(&[socket.as_raw_fd()]).map_err(io("registering the socket"))?;
        let (mut buffers, mut slots) = Buffers::new(rx_buffers, TX_BUFFERS, max_frame, socket.local_addr());
        // SAFETY: the ring's memory is page-aligned, zeroed, and as long as `rx_buffers` entries take; it outlives the
        // ring's requests, see `drop`.
        unsafe { submitter.register_buf_ring_with_flags(buffers.ring(), rx_buffers, GROUP, 0) }
            .map_err(io("registering the buffers"))?;
        let free = slots.split_off(rx_buffers.into());
        for slot in slots {
            buffers.provide(slot);
        }
        buffers.publish();
        let mut port = Self {
            ring,
            socket,
            max_frame,
            buffers: ManuallyDrop::new(buffers),
            free,
            provided: rx_buffers,
            armed: false,
            sending: 0,
            counters: Counters::default(),
        };
        port.arm();
        port.ring.submit().map_err(io("submitting the receive"))?;
        Ok(port)
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: a request's pointers lead into the buffer that it owns until it completes, or to the receive
        // template, which is as long-lived as the port.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("the queue has room for all requests there can be");
    }

    fn arm(&mut self) {
        let template = self.buffers.template();
        let receive = opcode::RecvMsgMulti::new(SOCKET, template, GROUP).flags(libc::MSG_TRUNC as u32);
        self.push(&receive.build().user_data(RECEIVE));
        self.armed = true;
    }

    #[inline]
    fn send(&mut self, slot: Slot, failures: u64) {
        let entry = match self.buffers.message(&slot) {
            Message::Plain { data, len, addr, addr_len } => {
                opcode::Send::new(SOCKET, data, len).dest_addr(addr).dest_addr_len(addr_len).build()
            }
            Message::WithControl(message) => opcode::SendMsg::new(SOCKET, message).build(),
        };
        self.push(&entry.user_data(u64::from(slot.release()) + failures * FAILURE));
        self.sending += 1;
    }

    /// Submits what is queued: one system call, if there is anything.
    #[inline]
    fn submit(&mut self) {
        let waiting = self.ring.submission().len() as u32;
        if waiting > 0 {
            // SAFETY: without an argument, and with this many entries in the queue.
            let submitted = unsafe { self.ring.submitter().enter::<libc::sigset_t>(waiting, 0, 0, None) };
            self.entered(submitted);
        }
    }

    /// As [`Self::submit`], and lets the kernel complete the receives that are due; also if only these are.
    #[inline]
    fn submit_and_complete(&mut self) {
        let queue = self.ring.submission();
        let (idle, overflown) = (queue.is_empty() && !queue.taskrun(), queue.cq_overflow());
        drop(queue);
        self.counters.cq_overflows += u64::from(overflown);
        if !idle || overflown {
            let submitted = self.ring.submit();
            self.entered(submitted);
        }
    }

    #[inline]
    fn entered(&mut self, submitted: io::Result<usize>) {
        if submitted.is_err_and(|error| error.kind() != ErrorKind::Interrupted) {
            // What was not submitted stays queued.
            self.counters.ring_errors += 1;
        }
    }

    /// Handles completions, up to a burst of frames. Returns whether requests were started anew, which may have
    /// completed meanwhile.
    #[inline]
    fn reap<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, frames: &mut usize, handle: &mut H) -> bool {
        let mut anew = false;
        while *frames < BURST {
            let Some(completion) = self.ring.completion().next() else { break };
            if completion.user_data() == RECEIVE {
                *frames += usize::from(self.received(&completion, handle));
            } else {
                anew |= self.sent(&completion);
            }
        }
        self.buffers.publish();
        if !self.armed && self.provided > 0 {
            self.arm();
            anew = true;
        }
        if anew {
            // Nothing wakes a loop that goes to sleep now, unless the kernel has these requests.
            self.submit();
        }
        anew
    }

    /// Lends a received frame. Returns whether there was one.
    #[inline]
    fn received<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, completion: &cqueue::Entry, handle: &mut H) -> bool {
        if !cqueue::more(completion.flags()) {
            self.armed = false;
            self.counters.rx_rearms += 1;
        }
        let slot = cqueue::buffer_select(completion.flags()).map(|index| {
            self.provided -= 1;
            // SAFETY: the kernel has taken this buffer off the ring for this very completion.
            unsafe { Slot::claim(index) }
        });
        let Ok(len) = usize::try_from(completion.result()) else {
            self.receive_failed(-completion.result());
            if let Some(slot) = slot {
                self.free(slot);
            }
            return false;
        };
        let Some(mut slot) = slot else { return false };
        let Some((len, wire_len, peer)) = self.buffers.received(&slot, len) else {
            self.counters.rx_errors += 1;
            self.free(slot);
            return false;
        };
        self.counters.rx_frames += 1;
        self.counters.rx_truncated += u64::from(wire_len > len);
        let mut frame = Frame::new(self.buffers.frame(&mut slot), len, wire_len, peer);
        let verdict = handle(&mut frame);
        let (answer_len, urgent) = (frame.len(), frame.is_urgent());
        if verdict == Verdict::Reply {
            self.buffers.prepare(&mut slot, answer_len, true);
            self.send(slot, 0);
        } else {
            self.free(slot);
        }
        if urgent {
            self.submit();
        }
        true
    }

    #[cold]
    fn receive_failed(&mut self, errno: i32) {
        match errno {
            libc::ENOBUFS => self.counters.rx_no_buffers += 1,
            libc::ECANCELED => {}
            // The kernel reports an error about an earlier frame in place of a receive.
            _ => self.counters.rx_errors += u64::from(self.take_errors() == 0),
        }
    }

    /// Takes the buffer of a completed send back. Returns whether it is being sent again instead.
    #[inline]
    fn sent(&mut self, completion: &cqueue::Entry) -> bool {
        self.sending -= 1;
        // SAFETY: the send that this buffer was released to has just completed; the cut leaves the index.
        let slot = unsafe { Slot::claim(completion.user_data() as u16) };
        if completion.result() >= 0 {
            self.counters.tx_frames += 1;
        } else {
            self.take_errors();
            let failures = completion.user_data() / FAILURE + 1;
            if failures < MAX_FAILURES {
                self.send(slot, failures);
                return true;
            }
            self.counters.tx_errors += 1;
        }
        self.free(slot);
        false
    }

    #[cold]
    fn take_errors(&mut self) -> usize {
        let reports = self.socket.take_errors(BURST);
        self.counters.icmp_errors += reports as u64;
        reports
    }

    /// Gives a buffer back to where it belongs.
    #[inline]
    fn free(&mut self, slot: Slot) {
        if self.buffers.is_for_ring(&slot) {
            self.buffers.provide(slot);
            self.provided += 1;
        } else {
            self.free.push(slot);
        }
    }

    /// Ends every request: sends what was queued, cancels the rest, and waits until the kernel has let go.
    fn close(&mut self) -> io::Result<()> {
        self.ring.submit()?;
        let cancelled = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
        match cancelled {
            // Nothing left to cancel: all completions are there already.
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => {}
        }
        loop {
            while let Some(completion) = self.ring.completion().next() {
                if completion.user_data() != RECEIVE {
                    self.sending -= 1;
                } else if !cqueue::more(completion.flags()) {
                    self.armed = false;
                }
            }
            if !self.armed && self.sending == 0 {
                return Ok(());
            }
            self.ring.submit_and_wait(1)?;
        }
    }
}

impl Drop for UringPort {
    fn drop(&mut self) {
        if self.close().is_ok() {
            // SAFETY: no request refers to the buffers any more, and nothing uses them after this.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}

impl Port for UringPort {
    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        let mut frames = 0;
        let mut again = self.reap(&mut frames, &mut handle);
        if frames == 0 {
            self.submit_and_complete();
            again = true;
        }
        // A loop may sleep after an empty poll, so that must leave no completed receive behind.
        while frames == 0 && again {
            again = self.reap(&mut frames, &mut handle);
        }
        frames
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        let Peer::Address(peer) = peer else { return Err(PostError::Unreachable) };
        if peer.is_ipv4() != self.local_addr().is_ipv4() {
            return Err(PostError::Unreachable);
        }
        let mut slot = self.free.pop().ok_or(PostError::Full)?;
        self.buffers.set_peer(&mut slot, peer);
        let len = fill(self.buffers.frame(&mut slot));
        self.buffers.prepare(&mut slot, len, false);
        self.send(slot, 0);
        Ok(())
    }

    #[inline]
    fn tx(&mut self) {
        self.submit();
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// The socket's, not the ring's: with `DEFER_TASKRUN` the arrival of a frame does not make a ring readable, as the
    /// frame is only received when the ring is next entered. Until then the socket is readable, and an empty poll
    /// leaves no completed receive behind.
    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        Some(Box::new(self.socket.counters()?))
    }
}

#[cfg(test)]
mod tests {
    use berth_host::UdpConfig;
    use berth_port_tests::{counter, eventually, peer_of};

    use super::*;

    #[test]
    fn a_receive_that_lacks_buffers_goes_on_when_there_are() {
        let config = UdpConfig::new("127.0.0.1:0".parse().expect("an address"));
        let socket = UdpSocket::bind(&config).expect("a socket");
        let mut port = UringPort::with_buffers(socket, config.max_frame, 4).expect("a ring");
        let addr = port.local_addr();
        let peer = peer_of(addr);
        for n in 0..100u8 {
            peer.send_to(&[n], addr).expect("sending to the port");
        }
        let mut seen = 0;
        eventually(&mut port, |port| {
            port.rx(|frame| {
                assert_eq!(frame.data(), [seen]);
                seen += 1;
                Verdict::Reply
            });
            port.tx();
            seen == 100
        });
        for n in 0..100 {
            let mut answer = [0; 2];
            assert_eq!((peer.recv(&mut answer).expect("an answer"), answer[0]), (1, n));
        }
        let ended = counter(&port, "rx_no_buffers");
        assert!(ended >= 20, "{ended}");
        assert_eq!((counter(&port, "rx_rearms"), counter(&port, "rx_overrun")), (ended, 0));
    }
}
