//! A core that polls calls the kernel for frames and for nothing else.

use std::{sync::mpsc, thread, time::Duration};

use berth_engine::{Idle, Lane, Lcore, PUBLISH_EVERY, Telemetry};
use berth_host::TscClock;
use berth_port::{Clock as _, Frame, Now, Port, Service, Verdict};

use crate::{filter::allow_only, peer_of};

const FRAMES: u64 = 20;

struct Echo;

impl Service for Echo {
    fn handle(&mut self, _: &mut Frame<'_>, _: Now) -> Verdict {
        Verdict::Reply
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// Publications of counters make no system call: a port, polled for 30 of them, makes these ones for its frames, and any
/// other ends the process. What the kernel counts is read by another thread.
pub fn publications_call_nobody<P: Port + 'static>(open: impl FnOnce() -> P + Send, calls: &[i64]) {
    let (telemetry, clock) = (Telemetry::default(), TscClock::calibrate(Duration::from_millis(10)));
    let (announce, addr) = mpsc::channel();
    thread::scope(|scope| {
        let (telemetry, clock) = (&telemetry, &clock);
        scope.spawn(move || {
            let port = open();
            announce.send(port.local_addr()).expect("the test waits for it");
            let mut lcore = Lcore::new("l", Idle::Spin, telemetry);
            lcore.add(Lane::new("a", port, Echo).timed(clock.clone()));
            allow_only(calls);
            let until = clock.now().mono + 30 * PUBLISH_EVERY;
            let received = || telemetry.snapshot().lcores[0].lanes[0].counters["frames_rx"];
            while clock.now().mono < until || received() < FRAMES {
                lcore.poll(clock.now());
            }
            // Ending is not polling: it would close what it opened.
            std::mem::forget(lcore);
        });
        let addr = addr.recv().expect("a port");
        let peer = peer_of(addr);
        for _ in 0..FRAMES {
            peer.send_to(b"there?", addr).expect("sending to the port");
            peer.recv(&mut [0; 8]).expect("an answer");
        }
    });
    telemetry.read_devices();
    let port = &telemetry.snapshot().lcores[0].lanes[0].port;
    assert_eq!((port["rx_frames"], port["rx_overrun"]), (FRAMES, 0));
}
