//! Shots of a model, by chance.
#![allow(dead_code, reason = "each test file uses a part")]

use std::{fs, path::Path};

use berth_qec::dem::DetectorErrorModel;

/// A model of `config/decoders`.
pub(crate) fn model(name: &str) -> DetectorErrorModel {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/decoders").join(name);
    DetectorErrorModel::parse(&fs::read_to_string(path).unwrap()).unwrap()
}

/// `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    /// Whether something of this probability happens.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64 * 0.5_f64.powi(53)) < probability
    }
}

/// What happens in one shot, each error `times` as likely as the model has it: events, a bit each, and flips.
pub(crate) fn shot(model: &DetectorErrorModel, random: &mut Random, times: f64) -> (Vec<u8>, u64) {
    let (mut events, mut flips) = (vec![0; model.num_detectors().div_ceil(8)], 0);
    for mechanism in model.mechanisms() {
        if random.happens(times * mechanism.probability()) {
            for part in mechanism.parts() {
                part.detectors.iter().for_each(|at| events[*at as usize / 8] ^= 1 << (at % 8));
                flips ^= part.observables;
            }
        }
    }
    (events, flips)
}
