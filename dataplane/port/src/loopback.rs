//! Two ports in one process, joined back to back.

use std::net::SocketAddr;

use rtrb::{Consumer, Producer, RingBuffer};

use crate::{
    BURST, Frame, Peer, Port, PostError, Verdict,
    families::{RX_FRAMES, TX_DROPPED, TX_FRAMES},
};

/// One of two ports that are joined by rings in memory; each may be on its own thread.
///
/// Buffers travel, so nothing is copied or allocated per frame. Each side starts with `depth` buffers; an answer goes
/// back in the buffer of its request; a side keeps up to `depth` of the buffers that it receives and returns the rest.
/// The rings can hold every buffer of the pair, so no frame is ever lost. A side without a buffer refuses to post.
#[derive(Debug)]
pub struct Loopback {
    local: SocketAddr,
    peer: SocketAddr,
    depth: usize,
    max_frame: usize,
    free: Vec<Box<[u8]>>,
    queued: Vec<Packet>,
    incoming: Consumer<Packet>,
    outgoing: Producer<Packet>,
    returned: Consumer<Box<[u8]>>,
    returns: Producer<Box<[u8]>>,
    counters: Counters,
}

crate::counters! {
    pub(crate) struct Counters {
        rx_frames: RX_FRAMES,
        tx_frames: TX_FRAMES,
        tx_refused: TX_DROPPED { reason: "refused" },
    }
}

#[derive(Debug)]
struct Packet {
    buf: Box<[u8]>,
    len: usize,
}

impl Loopback {
    /// Two joined ports with these addresses, and `depth` buffers of `max_frame` bytes on each side.
    pub fn pair([a, b]: [SocketAddr; 2], depth: usize, max_frame: usize) -> (Self, Self) {
        let (to_b, from_a) = RingBuffer::new(2 * depth);
        let (to_a, from_b) = RingBuffer::new(2 * depth);
        let (return_to_b, returned_by_a) = RingBuffer::new(2 * depth);
        let (return_to_a, returned_by_b) = RingBuffer::new(2 * depth);
        let side = |local, peer, incoming, outgoing, returned, returns| Self {
            local,
            peer,
            depth,
            max_frame,
            free: std::iter::repeat_with(|| vec![0; max_frame].into()).take(depth).collect(),
            queued: Vec::with_capacity(2 * depth),
            incoming,
            outgoing,
            returned,
            returns,
            counters: Counters::default(),
        };
        (side(a, b, from_b, to_b, returned_by_b, return_to_b), side(b, a, from_a, to_a, returned_by_a, return_to_a))
    }

    fn recycle(&mut self, buf: Box<[u8]>) {
        if self.free.len() + self.returned.slots() < self.depth {
            self.free.push(buf);
        } else {
            self.returns.push(buf).expect("the ring holds every buffer of the pair");
        }
    }
}

impl Port for Loopback {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, mut handle: H) -> usize {
        for received in 0..BURST {
            let Ok(Packet { mut buf, len }) = self.incoming.pop() else { return received };
            self.counters.rx_frames += 1;
            let mut frame = Frame::new(&mut buf, len, len, self.peer);
            let verdict = handle(&mut frame);
            let (len, urgent) = (frame.len(), frame.is_urgent());
            match verdict {
                Verdict::Reply => self.queued.push(Packet { buf, len }),
                Verdict::Drop | Verdict::Keep => self.recycle(buf),
            }
            if urgent {
                self.tx();
            }
        }
        BURST
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: Peer, fill: F) -> Result<(), PostError> {
        if peer != self.peer.into() {
            return Err(PostError::Unreachable);
        }
        let Some(mut buf) = self.free.pop().or_else(|| self.returned.pop().ok()) else {
            self.counters.tx_refused += 1;
            return Err(PostError::Full);
        };
        let len = fill(&mut buf);
        assert!(len <= buf.len(), "posted frame longer than its buffer");
        self.queued.push(Packet { buf, len });
        Ok(())
    }

    fn tx(&mut self) {
        self.counters.tx_frames += self.queued.len() as u64;
        for packet in self.queued.drain(..) {
            self.outgoing.push(packet).expect("the ring holds every buffer of the pair");
        }
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn local_addr(&self) -> SocketAddr {
        self.local
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
    }
}
