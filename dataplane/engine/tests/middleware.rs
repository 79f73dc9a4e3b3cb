//! Lanes of different types on one core. Telemetry shows exactly what middleware injects.

mod common;

use std::{net::SocketAddr, time::Duration};

use berth_engine::{Idle, Lane, Lcore, Step, Telemetry};
use berth_port::{Clock, Fault, FaultSpec, Faults, Loopback, Now, Pcap, Port, Verdict};
use common::{Late, Log, at, port};

/// A clock that stands still, as nothing is delayed here.
#[derive(Clone)]
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Now {
        at(0)
    }
}

#[test]
fn lanes_of_different_types_share_a_core_and_losses_are_exact() {
    const FRAMES: u64 = 100_000;
    let [here, there] = [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let (mut peer, loopback) = Loopback::pair([here, there], 256, 64);
    let lossy = Faults { drop: 0.01, ..Faults::default() };
    let faulty = Fault::new(loopback, FaultSpec { seed: 7, rx: lossy, tx: lossy }, Stopped);
    let captured = Pcap::new(faulty, std::io::sink(), u64::MAX, Stopped);

    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("lcore1", Idle::Spin, &telemetry);
    lcore.add(Lane::new("scripted", port(0, 64, &Log::default()), Late::default()));
    lcore.add(Lane::new("loopback", captured, Late { after: Some(Duration::from_nanos(500)), ..Late::default() }));

    let (mut answers, mut now) = (0, 0);
    for _ in 0..FRAMES {
        peer.post(there.into(), |_| 8).unwrap();
        peer.tx();
        for _ in 0..4 {
            now += 100;
            lcore.poll(at(now));
        }
        answers += peer.rx(|_| Verdict::Drop) as u64;
    }
    lcore.drain(at(now), Duration::from_secs(1));
    while lcore.poll(at(now)) != Step::Done {
        now += 100;
    }
    answers += peer.rx(|_| Verdict::Drop) as u64;

    let snapshot = telemetry.snapshot();
    let [scripted, loopback] = &snapshot.lcores[0].lanes[..] else { panic!("two lanes") };
    assert_eq!((scripted.counters["frames_rx"], scripted.counters["frames_replied"]), (64, 64));
    let [rx_lost, tx_lost] = ["fault_rx_dropped", "fault_tx_dropped"].map(|name| loopback.port[name]);
    assert!(rx_lost > 800 && tx_lost > 800, "{rx_lost} {tx_lost}");
    let handled = FRAMES - rx_lost;
    assert_eq!((loopback.port["rx_frames"], loopback.counters["frames_rx"]), (FRAMES, handled));
    assert_eq!((loopback.service["handled"], loopback.counters["frames_replied"]), (handled, handled));
    assert_eq!((loopback.port["tx_frames"], answers), (handled - tx_lost, handled - tx_lost));
    assert_eq!(loopback.port["pcap_frames"], 2 * handled);
}
