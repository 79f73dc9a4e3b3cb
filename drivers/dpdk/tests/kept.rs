//! Frames that stay in their buffers, where another process can read them, until they are released.

mod common;

use std::{
    os::fd::AsRawFd as _,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use berth_dpdk::{DpdkPort, PortConfig, open, ring_pair};
use berth_memory::Memory as _;
use berth_pages::Pages;
use berth_port::{Peer, Place, Port, PostError, Verdict};
use common::{config, counter, eal, payload, serve, v4, v6, verified_round_trips};

/// Frames that the server under test may keep.
const KEPT: u32 = 8;

/// A client and a server, joined by a memif within this process.
fn pair(folder: &tempfile::TempDir, server: &PortConfig) -> (DpdkPort, DpdkPort) {
    static DEVICES: AtomicU32 = AtomicU32::new(0);
    let socket = folder.path().join("memif.sock");
    let device = |role: &str| {
        let number = DEVICES.fetch_add(1, Ordering::Relaxed);
        format!("net_memif{number},role={role},socket={},socket-abstract=no,id=0", socket.display())
    };
    let client = PortConfig { vlan: server.vlan, ..config(&device("client"), 1) };
    let server = PortConfig { device: device("server"), ..server.clone() };
    let server = open(eal(), &server).unwrap().remove(0);
    let client = open(eal(), &client).unwrap().remove(0);
    client.wait_link(Duration::from_secs(5)).unwrap();
    (client, server)
}

/// Closes two ends one after the other: DPDK's driver frees a connection twice if its ends close at the same time.
fn close(first: DpdkPort, second: DpdkPort) {
    drop(first);
    while second.link_is_up() {
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(20));
    drop(second);
}

fn keeping(kept: u32) -> PortConfig {
    PortConfig { kept, ..config("", 2) }
}

/// The memory of a port's frames, mapped once more, only to read, as in another process.
struct Reader {
    base: NonNull<u8>,
    pages: Arc<Pages>,
}

impl Reader {
    fn of(port: &DpdkPort) -> Self {
        let pages = port.frames().unwrap();
        let fd = pages.file().unwrap().as_raw_fd();
        // SAFETY: a mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe { libc::mmap(ptr::null_mut(), pages.size(), libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Self { base: NonNull::new(at.cast()).unwrap(), pages }
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.pages.size());
        // SAFETY: the mapping is that long; this thread owns the port, which is not polled meanwhile.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(at), len) }.to_vec()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which nothing refers.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.pages.size()) };
    }
}

/// Sends a frame, once the neighbour is known and there is room.
fn send(client: &mut DpdkPort, server: &mut DpdkPort, peer: Peer, bytes: &[u8]) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(10), "nothing sent for 10 seconds");
        match client.post(peer, |buf| {
            buf[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        }) {
            Ok(()) => break client.tx(),
            Err(PostError::Full | PostError::Unreachable) => {
                client.tx();
                assert_eq!(server.rx(|_| panic!("a frame that nobody sent")), 0);
                server.tx();
                client.rx(|_| panic!("an answer that nobody gave"));
            }
        }
    }
}

/// Receives one frame, and keeps it if it has a place.
fn keep(server: &mut DpdkPort) -> (Option<Place>, Vec<u8>) {
    let (start, mut got) = (Instant::now(), None);
    while got.is_none() {
        assert!(start.elapsed() < Duration::from_secs(10), "nothing received for 10 seconds");
        server.rx(|frame| {
            assert!(got.is_none(), "more than was sent");
            got = Some((frame.place(), frame.data().to_vec()));
            Verdict::Keep
        });
    }
    got.unwrap()
}

