//! `berth decode`: files of shots through the decoders of the appliance, and the choice of one (docs/decoders.md).

use std::{
    fmt::Write as _,
    fs,
    path::{self, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_perf::decode::{self, Job, Measured, Outcome, Rate, Samples, ShotFile};
use berth_qec::{
    gap::{Gap, GapError},
    mwpm::STEPS_PER_US,
    shots::Format,
};
use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::output::{hex, pairs, table};
use crate::{
    check,
    config::{self, Decoder, schema},
};

/// Decode a file of shots, and compare the predictions; with `tune`, choose a decoder for this host.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct DecodeCommand {
    #[command(subcommand)]
    tune: Option<Tune>,
    /// A Stim detector error model.
    #[arg(long, value_name = "FILE", required = true)]
    model: Option<PathBuf>,
    /// Its detection events, in the format that the file's suffix names: 01, b8, r8, dets or ptb64.
    #[arg(long, value_name = "FILE", required = true)]
    shots: Option<PathBuf>,
    /// How to decode: a word of `algorithm` in [[decoder]] (docs/config.md).
    #[arg(long, value_name = "WORD", default_value = "mwpm")]
    algorithm: String,
    /// A key of the algorithm, such as depth=2. Can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Write the predicted observables, in the format that the file's suffix names. A shot without an answer flips none.
    #[arg(long, value_name = "FILE")]
    obs_out: Option<PathBuf>,
    /// Write how much heavier the lightest errors with other observables are than each prediction: a little-endian float32 for each shot,
    /// 0 without an answer, or one that may not be the best.
    #[arg(long, value_name = "FILE")]
    confidence_out: Option<PathBuf>,
    /// Count the shots whose prediction differs from these observables: those that were flipped, or another decoder's.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Format of files that are read and whose suffix names none.
    #[arg(long, value_name = "FORMAT")]
    in_format: Option<Format>,
    /// Format of a file that is written and whose suffix names none.
    #[arg(long, value_name = "FORMAT")]
    out_format: Option<Format>,
    /// Decode on so many threads, beside one that reads and writes; 1 does all on one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    /// Write the result as CSV for `sinter combine` and `sinter plot`.
    #[arg(long, value_name = "FILE", requires = "compare")]
    sinter_out: Option<PathBuf>,
    /// What that CSV says of the experiment, such as {"d":5,"p":0.001}. Default: the name of the model.
    #[arg(long, value_name = "JSON", requires = "sinter_out")]
    metadata: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Tune {
    /// Measure all algorithms on shots of a model, and print the [[decoder]] with the fewest errors of those that answer 999 of
    /// 1000 shots in time. A table of all goes to standard error.
    Tune {
        /// A Stim detector error model.
        #[arg(long, value_name = "FILE")]
        model: PathBuf,
        /// How long a decode may take, such as 800ns, 10us or 1ms.
        #[arg(long, value_name = "TIME", value_parser = deadline)]
        deadline: Duration,
        /// How many shots are sampled.
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
        shots: u32,
        /// Chooses the shots.
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,
    },
}

/// What `tune` measures beside each algorithm as it is without further keys.
const VARIANTS: [(&str, &[&str]); 5] = [
    ("lut", &["depth = 2"]),
    ("lut", &["depth = 3"]),
    ("relay_bp", &["relays = 1", "legs = 1", "iterations = 20"]),
    ("relay_bp", &["legs = 1", "iterations = 20"]),
    ("relay_bp", &["legs = 16"]),
];

impl DecodeCommand {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<()> {
        let Some(Tune::Tune { model, deadline, shots, seed }) = self.tune else { return self.decode() };
        tune(&model, deadline, shots as usize, seed)
    }

    fn decode(self) -> anyhow::Result<()> {
        let model = self.model.context("--model is missing")?;
        let shots = self.shots.context("--shots is missing")?;
        let metadata = match self.metadata {
            None => json!({ "model": stem(&model) }),
            Some(text) => serde_json::from_str(&text).context("--metadata is no JSON")?,
        };
        let decoder = decoder("model", &model, &self.algorithm, &self.sets)?;
        let input = |path: PathBuf| file(path, self.in_format, "--in-format");
        let refused = |e: GapError| anyhow!("{} has no confidence: {e}", self.algorithm);
        let gap = |path| anyhow::Ok((path, Arc::new(Gap::new(&decoder.tables).map_err(refused)?)));
        let job = Job {
            confidences: self.confidence_out.map(gap).transpose()?,
            tables: decoder.tables.clone(),
            shots: input(shots)?,
            predictions: self.obs_out.map(|path| file(path, self.out_format, "--out-format")).transpose()?,
            reference: self.compare.map(input).transpose()?,
            threads: self.threads.into(),
        };
        let outcome = decode::run(&job)?;
        pairs(self.json, &told(&outcome));
        if let Some(path) = self.sinter_out {
            let name = format!("berth:{}", self.algorithm);
            // As in sinter, it stands for all that the result depends on.
            let model = fs::read(&model).with_context(|| model.display().to_string())?;
            let id = Sha256::new_with_prefix(format!("{:?}\n{metadata}\n", decoder.algorithm)).chain_update(model);
            let csv = decode::csv(&outcome, &name, &hex(&id.finalize()), &metadata.to_string());
            fs::write(&path, csv).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }
}

fn told(outcome: &Outcome) -> Vec<(&'static str, Value)> {
    let Outcome { shots, unanswered, exhausted, errors, decoding, elapsed } = *outcome;
    let us = decoding.as_secs_f64() * 1e6 / shots.max(1) as f64;
    let mut told = vec![
        ("shots", shots.into()),
        ("unanswered", unanswered.into()),
        ("exhausted", exhausted.into()),
        ("decode_us", rounded(us).into()),
        ("elapsed_s", rounded(elapsed.as_secs_f64()).into()),
    ];
    if let Some(errors) = errors {
        let rate = Rate { errors, shots };
        told.extend([
            ("logical_errors", errors.into()),
            ("logical_error_rate", rounded(rate.share()).into()),
            ("interval_95", rate.wilson().map(rounded).to_vec().into()),
        ]);
    }
    told
}

/// To four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn file(path: PathBuf, format: Option<Format>, option: &str) -> anyhow::Result<ShotFile> {
    let format = decode::format_of(&path).or(format).with_context(|| {
        format!("{}: its suffix names none of the formats 01, b8, r8, dets and ptb64; give {option}", path.display())
    })?;
    Ok(ShotFile { path, format })
}

/// A `[[decoder]]` as in a configuration.
fn toml(name: &str, model: &Path, algorithm: &str, keys: &[impl AsRef<str>]) -> anyhow::Result<String> {
    let text = |value: &str| toml::Value::from(value).to_string();
    let model = model.to_str().with_context(|| format!("{}: its name is not UTF-8", model.display()))?;
    let mut document =
        format!("[[decoder]]\nname = {}\nalgorithm = {}\nmodel = {}\n", text(name), text(algorithm), text(model));
    for key in keys {
        let _ = writeln!(document, "{}", key.as_ref());
    }
    Ok(document)
}

/// The decoder that a configuration of these keys has, or what such a configuration would be told.
fn decoder(name: &str, model: &Path, algorithm: &str, keys: &[impl AsRef<str>]) -> anyhow::Result<Decoder> {
    ensure!(model.is_file(), "there is no file {}", model.display());
    let decoders = config::decoders(&toml(name, model, algorithm, keys)?, &check::this_host()).map_err(|mistakes| {
        let plain = |note: &config::Note| {
            let field = note.field.strip_prefix("decoder[0].").unwrap_or(&note.field);
            format!("{field}: {}", note.message)
        };
        anyhow!("{}", mistakes.iter().map(plain).collect::<Vec<_>>().join("\n"))
    })?;
    decoders.into_iter().next().context("--set KEY=VALUE is for keys of one decoder")
}

/// Each algorithm of whole shots that a configuration can name, as it is and in variants.
fn candidates() -> anyhow::Result<Vec<(&'static str, &'static [&'static str])>> {
    let key = schema::ROOT.key("decoder").and_then(schema::Key::section).and_then(|section| section.key("algorithm"));
    let Some(schema::Kind::Choice(words)) = key.map(|key| key.kind) else { bail!("the schema has no algorithms") };
    let of = |word| VARIANTS.into_iter().filter(move |(variant, _)| *variant == word);
    // Windows are for what arrives round by round, and multi_error_lut for those who want its rule: they do not decide better.
    let words = words.iter().filter(|(word, _)| !["window", "multi_error_lut"].contains(word));
    Ok(words.flat_map(|(word, _)| std::iter::once((*word, &[][..])).chain(of(*word))).collect())
}

fn tune(model: &Path, deadline: Duration, shots: usize, seed: u64) -> anyhow::Result<()> {
    let name: String = stem(model).chars().filter(char::is_ascii_graphic).take(64).collect();
    let name = if name.is_empty() { "decoder" } else { &name };
    let model = path::absolute(model).with_context(|| model.display().to_string())?;
    // What functions can be given as `budget_us` is whole.
    let budget_us = deadline.as_micros() as u64;
    let candidates = candidates()?;
    let (mut samples, mut all, mut refusal) = (None, Vec::new(), None);
    for (algorithm, keys) in &candidates {
        let measured = decoder(name, &model, algorithm, keys).map(|decoder| {
            let samples = samples.get_or_insert_with(|| Samples::draw(&decoder.model, shots, seed));
            let mut decoder = berth_qec::Decoder::new(decoder.tables);
            if budget_us > 0 {
                decoder.set_steps(budget_us * STEPS_PER_US);
            }
            decode::measure(&mut decoder, samples, deadline)
        });
        all.push(measured.map_err(|why| refusal.insert(format!("{why:#}")).clone()));
    }
    let best = decode::best(all.iter().map(|measured| measured.as_ref().ok()));
    let row = |(at, (algorithm, keys)): (usize, &(&str, &[&str]))| {
        let (algorithm, keys) = ((*algorithm).to_owned(), keys.join(", "));
        match &all[at] {
            Err(why) => [algorithm, keys, String::new(), String::new(), String::new(), String::new(), why.clone()],
            Ok(measured) => measured_row(algorithm, keys, measured, best == Some(at)),
        }
    };
    let rows: Vec<_> = candidates.iter().enumerate().map(row).collect();
    eprint!("{}", table(["algorithm", "keys", "errors", "p50", "p99.9", "longest", ""], &rows));
    if samples.is_none() {
        bail!("no algorithm takes this model: {}", refusal.unwrap_or_default());
    }
    let best = best.with_context(|| {
        format!("no algorithm answers 999 of 1000 shots of {} within {deadline:?} on this host", model.display())
    })?;
    let (algorithm, keys) = candidates[best];
    if budget_us > 0 {
        println!("# For functions with budget_us = {budget_us}.");
    }
    print!("{}", toml(name, &model, algorithm, keys)?);
    Ok(())
}

fn measured_row(algorithm: String, keys: String, measured: &Measured, best: bool) -> [String; 7] {
    let Measured { rate, late, fits, p50, p99_9, longest } = measured;
    let [low, high] = rate.wilson();
    let errors = format!("{} of {}: {:.2e} ({low:.2e} to {high:.2e})", rate.errors, rate.shots, rate.share());
    let verdict = match (best, fits) {
        (true, _) => "chosen".to_owned(),
        (false, true) => String::new(),
        (false, false) => format!("{late} late"),
    };
    [algorithm, keys, errors, format!("{p50:.1?}"), format!("{p99_9:.1?}"), format!("{longest:.1?}"), verdict]
}

/// A time with a unit.
fn deadline(text: &str) -> Result<Duration, String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let unit = match unit.trim_start() {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err(format!("{text:?} has none of the units ns, us, ms and s")),
    };
    let number = number.parse().ok().filter(|number: &f64| (0.0..=1e9).contains(number));
    let seconds = number.map(|number| number * unit).filter(|seconds| (1e-9..=10.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("{text:?} is none of 1ns to 10s"))
}
