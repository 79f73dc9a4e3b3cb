//! The lease plane through the real binary: control over UDP and QUIC, every dataplane, restarts.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Data, Error, Grant, Token, Via};
use berth_identity::{Identity, NodeId};
use berth_tls::key_file;
use berth_wire::fabric::{LeaseStatus, Op, Perms, ResourceType, Status, data::IoStatus};
use tempfile::TempDir;

use crate::common::Berth;

const ALL: Perms = Perms::ALL;

/// A node's folder, and the keys that it knows.
struct Site {
    folder: TempDir,
    holder: Arc<Identity>,
    other: Arc<Identity>,
    admin: Arc<Identity>,
}

impl Site {
    fn new() -> Self {
        let key = || Arc::new(key_file::generate().unwrap());
        Self { folder: tempfile::tempdir().unwrap(), holder: key(), other: key(), admin: key() }
    }

    /// A configuration with every dataplane; `more` goes under `[control]`.
    fn config(&self, more: &str) -> String {
        let enrolled = [&self.holder, &self.other, &self.admin].map(|key| format!("\"{}\"", key.public_key()));
        format!(
            "[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
             enrolled = [{}]\n{more}\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\", \
             \"delegate\"]\n[[control.policy]]\npresenter = \"{}\"\nperms = [\"revoke\", \"admin\"]\n\
             [[region]]\nname = \"scratch\"\nkind = \"memory\"\nsize = \"16 MiB\"\n\
             [[region]]\nname = \"disk\"\nkind = \"block\"\nsize = \"8 MiB\"\nbacking = \"{}\"\n\
             [dataplane]\nfbmt = \"127.0.0.1:0\"\nfbbt = \"127.0.0.1:0\"\nfbmu = \"127.0.0.1:0\"\n\
             [[port]]\nname = \"io\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\nservice = \
             \"lease-io\"\n",
            self.folder.path().join("state").display(),
            enrolled.join(", "),
            self.admin.id(),
            self.folder.path().join("disk").display(),
        )
    }

    fn start(&self) -> Berth {
        Berth::start(&self.config(""))
    }
}

