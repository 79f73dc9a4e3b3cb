//! What the tests of nodes share.
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
use berth_identity::Identity;
use berth_lease::{Bytes, Region, RegionKind, Regions, Storage};
use berth_wire::fabric::Perms;

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

/// One region of so many bytes of memory, `mem`.
pub(crate) fn memory(len: usize) -> Regions {
    let memory = Arc::new(Heap(Mutex::new(vec![0; len])));
    let storage = Storage::Bytes(memory);
    Regions::new(vec![Region { name: "mem".into(), kind: RegionKind::Memory, numa: None, storage }])
}

/// A node of key 1 with these bindings, over `folder`; it knows keys 2 to 40, who may do everything.
pub(crate) fn start(folder: &Path, regions: Regions, bindings: Vec<Box<dyn Binding>>) -> Control {
    let rule = Rule { presenter: None, perms: Perms::ALL, resources: None };
    let listen = Listen { udp: LOCAL, quic: LOCAL, relay: Some(LOCAL), fbmu: None, fbmt: Some(LOCAL), fbbt: None };
    let mut control = Control::open(Settings {
        identity: who(1),
        listen,
        announce: Vec::new(),
        state_dir: folder.into(),
        cpus: vec![0],
        clock: TscClock::calibrate(Duration::from_millis(20)),
        regions,
        bindings,
        node: Config {
            policy: Policy::new(vec![rule]),
            enrolled: (2..=40).map(|seed| *who(seed).public_key()).collect(),
            ..Config::default()
        },
    })
    .unwrap();
    control.serve(&[]);
    control
}

pub(crate) fn endpoint(control: &Control, name: &str) -> SocketAddr {
    control.endpoints().iter().find(|(known, _)| *known == name).unwrap().1
}

/// What was counted under a name.
pub(crate) fn count(counters: &[(String, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
}

/// Beside the node's own threads.
pub(crate) fn clients<T>(asked: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(asked)
}
