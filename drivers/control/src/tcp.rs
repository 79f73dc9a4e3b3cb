//! FBMT and FBBT over TCP: one connection, one lease.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use berth_lease_io::Stream;
use berth_lobby::{Limits, Lobby, Refused, Shares, Stranger};
use berth_wire::fabric::data::stream::Kind;
use tokio::{
    net::{TcpListener, TcpStream},
    select,
    task::yield_now,
    time::{Instant, sleep},
};

use crate::{
    Shared,
    pump::{self, End, Pump},
};

/// Connections of one listener: strangers have not named their lease yet.
const LIMITS: Limits = Limits { strangers: 512, guests: 4096, per_peer: 1024 };

/// How long a connection may take to name its lease.
const GREET_WITHIN: Duration = Duration::from_secs(10);

/// Accepts until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, kind: Kind, shared: Arc<Shared>) {
    let lobby = Lobby::new(LIMITS);
    let long = Shares::new(pump::LONG.0, pump::LONG.1);
    loop {
        let Ok((socket, from)) = listener.accept().await else {
            // Out of descriptors: wait for some to come back.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        shared.counters.connections.add();
        let (stranger, crowded) = lobby.enter();
        if crowded {
            shared.counters.connections_displaced.add();
            // Whoever gave way goes before the next one comes: a crowd has hardly more tasks than places.
            yield_now().await;
        }
        let (shared, pump) = (shared.clone(), Pump::new(from.ip(), long.clone()));
        tokio::spawn(async move {
            // A connection that breaks has nobody left to tell.
            if let Ok(End::TimedOut) = connection(socket, from.ip(), stranger, (kind, pump), &shared).await {
                shared.counters.connections_timed_out.add();
            }
        });
    }
}

async fn connection(
    mut socket: TcpStream,
    from: IpAddr,
    mut stranger: Stranger<IpAddr>,
    (kind, mut pump): (Kind, Pump<IpAddr>),
    shared: &Shared,
) -> io::Result<End> {
    socket.set_nodelay(true)?;
    let mut stream = Stream::new(kind, &shared.table, &shared.regions, shared.data.clone());
    let (mut reader, mut writer) = socket.split();
    let deadline = Some(Instant::now() + GREET_WITHIN);
    let greeted = |stream: &Stream| stream.sibling().is_some();
    let end = select! {
        end = pump.run(&mut stream, (&mut reader, &mut writer), &shared.clock, deadline, greeted) => end?,
        () = stranger.displaced() => End::Closed,
    };
    if end != End::Reached {
        return Ok(end);
    }
    let mut guest = match stranger.admit(from) {
        Ok(guest) => guest,
        Err(refused) => {
            if refused == Refused::Full {
                shared.counters.connections_refused.add();
            }
            return Ok(End::Closed);
        }
    };
    select! {
        end = pump.run(&mut stream, (&mut reader, &mut writer), &shared.clock, None, |_| false) => end,
        () = guest.displaced() => {
            shared.counters.connections_displaced.add();
            Ok(End::Closed)
        }
    }
}
