//! Loops that sleep on a port's descriptor, and queues that share an address.

use std::{thread, time::Duration};

use berth_host::{Sleeper, Wake};
use berth_port::{Port, Verdict};

use crate::{PATIENCE, eventually, peer_of};

fn sleeper_of<P: Port>(port: &P) -> Sleeper {
    Sleeper::new(port.wait_fd()).expect("an eventfd")
}

/// Whether a port without traffic lets its loop sleep.
pub(crate) fn idles<P: Port>(port: &mut P) -> bool {
    let mut sleeper = sleeper_of(port);
    // What completed just now may still end one sleep or two.
    (0..4).any(|_| {
        assert_eq!(port.rx(|_| Verdict::Drop), 0);
        port.tx();
        sleeper.sleep(Some(Duration::from_millis(20))) == Wake::Elapsed
    })
}

/// As [`crate::echo`], sleeping whenever a poll finds nothing. Returns how often.
pub(crate) fn echo_asleep<P: Port>(port: &mut P, frames: usize) -> usize {
    let mut sleeper = sleeper_of(port);
    let (mut seen, mut sleeps) = (0, 0);
    while seen < frames {
        let burst = port.rx(|_| Verdict::Reply);
        port.tx();
        seen += burst;
        if burst == 0 {
            assert_eq!(sleeper.sleep(Some(PATIENCE)), Wake::Ready, "after {seen} frames");
            sleeps += 1;
        }
    }
    sleeps
}

/// A loop that sleeps whenever a poll finds nothing answers every frame, and sleeps through the pauses.
pub fn a_sleeping_loop_wakes<P: Port>(port: &mut P) {
    const TRIPS: u32 = 200;
    let addr = port.local_addr();
    assert!(idles(port));
    let peer = peer_of(addr);
    let client = thread::spawn(move || {
        for n in 0..TRIPS {
            // Now and then long enough for the loop to be asleep for certain.
            thread::sleep(Duration::from_micros(if n % 20 == 0 { 5000 } else { 50 }));
            peer.send_to(&n.to_le_bytes(), addr).expect("sending to the port");
            let mut answer = [0; 8];
            assert_eq!(peer.recv(&mut answer).expect("an answer"), 4);
            assert_eq!(answer[..4], n.to_le_bytes());
        }
    });
    let sleeps = echo_asleep(port, TRIPS as usize);
    client.join().expect("every answer was right");
    assert!(sleeps <= 4 * TRIPS as usize, "{sleeps} wake-ups for {TRIPS} frames");
    assert!(idles(port));
}

/// Two queues on one address serve every peer between them, each its own peers.
pub fn queues_share_an_address<P: Port>(first: &mut P, second: &mut P) {
    const PEERS: usize = 64;
    let addr = first.local_addr();
    assert_eq!(second.local_addr(), addr);
    let peers: Vec<_> = (0..PEERS).map(|_| peer_of(addr)).collect();
    let mut shares = Vec::new();
    for round in 0..3u8 {
        for peer in &peers {
            peer.send_to(&[round], addr).expect("sending to the port");
        }
        let mut seen = [0, 0];
        eventually(first, |first| {
            seen[0] += first.rx(|_| Verdict::Reply);
            seen[1] += second.rx(|_| Verdict::Reply);
            first.tx();
            second.tx();
            seen[0] + seen[1] == PEERS
        });
        for peer in &peers {
            let mut answer = [0xff; 2];
            assert_eq!(peer.recv_from(&mut answer).expect("an answer"), (1, addr));
            assert_eq!(answer[0], round);
        }
        shares.push(seen);
    }
    assert!(shares[0].iter().all(|&share| share > 0), "{shares:?}");
    assert!(shares.iter().all(|share| *share == shares[0]), "a peer changed queues: {shares:?}");
}
