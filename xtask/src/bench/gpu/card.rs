//! Rows of one of NVIDIA's GPUs, each in turns with a program that knows nothing of Berth.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use super::{
    Beside, Case, Figures, Line, Reach, Scale, contest, judged,
    sides::{INCREMENT, ON_GPU, Tenant, bare, bare_line, config, decodes, killed, measured, ring, udp_on_cpu},
};
use crate::{bench::network::OUT, sh};

/// The GPU that workers and baselines use.
pub(in crate::bench) struct Card {
    /// As its driver calls it.
    pub(super) name: String,
}

impl Card {
    /// The first of NVIDIA's, if there is one that functions run on.
    pub(in crate::bench) fn find() -> Result<Option<Self>> {
        std::fs::create_dir_all(OUT)?;
        let ours = match sh::berth(&config("card", "auto", ON_GPU, INCREMENT)?) {
            Ok((_server, ready)) => ready["gpus"][0].clone(),
            Err(why) => {
                eprintln!("no GPU: {why}");
                return Ok(None);
            }
        };
        ensure!(ours["kind"] == "cuda", "device = \"auto\" is {ours}");
        let bare = bare_line("launch", "1", &[])?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned).context("a text");
        let (device, address) = (text(&ours["device"])?, text(&bare["address"])?);
        ensure!(device.eq_ignore_ascii_case(&address), "ours is on {device}, the baselines on {address}");
        Ok(Some(Self { name: text(&bare["device"])? }))
    }
}

pub(super) const CASES: [Case; 17] = [
    Case {
        name: "rpc_increment 32 B, ring to ring, pinned, 1 block",
        measure: |name, scale| ping(name, scale, "bare ping-pong of a flag and 32 B", "ping", Reach::AtMost(1.10)),
    },
    Case {
        name: "rpc_increment 32 B, ring to ring, pinned, 1 block, beside a flag",
        measure: |name, scale| ping(name, scale, "bare ping-pong of a flag alone", "flag", Reach::Printed),
    },
    Case { name: "open throughput, 64 slots, 1 block", measure: |name, scale| open(name, scale, "1") },
    Case { name: "open throughput, 64 slots, 8 blocks", measure: |name, scale| open(name, scale, "8") },
    Case {
        name: "mode = \"graph\", 32 B",
        measure: |name, scale| {
            let beside = Beside { name: "cuGraphLaunch to a pinned flag", unit: "us", reach: Reach::AtMost(1.15) };
            let ours = || ring("auto", "graph", scale.calls, "1");
            contest(name, beside, scale.turns, ours, || bare("graph", scale.calls, &[]))
        },
    },
    Case {
        name: "rpc_increment 32 B, udp, dispatch gpu, RTT",
        measure: |name, scale| {
            let config = config("udp-gpu", "auto", ON_GPU, INCREMENT)?;
            let name_of = "dispatch ring on a CPU, plus the bare ping-pong";
            let beside = Beside { name: name_of, unit: "us", reach: Reach::AtMost(1.10) };
            let theirs = || Ok(udp_on_cpu(scale)?.plus(bare("ping", scale.trips, &[])?));
            contest(name, beside, scale.turns, || measured(&config, "udp-gpu", scale), theirs)
        },
    },
    Case { name: "rpc_increment 32 B, udp, memory = \"vram\", RTT", measure: vram },
    Case {
        name: "GPU_SUBMIT of an empty kernel, its module known, QUIC",
        measure: |name, scale| {
            let tenant = Tenant::new()?;
            let beside = Beside { name: "launch and synchronise", unit: "us", reach: Reach::Added(50.0) };
            let ours = || tenant.asks("submit", scale);
            contest(name, beside, scale.turns, ours, || bare("launch", scale.calls, &[]))
        },
    },
    Case {
        name: "lease of a GPU, write of 1 MiB, TCP",
        measure: |name, scale| access(name, scale, "write", "copy-in"),
    },
    Case { name: "lease of a GPU, read of 1 MiB, TCP", measure: |name, scale| access(name, scale, "read", "copy-out") },
    Case { name: "worker killed, to the first answer", measure: |name, scale| killed(name, "auto", scale.kills) },
    Case {
        name: "relay_bp, surface code d = 5 with events, one shot at a time, ring to ring",
        measure: |name, scale| one(name, scale, &D5),
    },
    Case {
        name: "relay_bp, surface code d = 7 with events, one shot at a time, ring to ring",
        measure: |name, scale| one(name, scale, &D7),
    },
    Case {
        name: "relay_bp, bicycle code 72 with events, one shot at a time, ring to ring",
        measure: |name, scale| one(name, scale, &BICYCLE),
    },
    Case { name: "relay_bp, surface code d = 5, 4096 at once", measure: |name, scale| many(name, scale, &D5) },
    Case { name: "relay_bp, surface code d = 7, 4096 at once", measure: |name, scale| many(name, scale, &D7) },
    Case { name: "relay_bp, bicycle code 72, 4096 at once", measure: |name, scale| many(name, scale, &BICYCLE) },
];

