//! FBMT and FBBT over TCP: one connection, one lease.

use std::{
    io,
    net::{IpAddr, Shutdown},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_lease_io::Stream;
use berth_port::Sender;
use berth_stream::{Connections, End, Event, LONG, Limits, Listener, Pending, Pump, Shares};
use berth_uring::Connection;
use berth_wire::fabric::data::stream::Kind;
use tokio::{net::TcpStream, select, sync::oneshot, time::interval};

use crate::Shared;

/// Connections of one listener: pending ones have not named their lease yet.
const LIMITS: Limits =
    Limits { pending: 512, identify_within: Duration::from_secs(10), admitted: 4096, per_peer: 1024 };

/// Connections that a poll core has at once: its limit on admitted ones, and of one peer among them.
pub const POLLED: (usize, usize) = (512, 128);

/// The longest operation there in bytes: a connection has buffers of that length from the beginning.
const POLLED_LONGEST: u32 = 64 << 10;

/// How often connections that are over come back from a poll core.
const RETURN_EVERY: Duration = Duration::from_millis(20);

/// Hands connections to a poll core, and takes them back when they are over.
pub type ToCore = Sender<Box<Connection<Stream>>, Box<Connection<Stream>>>;

/// A poll core that serves FBMT: where its peers connect, and what they are handed over by once they have greeted.
#[derive(Debug)]
pub struct Polled {
    /// Bound already.
    pub listener: Listener,
    /// To the task of the core.
    pub core: ToCore,
}

#[derive(Debug)]
struct Core(Mutex<ToCore>);

impl Core {
    fn lock(&self) -> MutexGuard<'_, ToCore> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts until the runtime ends, and leaves what greets to a poll core.
pub(crate) async fn serve_polled(polled: Polled, shared: Arc<Shared>) {
    let core = Arc::new(Core(Mutex::new(polled.core)));
    let limits = Limits { admitted: POLLED.0, per_peer: POLLED.1, ..LIMITS };
    let returns = async {
        let mut ticks = interval(RETURN_EVERY);
        loop {
            ticks.tick().await;
            core.lock().returned().for_each(drop);
        }
    };
    select! {
        () = accept(polled.listener, Kind::Memory, limits, Some(core.clone()), shared) => {}
        () = returns => {}
    }
}

/// Accepts until the runtime ends.
pub(crate) async fn serve(listener: Listener, kind: Kind, shared: Arc<Shared>) {
    accept(listener, kind, LIMITS, None, shared).await;
}

async fn accept(listener: Listener, kind: Kind, limits: Limits, core: Option<Arc<Core>>, shared: Arc<Shared>) {
    let counters = shared.counters.clone();
    let connections = Connections::new(limits, move |event| match event {
        Event::Displaced => counters.connections_displaced.add(),
        Event::Refused => counters.connections_refused.add(),
        Event::Expired => counters.connections_timed_out.add(),
    });
    let long = Shares::new(LONG.0, LONG.1);
    let served = listener.serve(connections, |socket, from, pending| {
        shared.counters.connections.add();
        let (shared, core, pump) = (shared.clone(), core.clone(), Pump::new(from.ip(), long.clone()));
        tokio::spawn(async move {
            // A connection that breaks has nobody left to tell.
            if let Ok(End::TimedOut) =
                connection(socket, from.ip(), pending, (kind, pump), core.as_deref(), &shared).await
            {
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
    core: Option<&Core>,
    shared: &Shared,
) -> io::Result<End> {
    let mut stream = Stream::new(kind, &shared.table, &shared.regions, shared.data.clone());
    if core.is_some() {
        stream = stream.at_most(POLLED_LONGEST);
    }
    let (mut reader, mut writer) = socket.split();
    let now = || shared.clock.mono();
    let greeting = pump.identify(&mut stream, (&mut reader, &mut writer), &now, None);
    let Some(end) = pending.identify(greeting).await else { return Ok(End::Closed) };
    let end = end?;
    if end != End::Identified {
        return Ok(end);
    }
    let Some(mut admitted) = pending.admit(from) else { return Ok(End::Closed) };
    if let Some(core) = core {
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        let (token, over) = oneshot::channel::<()>();
        let handle = socket.try_clone()?;
        let room = Stream::room_for(POLLED_LONGEST);
        let connection = Connection::new(socket, stream, pump.received(), room, token);
        // A core that is gone, or has as many as it may, drops it.
        drop(core.lock().send(Box::new(connection)));
        select! {
            _ = over => {}
            () = admitted.displaced() => handle.shutdown(Shutdown::Both)?,
        }
        return Ok(End::Closed);
    }
    select! {
        end = pump.serve(&mut stream, (&mut reader, &mut writer), &now, None) => end,
        () = admitted.displaced() => Ok(End::Closed),
    }
}
