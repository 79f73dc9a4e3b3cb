//! `auth = "dhchap"` of NVMe bindings: secrets from `LEASE_BIND`, and an initiator in Python that has to know them.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use berth_client::{Alloc, Client, Error, NvmeBinding, Token};
use berth_identity::Identity;
use berth_tls::key_file;
use berth_wire::{
    fabric::{Perms, Status},
    nvme::auth::Secret,
};
use tempfile::TempDir;
use tokio::time::Duration;

use crate::common::{ADMIN, Berth, admin, get};

const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

struct Site {
    folder: TempDir,
    tenant: Arc<Identity>,
}

impl Site {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::File::create(folder.path().join("disk")).unwrap().set_len(4 << 20).unwrap();
        Self { folder, tenant: Arc::new(key_file::generate().unwrap()) }
    }

    fn start(&self) -> Berth {
        Berth::start(&format!(
            "[node]\nstate_dir = \"{0}/state\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\nenrolled = \
             [\"{1}\"]\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\"]\n[[region]]\nname \
             = \"b\"\nkind = \"block\"\nsize = \"4 MiB\"\nbacking = \"{0}/disk\"\n[[binding]]\nkind = \"nvme\"\nlisten = \
             \"127.0.0.1:0\"\nauth = \"dhchap\"\nidle = \"adaptive\"\nbuffers = \"1 MiB\"\n{ADMIN}",
            self.folder.path().display(),
            self.tenant.public_key(),
        ))
    }

    async fn quic(&self, berth: &Berth) -> (Client, Token) {
        let client = Client::quic(self.tenant.clone(), endpoint(berth, "quic"), None).await.unwrap();
        let token = token(&client).await;
        (client, token)
    }
}

async fn token(client: &Client) -> Token {
    client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 300, 0, None).await.unwrap()
}

fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap().parse().unwrap()
}

/// The initiator.
fn python(berth: &Berth, nqn: &str) -> Command {
    let at = endpoint(berth, "nvme-tcp");
    let mut python = Command::new("/usr/bin/python3");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvme_auth/host.py"));
    python.args([&at.ip().to_string(), &at.port().to_string(), nqn, HOST]);
    python
}

/// What the initiator says of each hash with each group.
async fn host(berth: &Berth, nqn: &str, secret: &str, controller: &str, hashes: &str, groups: &str) -> Vec<String> {
    let mut python = python(berth, nqn);
    python.args([secret, controller, hashes, groups]);
    let output = tokio::task::spawn_blocking(move || python.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Whether a file in the folder has these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).any(|path| {
        if path.is_dir() {
            holds(&path, bytes)
        } else {
            fs::read(path).unwrap().windows(bytes.len()).any(|w| w == bytes)
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_proves_each_queue_with_the_secret_of_its_binding_also_after_kill_9() {
    let site = Site::new();
    let berth = site.start();
    let (client, mine) = site.quic(&berth).await;
    let lease = client.lease_alloc(&mine, &Alloc::block(1 << 20, 600)).await.unwrap().lease_id;
    let NvmeBinding { nqn, secret, .. } = client.bind_nvme(&mine, lease, HOST, None).await.unwrap();
    let secret = secret.unwrap();
    assert!(secret.starts_with("DHHC-1:01:") && secret.len() == 59, "32 bytes and their CRC");

    let over_udp = Client::udp(site.tenant.clone(), endpoint(&berth, "control-udp"), None).await.unwrap();
    let refused = over_udp.bind_nvme(&token(&over_udp).await, lease, HOST, None).await.unwrap_err();
    assert!(matches!(refused, Error::Refused { status: Status::InsufficientPerm, .. }), "{refused}");

    // What was bound before is bound still. Every hash and group, the controller's proof with it.
    let all = host(&berth, &nqn, &secret, &secret, "1,2,3", "0,1,2,3,4,5").await;
    assert_eq!(all, vec!["ok"; 18]);
    assert_eq!(host(&berth, &nqn, &secret, "-", "1,2,3", "0,1").await, vec!["ok"; 6]);
    let wrong = "DHHC-1:00:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACtVQoZ:";
    assert_eq!(host(&berth, &nqn, wrong, "-", "1", "0,1").await, ["failure1 1"; 2]);
    assert_eq!(host(&berth, &nqn, &secret, wrong, "1", "1").await, ["the controller does not know the secret"]);
    assert_eq!(host(&berth, &nqn, "-", "-", "1", "0").await, ["status 0x191"]);
    let (_, metrics) = get(admin(&berth), "/metrics", "");
    let count = |result: &str| {
        let line = format!("berth_control_nvme_authentications_total{{result=\"{result}\"}} ");
        let value = metrics.lines().find_map(|found| found.strip_prefix(&line));
        value.unwrap_or_else(|| panic!("no {line} in\n{metrics}")).parse::<u64>().unwrap()
    };
    assert_eq!((count("done"), count("wrong_secret")), (2 * 24, 3));

    client.close().await;
    berth.signal("-KILL");
    berth.wait(Duration::from_secs(10));
    let mut room = [0; 68];
    let key = Secret::parse(&secret, &mut room).unwrap().key;
    let state = site.folder.path().join("state");
    assert!(holds(&state, HOST.as_bytes()), "the binding is in the journal");
    assert!(!holds(&state, key) && !holds(&state, secret.as_bytes()), "and its secret is not");
    let berth = site.start();
    assert_eq!(host(&berth, &nqn, &secret, &secret, "2", "1").await, ["ok"]);

    // A further LEASE_BIND draws another one.
    let (client, mine) = site.quic(&berth).await;
    let again = client.bind_nvme(&mine, lease, HOST, None).await.unwrap();
    let (new, old) = (again.secret.unwrap(), secret);
    assert_ne!(new, old);
    assert_eq!(host(&berth, &nqn, &old, "-", "1", "1").await, ["failure1 1"]);
    assert_eq!(host(&berth, &nqn, &new, "-", "1", "1").await, ["ok"]);
    client.close().await;
    let stopped = berth.stop();
    assert!(!stopped.stderr.contains(&new) && !stopped.stderr.contains("DHHC"), "{}", stopped.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_that_have_the_node_compute_keep_no_host_out() {
    const STRANGERS: usize = 200;
    let site = Site::new();
    let berth = site.start();
    let (client, mine) = site.quic(&berth).await;
    let lease = client.lease_alloc(&mine, &Alloc::block(1 << 20, 600)).await.unwrap().lease_id;
    let NvmeBinding { nqn, secret, .. } = client.bind_nvme(&mine, lease, HOST, None).await.unwrap();
    let mut strangers = python(&berth, &nqn);
    strangers.args(["-", "-", "1", "5", &STRANGERS.to_string()]);
    let mut strangers = strangers.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(strangers.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "flooding\n");
    assert_eq!(host(&berth, &nqn, &secret.unwrap(), "-", "1", "1").await, ["ok"]);
    drop(strangers.stdin.take());
    let mut answered = String::new();
    said.read_to_string(&mut answered).unwrap();
    assert!(strangers.wait().unwrap().success());
    let answered: usize = answered.trim().parse().unwrap();
    assert!(answered < STRANGERS / 2, "{answered} were before it");
}
