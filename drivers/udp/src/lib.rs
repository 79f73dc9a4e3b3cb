//! The kernel UDP port: a non-blocking socket that a poll loop spins on.
//!
//! A frame is received into a slot of the port's own arena, answered there, and sent from there. The receive burst and
//! the transmit queue are arrays of slots. To queue an answer swaps its slot with a free one of the queue, so the few
//! slots in use stay in the cache, whatever the queue could hold.
//!
//! The cost that matters is the system call. A poll asks for one frame by the cheapest call. Only when frames keep
//! coming does it ask for a burst (`recvmmsg`). A single answer is sent by `sendto`.

mod slot;
mod sys;

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    os::fd::{AsRawFd, RawFd},
};

use berth_host::UdpSocket;
pub use berth_host::{BindError, UdpConfig};
use berth_port::{
    BURST, DeviceCounters, Frame, Peer, Port, PostError, Tables, Verdict,
    families::{ICMP_ERRORS, RX_ERRORS, RX_FRAMES, RX_HELD, RX_TRUNCATED, TX_DEFERRED, TX_DROPPED, TX_FRAMES},
};

use slot::{Arena, Slot};

/// Limit on the frames that the port keeps while the kernel has no room for them.
const TX_QUEUE: usize = 8 * BURST;

/// Two polls in a row with a frame count as load: with a peer that waits for each answer, every other poll is idle.
const BUSY: u32 = 2;

/// One UDP socket as a [`Port`].
///
/// Counters: `rx_frames`, `rx_truncated` (longer than `max_frame`, lent with the length cut), `rx_errors` (failed
/// receive calls), `rx_held` (polls that received nothing, because finished answers filled the queue), `tx_frames`
/// (taken by the kernel), `tx_deferred` (times the kernel took no more and the rest stayed queued), `tx_errors`
/// (refused by the kernel and dropped), `icmp_errors` (reports of peers that are gone, and other errors about frames
/// already sent); of the kernel's own, `rx_overrun` (dropped before the port saw them).
pub struct UdpPort {
    socket: UdpSocket,
    fd: RawFd,
    packet_info: bool,
    max_frame: usize,
    rx: Box<[Slot]>,
    /// Number of polls in a row that found frames. From [`BUSY`] on, the next poll asks for a burst.
    streak: u32,
    /// The transmit queue; the slots `head..tail` wait for the kernel.
    queue: Box<[Slot]>,
    head: usize,
    tail: usize,
    /// Whether the kernel has refused the frame at `head` before.
    refused: bool,
    counters: Counters,
    /// Memory of all slots; dropped last.
    _arena: Arena,
}

berth_port::counters! {
    struct Counters {
        rx_frames: RX_FRAMES,
        rx_truncated: RX_TRUNCATED,
        rx_errors: RX_ERRORS,
        rx_held: RX_HELD,
        tx_frames: TX_FRAMES,
        tx_deferred: TX_DEFERRED,
        tx_errors: TX_DROPPED { reason: "error" },
        icmp_errors: ICMP_ERRORS,
    }
}

/// Declarations of a port's counters, those of its socket aside.
pub const COUNTERS: Tables = &[Counters::TABLE];

impl UdpPort {
    /// Binds a socket and allocates the port's buffers.
    pub fn open(config: &UdpConfig) -> Result<Self, BindError> {
        let socket = UdpSocket::bind(config)?;
        let (arena, mut rx) = Arena::new(BURST + TX_QUEUE, config.max_frame);
        let queue = rx.split_off(BURST);
        Ok(Self {
            fd: socket.as_raw_fd(),
            packet_info: socket.has_packet_info(),
            max_frame: config.max_frame,
            rx: rx.into(),
            streak: 0,
            queue: queue.into(),
            head: 0,
            tail: 0,
            refused: false,
            counters: Counters::default(),
            _arena: arena,
            socket,
        })
    }

    /// Receives into the first slots of `rx`; returns the number of frames.
    #[inline]
    fn receive(&mut self) -> usize {
        let slots = if self.streak < BUSY { &mut self.rx[..1] } else { &mut self.rx[..] };
        for slot in &mut *slots {
            slot.arm(self.max_frame, self.packet_info);
        }
        let result = match slots {
            [slot] => sys::receive_one(self.fd, slot, self.packet_info).map(|()| 1),
            slots => sys::receive_many(self.fd, slots),
        };
        result.unwrap_or_else(|error| {
            self.receive_failed(&error);
            0
        })
    }

