//! Shared by the tests of nodes.
#![allow(dead_code)] // each test file uses a part

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use berth_control::{Control, Listen, Settings};
use berth_fabric::{Binding, Config, Policy, Rule};
use berth_host::TscClock;
use berth_identity::{Identity, link::Message};
use berth_lease::{Bytes, Region, RegionKind, Regions, Storage};
use berth_tls::quic::{Alpn, client_config};
use berth_wire::fabric::{Bytes as Field, MsgType, Op, Perms, Request, Wire as _};
use quinn::{ClientConfig, Connection, Endpoint, TransportConfig, VarInt};

/// Memory behind a lock.
struct Heap(Mutex<Vec<u8>>);

impl Bytes for Heap {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }
    fn read(&self, at: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.lock().unwrap()[at as usize..at as usize + into.len()]);
    }
    fn write(&self, at: u64, from: &[u8]) {
        self.0.lock().unwrap()[at as usize..at as usize + from.len()].copy_from_slice(from);
    }
    fn zero(&self, at: u64, len: u64) {
        self.0.lock().unwrap()[at as usize..(at + len) as usize].fill(0);
    }
}

pub(crate) const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub(crate) fn who(seed: u8) -> Identity {
    Identity::from_seed(&[seed; 32])
}

/// One region `mem` with this many bytes of memory.
pub(crate) fn memory(len: usize) -> Regions {
    let memory = Arc::new(Heap(Mutex::new(vec![0; len])));
    let storage = Storage::Bytes(memory);
    Regions::new(vec![Region { name: "mem".into(), kind: RegionKind::Memory, numa: None, storage }])
}

/// Keys 2 to 40 may do everything.
pub(crate) fn config() -> Config {
    let rule = Rule { presenter: None, perms: Perms::ALL, resources: None };
    Config {
        policy: Policy::new(vec![rule]),
        enrolled: (2..=40).map(|seed| *who(seed).public_key()).collect(),
        ..Config::default()
    }
}

/// A node with key 1 and these bindings, with its state in `folder`.
pub(crate) fn start(folder: &Path, regions: Regions, bindings: Vec<Box<dyn Binding>>) -> Control {
    start_with(folder, regions, bindings, config())
}

pub(crate) fn start_with(folder: &Path, regions: Regions, bindings: Vec<Box<dyn Binding>>, node: Config) -> Control {
    let listen =
        Listen { udp: LOCAL, quic: LOCAL, relay: Some(LOCAL), fbmu: Some(LOCAL), fbmt: Some(LOCAL), fbbt: Some(LOCAL) };
    let mut control = Control::open(Settings {
        identity: who(1),
        listen,
        announce: Vec::new(),
        state_dir: folder.into(),
        cpus: vec![0],
        clock: TscClock::calibrate(Duration::from_millis(20)),
        regions,
        resources: Vec::new(),
        bindings,
        tasklet_cpus: vec![0],
        node,
    })
    .unwrap();
    control.serve(&[], Vec::new());
    control
}

pub(crate) fn endpoint(control: &Control, name: &str) -> SocketAddr {
    control.endpoints().iter().find(|(known, _)| *known == name).unwrap().1
}

/// The counter with this name.
pub(crate) fn count(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// Runs clients on other threads than the node's.
pub(crate) fn clients<T>(asked: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(asked)
}

pub(crate) fn key(seed: u8) -> Arc<Identity> {
    Arc::new(who(seed))
}

/// A connection with this key, whose peer may send it `window` bytes on each stream.
pub(crate) async fn connect(seed: u8, to: SocketAddr, window: u32) -> Connection {
    let mut config = ClientConfig::new(Arc::new(client_config(&key(seed), Alpn::Control, Arc::new(|_| true)).unwrap()));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(window));
    config.transport_config(Arc::new(transport));
    Endpoint::client(LOCAL).unwrap().connect_with(config, to, "berth").unwrap().await.unwrap()
}

/// A REQUEST as it goes on a stream.
pub(crate) fn request(seed: u8, op: Op, token: &[u8], params: &[u8]) -> Vec<u8> {
    let (token, params) = (Field::of(token).unwrap(), Field::of(params).unwrap());
    frame(seed, MsgType::Request, Request { op: op.code(), resource_id: 0, token, params, presenter: None }.to_vec())
}

pub(crate) fn frame(seed: u8, kind: MsgType, payload: Vec<u8>) -> Vec<u8> {
    let message = Message {
        kind,
        sender: who(seed).id(),
        request_id: 1,
        nonce: 1,
        payload: payload.into(),
        v2: false,
        signature: None,
    };
    let signed = matches!(kind, MsgType::Announce | MsgType::Withdraw);
    if signed { message.signed(&who(seed)).to_frame() } else { message.to_frame() }
}

/// Sends a message on a new stream, and does not read its answer.
pub(crate) async fn ask(connection: &Connection, message: &[u8]) -> (quinn::SendStream, quinn::RecvStream) {
    let (mut send, receive) = connection.open_bi().await.unwrap();
    send.write_all(message).await.unwrap();
    send.finish().unwrap();
    (send, receive)
}
