//! The uring port does what every socket port must.

use berth_port::{Port as _, Verdict};
use berth_port_tests as suite;
use berth_uring::{UdpConfig, UringError, UringPort, UringSocket};

fn config(bind: &str) -> UdpConfig {
    UdpConfig::new(bind.parse().expect("an address"))
}

fn open_with(config: &UdpConfig) -> UringPort {
    UringSocket::bind(config).expect("a socket").into_port().expect("a ring")
}

fn open(bind: &str) -> UringPort {
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
    suite::publications_call_nobody(|| open(V4), &[libc::SYS_io_uring_enter]);
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
fn an_empty_frame_does_not_end_service() {
    // It does end the multishot receive, which starts again.
    let mut port = open(V4);
    let addr = port.local_addr();
    let peer = suite::peer_of(addr);
    for empties in 1..=3 {
        peer.send_to(&[], addr).expect("sending to the port");
        suite::echo(&mut port, 1);
        assert_eq!(peer.recv(&mut [0]).expect("an answer"), 0);
        assert_eq!(suite::counter(&port, "rx_rearms"), empties);
    }
    let quiet = ["rx_overrun", "rx_errors", "rx_no_buffers", "cq_overflows", "ring_errors"];
    assert_eq!(quiet.map(|name| suite::counter(&port, name)), [0; 5]);
}

#[test]
fn closing_sends_what_is_queued_and_leaves_nothing() {
    let descriptors = || std::fs::read_dir("/proc/thread-self/fd").expect("procfs").count();
    let peer = suite::peer_of("127.0.0.1:1".parse().expect("an address"));
    let to = peer.local_addr().expect("bound");
    let before = descriptors();
    for n in 0..20u8 {
        let mut port = open(V4);
        // Requests of all kinds under way: frames to be received, and to be sent.
        peer.send_to(&[n], port.local_addr()).expect("sending to the port");
        for _ in 0..10 {
            port.post(to.into(), |buf| {
                buf[0] = n;
                1
            })
            .expect("room");
        }
        drop(port);
        for _ in 0..10 {
            let mut frame = [0; 2];
            assert_eq!(peer.recv(&mut frame).expect("a posted frame"), 1);
            assert_eq!(frame[0], n);
        }
    }
    // Other tests of this process open and close theirs meanwhile.
    assert!(descriptors() < before + 20);
}

#[test]
fn a_refused_send_is_dropped_alone() {
    let mut port = open(V4);
    let peer = suite::peer_of(port.local_addr());
    // Broadcasting takes an option that the port does not set.
    port.post(std::net::SocketAddr::from(([255; 4], 9)).into(), |_| 1).expect("room");
    port.post(peer.local_addr().expect("bound").into(), |_| 2).expect("room");
    port.tx();
    assert_eq!(peer.recv(&mut [0; 3]).expect("the other frame"), 2);
    suite::eventually(&mut port, |port| {
        port.rx(|_| Verdict::Drop);
        suite::counter(port, "tx_frames") == 1 && suite::counter(port, "tx_errors") == 1
    });
}

#[test]
fn a_refused_ring_names_its_cause() {
    let refused = |errno| suite::with_failing(libc::SYS_io_uring_setup, u32::MAX, errno, berth_uring::probe);
    assert!(matches!(refused(libc::EPERM), Err(UringError::Filtered)));
    assert!(matches!(refused(libc::ENOSYS), Err(UringError::Missing)));
    assert!(matches!(refused(libc::EINVAL), Err(UringError::TooOld { .. })));
    berth_uring::probe().expect("this kernel has io_uring");
}
