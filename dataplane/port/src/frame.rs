//! One frame, whatever the backend.

use crate::Peer;

/// A frame on loan from a port: the bytes after the transport header, in the port's own memory.
///
/// The buffer is longer than the data where the backend has room, so an answer may be longer than its request.
#[derive(Debug)]
pub struct Frame<'a> {
    buf: &'a mut [u8],
    len: usize,
    wire_len: usize,
    from: ReplyTo,
    send_now: bool,
}

/// Where an answer goes that does not lie in its request's frame: [`Frame::reply_to`] gives it, [`Port::reply`] takes
/// it.
///
/// Beside the peer it holds the way back that the request showed the port, so that a late answer asks no table
/// which may have forgotten the peer. Only the port that received the request reads it.
///
/// [`Port::reply`]: crate::Port::reply
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    peer: Peer,
    route: u128,
}

impl ReplyTo {
    /// Who gets the answer.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// What the port knew of the way, in a form of its own; 0 if it knew nothing.
    #[inline]
    pub fn route(&self) -> u128 {
        self.route
    }
}

/// A peer alone: the port finds the way.
impl From<Peer> for ReplyTo {
    #[inline]
    fn from(peer: Peer) -> Self {
        Self { peer, route: 0 }
    }
}

/// What becomes of a frame after its handler has seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send the frame, as it is now, back to where it came from.
    Reply,
    /// Release the frame: it was consumed, kept elsewhere, or refused, and the service counted which.
    Drop,
}

impl<'a> Frame<'a> {
    /// Wraps `len` received bytes at the front of `buf`.
    ///
    /// `wire_len` is what the sender sent: more than `len` where the backend had to truncate.
    ///
    /// # Panics
    /// If `len` exceeds the buffer.
    #[inline]
    pub fn new(buf: &'a mut [u8], len: usize, wire_len: usize, peer: impl Into<Peer>) -> Self {
        assert!(len <= buf.len(), "frame length beyond its buffer");
        Self { buf, len, wire_len, from: peer.into().into(), send_now: false }
    }

    /// Notes the way that the frame came, in a form of the port's own, for [`ReplyTo::route`].
    #[inline]
    #[must_use]
    pub fn routed(mut self, route: u128) -> Self {
        self.from.route = route;
        self
    }

    /// The received bytes, or the answer once [`Frame::set_len`] was called.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// The whole buffer, data first; its length is the longest answer.
    #[inline]
    pub fn buf_mut(&mut self) -> &mut [u8] {
        self.buf
    }

    /// The length of the data in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the sender sent no byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The length the sender sent, in bytes; beyond [`Frame::len`] the backend truncated the frame.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.wire_len
    }

    /// The longest answer this frame can carry, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Sets the length of the answer.
    ///
    /// # Panics
    /// If `len` exceeds [`Frame::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.buf.len(), "answer longer than the frame's buffer");
        self.len = len;
    }

    /// Who sent the frame, and gets the answer.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.from.peer
    }

    /// Where the answer goes, for those that come later.
    #[inline]
    pub fn reply_to(&self) -> ReplyTo {
        self.from
    }

    /// Asks the port to transmit when this frame has been handled, with all answers queued so far, rather than after
    /// the burst: handlers have taken so long that the first answers should not wait for the last.
    #[inline]
    pub fn send_now(&mut self) {
        self.send_now = true;
    }

    /// Whether [`Frame::send_now`] was called.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        self.send_now
    }
}
