//! The UDP port does what every socket port must.

use berth_port::{Port as _, PostError};
use berth_port_tests as suite;
use berth_udp::{UdpConfig, UdpPort};

fn config(bind: &str) -> UdpConfig {
    UdpConfig::new(bind.parse().expect("an address"))
}

fn open_with(config: &UdpConfig) -> UdpPort {
    UdpPort::open(config).expect("a port")
}

fn open(bind: &str) -> UdpPort {
    open_with(&config(bind))
}

const V4: &str = "127.0.0.1:0";
const V6: &str = "[::1]:0";

#[test]
fn round_trips() {
    suite::round_trips(&mut open(V4), 100_000);
}

#[test]
fn round_trips_over_ipv6() {
    suite::round_trips(&mut open(V6), 10_000);
}

#[test]
fn answers_of_any_length() {
    suite::answers_of_any_length(&mut open(V4));
}

#[test]
fn wildcard_answers_from_the_destination() {
    let destinations = ["127.0.0.1", "127.0.0.2", "127.1.2.3"].map(|ip| ip.parse().expect("an address"));
    suite::wildcard_answers_from_the_destination(&mut open("0.0.0.0:0"), &destinations);
    suite::wildcard_answers_from_the_destination(&mut open("[::]:0"), &["::1".parse().expect("an address")]);
}

#[test]
fn truncation() {
    suite::truncation(&mut open(V4));
    suite::truncation(&mut open("0.0.0.0:0"));
}

#[test]
fn bursts_are_bounded() {
    suite::bursts_are_bounded(&mut open(V4));
}

#[test]
fn posts() {
    suite::posts(&mut open(V4));
    suite::posts(&mut open(V6));
}

/// A receive buffer of about a hundred small frames, as the kernel accounts for them.
fn small_buffer(bind: &str) -> UdpConfig {
    UdpConfig { rcvbuf: Some(100_000), ..config(bind) }
}

#[test]
fn overrun_is_counted_exactly() {
    suite::overrun_is_counted_exactly(&mut open_with(&small_buffer(V4)));
    suite::overrun_is_counted_exactly(&mut open_with(&small_buffer(V6)));
}

#[test]
fn a_vanished_peer_is_counted() {
    suite::a_vanished_peer_is_counted(&mut open(V4));
    suite::a_vanished_peer_is_counted(&mut open(V6));
}

#[test]
fn an_error_report_hides_no_frame() {
    suite::an_error_report_hides_no_frame(&mut open(V4));
    suite::an_error_report_hides_no_frame(&mut open(V6));
}

#[test]
fn publications_call_nobody() {
    suite::publications_call_nobody(
        || open(V4),
        &[libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_recvmmsg, libc::SYS_sendto, libc::SYS_sendmmsg],
    );
}

#[test]
fn a_sleeping_loop_wakes() {
    suite::a_sleeping_loop_wakes(&mut open(V4));
}

#[test]
fn queues_share_an_address() {
    let mut config = UdpConfig { reuse_port: true, ..config(V4) };
    let mut first = open_with(&config);
    config.bind = first.local_addr();
    suite::queues_share_an_address(&mut first, &mut open_with(&config));
}

#[test]
fn a_busy_kernel_keeps_frames_queued_in_order() {
    let mut port = open(V4);
    let addr = port.local_addr();
    let (peer, gone) = (suite::peer_of(addr), suite::peer_of(addr).local_addr().expect("bound"));
    let to = peer.local_addr().expect("bound");
    let post = |port: &mut UdpPort, n: u32| {
        port.post(to.into(), |buf| {
            buf[..4].copy_from_slice(&n.to_le_bytes());
            4
        })
    };

    // The first frame goes out and comes back as an ICMP error, which ends the call; the rest finds the kernel busy.
    port.post(gone.into(), |_| 1).expect("room");
    let queued = (0..10_000).take_while(|&n| post(&mut port, n).is_ok()).count() as u32;
    suite::with_failing(libc::SYS_sendmmsg, queued + 1, libc::EAGAIN, || port.tx());
    assert_eq!(suite::counter(&port, "tx_frames"), 1);
    assert_eq!(suite::counter(&port, "tx_deferred"), 1);
    assert_eq!(suite::counter(&port, "icmp_errors"), 1);

    // One frame left the queue, so there is room for one; requests then wait until their answers would have room.
    post(&mut port, queued).expect("room for one");
    assert_eq!(post(&mut port, 0), Err(PostError::Full));
    for _ in 0..3 {
        peer.send_to(b"ask", addr).expect("sending to the port");
    }
    assert_eq!(port.rx(|_| unreachable!("nothing is received that cannot be answered")), 0);
    assert_eq!(suite::counter(&port, "rx_held"), 1);

    port.tx();
    for n in 0..=queued {
        let mut frame = [0; 5];
        assert_eq!(peer.recv(&mut frame).expect("a queued frame"), 4);
        assert_eq!(frame[..4], n.to_le_bytes());
    }
    suite::echo(&mut port, 3);
    for _ in 0..3 {
        let mut frame = [0; 5];
        assert_eq!(peer.recv(&mut frame).expect("an answer"), 3);
        assert_eq!(frame[..3], *b"ask");
    }
    assert_eq!(suite::counter(&port, "tx_frames"), u64::from(queued) + 5);
    assert_eq!(suite::counter(&port, "tx_errors"), 0);
}

#[test]
fn a_frame_that_the_kernel_refuses_is_dropped_alone() {
    let mut port = open(V4);
    let peer = suite::peer_of(port.local_addr());
    let to = peer.local_addr().expect("bound");
    // Broadcasting takes an option that the port does not set.
    port.post(std::net::SocketAddr::from(([255; 4], 9)).into(), |_| 1).expect("room");
    port.post(to.into(), |_| 2).expect("room");
    port.tx();
    assert_eq!(peer.recv(&mut [0; 3]).expect("the other frame"), 2);
    assert_eq!((suite::counter(&port, "tx_frames"), suite::counter(&port, "tx_errors")), (1, 1));
}
