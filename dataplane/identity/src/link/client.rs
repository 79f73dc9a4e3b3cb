//! The client end on UDP.

use std::{collections::HashMap, net::SocketAddr};

use berth_port::Nanos;
use berth_wire::fabric::{
    Bytes, FabricError, Frame, MAX_DATAGRAM_PAYLOAD, MAX_MESSAGE, MsgType, Presenter, Request, SIGNATURE_LEN, Wire as _,
};

use super::{Drop, Drops, Message, Reassembly};
use crate::{Identity, NodeId, PublicKey};

/// Makes requests and matches their answers. The caller decides when to repeat a request and when to give up.
#[derive(Debug)]
pub struct Client {
    identity: Identity,
    next_nonce: u64,
    next_request_id: u64,
    pending: HashMap<u64, Pending>,
    reassembly: Reassembly,
    drops: Drops,
}

#[derive(Debug)]
struct Pending {
    to: SocketAddr,
    key: Option<PublicKey>,
    answered_by: MsgType,
    message: Message<'static>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Number of the request.
    pub request_id: u64,
    /// Sender of the answer. Proven if the request named the node's key, otherwise only claimed.
    pub sender: NodeId,
    /// Payload of the RESPONSE or `PAGE_RESPONSE`.
    pub payload: Vec<u8>,
}

impl Client {
    /// Nonces start at `first_nonce`, the time in microseconds since the Unix epoch; request ids start at
    /// `first_request_id`, which should be random.
    pub fn new(identity: Identity, first_nonce: u64, first_request_id: u64) -> Self {
        Self {
            identity,
            next_nonce: first_nonce,
            next_request_id: first_request_id,
            pending: HashMap::new(),
            reassembly: Reassembly::default(),
            drops: Drops::default(),
        }
    }

    /// The key that signs the requests.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Makes a REQUEST to the node at `to`, and returns its number for [`Self::frames`]. If the node's `key` is given,
    /// the frame is signed, and only an answer signed by the node is accepted.
    pub fn request(
        &mut self,
        to: SocketAddr,
        key: Option<PublicKey>,
        op: u16,
        resource_id: u128,
        token: &[u8],
        params: &[u8],
    ) -> Result<u64, FabricError> {
        let id = self.identity.id().0;
        let unsigned = Presenter { id, signature: [0; SIGNATURE_LEN] };
        let (token, params) = (Bytes::of(token)?, Bytes::of(params)?);
        let mut request = Request { op, resource_id, token, params, presenter: Some(unsigned) };
        let signed = request.signed_bytes(id, self.next_request_id, self.next_nonce);
        request.presenter = Some(Presenter { id, signature: self.identity.sign(&signed) });
        self.send(to, key, MsgType::Request, request.to_vec(), key.is_some())
    }

    /// Makes a `PAGE_REQUEST` in the same way; it is always signed.
    pub fn page_request(
        &mut self,
        to: SocketAddr,
        key: Option<PublicKey>,
        payload: Vec<u8>,
    ) -> Result<u64, FabricError> {
        self.send(to, key, MsgType::PageRequest, payload, true)
    }

    /// Makes a SOLICIT in the same way. Without `signed`, it must be padded to the size of its answer.
    pub fn solicit(
        &mut self,
        to: SocketAddr,
        key: Option<PublicKey>,
        payload: Vec<u8>,
        signed: bool,
    ) -> Result<u64, FabricError> {
        self.send(to, key, MsgType::Solicit, payload, signed || key.is_some())
    }

    /// Datagrams of a pending request, the same on each call. None once it was answered or forgotten.
    pub fn frames(&self, request_id: u64) -> impl Iterator<Item = Vec<u8>> {
        self.pending.get(&request_id).into_iter().flat_map(|pending| pending.message.frames())
    }

    /// Gives up a request; a later answer to it is dropped.
    pub fn forget(&mut self, request_id: u64) {
        self.pending.remove(&request_id);
    }

    /// Takes one datagram; returns the answer that it is or completes.
    pub fn receive(&mut self, datagram: &[u8], source: SocketAddr, now: Nanos) -> Option<Answer> {
        self.take(datagram, source, now).unwrap_or_else(|reason| {
            self.drops.add(reason, 1);
            None
        })
    }

    /// Calls `visit` with the name and value of each counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.drops.counters(visit);
    }

    fn take(&mut self, datagram: &[u8], source: SocketAddr, now: Nanos) -> Result<Option<Answer>, Drop> {
        let frame = Frame::parse(datagram, MAX_DATAGRAM_PAYLOAD)?;
        // What nobody waits for does not even get to reassembly.
        let request_id = frame.header.request_id;
        let pending = self.pending.get(&request_id).ok_or(Drop::Unexpected)?;
        let asked = &pending.message;
        if pending.to != source || asked.nonce != frame.header.nonce || pending.answered_by != frame.header.msg_type {
            return Err(Drop::Unexpected);
        }
        let message = if frame.header.is_part() {
            self.reassembly.add(source, &frame, now, &mut self.drops)
        } else {
            Some(Message::of_frame(&frame))
        };
        let Some(message) = message else { return Ok(None) };
        if let Some(key) = &pending.key {
            if message.signature.is_none() {
                return Err(Drop::Unsigned);
            }
            if message.sender != key.id() || !message.is_signed_by(key) {
                return Err(Drop::Forged);
            }
        }
        let answer = Answer { request_id, sender: message.sender, payload: message.payload.into_owned() };
        self.pending.remove(&request_id);
        Ok(Some(answer))
    }

    fn send(
        &mut self,
        to: SocketAddr,
        key: Option<PublicKey>,
        kind: MsgType,
        payload: Vec<u8>,
        signed: bool,
    ) -> Result<u64, FabricError> {
        if payload.len() > MAX_MESSAGE {
            return Err(FabricError::Limit("payload"));
        }
        let (request_id, nonce) = (self.next_request_id, self.next_nonce);
        self.next_request_id = request_id.wrapping_add(1);
        self.next_nonce += 1;
        let sender = self.identity.id();
        let message = Message { kind, sender, request_id, nonce, payload: payload.into(), v2: true, signature: None };
        let message = if signed { message.signed(&self.identity) } else { message };
        let answered_by = if kind == MsgType::PageRequest { MsgType::PageResponse } else { MsgType::Response };
        self.pending.insert(request_id, Pending { to, key, answered_by, message });
        Ok(request_id)
    }
}
