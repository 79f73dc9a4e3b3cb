//! Rates, bursts and shared buckets, under virtual time.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use berth_admission::{Admission, Limit, Limits, PEERS, Rate};
use berth_port::{Nanos, Peer};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn peer(number: u32) -> Peer {
    SocketAddr::from(((0x0A00_0000 + number).to_be_bytes(), 4000)).into()
}

/// For a port with one queue.
fn alone(limits: Limits) -> Admission {
    Admission::of_port(limits, 1).remove(0)
}

fn per_peer(per_second: u64, burst: u64) -> Admission {
    alone(Limits { per_peer: Some(Rate::new(per_second, burst)), all: None })
}

/// Offers `count` requests at once; returns the number admitted.
fn offer(admission: &mut Admission, peer: Peer, count: u64, now: u64) -> u64 {
    (0..count).map(|_| u64::from(admission.admit(peer, Nanos(now)).is_ok())).sum()
}

#[test]
fn without_limits_everything_is_admitted() {
    assert_eq!(offer(&mut alone(Limits::default()), peer(1), 10_000, 0), 10_000);
}

#[test]
fn a_burst_is_admitted_at_once_and_then_the_rate() {
    let mut admission = per_peer(1000, 5);
    let start = 7 * SECOND;
    assert_eq!(offer(&mut admission, peer(1), 9, start), 5);
    assert_eq!(admission.admit(peer(1), Nanos(start)), Err(Limit::Peer));
    assert_eq!(offer(&mut admission, peer(1), 9, start + MS - 1), 0);
    assert_eq!(offer(&mut admission, peer(1), 9, start + MS), 1);
    // What was refused took nothing: two intervals later there are two.
    assert_eq!(offer(&mut admission, peer(1), 9, start + 3 * MS), 2);
    // A long pause fills the bucket and no more.
    assert_eq!(offer(&mut admission, peer(1), 9, start + 60 * SECOND), 5);
}

#[test]
fn the_rate_is_exact_in_the_long_run() {
    for (per_second, burst) in [(1, 1), (999, 32), (1000, 1), (123_456, 100)] {
        let mut admission = per_peer(per_second, burst);
        // Four times the rate for a hundred seconds or so.
        let step = (SECOND / per_second / 4).max(1);
        let steps = 400 * per_second.min(10_000);
        let admitted: u64 = (0..steps).map(|i| offer(&mut admission, peer(1), 1, i * step)).sum();
        let expected = (steps * step) as f64 * per_second as f64 / 1e9 + burst as f64;
        assert!((admitted as f64 - expected).abs() <= 1.0 + expected * 1e-3, "{per_second}: {admitted}, {expected}");
    }
}

#[test]
fn peers_are_addresses_and_do_not_share() {
    let mut admission = per_peer(1000, 3);
    for number in 0..100 {
        assert_eq!(offer(&mut admission, peer(number), 5, SECOND), 3, "peer {number}");
    }
    // Another port of a host that has used its tokens up is the same host; written as IPv6, too.
    for again in ["10.0.0.1:9", "[::ffff:10.0.0.1]:1"] {
        let again: SocketAddr = again.parse().unwrap();
        assert_eq!(admission.admit(again.into(), Nanos(SECOND)), Err(Limit::Peer));
    }
    // And so are its connections; those of which no host is known are peers of their own.
    let connection = |number, host: Option<IpAddr>| Peer::Connection { number, host };
    assert_eq!(admission.admit(connection(1, Some([10, 0, 0, 1].into())), Nanos(SECOND)), Err(Limit::Peer));
    assert_eq!([1, 2].map(|number| offer(&mut admission, connection(number, None), 5, SECOND)), [3, 3]);
}

