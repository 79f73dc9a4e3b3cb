//! FBMT and FBBT over TCP: one connection, one lease.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use berth_lease_io::Stream;
use berth_stream::{Connections, End, Event, LONG, Limits, Listener, Pending, Pump, Shares};
use berth_wire::fabric::data::stream::Kind;
use tokio::{net::TcpStream, select};

use crate::Shared;

/// Connections of one listener: pending ones have not named their lease yet.
const LIMITS: Limits =
    Limits { pending: 512, identify_within: Duration::from_secs(10), admitted: 4096, per_peer: 1024 };

/// Accepts until the runtime ends.
pub(crate) async fn serve(listener: Listener, kind: Kind, shared: Arc<Shared>) {
    let counters = shared.counters.clone();
    let connections = Connections::new(LIMITS, move |event| match event {
        Event::Displaced => counters.connections_displaced.add(),
        Event::Refused => counters.connections_refused.add(),
        Event::Expired => counters.connections_timed_out.add(),
    });
    let long = Shares::new(LONG.0, LONG.1);
    let served = listener.serve(connections, |socket, from, pending| {
        shared.counters.connections.add();
        let (shared, pump) = (shared.clone(), Pump::new(from.ip(), long.clone()));
        tokio::spawn(async move {
            // A connection that breaks has nobody left to tell.
            if let Ok(End::TimedOut) = connection(socket, from.ip(), pending, (kind, pump), &shared).await {
                shared.counters.connections_timed_out.add();
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
    let mut stream = Stream::new(kind, &shared.table, &shared.regions, shared.data.clone());
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
