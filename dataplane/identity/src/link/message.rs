//! Whole messages, and how they are cut into frames.

use std::borrow::Cow;

use berth_wire::fabric::{Fragment, Frame, FrameFlags, FrameHeader, MAX_DATAGRAM_PAYLOAD, MsgType};

use crate::{Identity, NodeId, PublicKey};

/// A whole message, whether it came in one frame or in several fragments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message<'a> {
    /// Says how to parse the payload.
    pub kind: MsgType,
    /// Id of the sender's key.
    pub sender: NodeId,
    /// Chosen by the requester, repeated in the answer.
    pub request_id: u64,
    /// Chosen by the requester, repeated in the answer.
    pub nonce: u64,
    /// The payload of all fragments together.
    pub payload: Cow<'a, [u8]>,
    /// Whether its frames have the flag `FRAG_V2`.
    pub v2: bool,
    /// Frame signature of the sender, not verified here.
    pub signature: Option<[u8; 64]>,
}

impl<'a> Message<'a> {
    /// The message that a single frame carries.
    pub(crate) fn of_frame(frame: &Frame<'a>) -> Self {
        Self {
            kind: frame.header.msg_type,
            sender: NodeId(frame.header.sender),
            request_id: frame.header.request_id,
            nonce: frame.header.nonce,
            payload: frame.payload.into(),
            v2: frame.header.fragment.is_some(),
            signature: frame.signature.copied(),
        }
    }

    /// Adds the sender's frame signature.
    #[must_use]
    pub fn signed(mut self, identity: &Identity) -> Self {
        self.signature = Some(identity.sign(&self.signed_bytes()));
        self
    }

    /// Whether the message has a valid frame signature by this key.
    pub fn is_signed_by(&self, key: &PublicKey) -> bool {
        self.signature.is_some_and(|signature| key.verifies(&self.signed_bytes(), &signature))
    }

    /// Encodes the message as one frame, for a QUIC stream.
    pub fn to_frame(&self) -> Vec<u8> {
        self.frame(0, self.payload.len())
    }

    /// Datagrams of the message in order: one frame, or fragments if the payload exceeds 1200 bytes.
    pub fn frames(&self) -> impl Iterator<Item = Vec<u8>> {
        let starts = (0..self.payload.len().max(1)).step_by(MAX_DATAGRAM_PAYLOAD);
        starts.map(|start| self.frame(start, self.payload.len().min(start + MAX_DATAGRAM_PAYLOAD)))
    }

    fn frame(&self, start: usize, end: usize) -> Vec<u8> {
        let last = end == self.payload.len();
        let mut flags = match (last, start == 0 && !self.v2) {
            (true, true) => FrameFlags::NONE,
            (true, false) => FrameFlags::FINAL,
            (false, _) => FrameFlags::CONTINUED,
        };
        if self.signature.is_some() {
            flags = flags | FrameFlags::SIGNED;
        }
        let fragment = Fragment { offset: start as u32, total_len: self.payload.len() as u32 };
        let header = FrameHeader { flags, payload_len: (end - start) as u32, ..self.header(fragment) };
        let mut frame = Vec::with_capacity(header.len() + (end - start) + 64);
        let payload = &self.payload[start..end];
        Frame { header, payload, signature: self.signature.as_ref() }.write(&mut frame);
        frame
    }

    fn signed_bytes(&self) -> Vec<u8> {
        self.header(Fragment { offset: 0, total_len: 0 }).signed_bytes(&self.payload)
    }

    fn header(&self, fragment: Fragment) -> FrameHeader {
        FrameHeader {
            msg_type: self.kind,
            flags: FrameFlags::NONE,
            sender: self.sender.0,
            request_id: self.request_id,
            nonce: self.nonce,
            payload_len: self.payload.len() as u32,
            fragment: self.v2.then_some(fragment),
        }
    }
}