#[test]
fn the_port_s_bucket_is_for_all_and_a_refusal_takes_no_token_of_the_peer() {
    let limits = Limits { per_peer: Some(Rate::new(1000, 4)), all: Some(Rate::new(1000, 6)) };
    let mut admission = alone(limits);
    assert_eq!(offer(&mut admission, peer(1), 5, SECOND), 4);
    assert_eq!(admission.admit(peer(1), Nanos(SECOND)), Err(Limit::Peer));
    assert_eq!(offer(&mut admission, peer(2), 5, SECOND), 2);
    assert_eq!(admission.admit(peer(2), Nanos(SECOND)), Err(Limit::All));
    // The second peer still has two of its own four.
    assert_eq!(offer(&mut admission, peer(2), 5, SECOND + 2 * MS), 2);
    assert_eq!(admission.admit(peer(2), Nanos(SECOND + 2 * MS)), Err(Limit::All));
}

#[test]
fn peers_beyond_the_table_share_one_bucket_and_nobody_who_asked_lately_loses_his() {
    let mut admission = per_peer(1000, 2);
    let mut refused = BTreeMap::new();
    let all = 4 * PEERS as u32;
    for number in 0..all {
        if let Err(limit) = admission.admit(peer(number), Nanos(SECOND)) {
            *refused.entry(format!("{limit:?}")).or_insert(0_u32) += 1;
        }
    }
    // Nearly every place is taken, and the rest had two tokens for all of them.
    let crowd = refused.remove("Crowd").unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    assert!((all - PEERS as u32 - 2..all - PEERS as u32 * 3 / 4).contains(&crowd), "{crowd} of {all}");
    // Whoever has a place has one token left, not two.
    let left: u64 = (0..all).map(|number| offer(&mut admission, peer(number), 2, SECOND)).sum();
    assert_eq!(left, u64::from(all - crowd) - 2);
    // When those are quiet, their places are free.
    assert_eq!(offer(&mut admission, peer(all + 1), 3, SECOND + 3 * MS), 2);
}

#[test]
fn a_flood_from_made_up_addresses_leaves_a_peer_that_goes_on_asking_its_place() {
    let mut admission = per_peer(10_000, 2);
    let good = peer(u32::from_be_bytes([0, 1, 2, 3]));
    let mut rng = fastrand::Rng::with_seed(1);
    let mut admitted = 0;
    for us in 0..1_000_000 {
        // A million a second, each from another address; the good one asks once in its interval.
        let _ = admission.admit(peer(0x0100_0000 + rng.u32(..0x00FF_FFFF)), Nanos(us * US));
        if us % 100 == 0 {
            admitted += offer(&mut admission, good, 1, us * US);
        }
    }
    assert_eq!(admitted, 10_000);
}

#[test]
fn a_million_requests_allocate_nothing() {
    let limits = Limits { per_peer: Some(Rate::new(1000, 4)), all: Some(Rate::new(100_000, 6)) };
    let mut admission = alone(limits);
    let allocated = allocation_counter::measure(|| {
        for i in 0..1_000_000_u32 {
            let _ = admission.admit(peer(i % 10_000), Nanos(u64::from(i) * 100));
        }
    });
    assert_eq!(allocated.count_total, 0);
}

/// The cost of admission per request: `cargo test --release -p berth-admission -- --nocapture cost`.
#[test]
fn cost_of_a_request() {
    let limits = Limits { per_peer: Some(Rate::new(1_000_000, 1000)), all: Some(Rate::new(100_000_000, 1000)) };
    for (what, peers) in [("one peer", 1), ("32 peers in turn", 32), ("3,000 peers in turn", 3000)] {
        let mut admission = alone(limits);
        let peers: Vec<_> = (0..peers).map(peer).collect();
        let (mut admitted, rounds) = (0_u64, 3_000_000 / peers.len() * peers.len());
        let started = std::time::Instant::now();
        for round in 0..rounds / peers.len() {
            for (i, peer) in peers.iter().enumerate() {
                let now = Nanos(std::hint::black_box((round * peers.len() + i) as u64 * 200));
                admitted += u64::from(admission.admit(*peer, now).is_ok());
            }
        }
        let each = started.elapsed().as_nanos() as f64 / rounds as f64;
        println!("{what}: {each:.1} ns a request");
        assert!(admitted > 0 && each < 1000.0, "{what}: {each} ns");
    }
}
