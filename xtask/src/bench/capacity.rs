//! What a server on a memif can do at most.
//!
//! The client is a program that does nearly nothing for a packet ([`CLIENT`]), so that the server is what is short of time;
//! how busy it was it says itself: the time that it takes for a frame, by its own clock, times the frames of a second.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Pair, Reach, Row,
    network::{CLIENT_CPU, OUT, SECONDS, SERVER_CPU, SOCKET, mixed},
    programs::number,
};
use crate::sh::{self, BERTH, Process, cmd, output, run};

/// The client, and where it is compiled to.
const CLIENT: [&str; 2] = ["perf/baselines/memif_blast.c", "target/bench/memif_blast"];

/// A server that runs, and what it is asked.
pub(super) struct Target {
    pub(super) server: Process,
    pub(super) messages: Messages,
    /// Stops it, and returns the nanoseconds that it took for a frame.
    pub(super) frame_ns: fn(Process) -> Result<f64>,
}

/// A request and its answer, in hex.
pub(super) struct Messages {
    pub(super) request: String,
    pub(super) answer: String,
    /// Offset in bytes of the request's number, the same in both; `None` where they have none.
    pub(super) number: Option<usize>,
}

impl Messages {
    /// `rpc_increment` of so many bytes.
    pub(super) fn rpc(payload: usize) -> Self {
        let message = |magic: u32, second: u32, add: usize| {
            let head = [magic, second, payload as u32, 0, 0, 0].map(u32::to_le_bytes);
            hex(head.into_iter().flatten().chain((0..payload).map(|at| (at + add) as u8)))
        };
        Self { request: message(0x4355_5152, 0x191B_6322, 0), answer: message(0x4355_5153, 0, 1), number: Some(12) }
    }

    /// The same of a server that sends it back.
    pub(super) fn echo(payload: usize) -> Self {
        let Self { request, number, .. } = Self::rpc(payload);
        Self { answer: request.clone(), request, number }
    }
}

pub(super) fn hex(bytes: impl Iterator<Item = u8>) -> String {
    bytes.fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

/// Two servers that take turns.
pub(super) struct Contest {
    pub(super) case: String,
    pub(super) baseline: &'static str,
    pub(super) ours: Box<dyn Fn() -> Result<Target>>,
    pub(super) theirs: Box<dyn Fn() -> Result<Target>>,
    /// The least ratio of ours to theirs that will do; `None`: nothing is wanted.
    pub(super) least: Option<f64>,
    pub(super) turns: usize,
}

impl Contest {
    /// Takes the turns, first the one and then the other.
    pub(super) fn row(&self) -> Result<Row> {
        let [source, binary] = CLIENT;
        fs::create_dir_all(Path::new(binary).parent().context("a folder")?)?;
        run(&mut cmd("cc", ["-O3", "-march=native", "-o", binary, source]))?;
        let (mut pairs, mut busy) = (Vec::new(), Vec::new());
        for turn in 0..self.turns {
            let (ours, theirs) = super::in_turn(turn, || blast(&self.ours), || blast(&self.theirs))?;
            pairs.push(Pair { state: mixed(&ours.state, &theirs.state), ours: ours.rate, theirs: theirs.rate });
            busy.push([ours.busy, theirs.busy]);
        }
        let (case, baseline) = (self.case.clone(), self.baseline.to_owned());
        Ok(Row { case, baseline, unit: "M/s", reach: Reach::Capacity(self.least, busy), pairs })
    }
}

/// What a server did.
struct Blast {
    /// How the two cores stood.
    state: String,
    /// Answers in millions a second.
    rate: f64,
    /// The share of its time that it had work.
    busy: f64,
}

fn blast(open: &dyn Fn() -> Result<Target>) -> Result<Blast> {
    let before = bounce()?;
    let Target { server, messages, frame_ns } = open()?;
    let Messages { request, answer, number: at } = messages;
    let at = at.map_or("-1".into(), |at| at.to_string());
    let client = [SOCKET, CLIENT_CPU, SECONDS, &request, &at, &answer];
    let (_client, line) = sh::server(&mut cmd(CLIENT[1], client), "blasted ")?;
    let rate = number(&serde_json::from_str(&line)?, "answered_per_s")?;
    let busy = frame_ns(server)? * rate * 1e-9;
    let state = mixed(&before, &bounce()?);
    eprintln!("{:.2} M/s, busy {:.1} %", rate * 1e-6, 100.0 * busy);
    Ok(Blast { state, rate: rate * 1e-6, busy })
}

/// How the two cores stand: `near` or `far`.
fn bounce() -> Result<String> {
    let printed = output(&mut cmd(BERTH, ["perf", "bounce", "--cpus", CLIENT_CPU, SERVER_CPU, "--repeat", "1"]))?;
    Ok(printed.split_whitespace().last().context("no bounce was printed")?.to_owned())
}

/// The time of polls that found something, by frame.
pub(super) fn of_berth(server: Process) -> Result<f64> {
    let stopped = server.terminate()?.counters()?;
    let lanes = stopped["lcores"].as_array().into_iter().flatten().filter_map(|lcore| lcore["lanes"].as_array());
    let (mut busy, mut frames) = (0.0, 0.0);
    for lane in lanes.flatten() {
        busy += number(&lane["counters"], "busy_ns")?;
        frames += number(&lane["counters"], "frames_rx")?;
    }
    Ok(busy / frames)
}

/// The same: testpmd, too, counts the cycles of bursts that it received.
pub(super) fn of_testpmd(server: Process) -> Result<f64> {
    let ended = server.terminate()?;
    let line = ended.line("  CPU cycles/packet=")?;
    let figure = |text: &str| text.split_whitespace().next()?.parse::<f64>().ok();
    let cycles = line.split(' ').next().and_then(figure);
    let mhz = line.split(" at ").nth(1).and_then(figure);
    cycles.zip(mhz).map(|(cycles, mhz)| 1e3 * cycles / mhz).with_context(|| format!("testpmd prints {line}"))
}

/// A lease of zeroes on a node whose port is a memif: reads of `len` bytes.
pub(super) fn read_of_lease(quic: &str, len: usize) -> Result<Messages> {
    let size = len.to_string();
    let key = format!("{OUT}/client.key");
    let asked = ["lease", "alloc", "--size", &size, "--node", quic, "--key", &key, "--json"];
    let lease: Value = serde_json::from_str(&output(&mut cmd(BERTH, asked))?)?;
    let text = |name: &str| lease[name].as_str().with_context(|| format!("a lease without {name}: {lease}"));
    // The key is the low half of the id.
    let id = text("lease_id")?;
    let generation = lease["generation"].as_u64().context("a lease without a generation")?;
    let read = format!("{}{:016x}{:016x}{:016x}", &id[id.len() - 16..], 2 << 56 | generation, 0, len);
    Ok(Messages { request: read, answer: hex(std::iter::repeat_n(0, 1 + len)), number: None })
}
