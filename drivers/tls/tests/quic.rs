//! Two endpoints on loopback: who is accepted, and what the handshake proves.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use berth_identity::{Identity, PublicKey};
use berth_tls::{
    key_file,
    quic::{self, Admit, Alpn},
};
use quinn::{ClientConfig, Connection, Endpoint, ServerConfig};

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

fn only(key: PublicKey) -> Admit {
    Arc::new(move |found| *found == key)
}

struct Pair {
    server: Identity,
    client: Identity,
}

impl Pair {
    fn new() -> Self {
        Self { server: key_file::generate().unwrap(), client: key_file::generate().unwrap() }
    }

    /// Connects, and waits until both sides have accepted each other.
    async fn connect(&self, alpn: Alpn, admitted: PublicKey, expected: PublicKey) -> Option<[Connection; 2]> {
        let tls = quic::server_config(&self.server, only(admitted)).unwrap();
        let listener = Endpoint::server(ServerConfig::with_crypto(Arc::new(tls)), LOCAL).unwrap();
        let address = listener.local_addr().unwrap();
        let tls = quic::client_config(&self.client, alpn, only(expected)).unwrap();
        let caller = Endpoint::client(LOCAL).unwrap();
        let connecting = caller.connect_with(ClientConfig::new(Arc::new(tls)), address, "127.0.0.1").unwrap();
        let accepted = tokio::spawn(async move { listener.accept().await.unwrap().await });
        let both = tokio::time::timeout(Duration::from_secs(5), async {
            let client = connecting.await.ok()?;
            // The client learns that it is refused only after its side of the handshake.
            let server = accepted.await.unwrap().ok()?;
            Some([client, server])
        });
        both.await.expect("no hang")
    }
}

#[tokio::test]
async fn both_sides_know_each_others_keys() {
    let pair = Pair::new();
    let (server, client) = (*pair.server.public_key(), *pair.client.public_key());
    for alpn in [Alpn::Control, Alpn::Memory, Alpn::Block] {
        let [near, far] = pair.connect(alpn, client, server).await.unwrap();
        assert_eq!((quic::peer_key(&near), quic::peer_key(&far)), (Some(server), Some(client)));
        assert_eq!((Alpn::of(&near), Alpn::of(&far)), (Some(alpn), Some(alpn)));
    }
}

#[tokio::test]
async fn unknown_peers_are_refused_on_either_side() {
    let pair = Pair::new();
    let (server, client) = (*pair.server.public_key(), *pair.client.public_key());
    let other = *key_file::generate().unwrap().public_key();
    assert!(pair.connect(Alpn::Control, other, server).await.is_none(), "an unenrolled client");
    assert!(pair.connect(Alpn::Control, client, other).await.is_none(), "an impostor of the node");
}
