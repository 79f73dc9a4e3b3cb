//! The time of a tenant's renewals while another holds all that it may of the control plane, as JSON lines:
//! `cargo run --release -p berth-client --example renew_bench -- CONTROL IDENTITY OTHER`.
//!
//! CONTROL is the QUIC address of a node; IDENTITY and OTHER are key files of two enrolled clients. Each line is one
//! turn: the p99 of a renewal in microseconds, first alone, then while the other has as many requests in hand as it may
//! and never takes their answers.
#![allow(clippy::doc_markdown)] // the documents' names of ops

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client};
use berth_identity::{Identity, link::Message};
use berth_tls::quic::{Alpn, client_config};
use berth_wire::fabric::{Bytes, MsgType, Op, Perms, Request, Wire as _};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, TransportConfig, VarInt};

const TURNS: usize = 5;
const RENEWALS: usize = 1000;
/// Connections that one key may have, each with as many streams as it may.
const CONNECTIONS: usize = 256;
const STREAMS: usize = 32;
/// Requests in hand that one key may have.
const IN_HAND: usize = 1024;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let [_, control, identity, other] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY OTHER".into());
    };
    let control: SocketAddr = control.parse()?;
    let key = |path: &String| berth_tls::key_file::read(Path::new(path)).map(Arc::new);
    let (identity, other) = (key(identity)?, key(other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::quic(identity, control, None).await?;
        for _ in 0..TURNS {
            let alone = p99(&client).await?;
            let held = hold(&other, control).await?;
            let beside = p99(&client).await?;
            println!("{{\"alone_us\": {alone:.1}, \"beside_us\": {beside:.1}}}");
            for (connection, _) in held {
                connection.close(VarInt::from_u32(0), b"");
            }
        }
        client.close().await;
        Ok(())
    })
}

async fn p99(client: &Client) -> Result<f64, Failure> {
    let token = client.cap_request(Perms::ALLOC, 300, 0, None).await?;
    let lease = client.lease_alloc(&token, &Alloc::memory(4096, 60)).await?.lease_id;
    let mut took = Vec::with_capacity(RENEWALS);
    for _ in 0..RENEWALS {
        let asked = Instant::now();
        client.lease_renew(&token, lease, 60).await?;
        took.push(asked.elapsed());
    }
    client.lease_free(lease).await?;
    took.sort_unstable();
    Ok(took[RENEWALS * 99 / 100].as_secs_f64() * 1e6)
}

/// Makes every connection that a key may have, and as many requests as it may, whose answers find no window.
async fn hold(identity: &Arc<Identity>, control: SocketAddr) -> Result<Vec<(Connection, Vec<RecvStream>)>, Failure> {
    let mut config = ClientConfig::new(Arc::new(client_config(identity, Alpn::Control, Arc::new(|_| true))?));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(0)).keep_alive_interval(Some(Duration::from_secs(5)));
    config.transport_config(Arc::new(transport));
    let ping = Request {
        op: Op::Ping.code(),
        resource_id: 0,
        token: Bytes::default(),
        params: Bytes::default(),
        presenter: None,
    };
    let message = Message {
        kind: MsgType::Request,
        sender: identity.id(),
        request_id: 1,
        nonce: 1,
        payload: ping.to_vec().into(),
        v2: false,
        signature: None,
    };
    let (endpoint, ping) = (Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?, message.to_frame());
    let mut held = Vec::new();
    for nth in 0..CONNECTIONS {
        let connection = endpoint.connect_with(config.clone(), control, "berth")?.await?;
        let mut answers = Vec::new();
        for _ in (0..STREAMS).filter(|_| nth < IN_HAND / STREAMS) {
            let (mut send, receive) = connection.open_bi().await?;
            send.write_all(&ping).await?;
            send.finish()?;
            answers.push(receive);
        }
        held.push((connection, answers));
    }
    Ok(held)
}
