//! The server end on UDP.

use std::{net::SocketAddr, sync::Arc};

use berth_port::Nanos;
use berth_wire::fabric::{
    FabricError, Frame, MAX_DATAGRAM_PAYLOAD, MAX_MESSAGE, MsgType, Op, Reader, Request, Wire as _,
};

use super::{
    Drop, Drops, Message, Reassembly, Replay,
    answers::{Answered, Answers, Asked},
};
use crate::{Enrolled, Identity, NodeId, PublicKey};

/// Takes datagrams and returns authenticated messages, each at most once.
#[derive(Debug, Default)]
pub struct Server {
    reassembly: Reassembly,
    /// Nonces used so far.
    pub replay: Replay,
    answers: Answers,
    drops: Drops,
    counters: Counters,
}

berth_port::counters! {
    pub(super) struct Counters {
        accepted = messages_accepted: "messages over UDP that were taken",
        repeated = answers_repeated: "answers over UDP sent again for a repeated request",
    }
}

/// What a datagram amounts to.
#[derive(Debug)]
pub enum Received<'a> {
    /// A fragment that waits for others, or something that was dropped and counted.
    Nothing,
    /// A retransmission: send this answer again, to where the datagram came from.
    Again(Arc<Message<'static>>),
    /// A new message, verified as its type requires, and the way to answer it.
    New(Message<'a>, Reply),
}

/// Destination and form of an answer. One for each message, kept while the operation runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Address that the request came from.
    pub to: SocketAddr,
    sender: NodeId,
    request_id: u64,
    nonce: u64,
    /// Whether the requester accepts `FRAG_V2` fragments.
    v2: bool,
    /// Whether the requester signed its frame, so that the answer is signed.
    signed: bool,
    /// Whether copies of the request get the kept answer instead of being executed.
    once: bool,
}

impl Server {
    /// Takes one datagram.
    ///
    /// A request needs its presenter's signature; ANNOUNCE, WITHDRAW, `REVOKE_BROADCAST` and `PAGE_REQUEST` need a
    /// frame signature; SOLICIT needs none, and then has no protection against replays. Any frame signature present
    /// must verify. `ENROLL_REQUEST` is verified with the key in its params.
    pub fn receive<'a>(&mut self, datagram: &'a [u8], source: SocketAddr, keys: &Enrolled, now: Nanos) -> Received<'a> {
        let Some(message) = self.whole(datagram, source, now) else { return Received::Nothing };
        self.take(message, source, keys, now)
    }

    /// The first half of [`Server::receive`]: the message that a datagram is or completes. Its sender is not verified
    /// yet, and the message can be dropped without a trace.
    pub fn whole<'a>(&mut self, datagram: &'a [u8], source: SocketAddr, now: Nanos) -> Option<Message<'a>> {
        match Frame::parse(datagram, MAX_DATAGRAM_PAYLOAD) {
            Ok(frame) if frame.header.is_part() => self.reassembly.add(source, &frame, now, &mut self.drops),
            Ok(frame) => Some(Message::of_frame(&frame)),
            Err(_) => {
                self.refuse(Drop::Malformed);
                None
            }
        }
    }

    /// The second half: verifies a message, and records its nonce.
    pub fn take<'a>(&mut self, message: Message<'a>, source: SocketAddr, keys: &Enrolled, now: Nanos) -> Received<'a> {
        self.accept(message, source, keys, now).unwrap_or_else(|reason| {
            self.refuse(reason);
            Received::Nothing
        })
    }

    /// Counts a message that the caller drops.
    pub fn refuse(&mut self, reason: Drop) {
        self.drops.add(reason, 1);
    }

    /// Keeps an answer for copies of its request. Call this before sending the answer.
    pub fn answered(&mut self, reply: &Reply, answer: &Arc<Message<'static>>, now: Nanos) {
        if reply.once {
            self.answers.keep(reply.asked(), Answered { to: reply.to, message: Arc::clone(answer) }, now);
        }
    }

    /// Drops what has lived too long, for times when nothing is received.
    pub fn expire(&mut self, now: Nanos) {
        self.reassembly.expire(now, &mut self.drops);
        self.answers.expire(now);
    }

    /// Calls `visit` with the name and value of each counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
        self.drops.counters(visit);
    }

    /// Counts of drops so far.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Memory of incomplete messages and kept answers, in bytes.
    pub fn bytes(&self) -> usize {
        self.reassembly.bytes() + self.answers.bytes()
    }

    /// Checks a whole message against replays and forgeries. Cheap checks come before the signature; nothing of a
    /// message is remembered before it is verified.
    fn accept<'a>(
        &mut self,
        message: Message<'a>,
        to: SocketAddr,
        keys: &Enrolled,
        now: Nanos,
    ) -> Result<Received<'a>, Drop> {
        let (sender, request_id, nonce) = (message.sender, message.request_id, message.nonce);
        let signed = message.signature.is_some();
        let once = keys.get(sender).is_some() && (signed || message.kind != MsgType::Solicit);
        let reply = Reply { to, sender, request_id, nonce, v2: message.v2, signed, once };
        if once {
            self.answers.expire(now);
            if let Some(answered) = self.answers.get(&reply.asked()) {
                if answered.to != to {
                    return Err(Drop::Elsewhere);
                }
                authenticate(&message, keys)?;
                self.counters.repeated += 1;
                return Ok(Received::Again(Arc::clone(&answered.message)));
            }
            if !self.replay.is_fresh(sender, nonce) {
                return Err(Drop::Replayed);
            }
        }
        authenticate(&message, keys)?;
        if once {
            self.replay.accept(sender, nonce);
        }
        self.counters.accepted += 1;
        Ok(Received::New(message, reply))
    }
}

