//! The controller's side of a transaction.

use std::sync::Arc;

use berth_wire::nvme::auth::{Challenge, Group, Hash, Message, Negotiate, Reason, Reply};

use super::{
    Agreed, Next, Parameters, Random, SC_C,
    group::{DhValue, Exponentiation},
    hash::Digest,
    side::{Side, check_lengths},
};

/// The controller's side: [`Parameters`] as the target has them.
pub struct Controller {
    side: Side,
    state: State,
}

enum State {
    /// The host's negotiate message is due.
    Negotiate,
    /// g^x is being computed.
    Public { hash: Hash, group: Group },
    /// The challenge is to be sent.
    Challenge { hash: Hash, group: Group, public: Option<DhValue> },
    /// The host's reply to it is due.
    Reply { hash: Hash, group: Group },
    /// The DH secret is being computed.
    Shared { hash: Hash, reply: OwnedReply },
    /// Success1 is to be sent.
    Success1 { hash: Hash, response: Option<Digest> },
    /// The host's verdict on that response is due.
    Success2,
    /// Both are content.
    Done,
    /// Failure1 is to be sent.
    Failure1(Reason),
    /// It has been sent, or the host has failed.
    Failed(Reason),
}

/// What of a reply outlives its bytes while the DH secret is computed.
struct OwnedReply {
    response: Digest,
    challenge: Option<Digest>,
    sequence: u32,
}

impl Controller {
    /// A transaction of a host that has to prove itself.
    pub fn new(parameters: Arc<Parameters>, random: Random) -> Self {
        Self { side: Side::new(parameters, random, 0), state: State::Negotiate }
    }

    /// The next step, and whose it is.
    pub fn next(&self) -> Next {
        match self.state {
            State::Negotiate | State::Reply { .. } | State::Success2 => Next::Receive,
            State::Public { .. } | State::Shared { .. } => Next::Compute,
            State::Challenge { .. } | State::Success1 { .. } | State::Failure1(_) => Next::Send,
            State::Done => Next::Done,
            State::Failed(reason) => Next::Failed(reason),
        }
    }

    /// Takes the data of an Authentication Send. One that is wrong or not due makes failure1 the next to be sent.
    pub fn receive(&mut self, message: &[u8]) {
        if matches!(self.state, State::Done | State::Failed(_) | State::Failure1(_)) {
            return;
        }
        self.side.work = None;
        self.state = match Message::parse(message).and_then(|(t_id, message)| self.take(t_id, message)) {
            Ok(state) => state,
            Err(reason) => State::Failure1(reason),
        };
    }

