//! Keys that are taken back while an appliance runs: by command, by reload, by a restart with a closed list.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use berth_client::{Alloc, Client, Data, Error, Grant, Via};
use berth_identity::Identity;
use berth_tls::key_file;
use berth_wire::fabric::{LeaseStatus, Perms, Status};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::Berth;

struct Site {
    folder: TempDir,
    tenant: Arc<Identity>,
    other: Arc<Identity>,
}

impl Site {
    fn new() -> Self {
        let key = || Arc::new(key_file::generate().unwrap());
        Self { folder: tempfile::tempdir().unwrap(), tenant: key(), other: key() }
    }

    fn config(&self, enroll: &str, enrolled: &[&Identity]) -> String {
        let keys: Vec<_> = enrolled.iter().map(|key| format!("\"{}\"", key.public_key())).collect();
        format!(
            "[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenroll = \
             \"{enroll}\"\nenrolled = [{}]\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \
             \"alloc\"]\n[[region]]\nname = \"scratch\"\nkind = \"memory\"\nsize = \"1 MiB\"\n\
             [dataplane]\nfbmt = \"127.0.0.1:0\"\nfbmu = \"127.0.0.1:0\"\n",
            self.state().display(),
            keys.join(", "),
        )
    }

    fn state(&self) -> std::path::PathBuf {
        self.folder.path().join("state")
    }

    /// `berth` as an operator on the node's host calls it, with the node's own key.
    fn berth(&self, node: &Berth, args: &[&str]) -> Output {
        let address = endpoint(node, "quic").to_string();
        let mut berth = Command::new(env!("CARGO_BIN_EXE_berth"));
        berth.args(args).args(["--json", "--node", &address, "--key"]).arg(self.state().join("node.key"));
        berth.output().unwrap()
    }

    fn json(&self, node: &Berth, args: &[&str]) -> Value {
        let output = self.berth(node, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap().parse().unwrap()
}

async fn quic(berth: &Berth, key: &Arc<Identity>) -> Client {
    Client::quic(key.clone(), endpoint(berth, "quic"), None).await.unwrap()
}

/// Whether a key gets an answer over either carrier, on a connection of its own.
async fn served(berth: &Berth, key: &Arc<Identity>) -> [bool; 2] {
    let udp = Client::udp(key.clone(), endpoint(berth, "control-udp"), None).await.unwrap();
    // The client itself would try for longer.
    let over_udp = match tokio::time::timeout(Duration::from_secs(2), udp.ping()).await {
        Ok(Ok(_)) => true,
        Ok(Err(Error::Timeout { .. })) | Err(_) => false,
        Ok(Err(e)) => panic!("{e}"),
    };
    let quic = Client::quic(key.clone(), endpoint(berth, "quic"), None).await;
    let over_quic = match quic {
        Ok(client) => client.ping().await.is_ok(),
        Err(_) => false,
    };
    [over_udp, over_quic]
}

async fn lease(client: &Client) -> Grant {
    let perms = Perms::READ | Perms::WRITE | Perms::ALLOC;
    let token = client.cap_request(perms, 60, 0, None).await.unwrap();
    client.lease_alloc(&token, &Alloc::memory(4096, 600)).await.unwrap()
}

/// Waits until the connection of `client` was closed by the node.
async fn closed(client: &Client) {
    for _ in 0..500 {
        match client.ping().await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(Error::Connection { .. } | Error::Closed) => return,
            Err(e) => panic!("{e}"),
        }
    }
    panic!("the connection is still served");
}

#[tokio::test]
async fn a_removed_key_loses_connections_tokens_and_leases_at_once_and_for_good() {
    let site = Site::new();
    let config = site.config("open", &[&site.tenant, &site.other]);
    let node = Berth::start(&config);
    let (tenant, other) = (quic(&node, &site.tenant).await, quic(&node, &site.other).await);
    let (theirs, kept) = (lease(&tenant).await, lease(&other).await);
    let mut memory = Data::open(&site.tenant, &theirs, Via::Tcp, None).await.unwrap();
    let mut datagrams = Data::open(&site.tenant, &theirs, Via::Shim, None).await.unwrap();
    let mut streams = Data::open(&site.tenant, &theirs, Via::Quic, None).await.unwrap();
    for data in [&mut memory, &mut datagrams, &mut streams] {
        data.write(0, b"theirs").await.unwrap();
    }
    let id = site.tenant.id().to_string();
    let listed = site.json(&node, &["enrolled", "list"]);
    let standing = |listed: &Value| {
        let entry = listed.as_array().unwrap().iter().find(|entry| entry["id"] == id.as_str()).unwrap();
        (entry["standing"].as_str().unwrap().to_owned(), entry["public_key"].as_str().map(str::to_owned))
    };
    assert_eq!(standing(&listed), ("listed".into(), Some(site.tenant.public_key().to_string())));

    let removed = site.json(&node, &["enrolled", "remove", &site.tenant.public_key().to_string()]);
    assert_eq!(removed, serde_json::json!({ "removed": id, "leases": 1 }));
    for data in [&mut memory, &mut datagrams, &mut streams] {
        assert!(data.read(0, 6).await.is_err(), "a lease that has ended is not read over any carrier");
    }
    closed(&tenant).await;
    assert_eq!(served(&node, &site.tenant).await, [false; 2]);
    assert_eq!(standing(&site.json(&node, &["enrolled", "list"])), ("removed".into(), None));
    let again = Client::udp(site.tenant.clone(), endpoint(&node, "control-udp"), None).await.unwrap();
    assert!(matches!(again.enroll().await, Err(Error::Refused { status: Status::InsufficientPerm, .. })));
    assert_eq!(other.lease_query(theirs.lease_id).await.unwrap().status, LeaseStatus::Revoked);
    assert_eq!(other.lease_query(kept.lease_id).await.unwrap().status, LeaseStatus::Active, "others keep theirs");
    other.ping().await.unwrap();

    // The configuration still lists it: what was removed stays removed.
    drop(node);
    let node = Berth::start(&config);
    assert_eq!((served(&node, &site.tenant).await, served(&node, &site.other).await), ([false; 2], [true; 2]));
    let other = quic(&node, &site.other).await;
    assert_eq!(other.lease_query(theirs.lease_id).await.unwrap().status, LeaseStatus::Revoked);
    assert_eq!(other.lease_query(kept.lease_id).await.unwrap().status, LeaseStatus::Active);
}

#[tokio::test]
async fn all_of_a_holder_is_revoked_by_one_command_and_the_key_stays() {
    let site = Site::new();
    let node = Berth::start(&site.config("closed", &[&site.tenant, &site.other]));
    let tenant = quic(&node, &site.tenant).await;
    let leases = [lease(&tenant).await, lease(&tenant).await];
    let revoked = site.json(&node, &["token", "revoke", "--holder", &site.tenant.id().to_string()]);
    assert_eq!((&revoked["revoked"], &revoked["leases"]), (&site.tenant.id().to_string().into(), &2.into()));
    for lease in leases {
        assert_eq!(tenant.lease_query(lease.lease_id).await.unwrap().status, LeaseStatus::Revoked);
    }
    // Only an administrator may: neither a tenant nor a key that the node does not know.
    let key = site.folder.path().join("tenant.key");
    key_file::create(&key, &site.tenant).unwrap();
    let by_tenant = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["enrolled", "list", "--node", &endpoint(&node, "quic").to_string(), "--key"])
        .arg(&key)
        .output()
        .unwrap();
    let stderr = String::from_utf8(by_tenant.stderr).unwrap();
    assert!(!by_tenant.status.success() && stderr.contains("INSUFFICIENT_PERM"), "{stderr}");
}

