//! The host, as the node uses it.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use berth_fabric::Host;
use berth_host::{Sensor, Thermal as Reading};
use berth_wire::fabric::{MilliCelsius, SensorStatus, Thermal};
use tokio::time::interval;

/// Interval at which the sensors are read.
const SENSE_EVERY: Duration = Duration::from_secs(2);

/// This host.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) sensors: Arc<Sensors>,
}

impl Host for Machine {
    fn random(&mut self, into: &mut [u8]) {
        // The node cannot go on without: ids that can be guessed would open its leases.
        getrandom::fill(into).expect("the system gives random bytes once it has booted");
    }

    fn thermal(&mut self) -> Thermal {
        self.sensors.newest()
    }
}

/// The last reading of the sensors.
#[derive(Debug)]
pub(crate) struct Sensors(Mutex<(Instant, Reading)>);

impl Sensors {
    /// Reads the sensors for the first time.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(read()))
    }

    /// Reads the sensors periodically. Some take milliseconds, for which no operation should wait.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut ticks = interval(SENSE_EVERY);
        loop {
            ticks.tick().await;
            if let Ok(found) = tokio::task::spawn_blocking(read).await {
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
        }
    }

    fn newest(&self) -> Thermal {
        let (at, found) = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (soc_temp, soc_status) = reading(found.soc);
        let (nvme_temp, nvme_status) = reading(found.nvme);
        let age_ms = at.elapsed().as_millis().try_into().ok();
        Thermal { age_ms, soc_temp, soc_status, throttled: found.throttled, nvme_temp, nvme_status }
    }
}

fn read() -> (Instant, Reading) {
    let found = Reading::read(Path::new("/sys"));
    (Instant::now(), found)
}

fn reading(sensor: Option<Sensor>) -> (Option<MilliCelsius>, Option<SensorStatus>) {
    match sensor {
        None => (None, None),
        Some(Sensor::Unavailable) => (None, Some(SensorStatus::Unavailable)),
        Some(Sensor::MilliCelsius(milli)) => match MilliCelsius::new(milli) {
            Some(temperature) => (Some(temperature), Some(SensorStatus::Ok)),
            None => (None, Some(SensorStatus::Unavailable)),
        },
    }
}
