//! Queues that share a port's buckets, each on its own thread.

use std::{
    net::SocketAddr,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use berth_admission::{Admission, Limit, Limits, Rate};
use berth_port::{Nanos, Peer};

const QUEUES: usize = 4;
const MS: u64 = 1_000_000;

fn peer(host: u32, port: u16) -> Peer {
    SocketAddr::from(((0x0A00_0000 + host).to_be_bytes(), port)).into()
}

fn queues(limits: Limits) -> Vec<Admission> {
    Admission::of_port(limits, QUEUES)
}

/// Makes every queue ask at once, as often as `ask` does; the first one sets the clock before.
fn at_once(queues: &mut [Admission], times: &[u64], ask: impl Fn(usize, &mut Admission, Nanos) + Sync) {
    let barrier = Barrier::new(queues.len());
    thread::scope(|scope| {
        for (number, queue) in queues.iter_mut().enumerate() {
            let (barrier, ask) = (&barrier, &ask);
            scope.spawn(move || {
                for now in times {
                    barrier.wait();
                    ask(number, queue, Nanos(*now));
                }
            });
        }
    });
}

#[test]
fn a_peer_with_16_source_ports_has_one_limit_in_4_queues() {
    const BURST: u64 = 50;
    let mut queues = queues(Limits { per_peer: Some(Rate::new(1000, BURST)), all: None });
    let [greedy, modest] = [0; 2].map(AtomicU64::new);
    // 200 times 2 ms: two tokens each, and the burst at first.
    let times: Vec<_> = (1..=200).map(|nth| 1000 * MS + nth * 2 * MS).collect();
    at_once(&mut queues, &times, |number, queue, now| {
        for port in (0..64).filter(|port| port % QUEUES == number) {
            let admitted = queue.admit(peer(1, 4000 + port as u16 % 16), now);
            assert!(matches!(admitted, Ok(()) | Err(Limit::Peer)), "{admitted:?}");
            greedy.fetch_add(u64::from(admitted.is_ok()), Relaxed);
        }
        // Another host asks once in each of those times, at one queue or another.
        if number as u64 == now.0 / MS % QUEUES as u64 {
            modest.fetch_add(u64::from(queue.admit(peer(2, 1), now).is_ok()), Relaxed);
        }
    });
    assert_eq!(greedy.into_inner(), BURST + 2 * 199);
    assert_eq!(modest.into_inner(), 200);
}

#[test]
fn all_peers_of_all_queues_share_one_limit_and_who_is_refused_by_it_keeps_his_tokens() {
    const OWN: u64 = 200;
    let mut queues = queues(Limits { per_peer: Some(Rate::new(1, OWN)), all: Some(Rate::new(1000, 50)) });
    let admitted: [AtomicU64; QUEUES] = Default::default();
    let ask = |number: usize, queue: &mut Admission, now| {
        for _ in 0..20 {
            admitted[number].fetch_add(u64::from(queue.admit(peer(number as u32, 1), now).is_ok()), Relaxed);
        }
    };
    let times: Vec<_> = (1..=100).map(|nth| 1000 * MS + nth * 2 * MS).collect();
    at_once(&mut queues, &times, ask);
    assert_eq!(admitted.iter().map(|count| count.load(Relaxed)).sum::<u64>(), 50 + 2 * 99);
    // In time each of them gets what it was not given, and no more: its own limit does not refill within a second.
    let times: Vec<_> = (1..=60).map(|nth| 1200 * MS + nth * 12 * MS).collect();
    at_once(&mut queues, &times, ask);
    assert_eq!(admitted.map(AtomicU64::into_inner), [OWN; QUEUES]);
}

#[test]
fn a_crowd_of_newcomers_to_every_queue_gives_nobody_two_places() {
    const HOSTS: u32 = 20_000;
    let mut queues = queues(Limits { per_peer: Some(Rate::new(1000, 1)), all: None });
    let hosts: Vec<_> = (0..HOSTS).map(|_| AtomicU64::new(0)).collect();
    let crowd = AtomicU64::new(0);
    // All at one time: whoever has a place has one token, and those without share one.
    at_once(&mut queues, &[1000 * MS], |number, queue, now| {
        let mut order: Vec<_> = (0..HOSTS).collect();
        fastrand::Rng::with_seed(number as u64).shuffle(&mut order);
        for host in order {
            match queue.admit(peer(host, number as u16), now) {
                Ok(()) => drop(hosts[host as usize].fetch_add(1, Relaxed)),
                Err(Limit::Crowd) => drop(crowd.fetch_add(1, Relaxed)),
                Err(limit) => assert_eq!(limit, Limit::Peer),
            }
        }
    });
    let admitted: Vec<_> = hosts.into_iter().map(AtomicU64::into_inner).collect();
    assert!(crowd.into_inner() > 0);
    // But for the crowd's token, of which one may have had a second.
    assert!(admitted.iter().filter(|count| **count > 1).count() <= 1);
    assert!(admitted.iter().all(|count| *count <= 2));
    assert!(admitted.iter().sum::<u64>() <= berth_admission::PEERS as u64 + 1);
}
