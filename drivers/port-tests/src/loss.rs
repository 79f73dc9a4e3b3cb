//! Frames that do not arrive: each is counted, and service goes on.

use berth_port::{BURST, Port, Verdict};

use crate::{counter, echo, eventually, expect_nothing, peer_of, sleeper};

/// A flood beyond the kernel's buffer: what was sent is what was received plus what was counted as lost. Wants a port
/// with a small receive buffer.
pub fn overrun_is_counted_exactly<P: Port>(port: &mut P) {
    let addr = port.local_addr();
    let peer = peer_of(addr);
    let (mut sent, mut received) = (0, 0);
    for flood in [3000, 1, 5000] {
        for _ in 0..flood {
            peer.send_to(&[0; 300], addr).expect("sending to the port");
        }
        sent += flood;
        eventually(port, |port| {
            received += port.rx(|_| Verdict::Drop) as u64;
            port.tx();
            received + counter(port, "rx_overrun") == sent
        });
        expect_nothing(port);
    }
    assert_eq!(counter(port, "rx_frames"), received);
    assert!(counter(port, "rx_overrun") > 5000, "the buffer was too large to overrun");
    peer.send_to(b"still there?", addr).expect("sending to the port");
    echo(port, 1);
    peer.recv(&mut [0; 20]).expect("an answer");
}

/// A peer that closes its socket with a burst unanswered costs the others nothing, and a sleeping loop no sleep.
pub fn a_vanished_peer_is_counted<P: Port>(port: &mut P) {
    let addr = port.local_addr();
    let (gone, other) = (peer_of(addr), peer_of(addr));
    for n in 0..BURST {
        gone.send_to(&[n as u8], addr).expect("sending to the port");
        other.send_to(&[n as u8], addr).expect("sending to the port");
    }
    drop(gone);
    echo(port, 2 * BURST);
    eventually(port, |port| {
        assert_eq!(port.rx(|_| Verdict::Drop), 0);
        port.tx();
        counter(port, "tx_frames") == 2 * BURST as u64 && counter(port, "icmp_errors") == BURST as u64
    });
    // Answers that an error report got in the way of are sent again, behind the others.
    let mut answers: Vec<_> = (0..BURST)
        .map(|_| {
            let mut frame = [0; 2];
            assert_eq!(other.recv(&mut frame).expect("an answer"), 1);
            usize::from(frame[0])
        })
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, (0..BURST).collect::<Vec<_>>());
    assert_eq!((counter(port, "rx_errors"), counter(port, "tx_errors")), (0, 0));
    assert!(sleeper::idles(port), "an error report keeps a sleeping loop awake");
    other.send_to(b"x", addr).expect("sending to the port");
    echo(port, 1);
}

/// An error report about an earlier frame costs no other frame, in either direction, and no sleeping loop its wake-up.
pub fn an_error_report_hides_no_frame<P: Port>(port: &mut P) {
    const ROUNDS: u64 = 20;
    let addr = port.local_addr();
    let peer = peer_of(addr);
    let (to, gone) = (peer.local_addr().expect("bound"), peer_of(addr).local_addr().expect("bound"));
    let mut frame = [0; 8];
    for n in 0..ROUNDS as u8 {
        for (to, len) in [(gone, 1), (to, 2)] {
            port.post(to.into(), |buf| {
                buf[..2].fill(n);
                len
            })
            .expect("room");
            port.tx();
        }
        let sent = 2 * u64::from(n) + 2;
        eventually(port, |port| {
            assert_eq!(port.rx(|_| Verdict::Drop), 0);
            port.tx();
            counter(port, "tx_frames") == sent
        });
        assert_eq!((peer.recv(&mut frame).expect("the posted frame"), &frame[..2]), (2, &[n, n][..]));
    }
    for n in 0..ROUNDS as u8 {
        port.post(gone.into(), |_| 1).expect("room");
        port.tx();
        peer.send_to(&[n], addr).expect("sending to the port");
        sleeper::echo_asleep(port, 1);
        assert_eq!((peer.recv(&mut frame).expect("an answer"), frame[0]), (1, n));
    }
    eventually(port, |port| {
        assert_eq!(port.rx(|_| Verdict::Drop), 0);
        port.tx();
        counter(port, "icmp_errors") == 2 * ROUNDS
    });
    assert_eq!((counter(port, "rx_errors"), counter(port, "tx_errors")), (0, 0));
    assert!(sleeper::idles(port));
}
