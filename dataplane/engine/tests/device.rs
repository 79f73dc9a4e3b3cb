//! The core that polls never reads what only a device can tell.

mod common;

use std::{
    sync::{Arc, Mutex},
    thread::{self, ThreadId},
};

use berth_engine::{Idle, Lane, Lcore, PUBLISH_EVERY, Telemetry};
use berth_port::{DeviceCounters, Frame, Port, PostError, Verdict};
use common::{Late, Log, Scripted, at, port};

/// Threads that have read the counters, which exist as long as this does.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<Vec<ThreadId>>>);

impl DeviceCounters for Device {
    fn read(&mut self, visit: &mut dyn FnMut(&'static str, u64)) {
        let mut readers = self.0.lock().unwrap();
        readers.push(thread::current().id());
        visit("device_missed", readers.len() as u64);
    }
}

struct WithDevice(Scripted, Device);

impl Port for WithDevice {
    fn rx<H: FnMut(&mut Frame<'_>) -> Verdict>(&mut self, handle: H) -> usize {
        self.0.rx(handle)
    }

    fn post<F: FnOnce(&mut [u8]) -> usize>(&mut self, peer: berth_port::Peer, fill: F) -> Result<(), PostError> {
        self.0.post(peer, fill)
    }

    fn tx(&mut self) {
        self.0.tx();
    }

    fn max_frame(&self) -> usize {
        self.0.max_frame()
    }

    fn local_addr(&self) -> std::net::SocketAddr {
        self.0.local_addr()
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.0.counters(visit);
    }

    fn device(&self) -> Option<Box<dyn DeviceCounters>> {
        Some(Box::new(self.1.clone()))
    }
}

#[test]
fn polling_reads_no_device_and_its_last_values_stay() {
    let (telemetry, device) = (Telemetry::default(), Device::default());
    let readers = || device.0.lock().unwrap().clone();
    let missed = || telemetry.snapshot().lcores[0].lanes[0].port["device_missed"];
    let mut lcore = Lcore::new("l", Idle::Spin, &telemetry);
    lcore.add(Lane::new("a", WithDevice(port(0, 100_000, &Log::default()), device.clone()), Late::default()));
    // Once before it polls, so that the name is there.
    let polls = thread::current().id();
    assert_eq!((readers(), missed()), (vec![polls], 1));
    for millis in 0..1000 {
        lcore.poll(at(millis * PUBLISH_EVERY.as_nanos() as u64));
    }
    assert_eq!((readers(), missed()), (vec![polls], 1), "a publication reads no device");
    assert!(telemetry.snapshot().lcores[0].lanes[0].port["received"] > 0);

    let housekeeping = thread::scope(|scope| {
        let housekeeping = scope.spawn(|| {
            telemetry.read_devices();
            thread::current().id()
        });
        housekeeping.join().unwrap()
    });
    assert_eq!((readers(), missed()), (vec![polls, housekeeping], 2));

    // At the end, once more; the device is let go of then, and nobody reads it again.
    let holders = Arc::strong_count(&device.0);
    drop(lcore);
    assert_eq!((readers(), missed()), (vec![polls, housekeeping, polls], 3));
    assert_eq!(Arc::strong_count(&device.0), holders - 2, "the port's, and telemetry's");
    telemetry.read_devices();
    assert_eq!(missed(), 3);
}
