//! The control plane of one node.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use berth_identity::{Identity, PublicKey, link::Message};
use berth_tls::quic::Alpn;
use berth_wire::fabric::{
    Announce, Bytes, Filter, Frame, List, MAX_MESSAGE, MsgType, Op, Relayed, Request, Response, Solicit, Status,
    Wire as _,
};
use tokio::time::timeout;

use crate::{Error, NodeInfo, Token, quic, udp};

/// Time limit for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// That of an op whose answer waits until something has ended: a tasklet or its compilation, a connection, or a virtual function whose holder is ended first
/// and whose namespace is erased.
const PATIENCE_WITH_ENDS: Duration = Duration::from_secs(30);

fn patience(op: Op) -> Duration {
    match op {
        Op::LeaseFree
        | Op::LeaseBind
        | Op::CapRevoke
        | Op::KeyRevoke
        | Op::TaskletSubmit
        | Op::TaskletCancel
        | Op::TaskletLeaseFree => PATIENCE_WITH_ENDS,
        _ => PATIENCE,
    }
}

/// A connection to the control plane of one node. Operations may run concurrently.
#[derive(Debug)]
pub struct Client {
    identity: Arc<Identity>,
    node: SocketAddr,
    link: Link,
    next_request: AtomicU64,
}

#[derive(Debug)]
enum Link {
    Udp(udp::Link),
    Quic(quic::Link),
}

impl Client {
    /// Talks to a node over UDP. If `key` is given, only answers signed with it are accepted; otherwise nothing proves
    /// that answers come from the node.
    pub async fn udp(identity: Arc<Identity>, node: SocketAddr, key: Option<PublicKey>) -> Result<Self, Error> {
        let link = Link::Udp(udp::Link::open(&identity, node, key).await?);
        Ok(Self { identity, node, link, next_request: AtomicU64::new(1) })
    }

    /// Connects to a node over QUIC. If `key` is given, a node with another key is refused.
    pub async fn quic(identity: Arc<Identity>, node: SocketAddr, key: Option<PublicKey>) -> Result<Self, Error> {
        let opened = timeout(PATIENCE, quic::Link::open(&identity, node, Alpn::Control, key)).await;
        let link = Link::Quic(opened.map_err(|_| too_late(node, PATIENCE))??);
        Ok(Self { identity, node, link, next_request: AtomicU64::new(1) })
    }

    /// The key that this client uses.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Address of the node's control plane.
    pub fn node(&self) -> SocketAddr {
        self.node
    }

    /// The node's key, if the connection has proven it, as QUIC does.
    pub fn node_key(&self) -> Option<PublicKey> {
        match &self.link {
            Link::Udp(_) => None,
            Link::Quic(link) => link.peer(),
        }
    }

    /// Closes the connection properly.
    pub async fn close(self) {
        if let Link::Quic(link) = self.link {
            link.close().await;
        }
    }

    /// Runs one operation and returns its result. `resource` 0 means any; `token` is `None` if the operation needs
    /// none.
    pub async fn call(&self, op: Op, resource: u128, token: Option<&Token>, params: &[u8]) -> Result<Vec<u8>, Error> {
        let (code, token) = (op.code(), token.map_or(&[][..], Token::as_bytes));
        let payload = match &self.link {
            Link::Udp(link) => {
                let make = |client: &mut berth_identity::link::Client, node, key| {
                    client.request(node, key, code, resource, token, params)
                };
                link.exchange(patience(op), make).await?.payload
            }
            Link::Quic(link) => {
                let (token, params) = (Bytes::of(token)?, Bytes::of(params)?);
                let request = Request { op: code, resource_id: resource, token, params, presenter: None };
                self.stream(link, patience(op), MsgType::Request, request.to_vec(), MsgType::Response).await?
            }
        };
        let response = Response::parse(&payload)?;
        if response.op != code {
            return Err(Error::Mismatch);
        }
        match Status::from_code(response.status) {
            Some(Status::Ok) => Ok(response.result.get().to_vec()),
            Some(status) => Err(Error::Refused { op, status }),
            None => Err(Error::UnknownStatus { op, code: response.status }),
        }
    }

    /// Sends a PAGE_REQUEST payload; returns that of the PAGE_RESPONSE.
    pub(crate) async fn exchange_page(&self, request: Vec<u8>) -> Result<Vec<u8>, Error> {
        match &self.link {
            Link::Udp(link) => {
                Ok(link.exchange(PATIENCE, |client, node, key| client.page_request(node, key, request)).await?.payload)
            }
            Link::Quic(link) => self.stream(link, PATIENCE, MsgType::PageRequest, request, MsgType::PageResponse).await,
        }
    }

    /// Announcements that match all `filters`: the node's own, or all that a relay knows.
    pub async fn nodes(&self, filters: &[Filter]) -> Result<Vec<NodeInfo>, Error> {
        let query = Solicit { filters: List::of(filters)?, padding: 0 }.to_vec();
        let payload = match &self.link {
            Link::Udp(link) => {
                link.exchange(PATIENCE, |client, node, key| client.solicit(node, key, query, true)).await?.payload
            }
            Link::Quic(link) => self.stream(link, PATIENCE, MsgType::Solicit, query, MsgType::Response).await?,
        };
        let found = Relayed::parse(&payload)?;
        found.iter().map(|announcement| Ok(NodeInfo::new(&Announce::parse(announcement.get())?))).collect()
    }

    /// One message each way on a new stream.
    async fn stream(
        &self,
        link: &quic::Link,
        patience: Duration,
        kind: MsgType,
        payload: Vec<u8>,
        wanted: MsgType,
    ) -> Result<Vec<u8>, Error> {
        let request_id = self.next_request.fetch_add(1, Relaxed);
        let message = Message {
            kind,
            sender: self.identity.id(),
            request_id,
            nonce: request_id,
            payload: payload.into(),
            v2: false,
            signature: None,
        };
        let exchanged = timeout(patience, link.roundtrip(&message.to_frame())).await;
        let answer = exchanged.map_err(|_| too_late(self.node, patience))??;
        let Frame { header, payload, .. } = Frame::parse(&answer, MAX_MESSAGE)?;
        if (header.msg_type, header.request_id, header.nonce) != (wanted, request_id, request_id) {
            return Err(Error::Mismatch);
        }
        Ok(payload.to_vec())
    }
}

pub(crate) fn too_late(node: SocketAddr, patience: Duration) -> Error {
    Error::Timeout { node, seconds: patience.as_secs() }
}

#[cfg(test)]
mod tests {
    use berth_identity::Identity;
    use tokio::net::UdpSocket;

    use super::*;

    /// Nobody answers.
    #[tokio::test]
    async fn an_op_that_waits_for_an_end_is_waited_for_longer() {
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let node = silent.local_addr().unwrap();
        let client = Client::udp(Identity::generate(getrandom::fill).unwrap().into(), node, None).await.unwrap();
        tokio::select! {
            early = client.call(Op::LeaseFree, 0, None, &[]) => panic!("{early:?}"),
            late = client.call(Op::Ping, 0, None, &[]) => assert!(matches!(late, Err(Error::Timeout { seconds: 5, .. }))),
        }
        let (mut frame, mut asked) = ([0; 2048], 0);
        while silent.try_recv(&mut frame).is_ok() {
            asked += 1;
        }
        // At 0, 0.2, 0.6, 1.4 and 3 s each; at 5 s the second may be first.
        assert!((10..=11).contains(&asked), "{asked}");
    }
}
