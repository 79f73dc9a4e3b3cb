//! Ports with `service = "lease-io"`, over every driver, as `berth perf lease` sees them: every byte is verified.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Output},
    sync::Arc,
    time::{Duration, Instant},
};

use berth_client::{Alloc, Client, Data, Via};
use berth_tls::key_file;
use berth_wire::fabric::{
    Perms,
    data::stream::{Header, Hello, HelloAck, Kind, Op, Range, ReadResp},
};
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

use crate::common::{Berth, Stopped};

/// A node with one such port, and a folder with the key of who may lease from it.
fn node(port: &str) -> (Berth, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let identity = key_file::generate().unwrap();
    key_file::create(&folder.path().join("client.key"), &identity).unwrap();
    let config = format!(
        "{port}[node]\nstate_dir = \"{}\"\n[control]\nudp = \"127.0.0.1:0\"\nquic = \"127.0.0.1:0\"\n\
         enrolled = [\"{}\"]\n[[control.policy]]\npresenter = \"*\"\nperms = [\"read\", \"write\", \"alloc\"]\n\
         [[region]]\nname = \"m\"\nkind = \"memory\"\nsize = \"4 MiB\"\n",
        folder.path().join("state").display(),
        identity.public_key(),
    );
    (Berth::start(&config), folder)
}

