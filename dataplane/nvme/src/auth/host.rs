//! The host's side of a transaction.

use std::sync::Arc;

use berth_wire::nvme::auth::{Challenge, Group, Hash, Message, Negotiate, Reason, Reply};

use super::{
    Agreed, Next, Parameters, Random, SC_C,
    group::{DhValue, Exponentiation},
    hash::Digest,
    side::{Side, check_lengths},
};

/// The host's side. It asks for the controller's proof where [`Parameters::controller`] says what that is.
pub struct Host {
    side: Side,
    state: State,
}

enum State {
    /// The negotiate message is to be sent.
    Negotiate,
    /// The controller's challenge is due.
    Challenge,
    /// g^y is being computed.
    Public(OwnedChallenge),
    /// The DH secret is being computed.
    Shared { challenge: OwnedChallenge, public: DhValue },
    /// The reply is to be sent, and what the controller has to respond.
    Reply { hash: Hash, response: Digest, expected: Option<Digest>, public: Option<DhValue> },
    /// The controller's verdict is due, with that response.
    Success1 { hash: Hash, expected: Option<Digest> },
    /// Success2 is to be sent.
    Success2,
    /// Both are content.
    Done,
    /// Failure2 is to be sent.
    Failure2(Reason),
    /// It has been sent, or the controller has failed.
    Failed(Reason),
}

/// What of a challenge outlives its bytes while there is work to do.
struct OwnedChallenge {
    hash: Hash,
    group: Group,
    challenge: Digest,
    sequence: u32,
    dh: Vec<u8>,
}

impl Host {
    /// A transaction with this `T_ID`, which is the host's to choose.
    pub fn new(parameters: Arc<Parameters>, random: Random, t_id: u16) -> Self {
        Self { side: Side::new(parameters, random, t_id), state: State::Negotiate }
    }

    /// The next step, and whose it is.
    pub fn next(&self) -> Next {
        match self.state {
            State::Challenge | State::Success1 { .. } => Next::Receive,
            State::Public(_) | State::Shared { .. } => Next::Compute,
            State::Negotiate | State::Reply { .. } | State::Success2 | State::Failure2(_) => Next::Send,
            State::Done => Next::Done,
            State::Failed(reason) => Next::Failed(reason),
        }
    }

    /// Takes what an Authentication Receive brought. One that is wrong or not due makes failure2 the next to be sent.
    pub fn receive(&mut self, message: &[u8]) {
        if matches!(self.state, State::Done | State::Failed(_) | State::Failure2(_)) {
            return;
        }
        self.side.work = None;
        self.state = match Message::parse(message).and_then(|(t_id, message)| self.take(t_id, message)) {
            Ok(state) => state,
            Err(reason) => State::Failure2(reason),
        };
    }

    fn take(&mut self, t_id: u16, message: Message<'_>) -> Result<State, Reason> {
        match (&self.state, message) {
            (_, Message::Failure1(reason)) => Ok(State::Failed(reason)),
            _ if t_id != self.side.t_id => Err(Reason::IncorrectPayload),
            (State::Challenge, Message::Challenge(challenge)) => self.challenge(&challenge),
            (State::Success1 { hash, expected }, Message::Success1 { len, response }) => match (expected, response) {
                _ if usize::from(len) != hash.len() => Err(Reason::IncorrectPayload),
                (None, _) => Ok(State::Done),
                (Some(expected), Some(response)) if expected.is(response) => Ok(State::Success2),
                (Some(_), _) => Err(Reason::Failed),
            },
            _ => Err(Reason::IncorrectMessage),
        }
    }

    fn challenge(&mut self, challenge: &Challenge<'_>) -> Result<State, Reason> {
        let hash = Hash::of(challenge.hash).filter(|hash| self.side.parameters.hashes.contains(hash));
        let hash = hash.ok_or(Reason::HashNotUsable)?;
        let group = Group::of(challenge.group).filter(|group| self.side.parameters.groups.contains(group));
        let group = group.ok_or(Reason::GroupNotUsable)?;
        check_lengths(hash, group, challenge.challenge, challenge.dh)?;
        let owned = OwnedChallenge {
            hash,
            group,
            challenge: Digest::new(challenge.challenge),
            sequence: challenge.sequence,
            dh: challenge.dh.to_vec(),
        };
        if group == Group::None {
            return Ok(self.respond(&owned, None, None));
        }
        self.side.raise(group, None);
        Ok(State::Public(owned))
    }

    fn respond(&self, challenge: &OwnedChallenge, public: Option<DhValue>, shared: Option<DhValue>) -> State {
        let Side { parameters, random, t_id, .. } = &self.side;
        let agreed = Agreed { hash: challenge.hash, t_id: *t_id, shared };
        let response = agreed.host_response(parameters, &challenge.challenge, challenge.sequence);
        let (own, sequence) = (random.challenge(challenge.hash), random.sequence());
        let secret = parameters.controller.as_ref();
        let expected = secret.map(|secret| agreed.controller_response(parameters, secret, own, sequence));
        State::Reply { hash: challenge.hash, response, expected, public }
    }

    /// The work that it waits for; given out once.
    pub fn work(&mut self) -> Option<Exponentiation> {
        self.side.work.take()
    }

    /// Takes the result of that work, [`Exponentiation::compute`]'s; of no effect where it is not waited for any more.
    pub fn computed(&mut self, value: Option<DhValue>) {
        let state = std::mem::replace(&mut self.state, State::Negotiate);
        self.state = match (state, value) {
            (State::Public(_) | State::Shared { .. }, None) => State::Failure2(Reason::IncorrectPayload),
            (State::Public(mut challenge), Some(public)) => {
                let base = std::mem::take(&mut challenge.dh);
                self.side.raise(challenge.group, Some(base));
                State::Shared { challenge, public }
            }
            (State::Shared { challenge, public }, shared) => self.respond(&challenge, Some(public), shared),
            (state, _) => state,
        };
    }

    /// Writes the data of an Authentication Send to the front of `to`, and returns its length; [`Message::MAX`] bytes are
    /// enough. `None` where `to` is too short, and where nothing is to be sent.
    pub fn send(&mut self, to: &mut [u8]) -> Option<usize> {
        let (hashes, groups): (Vec<_>, Vec<_>);
        let message = match &self.state {
            State::Negotiate => {
                hashes = self.side.parameters.hashes.iter().map(|&hash| hash as u8).collect();
                groups = self.side.parameters.groups.iter().map(|&group| group as u8).collect();
                Message::Negotiate(Negotiate { secure_channel: SC_C, hashes: Some(&hashes), groups: &groups })
            }
            State::Reply { hash, response, expected, public } => Message::Reply(Reply {
                response,
                challenge: expected.as_ref().map(|_| self.side.random.challenge(*hash)),
                sequence: self.side.random.sequence(),
                dh: public.as_ref().map_or(&[], DhValue::bytes),
            }),
            State::Success2 => Message::Success2,
            State::Failure2(reason) => Message::Failure2(*reason),
            _ => return None,
        };
        let len = message.write(self.side.t_id, to)?;
        self.state = match std::mem::replace(&mut self.state, State::Challenge) {
            State::Reply { hash, expected, .. } => State::Success1 { hash, expected },
            State::Success2 => State::Done,
            State::Failure2(reason) => State::Failed(reason),
            _ => State::Challenge,
        };
        Some(len)
    }
}
