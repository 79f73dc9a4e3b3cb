//! Telemetry is published on time and readable from any thread while the loop runs.

mod common;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
};

use berth_engine::{Idle, Lane, Lcore, PUBLISH_EVERY, Snapshot, Step, Telemetry};
use berth_port::Recorder;
use common::{Late, Log, at, port};

#[test]
fn counters_are_published_once_in_their_interval_and_not_before() {
    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    lcore.add(Lane::new("a", port(0, 1000, &Log::default()), Late::default()));
    let every = PUBLISH_EVERY.as_nanos() as u64;
    let received = |now| {
        lcore.poll(at(now));
        telemetry.snapshot().lcores[0].lanes[0].counters["frames_rx"]
    };
    // A poll publishes what the polls before it did.
    let published = [0, every, every + 1, 2 * every - 1, 2 * every, 2 * every + 1].map(received);
    assert_eq!(published, [0, 32, 32, 32, 4 * 32, 4 * 32]);
}

#[test]
fn a_running_loop_is_read_without_missing_or_inventing_anything() {
    const FRAMES: usize = 1_000_000;
    let (telemetry, wire, stop) = (Telemetry::default(), Recorder::default(), AtomicBool::new(false));
    let reads = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while !stop.load(Relaxed) {
                for lane in telemetry.snapshot().lcores.iter().flat_map(|lcore| &lcore.lanes) {
                    let frames = lane.counters["frames_rx"];
                    assert!(frames >= last && frames <= FRAMES as u64, "{last} then {frames}");
                    assert!(lane.histograms["wire_time"].count <= FRAMES as u64);
                    last = frames;
                    reads.fetch_add(1, Relaxed);
                }
            }
        });
        let wire = wire.clone();
        let (telemetry, stop, reads) = (&telemetry, &stop, &reads);
        scope.spawn(move || {
            let mut lcore = Lcore::new("l", Idle::Wait, telemetry);
            let lane = Lane::new("a", port(0, FRAMES, &Log::default()), Late::default());
            lcore.add(lane.histogram("wire_time", &wire));
            let mut now = 0;
            while let Step::Busy = lcore.poll(at(now)) {
                wire.record_n(now, 32);
                now += 100_000;
                // The reader is under way before this thread can be done.
                while reads.load(Relaxed) == 0 {
                    thread::yield_now();
                }
            }
            lcore.drain(at(now), std::time::Duration::ZERO);
            assert_eq!(lcore.poll(at(now)), Step::Done);
            stop.store(true, Relaxed);
        });
    });
    let snapshot = telemetry.snapshot();
    let lane = &snapshot.lcores[0].lanes[0];
    assert_eq!(lane.counters["frames_rx"], FRAMES as u64);
    assert_eq!(lane.port["received"], FRAMES as u64);
    assert_eq!(lane.histograms["service_time"].count, FRAMES as u64);
    assert_eq!(lane.histograms["wire_time"].count, FRAMES as u64);
}

#[test]
fn a_snapshot_survives_json() {
    let telemetry = Telemetry::default();
    let mut lcore = Lcore::new("lcore1", Idle::Spin, &telemetry);
    lcore.add(Lane::new("fpga0", port(0, 5, &Log::default()), Late::default()));
    for i in 0..3 {
        lcore.poll(at(i * 2_000_000));
    }
    let snapshot = telemetry.snapshot();
    let json = serde_json::to_value(&snapshot).unwrap();
    let lane = &json["lcores"][0]["lanes"][0];
    assert_eq!((&lane["name"], &lane["service"]["handled"]), (&"fpga0".into(), &5.into()));
    assert_eq!(lane["histograms"]["service_time"]["count"], 5);
    assert_eq!(serde_json::from_value::<Snapshot>(json).unwrap(), snapshot);
}
