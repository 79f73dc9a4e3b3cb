//! The listener, on its own thread.

use std::{
    io,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
};

use berth_port::Nanos;
use berth_stream::{Connections, End, Event, Limits as Crowd, Listener, Pending, Pump, Shares};
use socket2::{SockRef, TcpKeepalive};
use tokio::{net::TcpStream, select, sync::oneshot, task::LocalSet, time::sleep};

use crate::{Acceptor, DEAD_AFTER, Form, Limits, TICK, counters::Counters, exchange::Exchange, peers::Peers};

/// Limit on connections whose request has not arrived.
const PENDING: usize = 64;

/// A listener with its thread. Dropping it stops the thread, which drops the acceptor.
#[derive(Debug)]
pub struct Rendezvous {
    local: SocketAddr,
    counters: Arc<Counters>,
    /// Dropped to stop the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Binds `addr` and serves it on a new thread, which inherits the caller's CPU affinity.
    pub fn listen(addr: SocketAddr, form: Form, limits: Limits, acceptor: impl Acceptor) -> io::Result<Self> {
        let listener = Listener::bind(addr)?;
        let local = listener.local_addr()?;
        let counters = Arc::<Counters>::default();
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counts = counters.clone();
        let thread = thread::Builder::new().name("rendezvous".into()).spawn(move || {
            let tasks = LocalSet::new();
            let peers = Rc::new(Peers::new(limits, counts, acceptor));
            tasks.block_on(&runtime, async {
                select! {
                    _ = accept(listener, form, limits, &peers) => {}
                    () = tick(&peers) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { local, counters, stop: Some(stop), thread: Some(thread) })
    }

    /// The address that peers connect to.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Reports `rendezvous_peers` (taken), `rendezvous_gone`, `rendezvous_refused` (by the port), `rendezvous_full`
    /// (over the limit of peers), `rendezvous_displaced` (without a request when newcomers needed their places),
    /// `rendezvous_malformed` and `rendezvous_timed_out`.
    pub fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.counters.report(visit);
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic in the acceptor has been reported by its thread.
            let _ = thread.join();
        }
    }
}

async fn accept<A: Acceptor>(listener: Listener, form: Form, limits: Limits, peers: &Rc<Peers<A>>) -> io::Result<()> {
    let counters = peers.counters.clone();
    // Who becomes a peer is decided with the offer.
    let crowd = Crowd { pending: PENDING, identify_within: limits.request_within, admitted: 0, per_peer: 0 };
    let connections = Connections::new(crowd, move |event| match event {
        Event::Displaced => counters.displaced.add(1),
        Event::Refused => {}
        Event::Expired => counters.timed_out.add(1),
    });
    let spawn = |stream, from, pending| {
        let exchange = Exchange::new(form, peers.clone(), from);
        // Whoever's connection breaks is gone.
        tokio::task::spawn_local(connection(stream, exchange, pending));
    };
    listener.serve(connections, spawn).await
}

/// One connection, from its request to its end.
async fn connection<A: Acceptor>(
    mut stream: TcpStream,
    mut exchange: Exchange<A>,
    mut pending: Pending<()>,
) -> io::Result<()> {
    watch(&stream)?;
    let (mut reader, mut writer) = stream.split();
    // No message is long, and none of them depends on the time.
    let (mut pump, now) = (Pump::new((), Shares::new(0, 0)), Nanos::default);
    let offered = pump.identify(&mut exchange, (&mut reader, &mut writer), &now, None);
    let offered = pending.identify(offered).await.transpose()?;
    drop(pending);
    if offered == Some(End::Identified) {
        pump.serve(&mut exchange, (&mut reader, &mut writer), &now, None).await?;
    }
    Ok(())
}

async fn tick<A: Acceptor>(peers: &Peers<A>) {
    loop {
        sleep(TICK).await;
        peers.tick();
    }
}

/// Lets the kernel notice a host that died silently.
fn watch(stream: &TcpStream) -> io::Result<()> {
    const PROBES: u32 = 4;
    let every = DEAD_AFTER / (PROBES + 1);
    let keepalive = TcpKeepalive::new().with_time(every).with_interval(every).with_retries(PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(DEAD_AFTER))
}