fn endpoint(berth: &Berth, name: &str) -> SocketAddr {
    berth.ready["endpoints"][name].as_str().unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

async fn quic(berth: &Berth, identity: &Arc<Identity>) -> Client {
    Client::quic(identity.clone(), endpoint(berth, "quic"), None).await.unwrap()
}

async fn udp(berth: &Berth, identity: &Arc<Identity>) -> Client {
    Client::udp(identity.clone(), endpoint(berth, "control-udp"), None).await.unwrap()
}

async fn token(client: &Client) -> Token {
    client.cap_request(Perms::READ | Perms::WRITE | Perms::ALLOC, 60, 0, None).await.unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Status {
    match result {
        Err(Error::Refused { status, .. }) => status,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn the_ready_line_names_every_endpoint() {
    let berth = Site::new().start();
    let names: Vec<_> = berth.ready["endpoints"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(names, ["control-udp", "fbbt", "fbmt", "fbmu", "quic", "two-sided"]);
    for name in names {
        assert_ne!(endpoint(&berth, &name).port(), 0, "{name}");
    }
}

/// Every op that a holder needs, over one carrier.
async fn tour(berth: &Berth, site: &Site, client: &Client, others: &Client) {
    assert!(client.ping().await.unwrap() < 60);
    let node = client.node_identity().await.unwrap();
    assert_eq!(NodeId::of(&node.controller_pubkey).0, node.node_id);
    let resources = client.inventory().await.unwrap();
    let memory = resources.iter().find(|r| r.resource_type == ResourceType::Mem.code()).unwrap();
    assert_eq!((memory.capacity, memory.available), (16 << 20, 16 << 20));
    client.thermal().await.unwrap();

    let token = token(client).await;
    let grant = client.lease_alloc(&token, &Alloc::memory(100_000, 60)).await.unwrap();
    assert_eq!(grant.len, 100_000);
    assert_eq!(grant.key, grant.lease_id as u64);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!((now + 58..=now + 61).contains(&grant.expires_at), "{} at {now}", grant.expires_at);

    let listed = client.lease_list().await.unwrap();
    assert_eq!((listed.len(), listed[0].lease_id, listed[0].holder), (1, grant.lease_id, site.holder.id().0));
    assert_eq!(client.lease_query(grant.lease_id).await.unwrap().status, LeaseStatus::Active);

    // Each dataplane sees what the one before wrote.
    let mut seen = vec![0; 70_000];
    for (round, via) in [Via::Quic, Via::Tcp, Via::Shim, Via::TwoSided].into_iter().enumerate() {
        let mut data = Data::open(&site.holder, &grant, via, None).await.unwrap();
        assert_eq!(data.read(30_000, 70_000).await.unwrap(), seen, "{via:?}");
        seen = (0..70_000_u32).map(|i| (i * 7 + round as u32) as u8).collect();
        data.write(30_000, &seen).await.unwrap();
        assert_eq!(data.read(30_000, 70_000).await.unwrap(), seen, "{via:?}");
    }

    let until = client.lease_renew(&token, grant.lease_id, 120).await.unwrap();
    assert!((now + 118..=now + 123).contains(&until));
    // Whose lease it is, is who asked for it: others neither renew nor free it.
    let theirs = self::token(others).await;
    assert_eq!(refused(others.lease_renew(&theirs, grant.lease_id, 60).await), Status::InsufficientPerm);
    assert_eq!(refused(others.lease_free(grant.lease_id).await), Status::InsufficientPerm);
    // A token is its holder's.
    assert_eq!(refused(others.lease_alloc(&token, &Alloc::memory(4096, 60)).await), Status::InvalidToken);
    // Policy gives this one no REVOKE.
    assert_eq!(refused(client.cap_request(ALL, 60, 0, None).await), Status::InsufficientPerm);
    assert_eq!(refused(client.lease_alloc(&token, &Alloc::memory(1 << 30, 60)).await), Status::CapacityExceeded);
    assert_eq!(refused(client.lease_free(7).await), Status::ResourceNotFound);
    assert_eq!(refused(client.call(Op::GpuSubmit, 0, Some(&token), &[]).await), Status::UnsupportedOp);

    client.lease_free(grant.lease_id).await.unwrap();
    assert_eq!(refused(client.lease_query(grant.lease_id).await), Status::ResourceNotFound);
    for via in [Via::Quic, Via::Tcp] {
        match Data::open(&site.holder, &grant, via, None).await {
            Err(Error::Access(IoStatus::InvalidLease)) => {}
            other => panic!("{via:?}: {other:?}"),
        }
    }
    let mut shim = Data::open(&site.holder, &grant, Via::Shim, None).await.unwrap();
    assert!(matches!(shim.read(0, 1).await, Err(Error::Access(IoStatus::InvalidLease))));
    let again = client.lease_alloc(&token, &Alloc::memory(100_000, 60)).await.unwrap();
    let mut data = Data::open(&site.holder, &again, Via::Tcp, None).await.unwrap();
    assert_eq!(data.read(0, 100_000).await.unwrap(), vec![0; 100_000], "freed memory is zeroed");
    client.lease_free(again.lease_id).await.unwrap();
    assert_eq!(berth.ready["ports"][0]["name"], "io");
}

#[tokio::test]
async fn a_tour_over_quic() {
    let site = Site::new();
    let berth = site.start();
    let (client, others) = (quic(&berth, &site.holder).await, quic(&berth, &site.other).await);
    tour(&berth, &site, &client, &others).await;
    let node = client.node_identity().await.unwrap();
    assert_eq!(client.node_key().unwrap().id().0, node.node_id);
    client.close().await;
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.stderr);
    let control = &stopped.counters["control"];
    assert_eq!(control["op_lease_alloc"], 2);
    assert_eq!(control["op_lease_alloc_refused"], 2);
    assert_eq!(control["journal_degraded"], 0);
    assert_eq!(control["streams_reset"], 0);
    assert!(!stopped.stderr.contains("WARN"), "{}", stopped.stderr);
}

#[tokio::test]
async fn a_tour_over_udp() {
    let site = Site::new();
    let berth = site.start();
    let (client, others) = (udp(&berth, &site.holder).await, udp(&berth, &site.other).await);
    tour(&berth, &site, &client, &others).await;
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.stderr);
    assert_eq!(stopped.counters["control"]["frames_forged"], 0);
}

#[tokio::test]
async fn blocks_are_leased_too_and_survive_kill_9() {
    let site = Site::new();
    let mut berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let token = token(&client).await;
    let block = client.lease_alloc(&token, &Alloc::block(1 << 20, 300)).await.unwrap();
    let memory = client.lease_alloc(&token, &Alloc::memory(1 << 20, 300)).await.unwrap();
    let freed = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.unwrap();
    client.lease_free(freed.lease_id).await.unwrap();
    let pattern: Vec<u8> = (0..65_536_u32).map(|i| (i / 3) as u8).collect();
    for (at, via) in [(0, Via::Quic), (1 << 17, Via::Tcp), (1 << 18, Via::Shim), (1 << 19, Via::TwoSided)] {
        let mut data = Data::open(&site.holder, &block, via, None).await.unwrap();
        data.write(at, &pattern).await.unwrap_or_else(|e| panic!("{via:?}: {e}"));
        let read = data.read(at, 65_536).await.unwrap_or_else(|e| panic!("{via:?}: {e}"));
        assert_eq!(read, pattern, "{via:?}");
        assert!(matches!(data.read(1, 512).await, Err(Error::Unaligned)));
    }
    let mut data = Data::open(&site.holder, &memory, Via::Tcp, None).await.unwrap();
    data.write(0, b"gone with the power").await.unwrap();

    berth.signal("-KILL");
    drop(berth);
    berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let mut leases: Vec<_> = client.lease_list().await.unwrap().iter().map(|lease| lease.lease_id).collect();
    leases.sort_unstable();
    let mut wanted = [block.lease_id, memory.lease_id];
    wanted.sort_unstable();
    assert_eq!(leases, wanted, "what was freed stays freed");
    let moved = |grant: &Grant| {
        let mut grant = grant.clone();
        for (kind, addr) in &mut grant.endpoints {
            *addr = endpoint(
                &berth,
                match kind.name() {
                    "two-sided-udp" => "two-sided",
                    "fbmu" | "fbbu" => "fbmu",
                    "quic-mem" | "quic-block" | "quic" => "quic",
                    "control-udp" => "control-udp",
                    name => name,
                },
            );
        }
        grant
    };
    for (at, via) in [(0, Via::TwoSided), (1 << 17, Via::Shim), (1 << 18, Via::Tcp), (1 << 19, Via::Quic)] {
        let mut data = Data::open(&site.holder, &moved(&block), via, None).await.unwrap();
        assert_eq!(data.read(at, 65_536).await.unwrap(), pattern, "{via:?}");
    }
    // The bytes of memory are lost, and those who name its generation are told.
    let mut stale = Data::open(&site.holder, &moved(&memory), Via::Shim, None).await.unwrap();
    assert!(matches!(stale.read(0, 1).await, Err(Error::Access(IoStatus::Fenced))));
    let token = self::token(&client).await;
    client.lease_renew(&token, memory.lease_id, 300).await.unwrap();
    assert_eq!(berth.stop().status.code(), Some(0));
}

#[tokio::test]
async fn revocation_ends_leases_and_their_connections() {
    let site = Site::new();
    let berth = site.start();
    let (client, admin) = (quic(&berth, &site.holder).await, udp(&berth, &site.admin).await);
    let token = token(&client).await;
    let grant = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.unwrap();
    let mut open = Vec::new();
    for via in [Via::Quic, Via::Tcp, Via::Shim, Via::TwoSided] {
        let mut data = Data::open(&site.holder, &grant, via, None).await.unwrap();
        data.write(0, &[1]).await.unwrap();
        open.push(data);
    }
    let mut silent = TcpStream::connect(endpoint(&berth, "fbmt")).unwrap();
    let hello = [&b"FBMT\x01\x01\0\0\0\0\0\x10\0\0\0\0"[..], &grant.lease_id.to_be_bytes()].concat();
    std::io::Write::write_all(&mut silent, &hello).unwrap();
    let mut ack = [0; 36];
    std::io::Read::read_exact(&mut silent, &mut ack).unwrap();
    assert_eq!(ack[16], 0, "the lease is accepted");

    let permit = admin.cap_request(Perms::REVOKE, 60, 0, None).await.unwrap();
    let before = Instant::now();
    admin.cap_revoke(&permit, token.fields().token_id, 60).await.unwrap();
    for mut data in open {
        match data.read(0, 1).await {
            Err(Error::Access(IoStatus::Fenced) | Error::TwoSided(_) | Error::Closed) => {}
            other => panic!("{other:?}"),
        }
    }
    silent.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    assert_eq!(std::io::Read::read(&mut silent, &mut ack).unwrap(), 0, "the server closes");
    assert!(before.elapsed() < Duration::from_millis(1500), "{:?}", before.elapsed());
    assert_eq!(client.lease_query(grant.lease_id).await.unwrap().status, LeaseStatus::Revoked);
    assert_eq!(refused(client.lease_alloc(&token, &Alloc::memory(4096, 60)).await), Status::InvalidToken);
}

#[tokio::test]
async fn expiry_refuses_and_grace_renews() {
    let site = Site::new();
    let berth = site.start();
    let client = udp(&berth, &site.holder).await;
    let token = token(&client).await;
    let alloc = Alloc { grace_secs: 30, ..Alloc::memory(4096, 1) };
    let grant = client.lease_alloc(&token, &alloc).await.unwrap();
    let mut data = Data::open(&site.holder, &grant, Via::TwoSided, None).await.unwrap();
    data.write(0, b"kept").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1300)).await;
    assert!(matches!(data.read(0, 4).await, Err(Error::TwoSided(_))));
    assert_eq!(client.lease_query(grant.lease_id).await.unwrap().status, LeaseStatus::Expired);
    client.lease_renew(&token, grant.lease_id, 60).await.unwrap();
    assert_eq!(data.read(0, 4).await.unwrap(), b"kept");
}

#[tokio::test]
async fn who_is_not_enrolled_or_forges_gets_nothing() {
    let site = Site::new();
    let berth = site.start();
    let unenrolled = Arc::new(key_file::generate().unwrap());
    let made = Client::quic(unenrolled.clone(), endpoint(&berth, "quic"), None).await;
    match made {
        // The client learns of it with its first op.
        Ok(client) => assert!(client.ping().await.is_err()),
        Err(e) => assert!(matches!(e, Error::Connection { .. }), "{e}"),
    }
    let unknown = Client::udp(unenrolled, endpoint(&berth, "control-udp"), None).await.unwrap();
    assert!(matches!(unknown.ping().await, Err(Error::Timeout { .. })));
    // Another node's key is not this node's.
    let wrong = Client::quic(site.holder.clone(), endpoint(&berth, "quic"), Some(*site.other.public_key())).await;
    assert!(wrong.is_err());
    // A node that is known proves its answers over UDP too.
    let known = quic(&berth, &site.holder).await.node_key().unwrap();
    let proved = Client::udp(site.holder.clone(), endpoint(&berth, "control-udp"), Some(known)).await.unwrap();
    proved.ping().await.unwrap();
    let stopped = berth.stop();
    let control = &stopped.counters["control"];
    assert!(control["frames_unenrolled"].as_u64().unwrap() >= 5, "{control}");
    assert!(control["handshakes_failed"].as_u64().unwrap() >= 1, "{control}");
}

#[tokio::test]
async fn enrolment_is_closed_unless_it_is_open() {
    let site = Site::new();
    let berth = site.start();
    let unenrolled = Arc::new(key_file::generate().unwrap());
    let client = udp(&berth, &unenrolled).await;
    assert_eq!(refused(client.enroll().await), Status::InsufficientPerm);
    drop(berth);
    let berth = Berth::start(&site.config("enroll = \"open\""));
    let client = udp(&berth, &unenrolled).await;
    client.enroll().await.unwrap();
    client.ping().await.unwrap();
    // Known by the policy for everybody.
    token(&client).await;
    quic(&berth, &unenrolled).await.ping().await.unwrap();
    let known = quic(&berth, &site.holder).await;
    assert_eq!(refused(known.enroll().await), Status::UnsupportedOp);
}

#[tokio::test]
async fn a_thousand_silent_connections_leave_room_for_a_good_one() {
    let site = Site::new();
    let berth = site.start();
    let (fbmt, quic_addr) = (endpoint(&berth, "fbmt"), endpoint(&berth, "quic"));
    let silent: Vec<_> = (0..1000).map(|_| TcpStream::connect(fbmt).unwrap()).collect();
    let tls = berth_tls::quic::client_config(&site.other, berth_tls::quic::Alpn::Control, Arc::new(|_| true)).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(tls));
    let caller = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut quiet = Vec::new();
    for _ in 0..1000 {
        // A crowded machine may lose some.
        let connecting = caller.connect_with(config.clone(), quic_addr, "127.0.0.1").unwrap();
        quiet.extend(connecting.await.ok());
    }
    assert!(quiet.len() > 990, "{} connections", quiet.len());
    let client = quic(&berth, &site.holder).await;
    let token = token(&client).await;
    let grant = client.lease_alloc(&token, &Alloc::memory(4096, 60)).await.unwrap();
    for via in [Via::Quic, Via::Tcp] {
        let mut data = Data::open(&site.holder, &grant, via, None).await.unwrap();
        data.write(0, b"room").await.unwrap();
        assert_eq!(data.read(0, 4).await.unwrap(), b"room");
    }
    drop((silent, quiet));
    assert_eq!(berth.stop().status.code(), Some(0));
}

