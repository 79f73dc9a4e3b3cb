//! The serving end on UDP.

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

/// Takes datagrams in and hands authenticated messages out, each at most once.
#[derive(Debug, Default)]
pub struct Server {
    reassembly: Reassembly,
    /// The nonces that were used.
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

/// What a datagram brought.
#[derive(Debug)]
pub enum Received<'a> {
    /// A fragment that waits for others, or something that was dropped and counted.
    Nothing,
    /// A retransmission: send this again to where it came from.
    Again(Arc<Message<'static>>),
    /// A message that was verified as its type requires, and where its answer goes.
    New(Message<'a>, Reply),
}

/// Where an answer goes, and in which form. One for each message; kept while an op runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// The peer that asked.
    pub to: SocketAddr,
    sender: NodeId,
    request_id: u64,
    nonce: u64,
    /// The requester takes `FRAG_V2` fragments.
    v2: bool,
    /// The requester signed its frame, and gets a signed one back.
    signed: bool,
    /// A copy of the request is answered from memory, and not executed.
    once: bool,
}

impl Server {
    /// Takes one datagram in.
    ///
    /// A request must bear its presenter's signature; ANNOUNCE, WITHDRAW, `REVOKE_BROADCAST` and `PAGE_REQUEST` a frame
    /// signature; SOLICIT may do without, and is then not protected against replays. Any frame signature must verify.
    /// `ENROLL_REQUEST` is verified with the key that it brings.
    pub fn receive<'a>(&mut self, datagram: &'a [u8], source: SocketAddr, keys: &Enrolled, now: Nanos) -> Received<'a> {
        let Some(message) = self.whole(datagram, source, now) else { return Received::Nothing };
        self.take(message, source, keys, now)
    }

    /// The first half of [`Server::receive`]: the message that a datagram is or completes. Nothing says yet that it is
    /// its sender's, and it can be dropped as if it had never come.
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

    /// The second half: verifies a message and takes it in.
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

    /// Keeps an answer for copies of its request. To be called before the answer is sent.
    pub fn answered(&mut self, reply: &Reply, answer: &Arc<Message<'static>>, now: Nanos) {
        if reply.once {
            self.answers.keep(reply.asked(), Answered { to: reply.to, message: Arc::clone(answer) }, now);
        }
    }

    /// Drops what has lived too long. For times when nothing is received.
    pub fn expire(&mut self, now: Nanos) {
        self.reassembly.expire(now, &mut self.drops);
        self.answers.expire(now);
    }

    /// Reports every counter.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
        self.drops.counters(visit);
    }

    /// What was dropped so far.
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The memory that incomplete messages and kept answers take, in bytes.
    pub fn bytes(&self) -> usize {
        self.reassembly.bytes() + self.answers.bytes()
    }

    /// A whole message, through what protects against copies and forgeries. What is cheap to find out comes before
    /// the signature; nothing is remembered of a message before it is verified.
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
    /// The answer to the message, signed by `node` where the message was signed. [`FabricError::Limit`] if the
    /// payload is over 1 MiB.
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

/// Whether a message that came by UDP bears the signatures that its type requires.
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

/// The key that an enrolment brings: params `node_id`, `public_key` (section "Dev op codes and params").
fn enrolling(request: &Request<'_>) -> Result<PublicKey, Drop> {
    let mut params = Reader::new(&request.params);
    let (id, key): (u128, [u8; 32]) = (params.get()?, params.get()?);
    params.finish()?;
    let key = PublicKey::from_bytes(&key).map_err(|_| Drop::Forged)?;
    if key.id() == NodeId(id) { Ok(key) } else { Err(Drop::Forged) }
}
