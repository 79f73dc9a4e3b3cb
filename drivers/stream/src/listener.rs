//! The accept loop.

use std::{
    hash::Hash,
    io,
    net::{self, SocketAddr},
    sync::Arc,
    time::Duration,
};

use socket2::{Domain, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    task::yield_now,
    time::sleep,
};

use crate::{Connections, Pending};

/// Connections that the kernel holds until they are accepted, if `net.core.somaxconn` allows that many. Beyond, it
/// drops connection requests, which then take a second longer. The usual 128 is a flood of a few milliseconds.
const BACKLOG: i32 = 4096;

/// Time to wait if no descriptor is free for a connection.
const NO_DESCRIPTOR: Duration = Duration::from_millis(50);

/// A TCP socket that listens. Nothing is accepted before [`Listener::serve`].
#[derive(Debug)]
pub struct Listener(net::TcpListener);

impl Listener {
    /// Binds an address, with `SO_REUSEADDR`, and listens; port 0 takes a free one.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking().cloexec(), None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(Self(socket.into()))
    }

    /// The bound address, with the port that the kernel chose.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Accepts until dropped, and passes each connection to `spawn`, which must return at once. Fails if called outside
    /// of a runtime.
    pub async fn serve<K: Eq + Hash + Ord + Clone>(
        self,
        connections: Arc<Connections<K>>,
        mut spawn: impl FnMut(TcpStream, SocketAddr, Pending<K>),
    ) -> io::Result<()> {
        let listener = TcpListener::from_std(self.0)?;
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                sleep(NO_DESCRIPTOR).await;
                continue;
            };
            let full = connections.is_full();
            let pending = connections.enter();
            if full {
                // Whoever gives way goes before the next one comes: a crowd has hardly more tasks than places.
                yield_now().await;
            }
            if stream.set_nodelay(true).is_ok() {
                spawn(stream, from, pending);
            }
        }
    }
}
