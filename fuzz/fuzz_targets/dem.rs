#![no_main]
//! Detector error models: no text panics or takes unbounded memory, and what parses can be made a decoder, or an experiment
//! without an end.

use std::sync::Arc;

use berth_qec::{
    Algorithm, Decoder, Tables,
    dem::DetectorErrorModel,
    osd::{BpOsd, Schedule, Statistics},
    relay::{Arithmetic, RelayBp},
    sparse::MeasurementMap,
    window::{Experiment, Inner, Intake, Layout, Pool, Window},
};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(model) = DetectorErrorModel::parse(text) else { return };
    if model.num_detectors() > 64 || model.mechanisms().len() > 256 {
        return;
    }
    let relay = RelayBp { relays: 2, legs: 2, iterations: 5, seed: 0, arithmetic: Arithmetic::Fixed16 };
    let osd = BpOsd { schedule: Schedule::Serial, iterations: 5, statistics: Statistics::Ordered, order: 3 };
    let lsd = BpOsd { statistics: Statistics::Localized, ..osd };
    let window = |layout, inner| Algorithm::Window(Window { window: 3, commit: 2, layout, inner });
    let algorithms = [
        Algorithm::Mwpm,
        Algorithm::CorrelatedMwpm,
        Algorithm::BeliefMwpm,
        Algorithm::Lut { depth: 2 },
        Algorithm::MultiErrorLut { depth: 1 },
        Algorithm::RelayBp(relay),
        Algorithm::BpOsd(osd),
        Algorithm::BpOsd(lsd),
        window(Layout::Sliding, Inner::Mwpm),
        window(Layout::Sliding, Inner::BpOsd(osd)),
        window(Layout::Parallel, Inner::Mwpm),
        window(Layout::Parallel, Inner::BpOsd(osd)),
    ];
    for algorithm in algorithms {
        let Ok(tables) = Tables::new(&model, algorithm) else { continue };
        let tables = Arc::new(tables);
        endless(&tables, data);
        let mut decoder = Decoder::new(tables);
        let mut events = vec![0xFF; decoder.num_detectors().div_ceil(8)];
        if let (Some(last), used @ 1..) = (events.last_mut(), decoder.num_detectors() % 8) {
            *last >>= 8 - used;
        }
        let mut flips = vec![0; decoder.num_observables().div_ceil(8)];
        let _ = decoder.decode(&events, &mut flips);
    }
});

/// Takes the bytes as measurements of an experiment without an end, where the model makes one.
fn endless(tables: &Arc<Tables>, data: &[u8]) {
    let map = MeasurementMap::identity(tables.num_detectors());
    let Ok(experiment) = Experiment::new(tables.clone(), &map, None) else { return };
    let pool = Pool::new(2);
    let mut intake = Intake::new(Arc::new(experiment)).helped(&pool, 3);
    for portion in data.chunks(7) {
        if intake.take(portion, portion.len() * 8).is_err() || portion[0] % 16 == 0 && intake.settle().is_err() {
            intake.reset();
        }
        // Another core comes when it likes to.
        if portion[0] % 3 == 0 {
            pool.help();
        }
    }
    assert!(intake.decided() <= intake.arrived());
}
