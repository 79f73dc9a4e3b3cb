//! Two ports of one process over DPDK rings, on one thread: deterministic.

mod common;

use berth_dpdk::{Error, PortConfig, ring_pair};
use berth_port::{BURST, Port, PostError, Verdict};
use common::{config, counter, eal, serve, v4, v6, verified_round_trips};

#[test]
fn echoes_over_both_families() {
    let (mut client, mut server) = ring_pair(eal(), &config("", 1), &config("", 2)).unwrap();
    assert_eq!(server.local_addr(), v4(2));
    for peer in [v4(2), v6(2)] {
        verified_round_trips(&mut client, peer, 100_000, || {
            serve(&mut server);
        });
    }
    assert_eq!(counter(&server, "rx_frames"), 200_000);
    assert_eq!(counter(&client, "rx_frames"), 200_000);
    // One ARP request and one neighbour solicitation were enough, and both were answered.
    assert_eq!(counter(&client, "tx_solicited"), 2);
    assert_eq!(counter(&server, "rx_answered"), 2);
    assert_eq!(counter(&client, "rx_neighbour"), 2);
    for port in [&client, &server] {
        for name in ["rx_malformed", "rx_bad_checksum", "rx_held", "tx_dropped_no_buffer"] {
            assert_eq!(counter(port, name), 0, "{name}");
        }
    }
}

#[test]
fn a_vlan_is_an_island() {
    let vlan = |vlan, host| PortConfig { vlan, ..config("", host) };
    let (mut client, mut server) = ring_pair(eal(), &vlan(Some(7), 1), &vlan(Some(7), 2)).unwrap();
    verified_round_trips(&mut client, v4(2), 1000, || {
        serve(&mut server);
    });
    let (mut client, mut server) = ring_pair(eal(), &vlan(Some(7), 1), &vlan(Some(8), 2)).unwrap();
    assert_eq!(client.post(v4(2).into(), |_| 0), Err(PostError::Unreachable));
    client.tx();
    serve(&mut server);
    assert_eq!(counter(&server, "rx_other_vlan"), 1);
}

#[test]
fn a_static_neighbour_needs_no_resolution() {
    let mac = "02:00:00:00:00:09".parse().unwrap();
    let with = PortConfig { neighbours: vec![(v4(9).ip(), mac)], ..config("", 1) };
    let (mut client, mut server) = ring_pair(eal(), &with, &config("", 2)).unwrap();
    assert_eq!(client.post(v4(9).into(), |_| 3), Ok(()));
    client.tx();
    serve(&mut server);
    assert_eq!(counter(&server, "rx_other_station"), 1);
    assert_eq!(counter(&client, "tx_solicited"), 0);
}

#[test]
fn a_full_device_is_told_and_counted() {
    let small = PortConfig { tx_desc: 64, ..config("", 1) };
    let (mut client, mut server) = ring_pair(eal(), &small, &config("", 2)).unwrap();
    verified_round_trips(&mut client, v4(2), 1, || {
        serve(&mut server);
    });
    // 63 in the ring, a burst in the port's queue, and not one more.
    let mut posted = 0;
    while client.post(v4(2).into(), |_| 16).is_ok() {
        posted += 1;
    }
    assert_eq!(posted, 63 + BURST);
}

#[test]
fn finished_answers_wait_for_the_device_and_requests_before_it() {
    let small = PortConfig { tx_desc: 64, ..config("", 2) };
    let (mut client, mut server) = ring_pair(eal(), &config("", 1), &small).unwrap();
    verified_round_trips(&mut client, v4(2), 1, || {
        serve(&mut server);
    });
    let before = counter(&server, "rx_frames");
    for n in 0..200u8 {
        assert_eq!(
            client.post(v4(2).into(), |buf| {
                buf[0] = n;
                1
            }),
            Ok(())
        );
        client.tx();
    }
    // 63 answers in the ring and so many with the port that another burst would find no room: the rest is not received.
    for _ in 0..100 {
        serve(&mut server);
    }
    assert_eq!(counter(&server, "rx_frames") - before, 96);
    assert!(counter(&server, "rx_held") > 90);
    // Not one of those that were served is lost.
    let mut answers = Vec::new();
    while answers.len() < 200 {
        serve(&mut server);
        client.rx(|frame| {
            answers.push(!frame.data()[0]);
            Verdict::Drop
        });
    }
    assert_eq!(answers, (0..200).collect::<Vec<_>>());
}

#[test]
fn a_client_that_asks_more_than_both_ends_hold_gets_every_answer() {
    let small = |host| PortConfig { tx_desc: 64, ..config("", host) };
    let (mut client, mut server) = ring_pair(eal(), &small(1), &small(2)).unwrap();
    verified_round_trips(&mut client, v4(2), 1, || {
        serve(&mut server);
    });
    // Both rings and both queues are full: the server takes no requests until the client takes answers.
    let (mut posted, mut idle) = (0, 0);
    while idle < 10 {
        idle += 1;
        while client.post(v4(2).into(), |_| 1).is_ok() {
            (posted, idle) = (posted + 1, 0);
        }
        serve(&mut server);
    }
    assert!(posted > 63 + 63 && counter(&server, "rx_held") > 0, "{posted}");
    let mut answered = 0;
    for _ in 0..1000 {
        client.rx(|_| {
            answered += 1;
            Verdict::Drop
        });
        client.tx();
        serve(&mut server);
    }
    assert_eq!(answered, posted);
}

#[test]
fn peers_without_a_route_are_unreachable() {
    let (mut client, _server) = ring_pair(eal(), &config("", 1), &config("", 2)).unwrap();
    assert_eq!(client.post(std::net::SocketAddr::from(([192, 0, 2, 1], 1)).into(), |_| 0), Err(PostError::Unreachable));
    assert_eq!(counter(&client, "tx_off_link"), 1);
    for _ in 0..1000 {
        assert_eq!(client.post(v4(3).into(), |_| 0), Err(PostError::Unreachable));
    }
    assert_eq!(counter(&client, "tx_unresolved"), 1000);
    assert_eq!(counter(&client, "tx_solicited"), 1);
}

#[test]
fn what_cannot_work_is_refused_before_the_device_is_touched() {
    let refused = |config: PortConfig| ring_pair(eal(), &config, &config).unwrap_err();
    assert!(matches!(refused(PortConfig { addresses: vec![], ..config("", 1) }), Error::NoAddress(_)));
    for (address, prefix) in [("10.0.0.1", 33), ("fd00::1", 129), ("0.0.0.0", 0), ("224.0.0.1", 4), ("ff02::1", 64)] {
        let addresses = vec![(address.parse().unwrap(), prefix)];
        assert!(matches!(refused(PortConfig { addresses, ..config("", 1) }), Error::Address { .. }), "{address}");
    }
    for vlan in [0, 4095] {
        assert!(matches!(refused(PortConfig { vlan: Some(vlan), ..config("", 1) }), Error::Vlan { .. }));
    }
    let shared = "net_memif0,role=client,socket=/tmp/none,zero-copy=yes";
    assert!(matches!(refused(config(shared, 1)), Error::SharedBuffers(device) if device == shared));
    assert!(matches!(refused(PortConfig { mtu: 1279, ..config("", 1) }), Error::Mtu { least: 1280, .. }));
}
