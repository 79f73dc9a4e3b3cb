//! What a decoder answers on a CPU: `cargo run --release -p berth-qec --example predict -- MODEL ALGORITHM FROM TO COUNT`.
//!
//! MODEL is a detector error model; ALGORITHM is `mwpm`, `lut` (of depth 1) or `relay_bp` (one relay of three legs of 20
//! iterations). Of the shots with events in `FROM.dets.b8` the first COUNT that have an answer go to `TO.dets.b8`, what
//! was flipped to `TO.obs.b8`, and the answers to `TO.pymatching.b8`, where `berth perf rpc --shots` looks for them.

use std::fs;

use anyhow::{Context, Result, bail};
use berth_qec::{
    Algorithm, Decoder,
    relay::{Arithmetic, RelayBp},
};

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [model, algorithm, from, to, count] = &arguments[..] else { bail!("MODEL ALGORITHM FROM TO COUNT") };
    let algorithm = match algorithm.as_str() {
        "mwpm" => Algorithm::Mwpm,
        "lut" => Algorithm::Lut { depth: 1 },
        "relay_bp" => {
            Algorithm::RelayBp(RelayBp { relays: 1, legs: 3, iterations: 20, seed: 0, arithmetic: Arithmetic::Fixed16 })
        }
        other => bail!("{other} is no algorithm"),
    };
    let count: usize = count.parse().context("COUNT is a number")?;
    let mut decoder = Decoder::from_dem(&fs::read_to_string(model).with_context(|| model.clone())?, algorithm)?;
    let read = |suffix: &str| fs::read(format!("{from}.{suffix}.b8")).with_context(|| format!("{from}.{suffix}.b8"));
    let (events, truth) = (read("dets")?, read("obs")?);
    let (bytes, flips) = (decoder.num_detectors().div_ceil(8), decoder.num_observables().div_ceil(8));
    let mut answered = [Vec::new(), Vec::new(), Vec::new()];
    let mut taken = 0;
    for (events, truth) in events.chunks_exact(bytes).zip(truth.chunks_exact(flips)) {
        let mut answer = vec![0; flips];
        if taken == count || events.iter().all(|byte| *byte == 0) || decoder.decode(events, &mut answer).is_err() {
            continue;
        }
        taken += 1;
        answered.iter_mut().zip([events, truth, &answer]).for_each(|(all, one)| all.extend(one));
    }
    if taken < count {
        bail!("{from} has {taken} shots with events and an answer");
    }
    for (suffix, bytes) in ["dets", "obs", "pymatching"].into_iter().zip(answered) {
        fs::write(format!("{to}.{suffix}.b8"), bytes)?;
    }
    Ok(())
}
