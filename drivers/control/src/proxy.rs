//! TCP proxies that live as long as their lease (section "SVC_TCP_BIND").

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use berth_fabric::{BlockingWork, Proxy, Resource, Stock, TeardownFailed};
use berth_lease::{Item, LeaseId, Leases};
use berth_stream::{Admitted, Connections, Event, Limits, Listener};
use berth_wire::fabric::{ResourceType, Status};
use tokio::{
    io::copy_bidirectional,
    net::TcpStream,
    runtime::Handle,
    select,
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

use crate::counters::Counters;

/// Limits on the connections through one proxy. They need no identification, so none is pending for long.
const LIMITS: Limits = Limits { pending: 1, identify_within: Duration::ZERO, admitted: 256, per_peer: 256 };

/// Limit on the ports that proxies listen on at once: the number of ephemeral ports.
const PORTS: u64 = 28_232;

/// All open proxies.
#[derive(Debug)]
pub(crate) struct Proxies {
    runtime: Handle,
    counters: Arc<Counters>,
    open: HashMap<LeaseId, Open>,
}

#[derive(Debug)]
struct Open {
    /// Dropped to stop the task.
    running: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Proxies {
    pub(crate) fn new(runtime: Handle, counters: Arc<Counters>) -> Self {
        Self { runtime, counters, open: HashMap::new() }
    }

    /// Listens on 127.0.0.1 and forwards to `proxy.backend` there until the lease ends. Returns the port that it
    /// listens on; `None` if that fails.
    fn open(&mut self, lease: LeaseId, proxy: Proxy) -> Option<u16> {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, proxy.ingress).into()).ok()?;
        let port = listener.local_addr().ok()?.port();
        let (running, stopped) = oneshot::channel();
        let task = self.runtime.spawn(serve(listener, proxy.backend, self.counters.clone(), stopped));
        let before = self.open.insert(lease, Open { running, task });
        debug_assert!(before.is_none(), "a lease has one proxy");
        Some(port)
    }
}

impl Resource for Proxies {
    fn kind(&self) -> ResourceType {
        ResourceType::Net
    }

    fn name(&self) -> &'static str {
        "tcp-proxy"
    }

    fn stock(&self, _: &Leases) -> Stock {
        let available = PORTS.saturating_sub(self.open.len() as u64);
        Stock { capacity: PORTS, available, fenced: false }
    }

    fn counts_as(&self) -> Option<Item> {
        Some(Item::Proxies)
    }

    fn grant(&mut self, lease: LeaseId, wanted: &[u8]) -> Result<Vec<u8>, Status> {
        let wanted = Proxy::from_bytes(wanted).ok_or(Status::InvalidParams)?;
        let ingress = self.open(lease, wanted).ok_or(Status::CapacityExceeded)?;
        Ok(Proxy { ingress, ..wanted }.to_bytes())
    }

    /// Begins to close the listener and all of its connections. Once the work is done, no byte passes any more.
    fn end(&mut self, lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        let Some(Open { running, task }) = self.open.remove(&lease) else { return Ok(None) };
        drop(running);
        let runtime = self.runtime.clone();
        Ok(Some(BlockingWork::new(move || {
            // One that panicked has ended, too.
            let _ = runtime.block_on(task);
        })))
    }

    /// Reopens the proxy on the port that it had.
    fn recover(&mut self, lease: LeaseId, unit: &[u8]) -> bool {
        Proxy::from_bytes(unit).is_some_and(|proxy| self.open(lease, proxy) == Some(proxy.ingress))
    }
}

/// Forwards connections until it is stopped; returns when all of them have ended.
async fn serve(listener: Listener, backend: u16, counters: Arc<Counters>, stopped: oneshot::Receiver<()>) {
    let of_events = counters.clone();
    let connections = Connections::new(LIMITS, move |event| match event {
        Event::Displaced => of_events.connections_displaced.add(1),
        Event::Refused => of_events.connections_refused.add(1),
        Event::Expired => of_events.connections_timed_out.add(1),
    });
    let mut tasks = JoinSet::new();
    let served = listener.serve(connections, |client, from, pending| {
        while tasks.try_join_next().is_some() {}
        if let Some(admitted) = pending.admit(from.ip()) {
            counters.proxy_connections.add(1);
            tasks.spawn(forward(client, backend, admitted));
        }
    });
    select! {
        biased;
        _ = stopped => {}
        served = served => if let Err(e) = served {
            tracing::error!("a proxy is not served: {e}");
        }
    }
    tasks.shutdown().await;
}

async fn forward(mut client: TcpStream, backend: u16, mut admitted: Admitted<IpAddr>) {
    let forwarded = async {
        if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, backend)).await {
            // Either side may break at any time, and nobody is left to tell.
            let _ = copy_bidirectional(&mut client, &mut server).await;
        }
    };
    select! {
        () = forwarded => {}
        () = admitted.displaced() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream as StdStream},
    };

    use super::*;

    /// The clients of these connections send all the time. When the proxy is closed, the backend has received only what
    /// was sent before.
    #[test]
    fn nothing_passes_a_proxy_that_is_closed() {
        const CONNECTIONS: usize = 64;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut proxies = Proxies::new(runtime.handle().clone(), Arc::default());
        let lease = LeaseId(1);
        let proxy = Proxy { ingress: 0, backend: backend.local_addr().unwrap().port() };
        let port = proxies.open(lease, proxy).unwrap();
        let mut pairs: Vec<(StdStream, StdStream)> = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = StdStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            let mut server = backend.accept().unwrap().0;
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
            pairs.push((client, server));
        }
        proxies.end(lease).unwrap().unwrap().run();
        for (client, server) in &mut pairs {
            let _ = client.write_all(b"y");
            assert!(matches!(server.read(&mut [0]), Ok(0) | Err(_)), "a byte passed");
        }
        assert!(StdStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
        assert!(proxies.end(lease).unwrap().is_none());
    }

    #[test]
    fn a_proxy_has_so_many_connections_and_takes_more_when_one_has_ended() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut proxies = Proxies::new(runtime.handle().clone(), Arc::default());
        let proxy = Proxy { ingress: 0, backend: backend.local_addr().unwrap().port() };
        let port = proxies.open(LeaseId(1), proxy).unwrap();
        let connect = || {
            let client = StdStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            client
        };
        let mut pairs: Vec<_> = (0..LIMITS.admitted).map(|_| (connect(), backend.accept().unwrap().0)).collect();
        assert_eq!(connect().read(&mut [0]).unwrap(), 0, "one too many");
        drop(pairs.pop());
        // The proxy has closed both sides before there is room again.
        let (mut client, mut server) = loop {
            let mut client = connect();
            if client.read(&mut [0]).is_err() {
                break (client, backend.accept().unwrap().0);
            }
        };
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
}
