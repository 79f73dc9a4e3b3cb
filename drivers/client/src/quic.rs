//! Connections over QUIC.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_identity::{Identity, PublicKey};
use berth_tls::quic::{self, Alpn};
use berth_wire::fabric::{FabricError, MAX_MESSAGE};
use quinn::{ClientConfig, Connection, Endpoint, ReadError, ReadToEndError, TransportConfig, VarInt};

use crate::Error;

/// Interval of keep-alives on a silent connection; less than a node's idle timeout.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Limit on the bytes of a frame around its payload.
const FRAME_OVERHEAD: usize = 52 + 64;

/// One connection to a node, for one ALPN protocol.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) node: SocketAddr,
    pub(crate) connection: Connection,
    /// Kept as long as the connection is used.
    endpoint: Endpoint,
}

impl Link {
    /// Connects with this identity; the node's key must be `expected` if that is given.
    pub(crate) async fn open(
        identity: &Identity,
        node: SocketAddr,
        alpn: Alpn,
        expected: Option<PublicKey>,
    ) -> Result<Self, Error> {
        let io = |source| Error::Io { node, source };
        let admit = Arc::new(move |key: &PublicKey| expected.is_none_or(|expected| expected == *key));
        let mut config = ClientConfig::new(Arc::new(quic::client_config(identity, alpn, admit)?));
        let mut transport = TransportConfig::default();
        transport.keep_alive_interval(Some(KEEP_ALIVE));
        config.transport_config(Arc::new(transport));
        let local = SocketAddr::new(if node.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }, 0);
        let endpoint = Endpoint::client(local).map_err(io)?;
        let connecting = endpoint
            .connect_with(config, node, &node.ip().to_string())
            .map_err(|source| Error::Connect { node, source })?;
        let connection = connecting.await.map_err(|source| Error::Connection { node, source })?;
        Ok(Self { node, connection, endpoint })
    }

    pub(crate) fn failed(&self, source: quinn::ConnectionError) -> Error {
        match source {
            quinn::ConnectionError::ApplicationClosed(_) => Error::Closed,
            source => Error::Connection { node: self.node, source },
        }
    }

    /// The node's key, proven by the handshake.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        quic::peer_key(&self.connection)
    }

    /// One frame each way on a new stream.
    pub(crate) async fn roundtrip(&self, frame: &[u8]) -> Result<Vec<u8>, Error> {
        self.stream(frame, MAX_MESSAGE + FRAME_OVERHEAD).await
    }

    /// One message each way on a new stream; the answer may have at most `most` bytes.
    pub(crate) async fn stream(&self, request: &[u8], most: usize) -> Result<Vec<u8>, Error> {
        let (mut send, mut receive) = self.connection.open_bi().await.map_err(|e| self.failed(e))?;
        let written = send.write_all(request).await;
        written.and_then(|()| Ok(send.finish()?)).map_err(|_| Error::Closed)?;
        receive.read_to_end(most).await.map_err(|e| match e {
            ReadToEndError::Read(ReadError::ConnectionLost(source)) => self.failed(source),
            ReadToEndError::Read(_) => Error::Closed,
            ReadToEndError::TooLong => FabricError::Limit("answer").into(),
        })
    }

    /// Tells the node that the connection ends, and waits until that was sent.
    pub(crate) async fn close(self) {
        self.connection.close(VarInt::from_u32(0), b"");
        self.endpoint.wait_idle().await;
    }
}
