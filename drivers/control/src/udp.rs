//! Control over UDP.

use std::{net::SocketAddr, sync::Arc};

use berth_fabric::Carrier;
use berth_identity::{
    Enrolled,
    link::{Drop, Message, Received, Reply},
};
use berth_stream::Place;
use berth_wire::fabric::{MAX_MESSAGE, MsgType, Request, Wire as _};
use tokio::net::UdpSocket;

use crate::{
    Shared,
    message::{Handled, Role},
    permits::{ANYBODY, Asks, LONG},
};

/// Longest UDP datagram in bytes.
const MAX_DATAGRAM: usize = 65_507;

/// Takes messages until the runtime ends. A message beyond its sender's share is dropped before it is accepted, so that
/// it does not count as a copy when it is sent again, and nobody else waits for it.
pub(crate) async fn serve(socket: Arc<UdpSocket>, role: Role, shared: Arc<Shared>) {
    let mut buf = vec![0; MAX_DATAGRAM];
    let keys = shared.node().keys().clone();
    loop {
        // An error is that of a datagram sent before.
        let Ok((len, source)) = socket.recv_from(&mut buf).await else { continue };
        let Some((received, asks, presenter, in_hand)) = take(&buf[..len], source, role, &keys, &shared) else {
            continue;
        };
        let (socket, shared) = (socket.clone(), shared.clone());
        tokio::spawn(async move {
            let answer = match received {
                Taken::Again(answer) => Some(answer),
                Taken::New(message, reply) => {
                    let permit = shared.permits.begin(presenter, asks).await;
                    let answer = answer(&message, &reply, role, &shared).await;
                    drop(permit);
                    if asks.lists {
                        let len = answer.as_ref().map_or(0, |answer| answer.payload.len());
                        shared.permits.debts().refund(presenter, MAX_MESSAGE - len);
                    }
                    answer
                }
            };
            if let Some(answer) = answer {
                send(&socket, &answer, source, &shared).await;
            }
            drop(in_hand);
        });
    }
}

/// A datagram's completed message.
enum Taken {
    /// A copy of an answered request.
    Again(Arc<Message<'static>>),
    New(Message<'static>, Reply),
}

/// Held until a message's answer is sent.
type InHand = (Place<u128>, Option<Place<u128>>);

/// Accepts the message that a datagram completes, together with its sender's share for it.
fn take(
    datagram: &[u8],
    source: SocketAddr,
    role: Role,
    keys: &Enrolled,
    shared: &Shared,
) -> Option<(Taken, Asks, u128, InHand)> {
    let (permits, now) = (&shared.permits, shared.clock.mono());
    let mut link = shared.link();
    let message = link.whole(datagram, source, now)?;
    if !role.serves(message.kind) {
        link.refuse(Drop::Unexpected);
        return None;
    }
    let asks = Asks::of(message.kind, &message.payload);
    let proved = message.kind != MsgType::Solicit || message.signature.is_some();
    let presenter = if proved { message.sender.0 } else { ANYBODY };
    let is_long = message.payload.len() > LONG || asks.lists;
    let in_hand = permits.messages.try_enter(presenter).and_then(|place| {
        // A question that nobody signed is as long as its answer.
        if asks.lists && presenter != ANYBODY && !permits.debts().may(presenter) {
            return None;
        }
        let long = is_long.then(|| permits.long.try_enter(presenter));
        if long.as_ref().is_some_and(Option::is_none) { None } else { Some((place, long.flatten())) }
    });
    let Some(in_hand) = in_hand else {
        link.refuse(Drop::OverShare);
        return None;
    };
    let taken = match link.take(message, source, keys, now) {
        Received::Nothing => return None,
        Received::Again(answer) => {
            if asks.lists {
                permits.debts().charge(presenter, answer.payload.len());
            }
            Taken::Again(answer)
        }
        Received::New(message, reply) => {
            if asks.lists && presenter != ANYBODY {
                permits.debts().charge(presenter, MAX_MESSAGE);
            }
            Taken::New(owned(message), reply)
        }
    };
    Some((taken, asks, presenter, in_hand))
}

fn owned(message: Message<'_>) -> Message<'static> {
    Message { payload: message.payload.into_owned().into(), ..message }
}

/// Does what a message asks for, and keeps the answer for copies of it.
async fn answer(message: &Message<'_>, reply: &Reply, role: Role, shared: &Shared) -> Option<Arc<Message<'static>>> {
    let (kind, payload) = match message.kind {
        MsgType::Request => {
            let request = Request::parse(&message.payload).ok()?;
            let asked = berth_fabric::Request {
                carrier: Carrier::Udp { nonce: message.nonce },
                presenter: message.sender.0,
                source: reply.to,
                op: request.op,
                resource: request.resource_id,
                token: request.token.get(),
                params: request.params.get(),
            };
            let payload = shared.execute(&asked).await?;
            (MsgType::Response, payload)
        }
        _ => match shared.hear(message, message.signature.is_some(), role).await {
            Handled::Answer(kind, payload) => (kind, payload),
            Handled::Nothing | Handled::Malformed => return None,
        },
    };
    // No payload that this node makes is over 1 MiB.
    let answer = reply.message(kind, payload, &shared.identity).ok()?;
    shared.link().answered(reply, &answer, shared.clock.mono());
    Some(answer)
}

/// Sends all frames of a message.
pub(crate) async fn send(socket: &UdpSocket, message: &Message<'_>, to: SocketAddr, shared: &Shared) {
    for frame in message.frames() {
        if socket.send_to(&frame, to).await.is_err() {
            shared.counters.sends_failed.add(1);
        }
    }
}
