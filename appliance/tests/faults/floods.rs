//! Garbage as fast as it can be sent, to each port and listener: none of it is answered, all of it is counted, and a good
//! client is served.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use berth_client::{Client as Leases, Data, Via};

use crate::{
    MACHINE, books,
    common::{Berth, Client, INCREMENT, RPC_INCREMENT, port, request},
    site::{Site, endpoint, grants, quic},
};

/// Somebody who sends datagrams of random bytes until stopped.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flood {
    fn start(to: SocketAddr) -> Self {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, count) = (stop.clone(), sent.clone());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let thread = std::thread::spawn(move || {
            let mut rng = fastrand::Rng::with_seed(5);
            let mut garbage = vec![0; 1400];
            rng.fill(&mut garbage);
            while !stopped.load(Relaxed) {
                let len = rng.usize(..400);
                let at = rng.usize(..1000);
                count.fetch_add(u64::from(socket.send_to(&garbage[at..at + len], to).is_ok()), Relaxed);
            }
        });
        Self { stop, sent, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap();
        self.sent.load(Relaxed)
    }
}

/// How long an answer may take where nothing else is sent: a host may take the CPUs away for most of a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// The same in a flood, which drops requests.
const BRIEFLY: Duration = Duration::from_millis(100);

/// Round trips for 150 ms: the median, and how many requests got no answer for so long.
fn median(client: &Client, patience: Duration, lost: &mut u64) -> Duration {
    client.socket.set_read_timeout(Some(patience)).unwrap();
    let (mut times, started, mut buf) = (Vec::new(), Instant::now(), [0; 2048]);
    for id in 0.. {
        if started.elapsed() > Duration::from_millis(150) {
            break;
        }
        let sent = Instant::now();
        client.send(&request(RPC_INCREMENT, &[1], id, 0));
        match client.socket.recv(&mut buf) {
            Ok(_) => times.push(sent.elapsed()),
            Err(_) => *lost += 1,
        }
    }
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn garbage_at_a_port_is_counted_and_a_good_client_is_served() {
    let _alone = MACHINE.blocking_lock();
    for driver in ["udp", "uring"] {
        let config = port("a", "").replace("\"udp\"", &format!("{driver:?}"));
        let berth = Berth::start(&format!("{config}{INCREMENT}"));
        let client = berth.client("a");
        let (mut quiet, mut loud, mut sent, mut lost) = (Vec::new(), Vec::new(), 0, 0);
        for _ in 0..4 {
            quiet.push(median(&client, PATIENCE, &mut lost));
            assert_eq!(lost, 0, "{driver}: nothing is lost without a flood");
            let flood = Flood::start(berth.addr("a"));
            let mut in_flood = 0;
            loud.push(median(&client, BRIEFLY, &mut in_flood));
            sent += flood.stop();
            // What the client lost is late by now, or dropped with the flood.
            while client.socket.recv(&mut [0; 2048]).is_ok() {}
        }
        quiet.sort_unstable();
        loud.sort_unstable();
        let (quiet, loud) = (quiet[1], loud[1]);
        let ratio = loud.as_secs_f64() / quiet.as_secs_f64();
        println!("{driver}: p50 {quiet:?} without, {loud:?} with {sent} datagrams of garbage in 0.6 s: {ratio:.2}x");
        // On two cores that the flood, the client and the server share, medians of scheduling are only so good.
        assert!(ratio < 20.0, "{driver}: {ratio:.2}x");
        let stopped = berth.stop();
        let books = &books(&stopped)[0];
        let garbage: u64 = ["bad_magic", "truncated"].iter().filter_map(|reason| books.dropped.get(reason)).sum();
        let overrun = stopped.sum("a", "port", "rx_overrun");
        assert!(garbage + overrun >= sent && garbage > 0, "{sent} sent, {garbage} dropped, {overrun} overrun");
        assert!(books.refused.is_empty(), "{books}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_at_every_listener_keeps_no_good_client_from_its_leases() {
    let _alone = MACHINE.lock().await;
    let site = Site::new();
    let berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let [memory, _] = grants(&client).await;
    for name in ["control-udp", "relay", "fbmu", "quic", "two-sided"] {
        let flood = Flood::start(endpoint(&berth, name));
        let started = Instant::now();
        // Each asks again where the flood has filled a buffer.
        let over_udp = Leases::udp(site.holder.clone(), endpoint(&berth, "control-udp"), None).await.unwrap();
        assert_eq!(over_udp.lease_list().await.unwrap().len(), 2, "{name}");
        client.ping().await.unwrap();
        for via in [Via::Tcp, Via::Shim, Via::TwoSided, Via::Quic] {
            let mut data = Data::open(&site.holder, &memory, via, None).await.unwrap();
            data.write(0, name.as_bytes()).await.unwrap_or_else(|e| panic!("{name}, {via:?}: {e}"));
            assert_eq!(data.read(0, name.len() as u64).await.unwrap(), name.as_bytes(), "{name}, {via:?}");
        }
        let served = started.elapsed();
        println!("{name}: {} datagrams of garbage while all of it took {served:?}", flood.stop());
        assert!(served < Duration::from_secs(10), "{name}: {served:?}");
    }
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.stderr);
    assert!(!stopped.stderr.contains("ERROR"), "{}", stopped.stderr);
    books(&stopped);
}