#[tokio::test]
async fn a_reload_lists_keys_anew_and_closes_the_connections_of_those_that_are_gone() {
    let site = Site::new();
    let node = Berth::start(&site.config("open", &[&site.tenant]));
    let other = Client::udp(site.other.clone(), endpoint(&node, "control-udp"), None).await.unwrap();
    other.enroll().await.unwrap();
    let (tenant, enrolled) = (quic(&node, &site.tenant).await, quic(&node, &site.other).await);
    let grant = lease(&enrolled).await;
    let mut data = Data::open(&site.other, &grant, Via::Quic, None).await.unwrap();
    data.write(0, b"open").await.unwrap();
    // Closed: who enrolled himself before is not served any more.
    node.write("berth.toml", &site.config("closed", &[&site.tenant]));
    node.signal("-HUP");
    closed(&enrolled).await;
    assert!(data.read(0, 4).await.is_err(), "nor are data connections");
    assert_eq!((served(&node, &site.tenant).await, served(&node, &site.other).await), ([true; 2], [false; 2]));
    tenant.ping().await.unwrap();
    // Another key in its place.
    node.write("berth.toml", &site.config("closed", &[&site.other]));
    node.signal("-HUP");
    closed(&tenant).await;
    assert_eq!((served(&node, &site.tenant).await, served(&node, &site.other).await), ([false; 2], [true; 2]));
    // And a restart changes nothing about it.
    drop(node);
    let node = Berth::start(&site.config("closed", &[&site.tenant]));
    assert_eq!((served(&node, &site.tenant).await, served(&node, &site.other).await), ([true; 2], [false; 2]));
}

/// OpenSSL 3.0 and Python's cryptography know PKCS#8 v1 alone.
#[test]
fn others_read_the_keys_that_it_makes() {
    let site = Site::new();
    let key = site.folder.path().join("key");
    let made = Command::new(env!("CARGO_BIN_EXE_berth")).args(["key", "new", "--json", "--key"]).arg(&key).output();
    let made: Value = serde_json::from_slice(&made.unwrap().stdout).unwrap();
    let node = Berth::start(&site.config("closed", &[]));
    let public = |path: &Path| key_file::read(path).unwrap().public_key().to_string();
    assert_eq!(made["public_key"], public(&key).as_str());
    for file in [key, site.state().join("node.key")] {
        let script = "import sys\nfrom cryptography.hazmat.primitives import serialization as s\n\
                      key = s.load_pem_private_key(open(sys.argv[1], 'rb').read(), None)\n\
                      print(key.public_key().public_bytes(s.Encoding.Raw, s.PublicFormat.Raw).hex())";
        let made = || concat!(env!("CARGO_MANIFEST_DIR"), "/../target/fabric-venv/bin/python").into();
        let python = Command::new(std::env::var_os("BERTH_PYTHON").unwrap_or_else(made));
        let output = { python }.args(["-c", script]).arg(&file).output().unwrap();
        let read = String::from_utf8_lossy(&output.stdout);
        assert_eq!(read.trim(), public(&file), "{}", String::from_utf8_lossy(&output.stderr));
    }
    drop(node);
}
