//! Control and data over QUIC.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_fabric::Carrier;
use berth_identity::{
    PublicKey,
    link::{Message, accept_stream},
};
use berth_lease_io::Stream;
use berth_port::Session as _;
use berth_stream::{Connections, End, Event, Limits, Pending, Place, Pump};
use berth_tls::quic::{self, Alpn};
use berth_wire::fabric::{Frame, MAX_MESSAGE, MsgType, Request, Wire as _, data::stream::Kind};
use quinn::{Connection, Endpoint, Incoming, RecvStream, SendStream, ServerConfig, TransportConfig, VarInt};
use tokio::{
    select,
    time::{Instant, interval, timeout, timeout_at},
};

use crate::{
    Shared,
    message::{Handled, Role},
    permits::{Asks, LONG},
};

/// Limits on connections: pending ones are in their handshakes, admitted ones have proven their keys.
const LIMITS: Limits = Limits { pending: 1024, identify_within: PATIENCE, admitted: 4096, per_peer: 256 };

/// From this many connections on, a peer must prove its address before it gets any state.
const RETRY_FROM: usize = 256;

/// Limit on the streams of one connection.
const MAX_STREAMS: u32 = 32;

/// Limit on a connection's bytes that were received and not read yet, and on those sent and not acknowledged.
const WINDOW: u32 = 128 << 10;

/// The same limit for connections that have a place among the wide ones.
const WIDE_WINDOW: u32 = 4 << 20;

/// Silent connections are closed after this time.
const IDLE: Duration = Duration::from_secs(30);

/// Time limit of a handshake, for a stream to bring its message, and for a data connection to name its lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval at which a data connection checks whether its lease is over: it must close within a second of that.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Limit on the bytes of a frame around its payload.
const FRAME_OVERHEAD: usize = 52 + 64;