    #[cold]
    fn receive_failed(&mut self, error: &io::Error) {
        if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) {
            return;
        }
        // The kernel reports an error about an earlier frame in place of a receive; the next call receives again.
        self.counters.rx_errors += u64::from(self.take_errors() == 0);
    }

    fn take_errors(&mut self) -> usize {
        let reports = self.socket.take_errors(BURST);
        self.counters.icmp_errors += reports as u64;
        reports
    }

    /// Whether there is room for `frames` more frames behind `tail`; makes it if possible.
    #[inline]
    fn has_room(&mut self, frames: usize) -> bool {
        if self.tail + frames > self.queue.len() && self.head > 0 {
            self.queue.rotate_left(self.head);
            self.tail -= self.head;
            self.head = 0;
        }
        self.tail + frames <= self.queue.len()
    }

    /// Counts a failed send. Returns whether to continue with the queue.
    #[cold]
    fn send_failed(&mut self, error: &io::Error) -> bool {
        match error.kind() {
            ErrorKind::WouldBlock => {
                self.counters.tx_deferred += 1;
                return false;
            }
            ErrorKind::Interrupted => return true,
            _ => {}
        }
        let reports = self.take_errors();
        if reports > 0 && !self.refused {
            // Perhaps an earlier frame was at fault, and this one was not tried.
            self.refused = true;
        } else {
            // This frame is: a peer without a route, a device queue that is full.
            self.counters.tx_errors += 1;
            self.head += 1;
            self.refused = false;
        }
        true
    }
}

impl Port for UdpPort {
    #[inline]
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        // What cannot be answered is left to the kernel, which drops it for less than an answer costs.
        if !self.has_room(BURST) {
            self.counters.rx_held += 1;
            return 0;
        }
        let received = self.receive();
        let few = usize::from(self.streak >= BUSY);
        self.streak = if received > few { self.streak.saturating_add(1) } else { 0 };
        self.counters.rx_frames += received as u64;
        for index in 0..received {
            let slot = &mut self.rx[index];
            let (peer, wire_len) = (slot.peer(), slot.wire_len());
            let len = wire_len.min(self.max_frame);
            self.counters.rx_truncated += u64::from(wire_len > len);
            let mut frame = Frame::new(slot.buf(), len, wire_len, peer);
            let verdict = handle(&mut frame);
            let (answer_len, urgent) = (frame.len(), frame.is_urgent());
            if verdict == Verdict::Reply {
                slot.set_len(answer_len);
                slot.answer_from_destination();
                std::mem::swap(&mut self.rx[index], &mut self.queue[self.tail]);
                self.tail += 1;
            }
            if urgent {
                self.tx();
            }
        }
        received
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        let Peer::Address(peer) = peer else { return Err(PostError::Unreachable) };
        if peer.is_ipv4() != self.local_addr().is_ipv4() {
            return Err(PostError::Unreachable);
        }
        if !self.has_room(1) {
            return Err(PostError::Full);
        }
        let slot = &mut self.queue[self.tail];
        slot.arm(self.max_frame, false);
        slot.set_peer(peer);
        let len = fill(slot.buf());
        slot.set_len(len);
        self.tail += 1;
        Ok(())
    }

    #[inline]
    fn tx(&mut self) {
        // Error reports that keep coming may not keep the loop here.
        let mut failures = 0;
        while self.head < self.tail && failures < BURST {
            match sys::send(self.fd, &mut self.queue[self.head..self.tail]) {
                Ok(sent) => {
                    self.head += sent;
                    self.counters.tx_frames += sent as u64;
                    self.refused = false;
                    if self.head < self.tail {
                        // The kernel does not say why it stopped, and would not say it again.
                        self.take_errors();
                    }
                }
                Err(error) if self.send_failed(&error) => failures += 1,
                Err(_) => return,
            }
        }
        if self.head == self.tail {
            (self.head, self.tail) = (0, 0);
        }
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.fd)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        Some(Box::new(self.socket.counters()?))
    }
}
