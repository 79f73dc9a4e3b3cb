//! Frames that come, are answered in place, and go back.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use berth_port::{BURST, Port, PostError, Verdict};

use crate::{counter, echo, eventually, expect_nothing, peer_of};

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..).map(|i: u64| (seed << 16 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

fn recv(peer: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buf = vec![0; 65536];
    let (len, from) = peer.recv_from(&mut buf).expect("an answer");
    buf.truncate(len);
    (buf, from)
}

/// Sends `frames` frames of all lengths up to `max_frame`, in flights of up to a burst and a bit (the
/// kernel's usual buffers hold that), and verifies every answer.
pub fn round_trips<P: Port>(port: &mut P, frames: usize) {
    let (addr, max) = (port.local_addr(), port.max_frame());
    let peer = peer_of(addr);
    let (mut sent, mut flight) = (0, 0);
    while sent < frames {
        flight = (flight * 7 + 1) % (BURST + BURST / 4);
        let count = flight.clamp(1, frames - sent);
        let flight: Vec<_> = (sent..sent + count).map(|n| pattern(n as u64, n * 13 % (max + 1))).collect();
        for frame in &flight {
            peer.send_to(frame, addr).expect("sending to the port");
        }
        let mut seen = 0;
        eventually(port, |port| {
            seen += port.rx(|frame| {
                assert_eq!((frame.len(), frame.peer()), (frame.wire_len(), peer.local_addr().expect("bound").into()));
                frame.buf_mut()[..1].iter_mut().for_each(|byte| *byte ^= 0xff);
                Verdict::Reply
            });
            port.tx();
            seen == count
        });
        for mut frame in flight {
            frame.iter_mut().take(1).for_each(|byte| *byte ^= 0xff);
            assert_eq!(recv(&peer), (frame, addr));
        }
        sent += count;
    }
    expect_sent(port, frames as u64);
    assert_eq!(counter(port, "rx_frames"), frames as u64);
    assert_eq!((counter(port, "rx_truncated"), counter(port, "rx_overrun")), (0, 0));
}

/// An answer may be longer than its request, or empty, or not sent at all.
pub fn answers_of_any_length<P: Port>(port: &mut P) {
    let (addr, max) = (port.local_addr(), port.max_frame());
    let peer = peer_of(addr);
    for len in [max, 0, 1] {
        peer.send_to(b"ask", addr).expect("sending to the port");
        eventually(port, |port| {
            let seen = port.rx(|frame| {
                assert_eq!((frame.data(), frame.capacity()), (&b"ask"[..], max));
                frame.buf_mut().fill(7);
                frame.set_len(len);
                Verdict::Reply
            });
            port.tx();
            seen == 1
        });
        assert_eq!(recv(&peer), (vec![7; len], addr));
    }
    // More than any port has buffers: a dropped frame gives its own back.
    for _ in 0..1000 {
        peer.send_to(b"ask", addr).expect("sending to the port");
        eventually(port, |port| port.rx(|_| Verdict::Drop) == 1);
    }
    expect_nothing(port);
    peer.set_nonblocking(true).expect("a non-blocking peer");
    assert!(peer.recv(&mut [0]).is_err(), "a dropped frame was answered");
}

/// A wildcard port answers from the very address that a frame was sent to.
pub fn wildcard_answers_from_the_destination<P: Port>(port: &mut P, destinations: &[IpAddr]) {
    let bound = port.local_addr();
    assert!(bound.ip().is_unspecified());
    for &ip in destinations {
        let addr = SocketAddr::new(ip, bound.port());
        let peer = peer_of(addr);
        // One frame, then enough in a row to be received and answered in bursts.
        for count in [1, BURST] {
            for n in 0..count {
                peer.send_to(&pattern(n as u64, 40), addr).expect("sending to the port");
            }
            echo(port, count);
            for n in 0..count {
                assert_eq!(recv(&peer), (pattern(n as u64, 40), addr));
            }
        }
    }
}

/// A frame beyond `max_frame` is lent cut, with the length that was sent, and counted.
pub fn truncation<P: Port>(port: &mut P) {
    let (addr, max) = (port.local_addr(), port.max_frame());
    let peer = peer_of(addr);
    let long = pattern(1, max + 100);
    // Alone, and among others.
    for count in [1, BURST] {
        for n in 0..count {
            peer.send_to(&long[..max + 100 * ((n + 1) % 2)], addr).expect("sending to the port");
        }
        let mut lengths = Vec::new();
        eventually(port, |port| {
            port.rx(|frame| {
                assert_eq!(frame.data(), &long[..max]);
                lengths.push(frame.wire_len());
                Verdict::Drop
            });
            lengths.len() == count
        });
        let sent: Vec<_> = (0..count).map(|n| max + 100 * ((n + 1) % 2)).collect();
        assert_eq!(lengths, sent);
    }
    assert_eq!(counter(port, "rx_truncated"), 1 + BURST as u64 / 2);
}

/// One poll lends at most a burst, however much waits.
pub fn bursts_are_bounded<P: Port>(port: &mut P) {
    let addr = port.local_addr();
    let peer = peer_of(addr);
    for n in 0..4 * BURST {
        peer.send_to(&pattern(n as u64, 32), addr).expect("sending to the port");
    }
    let mut bursts = Vec::new();
    eventually(port, |port| {
        let burst = port.rx(|_| Verdict::Reply);
        port.tx();
        if burst > 0 {
            bursts.push(burst);
        }
        bursts.iter().sum::<usize>() == 4 * BURST
    });
    assert_eq!(bursts.iter().max(), Some(&BURST), "{bursts:?}");
    for n in 0..4 * BURST {
        assert_eq!(recv(&peer), (pattern(n as u64, 32), addr));
    }
}

/// A port starts conversations too, refuses the other family, and says when its queue is full.
pub fn posts<P: Port>(port: &mut P) {
    let addr = port.local_addr();
    let peer = peer_of(addr);
    let to = peer.local_addr().expect("bound");
    let max = port.max_frame();
    for n in 0..100 {
        port.post(to.into(), |buf| {
            assert_eq!(buf.len(), max);
            buf[..n].copy_from_slice(&pattern(n as u64, n));
            n
        })
        .expect("room for one");
        port.tx();
        assert_eq!(recv(&peer), (pattern(n as u64, n), addr));
        expect_sent(port, n as u64 + 1);
    }
    let other: SocketAddr = if addr.is_ipv4() { "[::1]:9" } else { "127.0.0.1:9" }.parse().expect("an address");
    assert_eq!(port.post(other.into(), |_| 1), Err(PostError::Unreachable));

    let mut queued = 0;
    while port.post(to.into(), |_| 1).is_ok() {
        queued += 1;
        assert!(queued < 1 << 16, "a queue without end");
    }
    assert!(queued >= BURST, "{queued}");
    assert_eq!(port.post(to.into(), |_| panic!("filled without room")), Err(PostError::Full));
    expect_sent(port, 100 + queued as u64);
    port.post(to.into(), |_| 1).expect("room again");
}

/// Polls until `frames` were sent in all: an asynchronous port learns of it later.
fn expect_sent<P: Port>(port: &mut P, frames: u64) {
    eventually(port, |port| {
        port.tx();
        assert_eq!(port.rx(|_| Verdict::Drop), 0);
        counter(port, "tx_frames") == frames
    });
}
