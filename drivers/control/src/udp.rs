//! Control over UDP.

use std::{net::SocketAddr, sync::Arc};

use berth_fabric::Carrier;
use berth_identity::link::{Message, Received, Reply};
use berth_wire::fabric::{MsgType, Request, Wire as _};
use tokio::net::UdpSocket;

use crate::{
    Shared,
    message::{Role, Said},
};

/// The longest datagram.
const MAX_DATAGRAM: usize = 65_507;

/// Takes requests until the runtime ends. While as many ops run as may, requests wait in the socket.
pub(crate) async fn serve(socket: Arc<UdpSocket>, role: Role, shared: Arc<Shared>) {
    let mut buf = vec![0; MAX_DATAGRAM];
    let keys = shared.node().keys().clone();
    loop {
        // An error is that of a datagram sent before.
        let Ok((len, source)) = socket.recv_from(&mut buf).await else { continue };
        // Before it is taken in: what is taken in once is refused the next time.
        let Ok(permit) = shared.ops.clone().acquire_owned().await else { return };
        let received = match shared.link().receive(&buf[..len], source, &keys, shared.clock.mono()) {
            Received::Nothing => continue,
            Received::Again(answer) => Err(answer),
            Received::New(message, reply) => Ok((owned(message), reply)),
        };
        let (socket, shared) = (socket.clone(), shared.clone());
        tokio::spawn(async move {
            match received {
                Err(answer) => send(&socket, &answer, source, &shared).await,
                Ok((message, reply)) => answer(&socket, &message, reply, role, &shared).await,
            }
            drop(permit);
        });
    }
}

fn owned(message: Message<'_>) -> Message<'static> {
    Message { payload: message.payload.into_owned().into(), ..message }
}

async fn answer(socket: &UdpSocket, message: &Message<'_>, reply: Reply, role: Role, shared: &Shared) {
    let (kind, payload) = match message.kind {
        MsgType::Request => {
            let Ok(request) = Request::parse(&message.payload) else { return };
            let asked = berth_fabric::Request {
                carrier: Carrier::Udp { nonce: message.nonce },
                presenter: message.sender.0,
                source: reply.to,
                op: request.op,
                resource: request.resource_id,
                token: request.token.get(),
                params: request.params.get(),
            };
            let Some(payload) = shared.execute(&asked).await else { return };
            (MsgType::Response, payload)
        }
        _ => match shared.hear(message, message.signature.is_some(), role).await {
            Said::Answer(kind, payload) => (kind, payload),
            Said::Nothing | Said::Malformed => return,
        },
    };
    // No payload that this node makes is over 1 MiB.
    if let Ok(answer) = reply.message(kind, payload, &shared.identity) {
        shared.link().answered(&reply, &answer, shared.clock.mono());
        send(socket, &answer, reply.to, shared).await;
    }
}

/// Sends all frames of a message.
pub(crate) async fn send(socket: &UdpSocket, message: &Message<'_>, to: SocketAddr, shared: &Shared) {
    for frame in message.frames() {
        if socket.send_to(&frame, to).await.is_err() {
            shared.counters.sends_failed.add();
        }
    }
}
