//! Control over UDP: requests are repeated, with the same number and nonce, until their answer comes.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use berth_identity::{
    Identity, PublicKey,
    link::{Answer, Client},
};
use berth_port::Nanos;
use berth_wire::fabric::FabricError;
use tokio::{net::UdpSocket, sync::oneshot, task::JoinHandle, time::timeout};

use crate::{Error, client::too_late};

/// How long the first try waits for its answer. Each further one waits twice as long, up to the longest.
const FIRST_TRY: Duration = Duration::from_millis(200);
const LONGEST_TRY: Duration = Duration::from_secs(2);

/// Longest UDP datagram in bytes.
const MAX_DATAGRAM: usize = 65_507;

/// A socket to one node.
#[derive(Debug)]
pub(crate) struct Link {
    node: SocketAddr,
    key: Option<PublicKey>,
    shared: Arc<Shared>,
    receiver: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    client: Client,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Opens a socket to a node. If the node's key is given, answers that it did not sign are dropped.
    pub(crate) async fn open(identity: &Identity, node: SocketAddr, key: Option<PublicKey>) -> Result<Self, Error> {
        let mut first = [0; 8];
        getrandom::fill(&mut first)?;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let client = Client::new(identity.clone(), since_epoch.as_micros() as u64, u64::from_be_bytes(first));
        let any = SocketAddr::new(if node.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
        let connected = async {
            let socket = UdpSocket::bind(any).await?;
            socket.connect(node).await?;
            Ok(socket)
        };
        let socket = connected.await.map_err(|source| Error::Io { node, source })?;
        let state = Mutex::new(State { client, waiting: HashMap::new() });
        let shared = Arc::new(Shared { socket, state });
        let receiver = tokio::spawn(receive(shared.clone(), node));
        Ok(Self { node, key, shared, receiver })
    }

    /// Makes a request by `make`, and repeats it until its answer comes, or its time is over.
    pub(crate) async fn exchange(
        &self,
        patience: Duration,
        make: impl FnOnce(&mut Client, SocketAddr, Option<PublicKey>) -> Result<u64, FabricError>,
    ) -> Result<Answer, Error> {
        let (answered, mut answer) = oneshot::channel();
        let pending = {
            let mut state = self.shared.lock();
            let request_id = make(&mut state.client, self.node, self.key)?;
            state.waiting.insert(request_id, answered);
            Pending { shared: &self.shared, request_id }
        };
        let frames: Vec<_> = self.shared.lock().client.frames(pending.request_id).collect();
        let (mut left, mut wait) = (patience, FIRST_TRY);
        while !left.is_zero() {
            for frame in &frames {
                match self.shared.socket.send(frame).await {
                    // What a former datagram met: the node may be back.
                    Err(e) if e.kind() != io::ErrorKind::ConnectionRefused => {
                        return Err(Error::Io { node: self.node, source: e });
                    }
                    _ => {}
                }
            }
            wait = wait.min(left);
            if let Ok(Ok(answer)) = timeout(wait, &mut answer).await {
                return Ok(answer);
            }
            left -= wait;
            wait = (2 * wait).min(LONGEST_TRY);
        }
        Err(too_late(self.node, patience))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

/// A request under way, which is given up on drop.
struct Pending<'a> {
    shared: &'a Shared,
    request_id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.client.forget(self.request_id);
        state.waiting.remove(&self.request_id);
    }
}

/// Passes answers to the tasks that wait for them.
async fn receive(shared: Arc<Shared>, node: SocketAddr) {
    let started = Instant::now();
    let mut datagram = vec![0; MAX_DATAGRAM];
    loop {
        // An error is that of a datagram sent before.
        let Ok(len) = shared.socket.recv(&mut datagram).await else { continue };
        let now = Nanos(started.elapsed().as_nanos() as u64);
        let mut state = shared.lock();
        if let Some(answer) = state.client.receive(&datagram[..len], node, now)
            && let Some(waiting) = state.waiting.remove(&answer.request_id)
        {
            // Whoever asked may have given up.
            let _ = waiting.send(answer);
        }
    }
}
