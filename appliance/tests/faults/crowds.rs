//! Connections that say nothing, and those that say it slowly: who speaks is served all the while.

use std::{
    collections::HashSet,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use berth_client::{Client, Data, Via};
use berth_tls::quic::{Alpn, client_config};
use quinn::{ClientConfig, Connection, Endpoint};

use crate::{
    MACHINE,
    common::Berth,
    descriptors, resident,
    site::{Site, access, endpoint, grants, key, quic},
};

const MANY: usize = 10_000;
const MIB: u64 = 1 << 20;

/// An answer of the admin address.
fn healthy(admin: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: berth\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_tcp_connections_displace_each_other_and_nobody_else() {
    let _alone = MACHINE.lock().await;
    berth_host::raise_file_limit().unwrap();
    let site = Site::new();
    let berth = site.start();
    let grants = grants(&quic(&berth, &site.holder).await).await;
    // Guests from before stay.
    let mut kept = Data::open(&site.holder, &grants[0], Via::Tcp, None).await.unwrap();
    let (before, files) = (resident(berth.pid()), descriptors(berth.pid()));
    for name in ["fbmt", "fbbt", "admin"] {
        let address = endpoint(&berth, name);
        let idle: Vec<_> = (0..MANY).map(|_| TcpStream::connect(address).unwrap()).collect();
        let started = Instant::now();
        match name {
            "fbmt" => access(&site.holder, &grants[0], Via::Tcp).await,
            "fbbt" => access(&site.holder, &grants[1], Via::Tcp).await,
            _ => assert!(tokio::task::spawn_blocking(move || healthy(address)).await.unwrap()),
        }
        let (served, grown) = (started.elapsed(), resident(berth.pid()).saturating_sub(before));
        println!("{name}: {MANY} idle connections, served in {served:?}, {} KiB more", grown / 1024);
        assert!(served < Duration::from_secs(3), "{name}: {served:?}");
        assert!(grown < 32 * MIB, "{name}: {grown} bytes more");
        // Those that gave way are closed when their turn comes.
        let deadline = Instant::now() + Duration::from_secs(5);
        while descriptors(berth.pid()) >= files + 600 {
            assert!(Instant::now() < deadline, "{name}: {} descriptors", descriptors(berth.pid()));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(idle);
    }
    kept.write(0, b"still here").await.unwrap();
    let stopped = berth.stop();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.stderr);
    let control = &stopped.counters["control"];
    let displaced = control["connections_displaced"].as_u64().unwrap();
    assert!(displaced > 2 * (MANY as u64 - 600), "{control}");
    assert_eq!(control["connections_refused"], 0);
}

/// Sends one byte of `message` at a time, until it is told to go; returns how long that took.
fn drip(address: SocketAddr, message: &[u8]) -> Duration {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let started = Instant::now();
    for byte in message {
        // An error is the end that is waited for, seen by the one who writes.
        let sent = stream.write_all(&[*byte]).is_ok();
        match stream.read(&mut [0; 512]) {
            Err(e) if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) && sent => {}
            _ => break,
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{address} is patient for ever");
    }
    started.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_speaks_slowly_is_cut_off_and_keeps_nobody_waiting() {
    let site = Site::new();
    let berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let [memory, block] = grants(&client).await;
    let mut slow = Vec::new();
    for (name, message) in [
        ("fbmt", &[0x46; 64][..]),
        ("fbbt", &[0x46; 64]),
        ("admin", b"GET /healthz HTTP/1.1\r\nHost: berth-and-more\r\nAccept: */*\r\n\r\n"),
    ] {
        let address = endpoint(&berth, name);
        let message: Arc<[u8]> = message.into();
        slow.extend((0..8).map(|_| {
            let message = message.clone();
            (name, std::thread::spawn(move || drip(address, &message)))
        }));
    }
    // An enrolled key whose streams bring one byte each.
    let drips = connect(&berth, &site.other, Alpn::Control).await;
    let (mut send, mut receive) = drips.open_bi().await.unwrap();
    send.write_all(&[0x46]).await.unwrap();
    let started = Instant::now();
    let reset = tokio::spawn(async move {
        receive.read_to_end(1024).await.map(|_| started.elapsed()).map_err(|_| started.elapsed())
    });

    let mut worst = Duration::ZERO;
    while started.elapsed() < Duration::from_secs(4) {
        let asked = Instant::now();
        access(&site.holder, &memory, Via::Tcp).await;
        access(&site.holder, &block, Via::Tcp).await;
        client.ping().await.unwrap();
        let admin = endpoint(&berth, "admin");
        assert!(tokio::task::spawn_blocking(move || healthy(admin)).await.unwrap());
        worst = worst.max(asked.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("the slowest round of four good clients took {worst:?}");
    assert!(worst < Duration::from_secs(2), "{worst:?}");
    for (name, slow) in slow {
        let lasted = tokio::task::spawn_blocking(|| slow.join().unwrap()).await.unwrap();
        assert!(lasted < Duration::from_secs(12), "{name}: {lasted:?}");
    }
    let lasted = reset.await.unwrap().expect_err("the stream is reset");
    assert!((9..13).contains(&lasted.as_secs()), "{lasted:?}");
    let control = &berth.stop().counters["control"];
    assert_eq!((&control["streams_reset"], &control["connections_displaced"]), (&1.into(), &0.into()));
}

fn quic_config(identity: &Arc<berth_identity::Identity>, alpn: Alpn) -> ClientConfig {
    ClientConfig::new(Arc::new(client_config(identity, alpn, Arc::new(|_| true)).unwrap()))
}

async fn connect(berth: &Berth, identity: &Arc<berth_identity::Identity>, alpn: Alpn) -> Connection {
    let endpoint_of = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint_of.connect_with(quic_config(identity, alpn), endpoint(berth, "quic"), "berth").unwrap();
    connecting.await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_has_its_quic_connections_and_others_have_theirs() {
    const TRIED: usize = 400;
    let _alone = MACHINE.lock().await;
    let site = Site::new();
    let berth = site.start();
    let first = quic(&berth, &site.holder).await;
    let grants = grants(&first).await;
    let before = resident(berth.pid());
    let from = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = quic_config(&site.other, Alpn::Control);
    let to = endpoint(&berth, "quic");
    let mut idle = Vec::new();
    for _ in 0..TRIED {
        idle.push(from.connect_with(config.clone(), to, "berth").unwrap().await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let open = idle.iter().filter(|connection| connection.close_reason().is_none()).count();
    assert_eq!(open, 256);
    assert!(Client::quic(site.other.clone(), to, None).await.is_err() || first.ping().await.is_ok());
    access(&site.holder, &grants[0], Via::Quic).await;
    let grown = resident(berth.pid()).saturating_sub(before);
    println!("{open} of {TRIED} idle QUIC connections of one key stay, {} KiB more", grown / 1024);
    assert!(grown < 64 * MIB, "{grown} bytes more");
    let stopped = berth.stop();
    let refused = stopped.counters["control"]["connections_refused"].as_u64().unwrap();
    assert!((TRIED - 256..=TRIED - 255).contains(&(refused as usize)), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_handshakes_that_never_end_leave_room_for_one_that_does() {
    let _alone = MACHINE.lock().await;
    let site = Site::new();
    let berth = site.start();
    let client = quic(&berth, &site.holder).await;
    let [memory, _] = grants(&client).await;
    let before = resident(berth.pid());
    // Passes on the first datagram of each connection, and no answer ever.
    let (inside, outside) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let (to, via) = (endpoint(&berth, "quic"), inside.local_addr().unwrap());
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    std::thread::spawn(move || {
        let (mut buf, mut seen) = ([0; 2048], HashSet::new());
        while let Ok(len) = inside.recv(&mut buf) {
            // A long header: flags, version, then the length of the destination's connection id, and the id.
            let id = buf[6..6 + usize::from(buf[5]).min(20)].to_vec();
            if len >= 1200 && seen.insert(id) {
                outside.send_to(&buf[..len], to).unwrap();
                count.fetch_add(1, Relaxed);
            }
        }
    });
    let unknown_key = quic_config(&key(), Alpn::Control);
    let from = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    while begun.load(Relaxed) < MANY {
        let wanted = begun.load(Relaxed) + 250;
        let under_way: Vec<_> =
            (0..250).map(|_| from.connect_with(unknown_key.clone(), via, "berth").unwrap()).collect();
        let deadline = Instant::now() + Duration::from_secs(2);
        while begun.load(Relaxed) < wanted && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(under_way);
    }
    let started = Instant::now();
    access(&site.holder, &memory, Via::Quic).await;
    let (served, grown) = (started.elapsed(), resident(berth.pid()).saturating_sub(before));
    println!("{MANY} handshakes begun, served in {served:?}, {} KiB more", grown / 1024);
    assert!(served < Duration::from_secs(3), "{served:?}");
    assert!(grown < 64 * MIB, "{grown} bytes more");
    client.ping().await.unwrap();
    let stopped = berth.stop();
    let retried = stopped.counters["control"]["handshakes_retried"].as_u64().unwrap();
    // From 256 connections on, nobody gets state before it has shown where it is.
    assert!(retried > MANY as u64 / 2, "{retried} of {MANY}");
}
