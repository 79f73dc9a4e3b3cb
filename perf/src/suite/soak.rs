//! Mixed load for a long time: nothing grows, nothing is answered wrong, and the books add up.

use std::{
    collections::BTreeMap,
    fs,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use berth_engine::{Counters, Snapshot};
use berth_process::Process;
use serde::Deserialize;

use super::{
    bench::{Bench, Client, Measure, lacking},
    books,
    file::{Load, Soak, Suite},
    merge,
    turns::Taken,
    vars::Vars,
};
use crate::{
    report::{
        json::CaseReport,
        suite::{Missing, Sample, SoakLoad, SoakReport, Verdict},
    },
    tally::Counts,
};

/// What ran, and what it showed.
pub(super) struct Ran {
    pub(super) cases: Vec<CaseReport>,
    pub(super) missing: Vec<Missing>,
    pub(super) report: SoakReport,
    pub(super) verdicts: Vec<Verdict>,
}

/// How long the server may take to say how it is: its housekeeping shares a CPU with the clients.
const STATUS: Duration = Duration::from_secs(10);

/// How long what clients of HIP Remote had may be there once they are gone.
const FREED: Duration = Duration::from_secs(20);

/// How often clients are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// A load with its client, which runs again and again.
struct Running<'a> {
    load: &'a Load,
    client: Option<Client>,
    taken: Vec<Taken>,
}

/// The part of `/status` that is sampled.
#[derive(Deserialize)]
struct Status {
    snapshot: Snapshot,
    #[serde(default)]
    control: Counters,
    hip: Option<Hip>,
}

/// The HIP Remote worker.
#[derive(Deserialize)]
struct Hip {
    devices: Vec<HipDevice>,
    sessions: u64,
}

#[derive(Deserialize)]
struct HipDevice {
    used: u64,
}

/// Sessions of HIP Remote, and the device memory that they use.
const HIP: [&str; 2] = ["hip.sessions", "hip.used_bytes"];

/// Runs all loads until the time is over.
pub(super) fn run(bench: &Bench, suite: &Suite, wanted: &Soak, duration: Option<Duration>) -> anyhow::Result<Ran> {
    let server = suite.server.iter().find(|server| server.name == wanted.server).expect("the file was checked");
    let duration = duration.unwrap_or(Duration::from_secs_f64(wanted.seconds));
    let (mut process, vars) = bench.serve(server)?;
    let admin = vars.fill("{endpoint.admin}").context("the server of a soak has [admin]")?;
    let mut missing = Vec::new();
    let mut loads = Vec::new();
    for load in &wanted.load {
        match load.needs.iter().find_map(|need| lacking(*need)) {
            Some(why) => missing.push(Missing { what: load.name.clone(), why }),
            None => loads.push(Running { load, client: None, taken: Vec::new() }),
        }
    }
    let started = Instant::now();
    let mut samples = Vec::new();
    let mut next_sample = Duration::ZERO;
    while started.elapsed() < duration {
        if bench.stop.load(Relaxed) {
            bail!("stopped by a signal");
        }
        if !process.runs() {
            bail!(process.finish(Duration::ZERO)?.failure().context("the server died"));
        }
        if started.elapsed() >= next_sample {
            samples.push(sample(&process, &admin, started)?);
            next_sample += Duration::from_secs_f64(wanted.every);
        }
        let left = duration.saturating_sub(started.elapsed());
        for running in &mut loads {
            running.keep_going(bench, &vars, left)?;
        }
        thread::sleep(LOOK);
    }
    for running in &mut loads {
        running.finish(bench)?;
    }
    let mut last = sample(&process, &admin, started)?;
    let gone = Instant::now();
    while HIP.iter().any(|counter| last.counters.contains_key(*counter)) && gone.elapsed() < FREED {
        thread::sleep(LOOK);
        last = sample(&process, &admin, started)?;
    }
    let left = HIP.map(|counter| last.counters.get(counter).copied().unwrap_or(0));
    samples.push(last);
    let snapshot = books::close(process)?;
    let (books, wrong) = books::books(&snapshot);
    let reports: Vec<SoakLoad> = loads.iter().map(Running::report).collect();
    let mut verdicts = growth(&samples, wanted.growth_kib);
    verdicts.push(books::verdict(&books, &wrong));
    verdicts.push(Verdict {
        what: "sessions of HIP Remote leave nothing".into(),
        passed: left == [0, 0],
        detail: format!("{} sessions and {} bytes when their clients were gone", left[0], left[1]),
    });
    let cases = loads.into_iter().filter(|running| !running.taken.is_empty()).map(|running| {
        let mut case = merge::turns(running.load.name.clone(), running.taken.into_iter());
        case.client = Some(running.load.client.clone());
        case
    });
    Ok(Ran { cases: cases.collect(), missing, report: SoakReport { samples, loads: reports, books }, verdicts })
}

