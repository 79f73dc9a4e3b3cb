//! Connections that are accepted on threads that sleep, and served on poll cores once their peers are identified.

use std::{
    io,
    net::{IpAddr, Shutdown, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use berth_port::{Nanos, Session};
use berth_stream::{Admitted, Connections, End, Event, LONG, Limits, Listener, Pending, Pump, Shares};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    select,
    sync::oneshot,
    time::{interval, timeout},
};

use crate::{Connection, ToCore, streams::LINGER};

/// How often connections that are over come back from a poll core.
const RETURN_EVERY: Duration = Duration::from_millis(20);

/// The service behind listeners: its sessions, its clock, its counters.
pub trait Host: Send + Sync + 'static {
    /// The server's side of a connection.
    type Session: Session + Send + 'static;

    /// The session of a new connection of `peer`, which reached this node at `local`; `None` closes it.
    fn session(&self, local: SocketAddr, peer: IpAddr) -> Option<Self::Session>;

    /// Room for what a poll core receives and sends of a connection at once, in bytes.
    fn room(&self) -> usize;

    /// The monotonic time, by the clock of the poll cores.
    fn now(&self) -> Nanos;

    /// A connection was accepted; its peer has said nothing yet.
    fn accepted(&self);

    /// A connection was ended by this node, for this reason.
    fn ended(&self, event: Event);
}

/// Poll cores, which get connections in turn.
struct Cores<S> {
    cores: Vec<Mutex<ToCore<S>>>,
}

impl<S> Cores<S> {
    fn lock(&self, nth: usize) -> MutexGuard<'_, ToCore<S>> {
        self.cores[nth % self.cores.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_back(&self) {
        let mut ticks = interval(RETURN_EVERY);
        loop {
            ticks.tick().await;
            self.drop_returned();
        }
    }

    /// Drops the connections that are over; how many they were.
    fn drop_returned(&self) -> usize {
        (0..self.cores.len()).map(|nth| self.lock(nth).returned().map(drop).count()).sum()
    }
}

/// Accepts until the runtime ends, and leaves whoever is identified to the `cores`, of which there is one at least.
pub async fn serve<H: Host>(listeners: Vec<Listener>, limits: Limits, cores: Vec<ToCore<H::Session>>, host: Arc<H>) {
    let cores = Arc::new(Cores { cores: cores.into_iter().map(Mutex::new).collect() });
    let observer = host.clone();
    let connections = Connections::new(limits, move |event| observer.ended(event));
    let long = Shares::new(LONG.0, LONG.1);
    let mut accepting = tokio::task::JoinSet::new();
    for listener in listeners {
        let (cores, host, long, mut nth) = (cores.clone(), host.clone(), long.clone(), 0);
        accepting.spawn(listener.serve(connections.clone(), move |socket, from, pending| {
            host.accepted();
            let (cores, host, pump) = (cores.clone(), host.clone(), Pump::new(from.ip(), long.clone()));
            nth += 1;
            tokio::spawn(async move {
                // A connection that breaks has nobody left to tell.
                if let Ok(End::TimedOut) = connection(socket, from.ip(), pending, pump, (&cores, nth), &*host).await {
                    host.ended(Event::Expired);
                }
            });
        }));
    }
    select! {
        Some(ended) = accepting.join_next() => tracing::error!("connections are not accepted any more: {ended:?}"),
        () = cores.take_back() => {}
    }
}

async fn connection<H: Host>(
    mut socket: TcpStream,
    from: IpAddr,
    mut pending: Pending<IpAddr>,
    mut pump: Pump<IpAddr>,
    (cores, nth): (&Cores<H::Session>, usize),
    host: &H,
) -> io::Result<End> {
    let Some(mut session) = host.session(socket.local_addr()?, from) else { return Ok(End::Closed) };
    let (mut reader, mut writer) = socket.split();
    let now = || host.now();
    let greeting = pump.identify(&mut session, (&mut reader, &mut writer), &now, None);
    let Some(end) = pending.identify(greeting).await else { return Ok(End::Closed) };
    match end? {
        End::Identified => {}
        End::Closed => {
            linger(socket).await;
            return Ok(End::Closed);
        }
        End::TimedOut => return Ok(End::TimedOut),
    }
    // Who comes back at once finds the place that it had.
    if cores.drop_returned() > 0 {
        tokio::task::yield_now().await;
    }
    let Some(admitted) = pending.admit(from) else { return Ok(End::Closed) };
    hand_over(socket, session, pump, admitted, (cores, nth), host.room()).await?;
    Ok(End::Closed)
}

/// Has a poll core serve the connection to its end, or until it gives way.
async fn hand_over<S: Session>(
    socket: TcpStream,
    session: S,
    pump: Pump<IpAddr>,
    mut admitted: Admitted<IpAddr>,
    (cores, nth): (&Cores<S>, usize),
    room: usize,
) -> io::Result<()> {
    let socket = socket.into_std()?;
    socket.set_nonblocking(false)?;
    let (token, over) = oneshot::channel::<()>();
    let handle = socket.try_clone()?;
    let connection = Connection::new(socket, session, pump.received(), room, token);
    // Its buffers are not needed any more, and the connection may last.
    drop(pump);
    // A core that is gone, or has as many as it may, drops it.
    drop(cores.lock(nth).send(Box::new(connection)));
    select! {
        _ = over => Ok(()),
        () = admitted.displaced() => handle.shutdown(Shutdown::Both),
    }
}

/// Closes our direction, and takes what comes until the peer closes its own or is late: a socket with input that nobody
/// took is reset, and the last bytes to the peer with it.
async fn linger(mut socket: TcpStream) {
    let close = async {
        socket.shutdown().await?;
        let mut thrown_away = [0; 1024];
        while socket.read(&mut thrown_away).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    // It is over in any case.
    let _ = timeout(LINGER, close).await;
}
