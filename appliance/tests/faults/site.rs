//! A node with every listener, and who may use it.

use std::{net::SocketAddr, sync::Arc};

use berth_client::{Alloc, Client, Data, Grant, Token, Via};
use berth_identity::Identity;
use berth_tls::key_file;
use berth_wire::fabric::Perms;
use tempfile::TempDir;

use crate::common::Berth;

/// Its folder, and the keys that it knows.
pub(crate) struct Site {
    pub(crate) folder: TempDir,
    pub(crate) holder: Arc<Identity>,
    pub(crate) other: Arc<Identity>,
}

pub(crate) fn key() -> Arc<Identity> {
    Arc::new(key_file::generate().unwrap())
}

impl Site {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), holder: key(), other: key() }
    }

    /// Every listener, and a port for two-sided messages; `more` is added at the end.
    pub(crate) fn config(&self, more: &str) -> String {
        let enrolled = [&self.holder, &self.other].map(|key| format!("\"{}\"", key.public_key()));
        format!(
            "[node]\nstate_dir = \"{0}/state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nrelay = \
             \"127.0.0.1:0\"\nenrolled = [{1}]\nmax_requests_per_sec = 0\n[[control.policy]]\npresenter = \"*\"\nperms = \
             [\"read\", \"write\", \"alloc\"]\n[[region]]\nname = \"scratch\"\nkind = \"memory\"\nsize = \"64 MiB\"\n\
             [[region]]\nname = \"disk\"\nkind = \"block\"\nsize = \"8 MiB\"\nbacking = \"{0}/disk\"\n[dataplane]\nfbmt = \
             \"127.0.0.1:0\"\nfbbt = \"127.0.0.1:0\"\nfbmu = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [[port]]\nname = \"io\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\nservice = \
             \"lease-io\"\n{more}",
            self.folder.path().display(),
            enrolled.join(", "),
        )
    }

    pub(crate) fn start(&self) -> Berth {
        Berth::start(&self.config(""))
    }
}

pub(crate) fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

pub(crate) async fn quic(berth: &Berth, identity: &Arc<Identity>) -> Client {
    Client::quic(identity.clone(), endpoint(berth, "quic"), None).await.unwrap()
}

pub(crate) async fn token(client: &Client) -> Token {
    client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 300, 0, None).await.unwrap()
}

/// A lease of memory and one of blocks.
pub(crate) async fn grants(client: &Client) -> [Grant; 2] {
    let token = token(client).await;
    let memory = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.unwrap();
    let block = client.lease_alloc(&token, &Alloc::block(4096, 300)).await.unwrap();
    [memory, block]
}

/// Writes a byte and reads it back.
pub(crate) async fn access(identity: &Arc<Identity>, grant: &Grant, via: Via) {
    let mut data = Data::open(identity, grant, via, None).await.unwrap();
    let page: Vec<u8> = (0..4096_u32).map(|i| i as u8).collect();
    data.write(0, &page).await.unwrap();
    assert_eq!(data.read(0, 4096).await.unwrap(), page);
}
