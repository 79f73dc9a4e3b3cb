//! A frame, independent of the backend.

use crate::Peer;

/// A frame on loan from a port: the bytes after the transport header, in the port's own memory.
///
/// The buffer may be longer than the data, so that an answer can be longer than its request.
#[derive(Debug)]
pub struct Frame<'a> {
    buf: &'a mut [u8],
    len: usize,
    wire_len: usize,
    from: ReplyTo,
    place: Option<Place>,
    send_now: bool,
}

/// Where a frame lies in memory that its port shares with another reader, such as a GPU, and that the port can leave as it is:
/// [`Verdict::Keep`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Offset in bytes of the data in that memory.
    pub at: usize,
    /// The name by which [`Port::release`] gives the frame back.
    ///
    /// [`Port::release`]: crate::Port::release
    pub number: u32,
}

impl Place {
    /// Bytes that there are to be in that memory behind the last frame, because readers round up.
    pub const BEHIND: usize = 64 << 10;
}

/// The destination of a late answer, which does not lie in its request's frame: [`Frame::reply_to`] returns it,
/// [`Port::reply`] takes it.
///
/// Besides the peer it holds the way by which the request came, so that a late answer needs no table, which may have
/// forgotten the peer. Only the port that received the request can read it.
///
/// [`Port::reply`]: crate::Port::reply
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyTo {
    peer: Peer,
    route: u128,
}

impl ReplyTo {
    /// The peer that gets the answer.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The way back, in a form of the port's own; 0 if the port did not set one.
    #[inline]
    pub fn route(&self) -> u128 {
        self.route
    }
}

/// Only the peer is known: the port finds the way itself.
impl From<Peer> for ReplyTo {
    #[inline]
    fn from(peer: Peer) -> Self {
        Self { peer, route: 0 }
    }
}

/// What the port does with a frame that its handler has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Send the frame with its present contents back to its sender.
    Reply,
    /// Release the frame. It was consumed, kept elsewhere, or refused; the service counted which.
    Drop,
    /// Leave the frame where it is until [`Port::release`] is called with the number of its [`Place`]. Only a frame that has
    /// one can be kept; one without is released.
    ///
    /// [`Port::release`]: crate::Port::release
    Keep,
}

impl<'a> Frame<'a> {
    /// Wraps `len` received bytes at the front of `buf`.
    ///
    /// `wire_len` is the length that was sent, which exceeds `len` if the backend truncated the frame.
    ///
    /// # Panics
    /// If `len` exceeds the buffer.
    #[inline]
    pub fn new(buf: &'a mut [u8], len: usize, wire_len: usize, peer: impl Into<Peer>) -> Self {
        assert!(len <= buf.len(), "frame length beyond its buffer");
        Self { buf, len, wire_len, from: peer.into().into(), place: None, send_now: false }
    }

    /// Sets the way by which the frame came, in a form of the port's own, for [`ReplyTo::route`].
    #[inline]
    #[must_use]
    pub fn routed(mut self, route: u128) -> Self {
        self.from.route = route;
        self
    }

    /// The received bytes; after [`Frame::set_len`], the answer.
    #[inline]
    pub fn data(&self) -> &[u8] {
        &self.buf[..self.len]
    }

    /// The whole buffer, which starts with the data; its length limits the answer.
    #[inline]
    pub fn buf_mut(&mut self) -> &mut [u8] {
        self.buf
    }

    /// Length of the data in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the frame has no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length that was sent, in bytes. If it exceeds [`Frame::len`], the backend truncated the frame.
    #[inline]
    pub fn wire_len(&self) -> usize {
        self.wire_len
    }

    /// Limit on the length of an answer in this frame, in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// Sets the length of the answer in bytes.
    ///
    /// # Panics
    /// If `len` exceeds [`Frame::capacity`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.buf.len(), "answer longer than the frame's buffer");
        self.len = len;
    }

    /// The sender, which also gets the answer.
    #[inline]
    pub fn peer(&self) -> Peer {
        self.from.peer
    }

    /// The destination for an answer that comes later.
    #[inline]
    pub fn reply_to(&self) -> ReplyTo {
        self.from
    }

    /// Says where the data lies in shared memory. A port does, where it can leave the frame there.
    #[inline]
    pub fn set_place(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Where the data lies in memory that its port shares; `None` if the frame cannot be [kept](Verdict::Keep).
    #[inline]
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Asks the port to transmit all queued answers after this frame, rather than after the burst, because the handlers
    /// have taken so long that the first answers should not wait for the last.
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
