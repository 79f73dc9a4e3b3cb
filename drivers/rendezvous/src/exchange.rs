//! The exchange on one connection: an offer and its answer.

use std::{
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use berth_port::{Nanos, Next, Progress, Session};
use berth_wire::{
    fabric::Status,
    rendezvous::{Answer, HostApi, MAX_MESSAGE, Offer},
};

use crate::{
    Acceptor, Form,
    peers::{Joined, Peers},
};

/// Size in bytes of the length word before an offer's TLVs.
const LENGTH: usize = 4;

/// The server's side of one connection.
pub(crate) struct Exchange<A: Acceptor> {
    form: Form,
    peers: Rc<Peers<A>>,
    from: SocketAddr,
    state: State<A>,
    /// The part of the answer that was not written yet.
    answer: Vec<u8>,
}

enum State<A: Acceptor> {
    /// No offer has arrived.
    Expecting,
    /// The peer lives as long as its connection.
    Joined(Joined<A>),
    /// The exchange is over.
    Over,
}

impl<A: Acceptor> Exchange<A> {
    pub(crate) fn new(form: Form, peers: Rc<Peers<A>>, from: SocketAddr) -> Self {
        Self { form, peers, from, state: State::Expecting, answer: Vec::new() }
    }

    /// Answers the offer at the front of `input` and returns its length, or the number of bytes needed.
    fn hear(&mut self, input: &[u8]) -> Result<usize, Next> {
        match self.form {
            Form::HostApi => {
                let request = input.first_chunk().ok_or(Next::Input(HostApi::LEN))?;
                self.state = State::Over;
                // The form has no word for a refusal: the connection closes.
                let answer = self.peers.replace(self.from, &HostApi::parse(request));
                self.answer.extend(answer.into_iter().flat_map(HostApi::to_bytes));
                Ok(HostApi::LEN)
            }
            Form::Berth => {
                let len = u32::from_be_bytes(*input.first_chunk().ok_or(Next::Input(LENGTH))?) as usize;
                let offer = match input.get(LENGTH..LENGTH + len.min(MAX_MESSAGE)) {
                    _ if len > MAX_MESSAGE => None,
                    None => return Err(Next::Input(LENGTH + len)),
                    Some(tlvs) => Offer::parse(tlvs).ok(),
                };
                self.state = State::Over;
                let joined = if let Some(offer) = offer {
                    self.peers.join(self.from, &offer)
                } else {
                    self.peers.counters.malformed.add(1);
                    Err(Status::InvalidParams)
                };
                match joined {
                    Ok((joined, answer)) => {
                        answer.write(&mut self.answer);
                        self.state = State::Joined(joined);
                    }
                    Err(status) => self.answer.extend(Answer::refusal(status)),
                }
                Ok(LENGTH + len.min(input.len() - LENGTH))
            }
        }
    }
}

impl<A: Acceptor> Session for Exchange<A> {
    fn advance(&mut self, input: &[u8], output: &mut [u8], _: Nanos) -> Progress {
        let consumed = match self.state {
            State::Expecting => match self.hear(input) {
                Ok(consumed) => consumed,
                Err(next) => return Progress { consumed: 0, written: 0, next },
            },
            _ => 0,
        };
        let written = self.answer.len().min(output.len());
        output[..written].copy_from_slice(&self.answer[..written]);
        self.answer.drain(..written);
        let next = match self.state {
            _ if !self.answer.is_empty() => Next::Output(self.answer.len()),
            // Whoever says more than that is gone.
            State::Joined(_) if input.len() == consumed => Next::Input(1),
            _ => Next::Close,
        };
        Progress { consumed, written, next }
    }

    fn is_identified(&self) -> bool {
        matches!(self.state, State::Joined(_)) && self.answer.is_empty()
    }

    /// A peer that the port ends is a completion.
    fn is_over(&mut self, _: Nanos) -> bool {
        false
    }

    fn poll_completion(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let State::Joined(joined) = &mut self.state else { return Poll::Pending };
        Pin::new(&mut joined.ended).poll(cx).map(|_| self.state = State::Over)
    }
}
