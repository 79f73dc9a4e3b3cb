//! A QUIC connection belongs to the address that its handshake has proven, which is what SOURCE_IP is compared with.

use std::{
    net::{Ipv4Addr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use berth_tls::quic::{Alpn, client_config};
use berth_wire::fabric::Op;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, default_runtime};
use tokio::time::timeout;

use crate::common::{LOCAL, ask, clients, count, endpoint, memory, request, start, who};

/// The answer to a PING.
async fn ping(connection: Connection) -> Vec<u8> {
    let (_, mut answer) = ask(&connection, &request(2, Op::Ping, &[], &[])).await;
    answer.read_to_end(1024).await.unwrap()
}

#[test]
fn a_connection_does_not_move_to_another_address() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), memory(1 << 20), Vec::new());
    clients(async {
        let first = UdpSocket::bind(LOCAL).unwrap();
        let (runtime, again) = (default_runtime().unwrap(), first.try_clone().unwrap());
        let client = Endpoint::new(EndpointConfig::default(), None, first, runtime).unwrap();
        let crypto = client_config(&who(2), Alpn::Control, Arc::new(|_| true)).unwrap();
        let config = ClientConfig::new(Arc::new(crypto));
        let connection = client.connect_with(config, endpoint(&control, "quic"), "berth").unwrap().await.unwrap();
        assert!(!ping(connection.clone()).await.is_empty());

        // All that comes from the other address is ignored, and the connection lives.
        client.rebind(UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap()).unwrap();
        let mut moved = tokio::spawn(ping(connection.clone()));
        assert!(timeout(Duration::from_secs(1), &mut moved).await.is_err(), "it was served at another address");
        client.rebind(again).unwrap();
        assert!(!timeout(Duration::from_secs(10), moved).await.expect("it is served where it was").unwrap().is_empty());
    });
    assert_eq!(count(&control.stop(Duration::from_secs(1)), "op_ping"), 2);
}
