//! A million leases of one token are revoked, and the node is killed in the middle of it: a revocation of any size is one
//! record of the journal. It takes seconds, since the node starts three times with a million leases.

use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::SystemTime};

use berth_client::{Client, Token};
use berth_fabric::{
    journal::{Grant, Record},
    resource_id,
};
use berth_journal::Journal;
use berth_port::Nanos;
use berth_tls::key_file;
use berth_wire::fabric::{Perms, ResourceType};
use serde_json::Value;
use tokio::time::{Duration, sleep};

use crate::common::{ADMIN, Berth, admin, get};

const LEASES: u64 = 1_000_000;

const TOKEN: u128 = 77;

/// Writes the journal of a node that granted them, without bytes, for a day.
fn grant_all(state: &Path) {
    let journal = Journal::open(state, drop).unwrap().journal;
    let node = key_file::read_or_create(&state.join("node.key")).unwrap().id().0;
    let at = Nanos(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64);
    let grant = |number: u64| {
        Record::Granted(Grant {
            lease: u128::from(number + 1) << 64 | u128::from(number + 1),
            resource: resource_id(node, ResourceType::Net, "tcp-proxy"),
            base: 0,
            len: 0,
            first: 0,
            holder: 1,
            token: TOKEN,
            rights: 0,
            generation: 1,
            at,
            expires: at + Duration::from_hours(24),
            grace: Nanos(0),
            unit: Vec::new(),
        })
    };
    drop(journal.commit(&[Record::Started { epoch: 1, at }]));
    for first in (0..LEASES).step_by(50_000) {
        drop(journal.commit(&(first..first + 50_000).map(grant).collect::<Vec<_>>()));
    }
    journal.commit(&[]).wait().unwrap();
}

/// How many leases stand.
fn standing(berth: &Berth) -> u64 {
    let status: Value = serde_json::from_str(&get(admin(berth), "/status", "").1).unwrap();
    assert_eq!(status["control"]["journal_degraded"], 0);
    status["control"]["leases"].as_u64().unwrap()
}

async fn revoker(berth: &Berth, identity: &Arc<berth_identity::Identity>) -> (Client, Token) {
    let quic: SocketAddr = berth.ready["endpoints"]["quic"].as_str().unwrap().parse().unwrap();
    let client = Client::quic(identity.clone(), quic, None).await.unwrap();
    let token = client.cap_request(Perms::REVOKE, 300, 0, None).await.unwrap();
    (client, token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_within_a_revocation_of_a_million_leases_leaves_all_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    tokio::task::block_in_place(|| grant_all(&state));
    let identity = Arc::new(key_file::generate().unwrap());
    let text = format!(
        "[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = [\"{}\"]\n\
         max_leases = {LEASES}\n[[control.policy]]\npresenter = \"*\"\nperms = [\"revoke\"]\n{ADMIN}",
        state.display(),
        identity.public_key(),
    );
    let berth = Berth::start(&text);
    assert_eq!(standing(&berth), LEASES);
    let (client, token) = revoker(&berth, &identity).await;
    let revocation = tokio::spawn(async move { client.cap_revoke(&token, TOKEN, 300).await });
    sleep(Duration::from_millis(fastrand::u64(1..400))).await;
    berth.signal("-KILL");
    let answered = revocation.await.unwrap().is_ok();
    drop(berth);

    let berth = Berth::start(&text);
    let left = standing(&berth);
    assert!(left == 0 || left == LEASES && !answered, "{left} leases stand; answered: {answered}");
    let (client, token) = revoker(&berth, &identity).await;
    client.cap_revoke(&token, TOKEN, 300).await.unwrap();
    assert_eq!(standing(&berth), 0);
    berth.signal("-KILL");
    drop(berth);

    assert_eq!(standing(&Berth::start(&text)), 0);
}