/// Settings of the listener, which accepts enrolled keys only.
pub(crate) fn config(shared: &Arc<Shared>) -> Result<ServerConfig, quic::TlsError> {
    let keys = shared.node().keys().clone();
    let admit = move |key: &PublicKey| keys.get(key.id()) == Some(*key);
    let mut config = ServerConfig::with_crypto(Arc::new(quic::server_config(&shared.identity, Arc::new(admit))?));
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(MAX_STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .max_idle_timeout(IDLE.try_into().ok());
    // An address is proved by the handshake: SOURCE_IP goes by it.
    config.transport_config(Arc::new(transport)).migration(false);
    Ok(config)
}

/// Accepts until the endpoint is closed.
pub(crate) async fn serve(endpoint: Endpoint, shared: Arc<Shared>) {
    let counters = shared.counters.clone();
    let connections = Connections::new(LIMITS, move |event| match event {
        Event::Displaced => counters.connections_displaced.add(1),
        Event::Refused => counters.connections_refused.add(1),
        // Counted with the handshakes that failed.
        Event::Expired => {}
    });
    while let Some(incoming) = endpoint.accept().await {
        if connections.count() >= RETRY_FROM && !incoming.remote_address_validated() {
            // An error says that the address was validated meanwhile: the peer tries again.
            let _ = incoming.retry();
            shared.counters.handshakes_retried.add(1);
            continue;
        }
        let (pending, shared) = (connections.enter(), shared.clone());
        tokio::spawn(async move { connection(incoming, pending, &shared).await });
    }
}

async fn connection(incoming: Incoming, mut pending: Pending<u128>, shared: &Arc<Shared>) {
    let made = pending.identify(incoming.into_future()).await.and_then(Result::ok);
    let known = made.and_then(|connection| {
        let (peer, alpn) = (quic::peer_key(&connection)?, Alpn::of(&connection)?);
        Some((connection, peer, alpn))
    });
    let Some((connection, peer, alpn)) = known else {
        shared.counters.handshakes_failed.add(1);
        return;
    };
    let Some(mut admitted) = pending.admit(peer.id().0) else {
        return connection.close(VarInt::from_u32(1), b"too many connections");
    };
    shared.counters.connections.add(1);
    let wide = shared.permits.wide.try_enter(peer.id().0);
    if wide.is_some() {
        connection.set_receive_window(VarInt::from_u32(WIDE_WINDOW));
        connection.set_send_window(WIDE_WINDOW.into());
    }
    let served = async {
        match alpn {
            Alpn::Control => control(&connection, peer, shared).await,
            Alpn::Memory => data(&connection, Kind::Memory, peer, shared).await,
            Alpn::Block => data(&connection, Kind::Block, peer, shared).await,
        }
    };
    tokio::pin!(served);
    select! {
        () = &mut served => return,
        () = shared.unenrolled(&peer) => connection.close(VarInt::from_u32(2), b"the key is not served any more"),
        () = admitted.displaced() => connection.close(VarInt::from_u32(1), b"too many connections"),
    }
    served.await;
}

async fn control(connection: &Connection, peer: PublicKey, shared: &Arc<Shared>) {
    let source = connection.remote_address();
    while let Ok((send, receive)) = connection.accept_bi().await {
        let (shared, connection) = (shared.clone(), connection.clone());
        // A task of its own, which ends well though the connection is lost: an op must not stop half-way.
        tokio::spawn(async move {
            if one_op((send, receive), peer, source, &connection, &shared).await.is_none() {
                shared.counters.streams_reset.add(1);
            }
        });
    }
}

/// Serves one frame each way. `None` if the stream is reset.
async fn one_op(
    (mut send, mut receive): (SendStream, RecvStream),
    peer: PublicKey,
    source: SocketAddr,
    connection: &Connection,
    shared: &Shared,
) -> Option<()> {
    let reset = |mut send: SendStream| {
        // It may be closed already.
        let _ = send.reset(VarInt::from_u32(1));
        None
    };
    let presenter = peer.id().0;
    // What has not begun when its connection closes never does.
    let ready = select! {
        ready = ready(&mut receive, presenter, shared) => ready,
        _ = connection.closed() => None,
    };
    let Some(Ready { bytes, permit, in_hand: _in_hand }) = ready else { return reset(send) };
    let Ok(message) = accept_stream(&bytes, &peer) else { return reset(send) };
    let (kind, payload) = match message.kind {
        MsgType::Request => {
            let Ok(request) = Request::parse(&message.payload) else { return reset(send) };
            let asked = berth_fabric::Request {
                carrier: Carrier::Quic,
                presenter,
                source,
                op: request.op,
                resource: request.resource_id,
                token: request.token.get(),
                params: request.params.get(),
            };
            let Some(payload) = shared.execute(&asked).await else { return reset(send) };
            (MsgType::Response, payload)
        }
        _ => match shared.hear(&message, true, Role::Node).await {
            Handled::Answer(kind, payload) => (kind, payload),
            Handled::Nothing => {
                let _ = send.finish();
                return Some(());
            }
            Handled::Malformed => return reset(send),
        },
    };
    drop(permit);
    let answer = Message {
        kind,
        sender: shared.identity.id(),
        request_id: message.request_id,
        nonce: message.nonce,
        payload: payload.into(),
        v2: false,
        signature: None,
    };
    let answer = if message.signature.is_some() { answer.signed(&shared.identity) } else { answer };
    // Whoever asked may be gone.
    if let Ok(Ok(())) = timeout(PATIENCE, send.write_all(&answer.to_frame())).await {
        let _ = send.finish();
    }
    Some(())
}

/// A message that was read and may be acted on.
struct Ready {
    bytes: Vec<u8>,
    permit: Place<u128>,
    /// Held until the answer is taken.
    in_hand: (Place<u128>, Option<Place<u128>>),
}

/// Reads a message and waits for its turn. `None` if it is too long or comes too slowly. May be cancelled.
async fn ready(receive: &mut RecvStream, presenter: u128, shared: &Shared) -> Option<Ready> {
    let permits = &shared.permits;
    let place = permits.messages.enter(presenter).await;
    let (mut bytes, mut long) = (Vec::new(), None);
    let deadline = Instant::now() + PATIENCE;
    while let Some(chunk) = timeout_at(deadline, receive.read_chunk(LONG, true)).await.ok()?.ok()? {
        if bytes.len() + chunk.bytes.len() > MAX_MESSAGE + FRAME_OVERHEAD {
            return None;
        }
        if long.is_none() && bytes.len() + chunk.bytes.len() > LONG {
            long = Some(timeout_at(deadline, permits.long.enter(presenter)).await.ok()?);
        }
        bytes.extend_from_slice(&chunk.bytes);
    }
    let frame = Frame::parse(&bytes, MAX_MESSAGE).ok()?;
    let asks = Asks::of(frame.header.msg_type, frame.payload);
    if asks.lists && long.is_none() {
        long = Some(permits.long.enter(presenter).await);
    }
    let permit = permits.begin(presenter, asks).await;
    Some(Ready { bytes, permit, in_hand: (place, long) })
}

/// Serves a data connection: its first stream names the lease, and each further stream carries one access.
async fn data(connection: &Connection, kind: Kind, peer: PublicKey, shared: &Arc<Shared>) {
    if greeted(connection, kind, peer, shared).await.is_none() {
        shared.counters.connections_timed_out.add(1);
    }
    connection.close(VarInt::from_u32(0), b"");
}

/// Waits for the peer to name its lease; `None` if it does not in time.
async fn greeted(connection: &Connection, kind: Kind, peer: PublicKey, shared: &Arc<Shared>) -> Option<()> {
    let deadline = Instant::now() + PATIENCE;
    let (mut send, mut receive) = timeout(PATIENCE, connection.accept_bi()).await.ok()?.ok()?;
    let (node, peer) = (shared.clone(), peer.id().0);
    let first = Stream::new(kind, &shared.table, &shared.regions, shared.data.clone());
    let mut first = first.of(move |lease| node.node().leases().is_of(lease, peer));
    let mut pump = Pump::new(peer, shared.permits.long_accesses.clone());
    let now = || shared.clock.mono();
    match pump.identify(&mut first, (&mut receive, &mut send), &now, Some(deadline)).await {
        Ok(End::Identified) => {}
        Ok(End::TimedOut) => return None,
        Ok(End::Closed) | Err(_) => {
            // The answer says why; the peer has a moment to read it before the connection closes.
            let _ = send.finish();
            let _ = timeout(LOOK_EVERY, send.stopped()).await;
            return Some(());
        }
    }
    let mut lease = first.sibling()?;
    let connection_of = connection.clone();
    tokio::spawn(access(first, peer, pump, (send, receive), shared.clone(), connection_of));
    let mut ticks = interval(LOOK_EVERY);
    loop {
        tokio::select! {
            accepted = connection.accept_bi() => {
                let Ok(ends) = accepted else { return Some(()) };
                let Some(stream) = lease.sibling() else { return Some(()) };
                let pump = Pump::new(peer, shared.permits.long_accesses.clone());
                tokio::spawn(access(stream, peer, pump, ends, shared.clone(), connection.clone()));
            }
            _ = ticks.tick() => {
                if lease.is_over(shared.clock.mono()) {
                    return Some(());
                }
            }
        }
    }
}

/// Serves the messages of one stream. A protocol violation closes the connection.
async fn access(
    mut stream: Stream,
    peer: u128,
    mut pump: Pump<u128>,
    (mut send, mut receive): (SendStream, RecvStream),
    shared: Arc<Shared>,
    connection: Connection,
) {
    let _place = select! {
        place = shared.permits.accesses.enter(peer) => place,
        _ = connection.closed() => return,
    };
    let deadline = Instant::now() + PATIENCE;
    let now = || shared.clock.mono();
    let ended = pump.serve(&mut stream, (&mut receive, &mut send), &now, Some(deadline)).await;
    let _ = send.finish();
    if !stream.is_identified() {
        let _ = timeout(LOOK_EVERY, send.stopped()).await;
        connection.close(VarInt::from_u32(1), b"");
    }
    if let Ok(End::TimedOut) = ended {
        shared.counters.streams_reset.add(1);
    }
}