#[test]
fn kept_frames_are_read_elsewhere_and_stay_as_they_are_until_they_are_released() {
    let folder = tempfile::tempdir().unwrap();
    let (mut client, mut server) = pair(&folder, &keeping(KEPT));
    let reader = Reader::of(&server);
    let longest = server.max_frame();
    let mut held = Vec::new();
    for n in 0..u64::from(KEPT) {
        let bytes = payload(n, longest);
        send(&mut client, &mut server, v4(2).into(), &bytes);
        let (place, data) = keep(&mut server);
        assert_eq!(data, bytes);
        held.push((place.unwrap(), bytes));
    }
    let check = |reader: &Reader, held: &[(Place, Vec<u8>)]| {
        for (place, bytes) in held {
            assert_eq!(&reader.read(place.at, bytes.len()), bytes, "frame {}", place.number);
        }
    };
    check(&reader, &held);
    assert_eq!(counter(&server, "rx_kept"), u64::from(KEPT));
    // Several times as many as the pool has buffers.
    verified_round_trips(&mut client, v4(2), 30_000, || {
        serve(&mut server);
    });
    check(&reader, &held);

    // One is released, and one of its name again: its buffer is used anew, and no other is.
    let (released, _) = held.remove(3);
    for number in [released.number, released.number, KEPT, u32::MAX] {
        server.release(number);
    }
    for number in [Some(released.number), None] {
        send(&mut client, &mut server, v4(2).into(), b"another");
        assert_eq!(keep(&mut server).0.map(|place| place.number), number);
    }
    server.release(released.number);
    let (mut reused, start) = (false, Instant::now());
    while !reused {
        assert!(start.elapsed() < Duration::from_secs(30), "the buffer was not used again");
        send(&mut client, &mut server, v4(2).into(), b"another");
        let (place, _) = keep(&mut server);
        let place = place.expect("one place is free");
        assert_eq!(place.number, released.number);
        reused = place.at == released.at;
        server.release(place.number);
    }
    check(&reader, &held);
    close(client, server);
}

#[test]
fn frames_beyond_those_that_can_be_kept_have_no_place_and_are_all_delivered() {
    /// More than the pool of a port that keeps none has buffers.
    const MANY: u32 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let (mut client, mut server) = pair(&folder, &keeping(MANY));
    let mut places = Vec::new();
    for n in 0..20_000_u64 {
        send(&mut client, &mut server, v4(2).into(), &n.to_le_bytes());
        let (place, data) = keep(&mut server);
        assert_eq!(data, n.to_le_bytes());
        assert_eq!(place.is_some(), n < u64::from(MANY), "{n}");
        places.extend(place);
    }
    let mut numbers: Vec<_> = places.iter().map(|place| place.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..MANY).collect::<Vec<_>>());
    assert_eq!(counter(&server, "rx_kept"), u64::from(MANY));
    assert_eq!(counter(&server, "rx_frames"), 20_000);
    // A handler that keeps nothing leaves the place to the next.
    server.release(places[0].number);
    for verdict in [Verdict::Drop, Verdict::Reply, Verdict::Keep] {
        send(&mut client, &mut server, v4(2).into(), b"x");
        let mut place = None;
        while place.is_none() {
            server.rx(|frame| {
                place = frame.place();
                verdict
            });
        }
        assert_eq!(place.unwrap().number, places[0].number);
    }
    send(&mut client, &mut server, v4(2).into(), b"x");
    assert_eq!(keep(&mut server).0, None);
    close(client, server);
}

#[test]
fn payloads_are_aligned() {
    for vlan in [None, Some(7)] {
        let folder = tempfile::tempdir().unwrap();
        let (mut client, mut server) = pair(&folder, &PortConfig { vlan, ..keeping(KEPT) });
        for _ in 0..KEPT {
            send(&mut client, &mut server, v4(2).into(), b"four");
            let place = keep(&mut server).0.unwrap();
            assert_eq!(place.at % 64, 0, "{vlan:?}");
            // Readers round up.
            assert!(place.at + (64 << 10) <= server.frames().unwrap().size());
            server.release(place.number);
            send(&mut client, &mut server, v6(2).into(), b"six");
            let place = keep(&mut server).0.unwrap();
            assert_eq!(place.at % 4, 0, "{vlan:?}");
            server.release(place.number);
        }
        close(client, server);
    }
}

