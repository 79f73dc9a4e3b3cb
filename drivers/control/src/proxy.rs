//! TCP proxies that live as long as their lease (section "SVC_TCP_BIND").

use std::{
    collections::HashMap,
    net::{Ipv4Addr, TcpListener as StdListener},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use berth_fabric::journal::Proxy;
use berth_lease::LeaseId;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Handle,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use crate::counters::Counters;

/// Connections through one proxy.
const MAX_CONNECTIONS: usize = 256;

/// Every proxy that is open.
#[derive(Debug)]
pub(crate) struct Proxies {
    runtime: Handle,
    counters: Arc<Counters>,
    open: Mutex<HashMap<LeaseId, AbortHandle>>,
}

impl Proxies {
    pub(crate) fn new(runtime: Handle, counters: Arc<Counters>) -> Self {
        Self { runtime, counters, open: Mutex::default() }
    }

    /// Listens on 127.0.0.1 and forwards to `proxy.backend` there, until [`Proxies::close`]. Returns the port that it
    /// listens on, or `None` where it cannot.
    pub(crate) fn open(&self, lease: LeaseId, proxy: Proxy) -> Option<u16> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, proxy.ingress)).ok()?;
        listener.set_nonblocking(true).ok()?;
        let port = listener.local_addr().ok()?.port();
        let _within = self.runtime.enter();
        let listener = TcpListener::from_std(listener).ok()?;
        let task = self.runtime.spawn(serve(listener, proxy.backend, self.counters.clone()));
        let before = self.lock().insert(lease, task.abort_handle());
        debug_assert!(before.is_none(), "a lease has one proxy");
        Some(port)
    }

    /// Closes a lease's listener and all of its connections.
    pub(crate) fn close(&self, lease: LeaseId) {
        if let Some(task) = self.lock().remove(&lease) {
            task.abort();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LeaseId, AbortHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forwards connections until the task is aborted, which aborts those of the set with it.
async fn serve(listener: TcpListener, backend: u16, counters: Arc<Counters>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) if connections.len() < MAX_CONNECTIONS => {
                    counters.proxy_connections.add();
                    connections.spawn(forward(client, backend));
                }
                Ok(_) => counters.connections_refused.add(),
                // Out of descriptors: wait for some to come back.
                Err(_) => sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn forward(mut client: TcpStream, backend: u16) {
    if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, backend)).await {
        // Either side may break at any time, and nobody is left to tell.
        let _ = copy_bidirectional(&mut client, &mut server).await;
    }
}
