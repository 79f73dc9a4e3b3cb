//! `[port.limits]` and `weight`.

use std::{
    net::UdpSocket,
    time::{Duration, Instant},
};

use berth_client::{Data, Via};

use crate::{
    MACHINE, books,
    common::{Berth, Client, INCREMENT, RPC_INCREMENT, c_plugin, port, request},
    site::{Site, grants, quic},
};

const OVERLOADED: i32 = -5;

/// A client at an address of its own.
fn client_at(address: &str, berth: &Berth) -> Client {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    socket.connect(berth.addr("a")).unwrap();
    Client::of(socket)
}

#[test]
fn a_peer_over_its_limit_is_told_so_and_others_are_not_touched() {
    for driver in ["udp", "uring"] {
        let limits = "[port.limits]\nper_peer_rps = 1\nper_peer_burst = 50\nrps = 1000\nburst = 1000";
        let config = port("a", limits).replace("\"udp\"", &format!("{driver:?}"));
        let berth = Berth::start(&format!("{config}{INCREMENT}"));
        let greedy = client_at("127.0.0.2", &berth);
        let statuses: Vec<_> = (0..200).map(|_| greedy.call(RPC_INCREMENT, &[1]).status).collect();
        let refused = statuses.iter().filter(|status| **status == OVERLOADED).count();
        assert!((145..=150).contains(&refused), "{driver}: {refused} of 200");
        assert!(statuses[..50].iter().all(|status| *status == 0));
        // Another socket of the same host is the same peer, another host is not.
        assert_eq!(client_at("127.0.0.2", &berth).call(RPC_INCREMENT, &[1]).status, OVERLOADED);
        for _ in 0..50 {
            assert_eq!(client_at("127.0.0.3", &berth).call(RPC_INCREMENT, &[1]).result, [2]);
        }
        let stopped = berth.stop();
        assert_eq!(stopped.sum("a", "service", "limited_peer"), refused as u64 + 1);
        assert_eq!(books(&stopped)[0].received, 251);
    }
}

#[test]
fn a_peer_with_16_source_ports_has_one_limit_in_all_queues_of_a_port() {
    const BURST: usize = 50;
    for driver in ["udp", "uring"] {
        let limits = format!("[port.limits]\nper_peer_rps = 1\nper_peer_burst = {BURST}");
        let config = port("a", &limits).replace("\"udp\"", &format!("{driver:?}")).replace("cpu = 0", "cpus = [0, 1]");
        let berth = Berth::start(&format!("{config}{INCREMENT}"));
        let begun = Instant::now();
        let clients: Vec<_> = (0..16).map(|_| client_at("127.0.0.2", &berth)).collect();
        let call = |_| clients.iter().filter(|client| client.call(RPC_INCREMENT, &[1]).status == 0).count();
        let admitted: usize = (0..20).map(call).sum();
        let refilled = begun.elapsed().as_secs() as usize + 1;
        assert!((BURST..=BURST + refilled).contains(&admitted), "{driver}: {admitted} of 320");
        let stopped = berth.stop();
        assert_eq!(stopped.sum("a", "service", "limited_peer"), 320 - admitted as u64, "{driver}");
        // Both queues had some of them.
        let queues = books(&stopped);
        assert_eq!(queues.len(), 2, "{driver}");
        assert!(queues.iter().all(|queue| queue.received > 0), "{driver}: {queues:?}");
    }
}

#[tokio::test]
async fn lease_io_drops_what_is_over_a_limit_and_counts_it() {
    let site = Site::new();
    let berth = Berth::start(&site.config("[port.limits]\nper_peer_rps = 1\nper_peer_burst = 5\n"));
    let [memory, _] = grants(&quic(&berth, &site.holder).await).await;
    let mut data = Data::open(&site.holder, &memory, Via::TwoSided, None).await.unwrap();
    for _ in 0..6 {
        // The client asks again until it is admitted.
        data.read(0, 64).await.unwrap();
    }
    let stopped = berth.stop();
    assert!(stopped.sum("io", "service", "limited_peer") > 0);
    books(&stopped);
}

#[test]
fn no_more_frames_wait_than_the_queue_holds() {
    const QUEUE: u64 = 256;
    const SENT: u64 = 3000;
    for (driver, beside) in [("udp", 32), ("uring", 32 + 256)] {
        let config = port("a", &format!("[port.limits]\nqueue = {QUEUE}")).replace("\"udp\"", &format!("{driver:?}"));
        let berth = Berth::start(&format!("{config}{INCREMENT}"));
        let client = berth.client("a");
        client.call(RPC_INCREMENT, &[0]);
        berth.signal("-STOP");
        std::thread::sleep(Duration::from_millis(50));
        for id in 0..SENT {
            client.send(&request(RPC_INCREMENT, &[7], id as u32, 0));
        }
        berth.signal("-CONT");
        std::thread::sleep(Duration::from_millis(300));
        let stopped = berth.stop();
        let waited = stopped.sum("a", "port", "rx_frames") - 1;
        // All of what is configured can be used, and no more than that and what the driver has in hand.
        assert!((QUEUE / 2..=QUEUE + beside).contains(&waited), "{driver}: {waited} frames waited");
        assert_eq!(waited + stopped.sum("a", "port", "rx_overrun"), SENT, "{driver}");
        assert_eq!(books(&stopped)[0].answered, waited + 1);
    }
}

#[test]
fn a_port_with_a_slow_handler_leaves_others_of_its_cpu_their_share() {
    let _alone = MACHINE.blocking_lock();
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <time.h>\nvoid slow(const void *rx, void *tx, unsigned long n) { struct timespec a, b; \
                  clock_gettime(CLOCK_MONOTONIC, &a); do clock_gettime(CLOCK_MONOTONIC, &b); while ((b.tv_sec - a.tv_sec) \
                  * 1000000000L + b.tv_nsec - a.tv_nsec < 50000); }";
    let (handler, slow) = c_plugin(folder.path(), "slow", source);
    let function = format!("[[function]]\nname = \"slow\"\nhandler = \"{handler}\"\nabi = \"host_call\"\n");
    let second = port("b", "weight = 3");
    let berth = Berth::start(&format!("{}{second}{INCREMENT}{function}", port("a", "")));
    let floods = [("a", slow), ("b", slow)].map(|(name, id)| {
        let client = berth.client(name);
        std::thread::spawn(move || {
            client.socket.set_nonblocking(true).unwrap();
            let until = std::time::Instant::now() + Duration::from_millis(1500);
            let mut buf = [0; 2048];
            while std::time::Instant::now() < until {
                for _ in 0..64 {
                    // Where a buffer is full, so is the port.
                    let _ = client.socket.send(&request(id, &[], 1, 0));
                }
                while client.socket.recv(&mut buf).is_ok() {}
                std::thread::sleep(Duration::from_micros(500));
            }
        })
    });
    std::thread::sleep(Duration::from_millis(1200));
    // While both have more than they can do: time is shared as their weights say.
    let stopped = berth.stop();
    for flood in floods {
        flood.join().unwrap();
    }
    let busy = ["a", "b"].map(|name| stopped.sum(name, "counters", "busy_ns") as f64);
    let ratio = busy[1] / busy[0];
    assert!((2.0..4.0).contains(&ratio), "{busy:?}: {ratio:.2}");
    books(&stopped);
}