#[test]
fn nothing_leaks_whatever_becomes_of_frames() {
    const ECHOES: u64 = 60_000;
    const WINDOW: u64 = 32;
    let folder = tempfile::tempdir().unwrap();
    let (mut client, mut server) = pair(&folder, &keeping(64));
    let reader = Reader::of(&server);
    let longest = server.max_frame();
    let (mut sent, mut answered, mut random, start) = (0, 0, 1_u64, Instant::now());
    let mut held: Vec<(Place, Peer, Vec<u8>)> = Vec::new();
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as usize % below
    };
    while answered < ECHOES {
        assert!(start.elapsed() < Duration::from_mins(1), "{answered} of {ECHOES} after a minute");
        while sent < ECHOES && sent < answered + WINDOW {
            let bytes = payload(sent, longest);
            let posted = client.post(v4(2).into(), |buf| {
                buf[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            });
            if posted.is_err() {
                break;
            }
            sent += 1;
        }
        client.tx();
        // Some are answered at once, some kept; those are answered later, in another order.
        server.rx(|frame| match frame.place() {
            Some(place) if draw(3) > 0 => {
                held.push((place, frame.peer(), frame.data().to_vec()));
                Verdict::Keep
            }
            _ => Verdict::Reply,
        });
        for _ in 0..draw(2 * WINDOW as usize) {
            if held.is_empty() {
                break;
            }
            let (place, peer, bytes) = held.swap_remove(draw(held.len()));
            assert_eq!(reader.read(place.at, bytes.len()), bytes);
            let answer = |buf: &mut [u8]| {
                buf[..bytes.len()].copy_from_slice(&bytes);
                bytes.len()
            };
            if server.post(peer, answer).is_err() {
                held.push((place, peer, bytes));
                break;
            }
            server.release(place.number);
        }
        server.tx();
        client.rx(|frame| {
            let n = u64::from_le_bytes(frame.data()[..8].try_into().unwrap());
            assert_eq!(frame.data(), payload(n, longest));
            answered += 1;
            Verdict::Drop
        });
    }
    assert!(held.is_empty());
    let kept = counter(&server, "rx_kept");
    assert!(kept > ECHOES / 4, "{kept} kept");
    assert_eq!(counter(&server, "tx_dropped_no_buffer"), 0);
    close(client, server);
}

#[test]
fn a_port_is_closed_with_frames_that_are_kept() {
    for round in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let (mut client, mut server) = pair(&folder, &keeping(KEPT));
        let reader = Reader::of(&server);
        send(&mut client, &mut server, v4(2).into(), b"still here");
        let place = keep(&mut server).0.unwrap();
        if round % 2 == 0 {
            close(client, server);
        } else {
            close(server, client);
        }
        // The buffer is free, and its memory is the reader's alone.
        assert_eq!(reader.read(place.at, 10), b"still here");
        assert_eq!(Arc::strong_count(&reader.pages), 1);
    }
}

#[test]
fn why_no_frames_can_be_kept_is_said() {
    let (_client, server) = ring_pair(eal(), &keeping(1), &keeping(1)).unwrap();
    let reason = server.frames().unwrap_err();
    assert!(reason.ends_with("cannot leave frames where they lie: a network card or a memif can"), "{reason}");
    for (kept, why) in [(0, "is to keep no frames"), (u32::MAX, "are more than DPDK takes")] {
        let folder = tempfile::tempdir().unwrap();
        let (mut client, mut server) = pair(&folder, &keeping(kept));
        let reason = server.frames().unwrap_err();
        assert!(reason.ends_with(why), "{reason}");
        // It serves nevertheless.
        send(&mut client, &mut server, v4(2).into(), b"x");
        assert_eq!(keep(&mut server).0, None);
        server.release(0);
        close(client, server);
    }
}