impl Running<'_> {
    /// Starts the client where none runs, and takes the results of one that has ended.
    fn keep_going(&mut self, bench: &Bench, vars: &Vars, left: Duration) -> anyhow::Result<()> {
        if self.client.as_mut().is_some_and(Client::runs) {
            return Ok(());
        }
        self.finish(bench)?;
        let seconds = self.load.seconds.min(left.as_secs_f64());
        if seconds >= 0.1 {
            let words = vars.words(&self.load.client)?;
            let measure = Measure { seconds, warmup: 0.0, expect_losses: false };
            self.client = Some(bench.start(&words, &self.load.name, measure)?);
        }
        Ok(())
    }

    fn finish(&mut self, bench: &Bench) -> anyhow::Result<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        let (report, setup) = client.finish().with_context(|| self.load.name.clone())?;
        self.taken.push(Taken { at_s: bench.started.elapsed().as_secs_f64() - report.seconds, report, setup });
        Ok(())
    }

    fn report(&self) -> SoakLoad {
        let mut counts = Counts::default();
        for taken in &self.taken {
            counts.add(&taken.report.counts);
        }
        let latency = merge::latency(&self.taken);
        SoakLoad { name: self.load.name.clone(), runs: self.taken.len() as u64, counts, latency }
    }
}

/// What `/proc` tells of a process: resident KiB, descriptors, threads.
fn resources(pid: u32) -> anyhow::Result<(u64, u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let number = |key: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
    Ok((number("VmRSS:").context("no VmRSS")?, descriptors, number("Threads:").context("no Threads")?))
}

fn sample(server: &Process, admin: &str, started: Instant) -> anyhow::Result<Sample> {
    let (rss_kib, descriptors, threads) = resources(server.id())?;
    let request = ureq::get(format!("http://{admin}/status")).config().timeout_global(Some(STATUS)).build();
    let text = request.call().context("/status")?.body_mut().read_to_string()?;
    let Status { snapshot, control, hip } = serde_json::from_str(&text).context("/status is not as expected")?;
    let mut counters = BTreeMap::new();
    for lane in snapshot.lcores.iter().flat_map(|lcore| &lcore.lanes) {
        for (part, all) in [("lane", &lane.counters), ("port", &lane.port), ("service", &lane.service)] {
            for (name, value) in all.iter().filter(|(_, value)| **value > 0) {
                *counters.entry(format!("{}.{part}.{name}", lane.name)).or_default() += value;
            }
        }
    }
    let control = control.into_iter().filter(|(_, value)| *value > 0);
    counters.extend(control.map(|(name, value)| (format!("control.{name}"), value)));
    let hip = hip.map(|hip| [hip.sessions, hip.devices.iter().map(|device| device.used).sum()]).unwrap_or_default();
    counters.extend(HIP.into_iter().map(str::to_owned).zip(hip).filter(|(_, value)| *value > 0));
    let sample = Sample { at_s: started.elapsed().as_secs_f64(), rss_kib, descriptors, threads, counters };
    eprintln!("  {:>6.0} s: {rss_kib} KiB resident, {descriptors} descriptors, {threads} threads", sample.at_s);
    Ok(sample)
}

/// Compares the last quarter of the time with the second: the first fills caches and pools.
fn growth(samples: &[Sample], growth_kib: u64) -> Vec<Verdict> {
    let (from, to) = (samples.len() / 4, samples.len() / 2);
    let early = &samples[from..to.max(from + 1).min(samples.len())];
    let late = &samples[samples.len() - samples.len() / 4 - 1..];
    let middle = |samples: &[Sample], value: fn(&Sample) -> u64| {
        let mut all: Vec<u64> = samples.iter().map(value).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    };
    let resident = |sample: &Sample| sample.rss_kib;
    let (before, after) = (middle(early, resident), middle(late, resident));
    let mut verdicts = vec![Verdict {
        what: format!("resident memory does not grow by more than {growth_kib} KiB"),
        passed: after <= before + growth_kib,
        detail: format!("{before} KiB in the second quarter, {after} KiB in the last"),
    }];
    let mut count = |what: &str, value: fn(&Sample) -> u64| {
        let (before, after) = (middle(early, value), middle(late, value));
        verdicts.push(Verdict {
            what: format!("{what} do not grow"),
            // The usual number: clients that come and go have some, too.
            passed: after <= before,
            detail: format!("{before} in the second quarter, {after} in the last"),
        });
    };
    count("descriptors", |sample| sample.descriptors);
    count("threads", |sample| sample.threads);
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: impl Iterator<Item = (u64, u64)>) -> Vec<Sample> {
        let sample =
            |(rss_kib, descriptors)| Sample { at_s: 0.0, rss_kib, descriptors, threads: 4, counters: BTreeMap::new() };
        values.map(sample).collect()
    }

    #[test]
    fn what_grows_is_found_and_what_fills_at_first_is_not() {
        let passed = |samples: &[Sample]| growth(samples, 100).iter().map(|verdict| verdict.passed).collect::<Vec<_>>();
        assert_eq!(passed(&samples((0..40).map(|i| (1000 + 50 * i, 9)))), [false, true, true]);
        assert_eq!(passed(&samples((0..40).map(|i| (1000 + 90 * i.min(9), 9)))), [true, true, true]);
        assert_eq!(passed(&samples((0..40).map(|i| (1000, 9 + i / 10)))), [true, false, true]);
        assert_eq!(passed(&samples((0..40).map(|i| (1000, 9 + i % 5)))), [true, true, true]);
        assert_eq!(passed(&samples((0..2).map(|_| (1000, 9)))), [true, true, true]);
    }
}
