//! FBMT and FBBT over TCP: one connection, one lease.

use std::{io, sync::Arc, time::Duration};

use berth_lease_io::Stream;
use berth_wire::fabric::data::stream::Kind;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, sleep},
};

use crate::{
    Shared,
    pump::{End, Pump},
};

/// Connections of one listener.
const MAX_CONNECTIONS: usize = 4096;

/// How long a connection may take to name its lease.
const GREET_WITHIN: Duration = Duration::from_secs(10);

/// Accepts until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, kind: Kind, shared: Arc<Shared>) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Out of descriptors: wait for some to come back.
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            shared.counters.connections_refused.add();
            continue;
        };
        shared.counters.connections.add();
        let shared = shared.clone();
        tokio::spawn(async move {
            // A connection that breaks has nobody left to tell.
            if let Ok(End::TimedOut) = connection(socket, kind, &shared).await {
                shared.counters.connections_timed_out.add();
            }
            drop(slot);
        });
    }
}

async fn connection(mut socket: TcpStream, kind: Kind, shared: &Shared) -> io::Result<End> {
    socket.set_nodelay(true)?;
    let mut stream = Stream::new(kind, &shared.table, &shared.regions, shared.data.clone());
    let mut pump = Pump::default();
    let (mut reader, mut writer) = socket.split();
    let deadline = Some(Instant::now() + GREET_WITHIN);
    let greeted = |stream: &Stream| stream.sibling().is_some();
    let end = pump.run(&mut stream, (&mut reader, &mut writer), &shared.clock, deadline, greeted).await?;
    if end != End::Reached {
        return Ok(end);
    }
    pump.run(&mut stream, (&mut reader, &mut writer), &shared.clock, None, |_| false).await
}
