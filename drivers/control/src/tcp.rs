//! FBMT and FBBT over TCP, with one lease per connection.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_lease_io::Stream;
use berth_port::Nanos;
use berth_stream::{Connections, End, Event, LONG, Limits, Listener, Pending, Pump, Shares};
use berth_uring::{Host, ToCore};
use berth_wire::fabric::data::stream::Kind;
use tokio::{net::TcpStream, select};

use crate::Shared;

/// Limits on the connections of one listener. Pending ones have not named their lease yet.
const LIMITS: Limits =
    Limits { pending: 512, identify_within: Duration::from_secs(10), admitted: 4096, per_peer: 1024 };

/// Limits on the connections of a poll core: in all, and of one peer.
pub const POLLED: (usize, usize) = (512, 128);

/// Longest operation on a poll core in bytes: each connection has buffers of that length from the start.
const POLLED_LONGEST: u32 = 64 << 10;

/// A poll core that serves FBMT: where its peers connect, and how they reach the core once they have sent HELLO.
#[derive(Debug)]
pub struct Polled {
    /// The bound socket.
    pub listener: Listener,
    /// The way to the core's task.
    pub core: ToCore<Stream>,
}

/// FBMT served by a poll core.
struct OnCore(Arc<Shared>);

impl Host for OnCore {
    type Session = Stream;

    fn session(&self, _: SocketAddr, _: IpAddr) -> Option<Stream> {
        Some(session(Kind::Memory, &self.0).at_most(POLLED_LONGEST))
    }

    fn room(&self) -> usize {
        Stream::room_for(POLLED_LONGEST)
    }

    fn now(&self) -> Nanos {
        self.0.clock.mono()
    }

    fn accepted(&self) {
        self.0.counters.connections.add(1);
    }

    fn ended(&self, event: Event) {
        count(event, &self.0);
    }
}

fn session(kind: Kind, shared: &Shared) -> Stream {
    Stream::new(kind, &shared.table, &shared.regions, shared.data.clone())
}

fn count(event: Event, shared: &Shared) {
    match event {
        Event::Displaced => shared.counters.connections_displaced.add(1),
        Event::Refused => shared.counters.connections_refused.add(1),
        Event::Expired => shared.counters.connections_timed_out.add(1),
    }
}

/// Accepts until the runtime ends; hands connections to a poll core after their HELLO.
pub(crate) async fn serve_polled(polled: Polled, shared: Arc<Shared>) {
    let limits = Limits { admitted: POLLED.0, per_peer: POLLED.1, ..LIMITS };
    berth_uring::serve(vec![polled.listener], limits, vec![polled.core], Arc::new(OnCore(shared))).await;
}

/// Accepts until the runtime ends.
pub(crate) async fn serve(listener: Listener, kind: Kind, shared: Arc<Shared>) {
    let observer = shared.clone();
    let connections = Connections::new(LIMITS, move |event| count(event, &observer));
    let long = Shares::new(LONG.0, LONG.1);
    let served = listener.serve(connections, |socket, from, pending| {
        shared.counters.connections.add(1);
        let (shared, pump) = (shared.clone(), Pump::new(from.ip(), long.clone()));
        tokio::spawn(async move {
            // A connection that breaks has nobody left to tell.
            if let Ok(End::TimedOut) = connection(socket, from.ip(), pending, (kind, pump), &shared).await {
                count(Event::Expired, &shared);
            }
        });
    });
    if let Err(e) = served.await {
        tracing::error!("{kind:?} over TCP is not served: {e}");
    }
}

async fn connection(
    mut socket: TcpStream,
    from: IpAddr,
    mut pending: Pending<IpAddr>,
    (kind, mut pump): (Kind, Pump<IpAddr>),
    shared: &Shared,
) -> io::Result<End> {
    let mut stream = session(kind, shared);
    let (mut reader, mut writer) = socket.split();
    let now = || shared.clock.mono();
    let greeting = pump.identify(&mut stream, (&mut reader, &mut writer), &now, None);
    let Some(end) = pending.identify(greeting).await else { return Ok(End::Closed) };
    let end = end?;
    if end != End::Identified {
        return Ok(end);
    }
    let Some(mut admitted) = pending.admit(from) else { return Ok(End::Closed) };
    select! {
        end = pump.serve(&mut stream, (&mut reader, &mut writer), &now, None) => end,
        () = admitted.displaced() => Ok(End::Closed),
    }
}