#[tokio::test]
async fn a_flood_of_half_messages_is_bounded_and_counted() {
    let site = Site::new();
    let berth = site.start();
    let flood = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    flood.connect(endpoint(&berth, "control-udp")).unwrap();
    // FRAG_V2 | CONTINUED, 100 bytes of 1,000,000.
    for id in 0..2000_u64 {
        let mut frame = b"FBIO\0\x04\0\x05".to_vec();
        frame.extend(site.holder.id().0.to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend(id.to_be_bytes());
        frame.extend(100_u32.to_be_bytes());
        frame.extend(0_u32.to_be_bytes());
        frame.extend(1_000_000_u32.to_be_bytes());
        frame.extend([0; 100]);
        flood.send(&frame).unwrap();
        if id % 64 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let client = udp(&berth, &site.holder).await;
    client.ping().await.unwrap();
    let stopped = berth.stop();
    let control = &stopped.counters["control"];
    assert!(control["fragments_evicted"].as_u64().unwrap() > 1000, "{control}");
}

#[tokio::test]
async fn a_full_disk_degrades_the_node() {
    let site = Site::new();
    let state = site.folder.path().join("state");
    fs::create_dir(&state).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"]).arg(&state).status().unwrap();
    assert!(mounted.success(), "this test mounts a small tmpfs, as root");
    let _unmount = Unmount(&state);
    let berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let token = token(&client).await;
    let kept = client.lease_alloc(&token, &Alloc::memory(4096, 300)).await.unwrap();
    // What the journal wrote ahead becomes a hole, and all of the space goes to another file.
    let journal = state.join("journal");
    let punched = Command::new("fallocate").args(["--punch-hole", "-o", "65536", "-l", "16M"]).arg(&journal).status();
    assert!(punched.unwrap().success());
    let fill = format!("of={}", state.join("fill").display());
    Command::new("dd").args(["if=/dev/zero", "bs=4k", &fill]).output().unwrap();
    let mut failed = Ok(0);
    for _ in 0..10_000 {
        failed = client.lease_renew(&token, kept.lease_id, 300).await;
        if failed.is_err() {
            break;
        }
    }
    // The op that met the full disk is not answered; later ones say why.
    assert!(matches!(failed, Err(Error::Closed | Error::Refused { status: Status::InternalError, .. })), "{failed:?}");
    assert_eq!(refused(client.lease_alloc(&token, &Alloc::memory(4096, 60)).await), Status::InternalError);
    let resources = client.inventory().await.unwrap();
    assert!(resources.iter().all(|resource| resource.flags.bits() & 2 != 0), "{resources:?}");
    // What was granted goes on.
    let mut data = Data::open(&site.holder, &kept, Via::Tcp, None).await.unwrap();
    data.write(0, b"on").await.unwrap();
    let stopped = berth.stop();
    assert_eq!(stopped.counters["control"]["journal_degraded"], 1);
    assert!(stopped.stderr.contains("the node is degraded"), "{}", stopped.stderr);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[tokio::test]
async fn a_tcp_proxy_lives_as_long_as_its_lease() {
    use std::io::{Read as _, Write as _};
    let site = Site::new();
    let berth = site.start();
    let backend = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = backend.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut socket in backend.incoming().map_while(Result::ok) {
            let mut word = [0; 5];
            if socket.read_exact(&mut word).is_ok() {
                word.reverse();
                let _ = socket.write_all(&word);
                let _ = socket.read(&mut word);
            }
        }
    });
    let client = udp(&berth, &site.holder).await;
    let token = token(&client).await;
    let grant = client.svc_tcp_bind(&token, port, 60).await.unwrap();
    let mut through = TcpStream::connect(("127.0.0.1", grant.ingress_port)).unwrap();
    through.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    through.write_all(b"hello").unwrap();
    let mut word = [0; 5];
    through.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"olleh");
    let state = client.svc_tcp_query(grant.lease_id).await.unwrap();
    assert_eq!((state.status, state.ingress_port), (LeaseStatus::Active, grant.ingress_port));
    client.lease_free(grant.lease_id).await.unwrap();
    assert!(matches!(through.read(&mut word), Ok(0) | Err(_)), "the connection ends with the lease");
    assert!(TcpStream::connect(("127.0.0.1", grant.ingress_port)).is_err());
}