    fn take(&mut self, t_id: u16, message: Message<'_>) -> Result<State, Reason> {
        match (&self.state, message) {
            (State::Negotiate, Message::Negotiate(negotiate)) => {
                self.side.t_id = t_id;
                self.negotiate(&negotiate)
            }
            (State::Negotiate, _) => Err(Reason::IncorrectMessage),
            _ if t_id != self.side.t_id => Err(Reason::IncorrectPayload),
            (&State::Reply { hash, group }, Message::Reply(reply)) => self.reply(hash, group, &reply),
            (State::Success2, Message::Success2) => Ok(State::Done),
            (_, Message::Failure2(reason)) => Ok(State::Failed(reason)),
            _ => Err(Reason::IncorrectMessage),
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate<'_>) -> Result<State, Reason> {
        if negotiate.secure_channel != SC_C {
            return Err(Reason::ConcatenationMismatch);
        }
        let hashes = negotiate.hashes.ok_or(Reason::ProtocolNotUsable)?;
        let hash = self.side.parameters.hashes.iter().find(|&&hash| hashes.contains(&(hash as u8)));
        let hash = *hash.ok_or(Reason::HashNotUsable)?;
        let group = self.side.parameters.groups.iter().find(|&&group| negotiate.groups.contains(&(group as u8)));
        let group = *group.ok_or(Reason::GroupNotUsable)?;
        if group == Group::None {
            return Ok(State::Challenge { hash, group, public: None });
        }
        self.side.raise(group, None);
        Ok(State::Public { hash, group })
    }

    fn reply(&mut self, hash: Hash, group: Group, reply: &Reply<'_>) -> Result<State, Reason> {
        check_lengths(hash, group, reply.response, reply.dh)?;
        let owned = OwnedReply {
            response: Digest::new(reply.response),
            challenge: reply.challenge.map(Digest::new),
            sequence: reply.sequence,
        };
        if group == Group::None {
            return self.verdict(hash, &owned, None);
        }
        self.side.raise(group, Some(reply.dh.to_vec()));
        Ok(State::Shared { hash, reply: owned })
    }

    fn verdict(&self, hash: Hash, reply: &OwnedReply, shared: Option<DhValue>) -> Result<State, Reason> {
        let Side { parameters, random, t_id, .. } = &self.side;
        let agreed = Agreed { hash, t_id: *t_id, shared };
        let expected = agreed.host_response(parameters, random.challenge(hash), random.sequence());
        if !expected.is(&reply.response) {
            return Err(Reason::Failed);
        }
        let response = match (&reply.challenge, &parameters.controller) {
            (Some(challenge), Some(secret)) => {
                Some(agreed.controller_response(parameters, secret, challenge, reply.sequence))
            }
            // The host asks for a proof that there is no secret for.
            (Some(_), None) => return Err(Reason::Failed),
            (None, _) => None,
        };
        Ok(State::Success1 { hash, response })
    }

    /// The work that it waits for; given out once.
    pub fn work(&mut self) -> Option<Exponentiation> {
        self.side.work.take()
    }

    /// Takes the result of that work, [`Exponentiation::compute`]'s; of no effect where it is not waited for any more.
    pub fn computed(&mut self, value: Option<DhValue>) {
        let state = std::mem::replace(&mut self.state, State::Negotiate);
        self.state = match (state, value) {
            (State::Public { .. } | State::Shared { .. }, None) => State::Failure1(Reason::IncorrectPayload),
            (State::Public { hash, group }, public) => State::Challenge { hash, group, public },
            (State::Shared { hash, reply }, shared) => {
                self.verdict(hash, &reply, shared).unwrap_or_else(State::Failure1)
            }
            (state, _) => state,
        };
    }

    /// The host wants to receive. Where it should send instead, failure1 is the next to be sent.
    pub fn wanted(&mut self) {
        if self.next() == Next::Receive {
            self.state = State::Failure1(Reason::IncorrectMessage);
        }
    }

    /// Whether what is to be sent is failure1.
    pub fn is_failing(&self) -> bool {
        matches!(self.state, State::Failure1(_))
    }

    /// Writes what an Authentication Receive answers to the front of `to`, and returns its length; [`Message::MAX`] bytes
    /// are enough. Where the host should send instead, that is failure1. `None` where `to` is too short, while something
    /// is computed, and after the end.
    pub fn send(&mut self, to: &mut [u8]) -> Option<usize> {
        self.wanted();
        let random = &self.side.random;
        let message = match &self.state {
            State::Challenge { hash, group, public } => Message::Challenge(Challenge {
                hash: *hash as u8,
                group: *group as u8,
                sequence: random.sequence(),
                challenge: random.challenge(*hash),
                dh: public.as_ref().map_or(&[], DhValue::bytes),
            }),
            State::Success1 { hash, response } => {
                Message::Success1 { len: hash.len() as u8, response: response.as_deref() }
            }
            State::Failure1(reason) => Message::Failure1(*reason),
            _ => return None,
        };
        let len = message.write(self.side.t_id, to)?;
        self.state = match self.state {
            State::Challenge { hash, group, .. } => State::Reply { hash, group },
            State::Success1 { response: Some(_), .. } => State::Success2,
            State::Failure1(reason) => State::Failed(reason),
            _ => State::Done,
        };
        Some(len)
    }
}
