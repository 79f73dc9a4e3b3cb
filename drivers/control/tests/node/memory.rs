//! What connections make the node hold: bytes as they arrive, long buffers of a few connections, and nothing for long.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use berth_client::{Alloc, Client, Data, Via};
use berth_wire::fabric::{
    Perms,
    data::stream::{Header, Hello, Kind, Op, Range},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};
use zerocopy::IntoBytes as _;

use crate::common::{clients, count, endpoint, memory, start, who};

const MIB: usize = 1 << 20;
const CONNECTIONS: usize = 200;

fn message(op: Op, len: usize, payload: &[u8]) -> Vec<u8> {
    [Header::new(Kind::Memory, op, len as u32, 1).as_bytes(), payload].concat()
}

/// A connection from a new address that names a lease and then sends more.
async fn say(at: SocketAddr, lease: u128, more: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(at).await.unwrap();
    let hello = Hello::new(lease);
    stream.write_all(&message(Op::Hello, hello.as_bytes().len(), hello.as_bytes())).await.unwrap();
    stream.write_all(more).await.unwrap();
    stream
}

/// Resident memory of this process, which contains the node, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Takes as long as a message may.
#[test]
fn half_messages_and_answers_that_nobody_takes_hold_little_and_not_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let control = start(folder.path(), memory(2 * MIB), Vec::new());
    let at = endpoint(&control, "fbmt");
    clients(async {
        let holder = Arc::new(who(3));
        let client = Client::quic(holder.clone(), endpoint(&control, "quic"), None).await.unwrap();
        let token = client.cap_request(Perms::ALL, 300, 0, None).await.unwrap();
        let grant = client.lease_alloc(&token, &Alloc::memory(MIB as u64, 300)).await.unwrap();
        let before = resident();
        let write = message(Op::Write, Range::LEN + MIB, &[0; 16]);
        let (mut half, begun) = (Vec::new(), Instant::now());
        for _ in 0..CONNECTIONS {
            half.push(say(at, grant.lease_id, &write).await);
        }
        sleep(Duration::from_millis(300)).await;
        let grown = resident().saturating_sub(before);
        println!("{CONNECTIONS} half messages of a MiB: {} KiB", grown / 1024);
        assert!(grown < CONNECTIONS * MIB / 10, "{grown}");

        let read = message(Op::Read, Range::LEN, Range::new(0, MIB as u32).as_bytes());
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS {
            silent.push(say(at, grant.lease_id, &read.repeat(16)).await);
        }
        sleep(Duration::from_secs(2)).await;
        let grown = resident().saturating_sub(before);
        println!("{CONNECTIONS} answers of a MiB that nobody takes: {} KiB", grown / 1024);
        assert!(grown < 96 * MIB, "64 of one address at a time: {grown}");
        // Another address has its share.
        let mut data = Data::open(&holder, &grant, Via::Tcp, None).await.unwrap();
        let page = timeout(Duration::from_secs(5), data.read(0, MIB as u64)).await.expect("it is served").unwrap();
        assert_eq!(page.len(), MIB);
        drop(silent);

        for mut stream in half {
            let mut answer = Vec::new();
            // The answer to HELLO, then the end.
            let ended =
                timeout(Duration::from_secs(10) + Duration::from_secs(30).saturating_sub(begun.elapsed()), async {
                    stream.read_to_end(&mut answer).await
                });
            // A reset is an end, too.
            let _ = ended.await.expect("the node closes it");
        }
        assert!(begun.elapsed() > Duration::from_secs(29), "{:?}", begun.elapsed());
    });
    let counters = control.stop(Duration::from_secs(1));
    assert!(count(&counters, "connections_timed_out") >= CONNECTIONS as u64);
}
