//! Rows of the GPU in software.

use std::{fmt::Write as _, thread::available_parallelism};

use anyhow::{Context, Result};

use super::{
    Beside, Case, Figures, Line, Reach, Scale, contest,
    sides::{INCREMENT, ON_GPU, asked, config, killed, measured, ring, udp_on_cpu},
};
use crate::{
    bench::network::{OUT, SERVER_CPU},
    build,
    sh::{self, BERTH, cmd, output, run},
};

pub(super) const CASES: [Case; 7] = [
    Case { name: "interpreter, one core, million instructions/s", measure: instructions },
    Case {
        name: "rpc_increment 32 B, ring to ring, one at a time",
        measure: |name, scale| {
            let figures = ring("soft", "one", scale.trips, "1")?;
            Ok(alone(name, "us", figures, "p50 < 30 us", Some(figures.at[0] < 30.0)))
        },
    },
    Case {
        name: "the same, 64 at a time, thousand answers/s",
        measure: |name, scale| {
            let rates =
                (0..scale.turns).map(|_| ring("soft", "open", scale.answers, "1")).collect::<Result<Vec<_>>>()?;
            Ok(alone(name, "k/s", Figures::of(&rates), "printed", None))
        },
    },
    Case { name: "rpc_increment 32 B, udp, dispatch gpu, RTT", measure: udp },
    Case {
        name: "rpc_increment 32 B, udp, dispatch ring, on a CPU, RTT",
        measure: |name, scale| Ok(alone(name, "us", turns(scale, || udp_on_cpu(scale))?, "printed", None)),
    },
    Case {
        name: "relay_bp, surface code d = 5 with events, one relay, one shot at a time, udp, RTT",
        measure: relay_bp,
    },
    Case { name: "worker killed, to the first answer", measure: |name, scale| killed(name, "soft", scale.kills) },
];

/// A row beside nothing.
fn alone(case: &'static str, unit: &'static str, figures: Figures, reach: &str, met: Option<bool>) -> Line {
    Line { case, unit, figures, beside: String::new(), reach: reach.into(), met }
}

/// The medians of all turns.
fn turns(scale: &Scale, turn: impl Fn() -> Result<Figures>) -> Result<Figures> {
    Ok(Figures::of(&(0..scale.turns).map(|_| turn()).collect::<Result<Vec<_>>>()?))
}

/// What the interpreter does on one core.
fn instructions(case: &'static str, scale: &Scale) -> Result<Line> {
    let rates = turns(scale, || {
        let kernel = ["gpu", "run", "dataplane/ptx/tests/kernels/loop.ptx", "zero:1024", "50000", "--block", "256"];
        let printed = output(&mut cmd("taskset", ["-c", SERVER_CPU, BERTH].into_iter().chain(kernel)))?;
        let rate = printed.lines().find_map(|line| line.strip_prefix("instructions_per_s"));
        let rate = rate.context("berth gpu run tells no rate")?.trim().parse::<f64>()?;
        Ok(Figures::one(rate / 1e6, 1, None))
    })?;
    Ok(alone(case, "M/s", rates, ">= 50 M/s", Some(rates.at[0] >= 50.0)))
}

/// Round trips over UDP, beside the same with a worker of ours on a CPU instead of the GPU.
fn udp(case: &'static str, scale: &Scale) -> Result<Line> {
    let config = config("udp-gpu", "soft", ON_GPU, INCREMENT)?;
    let beside = Beside { name: "dispatch ring", unit: "us", reach: Reach::Printed };
    let ours = || measured(&config, "udp-gpu", scale);
    let mut line = contest(case, beside, scale.turns, ours, || udp_on_cpu(scale))?;
    // The client, the port's core and the kernel poll at the same time.
    let cores = available_parallelism()?.get();
    if cores < 3 {
        let _ = write!(line.beside, ", of 3 threads that poll on {cores} cores");
    }
    Ok(line)
}

/// One shot at a time, those of the demonstration.
fn relay_bp(case: &'static str, scale: &Scale) -> Result<Line> {
    let shots = format!("{OUT}/gpu-relay");
    let (model, from) = ("config/decoders/surface_d5.dem", "perf/data/surface_d5_p1e-3");
    run(&mut cmd(&build::example("berth-qec", "predict")?, [model, "relay_bp", from, &shots, scale.shots]))?;
    let decoder = format!(
        "[[decoder]]\nname = \"d\"\nalgorithm = \"relay_bp\"\nrelays = 1\nlegs = 3\niterations = 20\nmodel = \"{}\"\n\
         [[function]]\nname = \"qec_decode\"\nhandler = \"builtin:qec_decode\"\ndecoder = \"d\"\n",
        sh::root().join(model).display(),
    );
    let config = config("relay", "soft", ON_GPU, &decoder)?;
    let shots = ["--function", "qec_decode", "--shots", &shots, "--count", scale.shots, "--warmup", "0"];
    Ok(alone(case, "us", asked(&config, "relay", &shots)?, "printed", None))
}