impl Reply {
    /// The answer to the message, signed by `node` if the message was signed. [`FabricError::Limit`] if the payload
    /// exceeds 1 MiB.
    pub fn message(
        &self,
        kind: MsgType,
        payload: Vec<u8>,
        node: &Identity,
    ) -> Result<Arc<Message<'static>>, FabricError> {
        if payload.len() > MAX_MESSAGE {
            return Err(FabricError::Limit("payload"));
        }
        let message = Message {
            kind,
            sender: node.id(),
            request_id: self.request_id,
            nonce: self.nonce,
            v2: self.v2 && payload.len() > MAX_DATAGRAM_PAYLOAD,
            payload: payload.into(),
            signature: None,
        };
        Ok(Arc::new(if self.signed { message.signed(node) } else { message }))
    }

    fn asked(&self) -> Asked {
        Asked { sender: self.sender, request_id: self.request_id, nonce: self.nonce }
    }
}

/// Checks that a message over UDP has the valid signatures that its type requires.
fn authenticate(message: &Message<'_>, keys: &Enrolled) -> Result<(), Drop> {
    let enrolled = || keys.get(message.sender).ok_or(Drop::Unenrolled);
    let key = match message.kind {
        MsgType::Response | MsgType::PageResponse => return Err(Drop::Unexpected),
        MsgType::Request => {
            let request = Request::parse(&message.payload)?;
            let key = if request.op == Op::EnrollRequest.code() { enrolling(&request)? } else { enrolled()? };
            let presenter = request.presenter.ok_or(Drop::Unsigned)?;
            let signed = request.signed_bytes(message.sender.0, message.request_id, message.nonce);
            if NodeId(presenter.id) != message.sender
                || key.id() != message.sender
                || !key.verifies(&signed, &presenter.signature)
            {
                return Err(Drop::Forged);
            }
            key
        }
        MsgType::Solicit if message.signature.is_none() => return Ok(()),
        _ if message.signature.is_none() => return Err(Drop::Unsigned),
        _ => enrolled()?,
    };
    if message.signature.is_some() && !message.is_signed_by(&key) { Err(Drop::Forged) } else { Ok(()) }
}

/// The key that an enrolment brings, from params `node_id` and `public_key` (section "Dev op codes and params").
fn enrolling(request: &Request<'_>) -> Result<PublicKey, Drop> {
    let mut params = Reader::new(&request.params);
    let (id, key): (u128, [u8; 32]) = (params.get()?, params.get()?);
    params.finish()?;
    let key = PublicKey::from_bytes(&key).map_err(|_| Drop::Forged)?;
    if key.id() == NodeId(id) { Ok(key) } else { Err(Drop::Forged) }
}