/// `berth perf lease` on a lease that it gets from the node.
fn perf(berth: &Berth, folder: &TempDir, args: &[&str]) -> Output {
    let mut perf = Command::new(env!("CARGO_BIN_EXE_berth"));
    perf.args(["perf", "lease", "--no-progress", "--cpu", "0", "--len", "200000"]).args(args);
    perf.args(["--control", berth.ready["endpoints"]["quic"].as_str().unwrap()]);
    perf.arg("--identity").arg(folder.path().join("client.key")).output().unwrap()
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Every message was served, and each byte of both runs was asked for.
fn served(stopped: &Stopped, port: &str, counter: &str) -> u64 {
    assert_eq!(stopped.status.code(), Some(0));
    for refusal in ["unknown_lease", "bad_request", "out_of_range", "malformed", "denied"] {
        assert_eq!(stopped.sum(port, "service", refusal), 0, "{refusal}");
    }
    stopped.sum(port, "service", counter)
}

#[test]
fn sockets_read_and_write_leases() {
    for driver in ["udp", "uring"] {
        let port = format!(
            "[[port]]\nname = \"io\"\ndriver = \"{driver}\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\n\
             service = \"lease-io\"\n"
        );
        let (berth, folder) = node(&port);
        for op in ["read", "write"] {
            succeeds(&perf(&berth, &folder, &["--op", op, "--size", "64,4096", "--count", "200", "--warmup", "0"]));
        }
        let stopped = berth.stop();
        // 1024 places of 64 bytes and 48 of 4096 are filled; those that were written are read back.
        assert_eq!(served(&stopped, "io", "read"), 2 * 200 + 200 + 48);
        assert_eq!(served(&stopped, "io", "written"), 2 * 200 + 1024 + 48);
        assert_eq!(stopped.sum("io", "service", "bytes_read"), 200 * (64 + 4096) + 200 * 64 + 48 * 4096);
    }
}

/// FBMT on a poll core: the client that speaks it to a housekeeping thread, then many reads at once, then the lease's end.
#[test]
fn byte_streams_are_served_on_a_poll_core() {
    const READS: u32 = 64;
    const LEN: usize = 1024;
    let port = "[[port]]\nname = \"io\"\ndriver = \"tcp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\n\
                service = \"lease-io\"\n";
    let (berth, folder) = node(port);
    let key = Arc::new(key_file::read(&folder.path().join("client.key")).unwrap());
    let control = berth.ready["endpoints"]["quic"].as_str().unwrap().parse().unwrap();
    let at = berth.ready["ports"][0]["addr"].as_str().unwrap().to_owned();
    let message = |op, request_id, payload: &[u8]| {
        [Header::new(Kind::Memory, op, payload.len() as u32, request_id).as_bytes(), payload].concat()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (client, grant) = runtime.block_on(async {
        let client = Client::quic(key.clone(), control, None).await.unwrap();
        let perms = Perms::READ | Perms::WRITE | Perms::ALLOC;
        let token = client.cap_request(perms, 300, 0, None).await.unwrap();
        let grant = client.lease_alloc(&token, &Alloc::memory(1 << 20, 300)).await.unwrap();
        let mut data = Data::open(&key, &grant, Via::Tcp, None).await.unwrap();
        data.write(5, &bytes).await.unwrap();
        assert!(data.read(5, bytes.len() as u64).await.unwrap() == bytes);
        (client, grant)
    });
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // All at once: what comes with the greeting goes to the poll core with the connection.
    let mut asked = message(Op::Hello, 0, Hello::new(grant.lease_id).as_bytes());
    for id in 0..READS {
        asked.extend(message(Op::Read, 1 + id, Range::new(5 + u64::from(id), LEN as u32).as_bytes()));
    }
    stream.write_all(&asked).unwrap();
    stream.read_exact(&mut [0; Header::LEN + HelloAck::LEN]).unwrap();
    for id in 0..READS {
        let mut answer = [0; Header::LEN + ReadResp::LEN + LEN];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(Header::parse(&answer).unwrap().request_id(), 1 + id);
        assert_eq!(answer[Header::LEN + ReadResp::LEN..], bytes[id as usize..][..LEN]);
    }
    runtime.block_on(client.lease_free(grant.lease_id)).unwrap();
    let ended = Instant::now();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert!(ended.elapsed() < Duration::from_secs(2), "{:?}", ended.elapsed());
    let stopped = berth.stop();
    assert_eq!((stopped.status.code(), stopped.sum("io", "port", "connections")), (Some(0), 2));
}

#[test]
fn a_lease_of_a_key_that_is_not_enrolled_is_refused() {
    let port = "[[port]]\nname = \"io\"\ndriver = \"udp\"\nbind = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\n\
                service = \"lease-io\"\n";
    let (berth, _folder) = node(port);
    let unenrolled = tempfile::tempdir().unwrap();
    key_file::create(&unenrolled.path().join("client.key"), &key_file::generate().unwrap()).unwrap();
    assert!(!perf(&berth, &unenrolled, &["--count", "1"]).status.success());
    assert_eq!(berth.stop().sum("io", "service", "received"), 0);
}

#[cfg(feature = "dpdk")]
#[test]
fn a_memif_peer_reads_pages_in_jumbo_frames() {
    let folder = tempfile::tempdir().unwrap();
    let device = |id, role| format!("net_memif{id},role={role},socket={}/m.sock,bsize=8192", folder.path().display());
    let port = format!(
        "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n[[port]]\nname = \"d\"\ndriver = \"dpdk\"\ndevice = \
         \"{}\"\naddress = \"10.0.0.2/24\"\nudp_port = 4700\nmtu = 6000\ncpu = 0\nidle = \"wait\"\n\
         service = \"lease-io\"\n",
        device(0, "server")
    );
    let (berth, keys) = node(&port);
    let client = device(1, "client");
    let args = ["--port", "dpdk", "--device", &client, "--address", "10.0.0.1/24", "--peer", "10.0.0.2:4700"];
    for op in ["read", "write"] {
        let cases = ["--op", op, "--size", "64,4096", "--count", "500", "--warmup", "0", "--window", "16"];
        succeeds(&perf(&berth, &keys, &[&args[..], &cases].concat()));
    }
    let stopped = berth.stop();
    assert_eq!(served(&stopped, "d", "read"), 2 * 500 + 500 + 48);
    assert_eq!(served(&stopped, "d", "written"), 2 * 500 + 1024 + 48);
}

#[cfg(feature = "dpdk")]
#[test]
fn an_unreliable_connection_reads_and_writes_leases() {
    let folder = tempfile::tempdir().unwrap();
    let device = |id, role| format!("net_memif{id},role={role},socket={}/m.sock", folder.path().display());
    let port = format!(
        "[runtime.dpdk]\nhugepages = false\nmemory_mb = 128\n[[port]]\nname = \"d\"\ndriver = \"dpdk\"\ndevice = \
         \"{}\"\naddress = \"10.0.0.2/24\"\ntransport = \"roce\"\nrendezvous = \"127.0.0.1:0\"\ncpu = 0\nidle = \"wait\"\n\
         service = \"lease-io\"\n",
        device(0, "server")
    );
    let (berth, keys) = node(&port);
    let rendezvous = berth.ready["ports"][0]["rendezvous"].as_str().unwrap().to_owned();
    let client = device(1, "client");
    let args = ["--port", "roce", "--device", &client, "--address", "10.0.0.1/24", "--rendezvous", &rendezvous];
    for op in ["read", "write"] {
        let cases = ["--op", op, "--size", "64,512", "--count", "500", "--warmup", "0", "--window", "16"];
        succeeds(&perf(&berth, &keys, &[&args[..], &cases].concat()));
    }
    let stopped = berth.stop();
    // 1024 places of 64 bytes and 390 of 512 are filled; those that were written are read back.
    assert_eq!(served(&stopped, "d", "read"), 2 * 500 + 500 + 390);
    assert_eq!(served(&stopped, "d", "written"), 2 * 500 + 1024 + 390);
    assert_eq!(stopped.sum("d", "port", "roce_sent"), stopped.sum("d", "port", "roce_messages"));
}
