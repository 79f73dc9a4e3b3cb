//! What the tests of nodes share.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use berth_identity::Identity;
use berth_lease::{Bytes, Region, RegionKind, Regions, Storage};

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
