//! A poll loop on real ports sleeps when it is idle, uses almost no CPU then, and wakes for every frame.

use std::{
    fs,
    hint::spin_loop,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Duration,
};

use berth_engine::{Idle, Lane, Lcore, Snapshot, Step, Telemetry};
use berth_host::{Sleeper, TscClock, Waker};
use berth_port::{Clock, Frame, Loopback, Now, Port, Service, Verdict};
use berth_udp::{UdpConfig, UdpPort};

/// Number of frames sent, each to a loop that has been asleep for long.
const FRAMES: u64 = 10;
const PAUSE: Duration = Duration::from_millis(40);

struct Echo;

impl Service for Echo {
    fn handle(&mut self, _: &mut Frame<'_>, _: Now) -> Verdict {
        Verdict::Reply
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// Polls until it is told to stop and has drained; returns the CPU time used.
fn run(mut lcore: Lcore, clock: &TscClock, stop: &AtomicBool, with_waker: impl FnOnce(Waker)) -> Duration {
    let mut sleeper = Sleeper::new(lcore.wait_fds()).expect("an eventfd");
    with_waker(sleeper.waker());
    let cpu = || -> Duration {
        let stat = fs::read_to_string("/proc/thread-self/schedstat").expect("scheduler statistics");
        Duration::from_nanos(stat.split(' ').next().and_then(|ns| ns.parse().ok()).expect("nanoseconds"))
    };
    let (before, mut draining) = (cpu(), false);
    loop {
        if !draining && stop.load(Relaxed) {
            draining = true;
            lcore.drain(clock.now(), Duration::from_secs(1));
        }
        match lcore.poll(clock.now()) {
            Step::Busy => {}
            Step::Spin => spin_loop(),
            Step::Sleep(most) => drop(sleeper.sleep(Some(most))),
            Step::Done => return cpu().saturating_sub(before),
        }
    }
}

/// Now and then sends a frame through `exchange`, which checks the answer, to a loop around `port`.
fn idles<P: Port + Send + 'static>(idle: Idle, port: P, mut exchange: impl FnMut(u64)) {
    let (telemetry, stop, clock) = (Telemetry::default(), AtomicBool::new(false), TscClock::calibrate(PAUSE));
    let cpu = thread::scope(|scope| {
        let (send_waker, waker) = std::sync::mpsc::channel();
        let (telemetry, stop, clock) = (&telemetry, &stop, &clock);
        let lcore = scope.spawn(move || {
            let mut lcore = Lcore::new("lcore0", idle, telemetry);
            lcore.add(Lane::new("port0", port, Echo));
            run(lcore, clock, stop, |waker| send_waker.send(waker).expect("the test waits for it"))
        });
        let waker = waker.recv().expect("the loop runs");
        for frame in 0..FRAMES {
            thread::sleep(PAUSE);
            exchange(frame);
        }
        stop.store(true, Relaxed);
        waker.wake();
        lcore.join().expect("no panic")
    });
    let Snapshot { lcores, .. } = telemetry.snapshot();
    let elapsed = Duration::from_nanos(lcores[0].counters["elapsed_ns"]);
    assert!(elapsed >= PAUSE * FRAMES as u32, "{elapsed:?}");
    assert!(cpu < elapsed / 10, "{cpu:?} of CPU in {elapsed:?}");
    assert!(lcores[0].counters["slept_ns"] > elapsed.as_nanos() as u64 / 10 * 8, "{:?}", lcores[0]);
    let lane = &lcores[0].lanes[0];
    assert_eq!((lane.counters["frames_rx"], lane.counters["frames_replied"]), (FRAMES, FRAMES));
    assert_eq!(lane.histograms["service_time"].count, FRAMES);
    println!("{idle:?}: {cpu:?} of CPU in {elapsed:?}");
}

fn udp(idle: Idle) {
    let port = UdpPort::open(&UdpConfig::new((Ipv4Addr::LOCALHOST, 0).into())).expect("a port");
    let peer = UdpSocket::bind("127.0.0.1:0").expect("a loopback address");
    peer.connect(port.local_addr()).expect("connected");
    peer.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    idles(idle, port, |frame| {
        peer.send(&frame.to_le_bytes()).expect("sent");
        let mut answer = [0; 9];
        assert_eq!(peer.recv(&mut answer).expect("an answer"), 8);
        assert_eq!(answer[..8], frame.to_le_bytes());
    });
}

#[test]
fn waiting_wakes_by_descriptor() {
    udp(Idle::Wait);
}

#[test]
fn adaptive_sleeps_and_wakes_by_descriptor() {
    udp(Idle::Adaptive);
}

#[test]
fn without_a_descriptor_a_timer_wakes() {
    let addr = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let (mut peer, port) = Loopback::pair([addr(1), addr(2)], 4, 64);
    idles(Idle::Wait, port, |_| {
        peer.post(addr(2).into(), |_| 8).expect("a buffer");
        peer.tx();
        while peer.rx(|_| Verdict::Drop) == 0 {
            thread::yield_now();
        }
    });
}
