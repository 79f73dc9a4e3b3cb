//! Weights of matchings in random graphs, for others to compare: `cargo run --release -p berth-qec --example random_graphs [COUNT]`.
//!
//! A line of JSON for each of COUNT graphs (default 1000), with a shot each: the model, the detectors that have events, and the weight of our matching.

#[path = "../tests/common/mod.rs"]
mod common;

use std::{
    fmt::Write as _,
    io::{BufWriter, Write as _, stdout},
};

use anyhow::{Context, Result};
use berth_qec::{Algorithm, Decoder, dem::DetectorErrorModel};
use common::{Random, shot};

fn main() -> Result<()> {
    let count = std::env::args().nth(1).map_or(Ok(1000), |count| count.parse()).context("COUNT is a number")?;
    let mut random = Random(1);
    let mut out = BufWriter::new(stdout().lock());
    for _ in 0..count {
        let text = graph(&mut random);
        let model = DetectorErrorModel::parse(&text)?;
        let mut decoder = Decoder::from_model(&model, Algorithm::Mwpm)?;
        // More errors than there usually are: their events are far from each other, and near to those of others.
        let (events, _) = shot(&model, &mut random, 3.0);
        let observables = decoder.num_observables();
        decoder.decode(&events, &mut [0][..observables])?;
        let fired: Vec<_> = (0..model.num_detectors()).filter(|at| events[at / 8] >> (at % 8) & 1 == 1).collect();
        let weight = decoder.weight().context("matchings have a weight")?;
        writeln!(out, "{{\"model\":{text:?},\"events\":{fired:?},\"weight\":{weight}}}")?;
    }
    Ok(out.flush()?)
}

/// A graph of up to 20 detectors and 60 errors, some of them at the boundary, and some with the same detectors.
fn graph(random: &mut Random) -> String {
    let mut below = |most: u64| random.next() % most;
    let detectors = 1 + below(20);
    let mut text = format!("detector D{}\n", detectors - 1);
    for _ in 0..=below(60) {
        // Up to one half, likely and unlikely ones.
        let p = 0.5 * (1 + below(1000)) as f64 / 1000.0 / 10_u32.pow(below(4) as u32) as f64;
        let (one, other) = (below(detectors), below(detectors));
        let rest = if one == other { "L0".to_owned() } else { format!("D{other}") };
        _ = writeln!(text, "error({p}) D{one} {rest}");
    }
    text
}