fn cli(home: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(args).env("HOME", home).env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), input).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn the_command_line_leases_writes_and_reads() {
    let site = Site::new();
    let home = site.folder.path();
    let run = |args: &[&str], input: &[u8]| {
        let output = cli(home, args, input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_slice(&run(args, b"")).unwrap() };
    let key = json(&["key", "new", "--json"]);
    assert_eq!(json(&["key", "show", "--json"]), key);
    let again = cli(home, &["key", "new"], b"");
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("File exists"));

    let mine = format!("\"{}\"", key["public_key"].as_str().unwrap());
    let text = site.config("relay = \"127.0.0.1:0\"").replace("enrolled = [", &format!("enrolled = [{mine}, "));
    let berth = Berth::start(&text);
    let node = endpoint(&berth, "quic").to_string();
    let lease = json(&["lease", "alloc", "--size", "64 KiB", "--node", &node, "--json"]);
    let id = lease["lease_id"].as_str().unwrap();
    for (word, via) in [("hello", "quic"), ("howdy", "tcp"), ("hiall", "udp"), ("salut", "two-sided")] {
        run(&["lease", "write", id, word, "--via", via, "--node", &node], b"");
        assert_eq!(run(&["lease", "read", id, "--len", "5", "--via", via, "--node", &node], b""), word.as_bytes());
    }
    run(&["lease", "write", id, "--offset", "65000", "--node", &node], b"from a pipe");
    assert_eq!(run(&["lease", "read", id, "--offset", "65000", "--len", "11", "--node", &node], b""), b"from a pipe");
    let listed = String::from_utf8(run(&["lease", "list", "--node", &node], b"")).unwrap();
    assert!(listed.starts_with("LEASE ") && listed.contains(id) && listed.contains(" 65536 "), "{listed}");
    let control = endpoint(&berth, "control-udp").to_string();
    assert_eq!(json(&["lease", "query", id, "--node", &control, "--udp", "--json"])["status"], "ACTIVE");
    run(&["lease", "renew", id, "--node", &node], b"");

    let token = run(&["token", "request", "--perms", "read,alloc,delegate", "--node", &node], b"");
    let shown = String::from_utf8(run(&["token", "show", "-"], &token)).unwrap();
    assert!(shown.contains("perms        read alloc delegate"), "{shown}");
    let other = site.other.id().to_string();
    let passed = run(&["token", "delegate", "-", "--to", &other, "--range", "0", "4096", "--rate", "5"], &token);
    let shown = String::from_utf8(run(&["token", "show", "-"], &passed)).unwrap();
    assert!(shown.contains(&other) && shown.contains("range:0+4096 rate:5/s"), "{shown}");

    let nodes = json(&["nodes", "--relay", &endpoint(&berth, "relay").to_string(), "--json"]);
    assert_eq!(nodes[0]["endpoints"].as_array().unwrap().len(), 9, "{nodes}");
    let bound = cli(home, &["lease", "bind", id, "--kind", "rdma", "--node", &node], b"");
    let stderr = String::from_utf8_lossy(&bound.stderr);
    assert!(
        stderr.contains("LEASE_BIND: the node answered UNSUPPORTED_OP (0x000C): the node does not do this op"),
        "{stderr}"
    );
    run(&["lease", "free", id, "--node", &node], b"");
    let gone = cli(home, &["lease", "query", id, "--node", &node], b"");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("RESOURCE_NOT_FOUND (0x0003)"));
}
