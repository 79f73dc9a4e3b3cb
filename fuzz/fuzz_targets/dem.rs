#![no_main]
//! Detector error models: no text panics or takes unbounded memory, and what parses can be made a decoder.

use berth_qec::{Algorithm, Decoder, dem::DetectorErrorModel, relay::RelayBp};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(model) = DetectorErrorModel::parse(text) else { return };
    if model.num_detectors() > 64 || model.mechanisms().len() > 256 {
        return;
    }
    let relay = RelayBp { relays: 2, legs: 2, iterations: 5, seed: 0 };
    for algorithm in [Algorithm::Mwpm, Algorithm::Lut { depth: 2 }, Algorithm::RelayBp(relay)] {
        let Ok(mut decoder) = Decoder::from_model(&model, algorithm) else { continue };
        let mut events = vec![0xFF; decoder.num_detectors().div_ceil(8)];
        if let (Some(last), used @ 1..) = (events.last_mut(), decoder.num_detectors() % 8) {
            *last >>= 8 - used;
        }
        let mut flips = vec![0; decoder.num_observables().div_ceil(8)];
        let _ = decoder.decode(&events, &mut flips);
    }
});
