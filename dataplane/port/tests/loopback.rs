//! Joined ports lose nothing, allocate nothing and never run out of buffers.

mod common;

use std::{collections::HashSet, thread};

use berth_port::{BURST, Loopback, Port, PostError, Verdict};
use common::{A, B, counter, number, number_of, pair};
use proptest::prelude::*;

#[test]
fn an_answer_goes_back_in_the_frame_it_answers() {
    let (mut a, mut b) = pair(4);
    assert_eq!((a.local_addr(), b.local_addr(), a.max_frame()), (A, B, 64));
    a.post(B.into(), number(7)).unwrap();
    assert_eq!(b.rx(|_| unreachable!("nothing leaves before tx")), 0);
    a.tx();
    let received = b.rx(|frame| {
        assert_eq!((number_of(frame.data()), frame.wire_len(), frame.capacity(), frame.peer()), (7, 8, 64, A.into()));
        frame.buf_mut()[..3].copy_from_slice(b"yes");
        frame.set_len(3);
        Verdict::Reply
    });
    assert_eq!(received, 1);
    b.tx();
    let answered = a.rx(|frame| {
        assert_eq!((frame.data(), frame.peer()), (&b"yes"[..], B.into()));
        Verdict::Drop
    });
    assert_eq!(answered, 1);
    assert_eq!((counter(&a, "tx_frames"), counter(&b, "rx_frames")), (1, 1));
    assert_eq!((counter(&b, "tx_frames"), counter(&a, "rx_frames")), (1, 1));
}

#[test]
fn a_post_without_a_buffer_or_to_another_address_is_refused() {
    let (mut a, mut b) = pair(3);
    assert_eq!(a.post(A.into(), |_| unreachable!()), Err(PostError::Unreachable));
    for i in 0..3 {
        a.post(B.into(), number(i)).unwrap();
    }
    assert_eq!(a.post(B.into(), |_| unreachable!()), Err(PostError::Full));
    assert_eq!(counter(&a, "tx_refused"), 1);
    a.tx();
    assert_eq!(b.rx(|_| Verdict::Drop), 3);
    a.post(B.into(), number(9)).unwrap();
}

#[test]
fn a_call_lends_at_most_a_burst() {
    let (mut a, mut b) = pair(2 * BURST);
    for i in 0..BURST as u64 + 5 {
        a.post(B.into(), number(i)).unwrap();
    }
    a.tx();
    assert_eq!([(); 3].map(|()| b.rx(|_| Verdict::Drop)), [BURST, 5, 0]);
}

#[test]
fn the_same_buffers_carry_every_frame() {
    let (mut a, mut b) = pair(8);
    let mut buffers = HashSet::new();
    for i in 0..100_000 {
        a.post(B.into(), number(i)).unwrap();
        a.tx();
        b.rx(|frame| {
            buffers.insert(frame.data().as_ptr());
            // One way, and there and back, in turn.
            if i / 100 % 2 == 0 { Verdict::Reply } else { Verdict::Drop }
        });
        b.tx();
        a.rx(|_| Verdict::Drop);
    }
    assert!(buffers.len() <= 16, "{} buffers", buffers.len());
}

#[test]
fn two_threads_exchange_every_frame_in_order() {
    const FRAMES: u64 = 100_000;
    let (mut a, mut b) = pair(64);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut echoed = 0;
            while echoed < FRAMES {
                echoed += b.rx(|_| Verdict::Reply) as u64;
                b.tx();
                thread::yield_now();
            }
        });
        let (mut sent, mut received) = (0, 0);
        while received < FRAMES {
            while sent < FRAMES && a.post(B.into(), number(sent)).is_ok() {
                sent += 1;
            }
            a.tx();
            a.rx(|frame| {
                assert_eq!(number_of(frame.data()), received);
                received += 1;
                Verdict::Drop
            });
            thread::yield_now();
        }
    });
}

/// One of a side's actions, by number: post, transmit, receive and answer, receive and release.
fn act(port: &mut Loopback, peer: std::net::SocketAddr, action: u8) {
    match action {
        0 => drop(port.post(peer.into(), number(0))),
        1 => port.tx(),
        2 => drop(port.rx(|_| Verdict::Reply)),
        _ => drop(port.rx(|_| Verdict::Drop)),
    }
}

proptest! {
    #[test]
    fn no_traffic_pattern_strands_a_buffer(actions in prop::collection::vec((any::<bool>(), 0..4_u8), 0..300)) {
        let (mut a, mut b) = pair(5);
        for (first, action) in actions {
            if first { act(&mut a, B, action) } else { act(&mut b, A, action) }
        }
        for _ in 0..2 {
            a.tx();
            b.tx();
            a.rx(|_| Verdict::Drop);
            b.rx(|_| Verdict::Drop);
        }
        for port in [&mut a, &mut b] {
            let peer = if port.local_addr() == A { B } else { A };
            let posted = (0..9).take_while(|_| port.post(peer.into(), number(1)).is_ok()).count();
            prop_assert_eq!(posted, 5);
        }
    }
}
