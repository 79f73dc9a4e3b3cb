//! The uring port does what every socket port must.

use berth_port_tests as suite;
use berth_uring::{UdpConfig, UringPort, UringSocket};

fn config(bind: &str) -> UdpConfig {
    UdpConfig::new(bind.parse().expect("an address"))
}

fn open(bind: &str) -> UringPort {
    UringSocket::bind(&config(bind)).expect("a socket").into_port().expect("a ring")
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