/// Models, and shots of them.
pub(super) type Code = [&'static str; 2];
const D5: Code = ["config/decoders/surface_d5.dem", "perf/data/surface_d5_p1e-3.dets.b8"];
const D7: Code = ["config/decoders/surface_d7.dem", "perf/data/surface_d7_p1e-3.dets.b8"];
const BICYCLE: Code = ["perf/data/bicycle_72_p12e-3.dem", "perf/data/bicycle_72_p12e-3.dets.b8"];

const ON_CORE: &str = "relay_bp on a core of this host";

fn ping(case: &'static str, scale: &Scale, name: &'static str, mode: &'static str, reach: Reach) -> Result<Line> {
    let beside = Beside { name, unit: "us", reach };
    let ours = || ring("auto", "one", scale.trips, "1");
    contest(case, beside, scale.turns, ours, || bare(mode, scale.trips, &[]))
}

fn open(case: &'static str, scale: &Scale, blocks: &str) -> Result<Line> {
    let beside = Beside { name: "bare kernel of as many blocks", unit: "k/s", reach: Reach::AtLeast(0.8) };
    let ours = || ring("auto", "open", scale.answers, blocks);
    contest(case, beside, scale.turns, ours, || bare("open", scale.answers, &[blocks]))
}

/// Requests in the GPU's memory beside those in the host's, where a CPU can write there.
fn vram(case: &'static str, scale: &Scale) -> Result<Line> {
    let of =
        |memory: &str| config(&format!("udp-{memory}"), "auto", &format!("{ON_GPU}memory = \"{memory}\"\n"), INCREMENT);
    let (vram, pinned) = (of("vram")?, of("pinned")?);
    let beside = Beside { name: "memory = \"pinned\"", unit: "us", reach: Reach::Printed };
    if let Err(why) = sh::berth(&vram) {
        let why = format!("{why:#}");
        let why = why.lines().last().unwrap_or_default().replace('|', " ");
        return Ok(Line { beside: format!("not here: {why}"), ..judged(case, beside, &[]) });
    }
    let theirs = || measured(&pinned, "udp-pinned", scale);
    contest(case, beside, scale.turns, || measured(&vram, "udp-vram", scale), theirs)
}

/// Of 1 MiB in so many microseconds.
fn gigabytes(figures: Figures) -> Figures {
    figures.map(|us| f64::from(1 << 20) / us / 1e3)
}

fn access(case: &'static str, scale: &Scale, what: &str, mode: &str) -> Result<Line> {
    let tenant = Tenant::new()?;
    let beside = Beside { name: "bare copy of 1 MiB, pinned", unit: "GB/s", reach: Reach::AtLeast(0.8) };
    let ours = || Ok(gigabytes(tenant.asks(what, scale)?));
    let mut line = contest(case, beside, scale.turns, ours, || Ok(gigabytes(bare(mode, scale.calls, &[])?)))?;
    let _ = write!(line.beside, "; the lease is memory = {}", tenant.memory);
    Ok(line)
}

fn one(case: &'static str, scale: &Scale, code: &Code) -> Result<Line> {
    let turns = (0..scale.decoders).map(|_| decodes("auto", "one", scale.shots, code)).collect::<Result<Vec<_>>>()?;
    Ok(judged(case, Beside { name: ON_CORE, unit: "us", reach: Reach::Printed }, &turns))
}

fn many(case: &'static str, scale: &Scale, code: &Code) -> Result<Line> {
    let [at_once, time] = scale.many;
    let turns = (0..scale.decoders).map(|_| decodes("auto", at_once, time, code)).collect::<Result<Vec<_>>>()?;
    Ok(judged(case, Beside { name: ON_CORE, unit: "k/s", reach: Reach::AtLeast(20.0) }, &turns))
}
