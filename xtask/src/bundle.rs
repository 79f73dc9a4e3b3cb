//! `cargo xtask gpu`: a folder that tests and measures what there is of GPUs, on a machine that has nothing of ours: no
//! sources, no tool chain, no network.
//!
//! In it every file lies where it lies in the repository, this program too: `run.sh OUT` has it run there.

use std::{
    env,
    ffi::OsStr,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    bench,
    bridge::{self, LIBRARY},
    build::{self, DRIVERS},
    setup,
    sh::{self, BERTH, cargo, cmd, output, run},
    test::programs,
};

const FOLDER: &str = "target/gpu";
/// Limit on its size in bytes.
const MOST: u64 = 60_000_000;
/// How long `run.sh` may take.
const LIMIT: Duration = Duration::from_mins(8);
/// After that it begins no further row of the table.
const ROWS: Duration = Duration::from_mins(7);

/// Programs and libraries, which are stripped.
const BUILT: &[&str] = &[
    BERTH,
    "target/release/berth-gpu-worker",
    LIBRARY,
    "target/release/examples/ring_to_ring",
    "target/release/examples/ring_decodes",
    "target/release/examples/gpu_lease_bench",
    "target/release/examples/predict",
];
const EXAMPLES: [&str; 4] = ["ring_to_ring", "ring_decodes", "gpu_lease_bench", "predict"];
/// Test programs, in the order of their names.
const TESTS: &[&str] = &[
    "dataplane/ptx golden",
    "dataplane/ptx kernels",
    "dataplane/ptx together",
    "drivers/gpu dispatch",
    "drivers/gpu vectors",
];
/// The driver in software, which the last one of them loads from where it lies itself.
const DRIVER: &str = "libberth_cuda_soft.so";
/// Where they lie.
const PROGRAMS: &str = "target/release/tests";
/// Programs in C that lie there too, and their sources: a host of the bridge, a ring that is none of ours, and the baselines.
const IN_C: [(&str, &str); 3] = [
    ("bridge_host", "drivers/bridge/tests/host.c"),
    ("producer", "drivers/bridge/tests/cuda/producer.c"),
    (BARE, "perf/baselines/cuda_bare.c"),
];
const BARE: &str = "cuda_bare";
/// Tests that make anew what is committed, with compilers and sources.
const AT_HOME: &[&str] = &[
    "the_texts_are_what_clang_makes_of_the_sources",
    "the_vectors_are_what_the_script_makes",
    "a_library_that_is_no_driver_or_an_old_one",
    "nvidias_",
];
/// Folders, and how the names in them begin or end.
const DATA: &[(&str, &str)] = &[
    ("config/decoders", "surface_d5.dem"),
    ("config/decoders", "surface_d7.dem"),
    ("perf/data", "surface_d5_p1e-3"),
    ("perf/data", "surface_d7_p1e-3"),
    ("perf/data", "bicycle_72_p12e-3"),
    (BASELINES, "cuda_bare.ptx"),
    ("dataplane/ptx/tests/kernels", ".ptx"),
    ("drivers/gpu/kernels", ".ptx"),
    (FOREIGN, "dispatcher."),
];
/// The dispatcher that is none of ours, its source and its text.
const FOREIGN: &str = "drivers/bridge/tests/cuda";
/// Folders of texts that are checked.
const TEXTS: &[&str] = &["dataplane/ptx/tests/kernels", "drivers/gpu/kernels", FOREIGN, BASELINES];
/// The baselines.
const BASELINES: &str = "perf/baselines";

const RUN: &str = r#"#!/bin/sh
# Tests and measures what Berth has of GPUs: run.sh OUT writes two files to the folder OUT and prints a table last. It takes
# less than 8 minutes, needs no network, and leaves the settings of cards as they are.
set -eu
mkdir -p "${1:?usage: run.sh OUT}"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
BERTH_BUNDLE=$PWD exec target/release/xtask gpu run "$out"
"#;

/// Makes the folder and says where it is.
pub(crate) fn make() -> Result<()> {
    setup::package()?;
    // With the drivers along, the crates below have the features that they have elsewhere, and are built once.
    run(cargo(["build", "--release", "-p", "berth", "-p", "berth-bridge"]).args(DRIVERS))?;
    bridge::check()?;
    bridge::place()?;
    build::examples(&EXAMPLES.map(str::to_owned))?;
    let tests = programs::named(TESTS)?;
    let folder = Path::new(FOLDER);
    let _ = fs::remove_dir_all(folder);
    let copy = |from: &Path, to: &Path| -> Result<()> {
        let to = folder.join(to);
        fs::create_dir_all(to.parent().context("a file of the folder")?)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(())
    };
    for built in BUILT {
        copy(Path::new(built), Path::new(built))?;
    }
    copy(&env::current_exe()?, Path::new("target/release/xtask"))?;
    let programs = Path::new(PROGRAMS);
    for (name, test) in TESTS.iter().zip(&tests) {
        copy(&test.path, &programs.join(file(name)))?;
    }
    copy(&Path::new("target/release/deps").join(DRIVER), &programs.join(DRIVER))?;
    let in_c = IN_C.map(|(name, source)| (folder.join(programs).join(name), source));
    for (program, source) in &in_c {
        compile(program, source)?;
    }
    for (from, part) in DATA {
        for entry in fs::read_dir(from)? {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
            if name.to_string_lossy().starts_with(part) || name.to_string_lossy().ends_with(part) {
                copy(&path, &path)?;
            }
        }
    }
    let mut strip = cmd("strip", ["--strip-unneeded", "--remove-section=.comment"]);
    strip.args(BUILT.iter().map(|built| folder.join(built))).arg(folder.join("target/release/xtask"));
    strip.args(in_c.iter().map(|(program, _)| program));
    let tests = TESTS.iter().map(|name| file(name)).chain([DRIVER]);
    run(strip.args(tests.map(|test| folder.join(programs).join(test))))?;
    needs_little(strip.get_args().skip(2).map(Path::new))?;
    let soft = folder.join(programs).join("cuda-soft");
    fs::create_dir(&soft)?;
    symlink(Path::new("..").join(DRIVER), soft.join("libcuda.so.1"))?;
    let script = folder.join("run.sh");
    fs::write(&script, RUN)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let size = size(folder)?;
    ensure!(size <= MOST, "{FOLDER} has {size} bytes, more than {MOST}");
    println!("{FOLDER}: {:.1} MB, {FOLDER}/run.sh OUT runs it", size as f64 / 1e6);
    Ok(())
}

fn compile(program: &Path, source: &str) -> Result<()> {
    run(cmd("cc", ["-O2", "-pthread", "-o"]).arg(program).args([source, "-ldl"]))
}

/// The program of the baselines on a GPU: the folder's, or else a new one.
pub(crate) fn bare() -> Result<String> {
    let program = format!("{PROGRAMS}/{BARE}");
    if sh::bundle().is_none() {
        fs::create_dir_all(PROGRAMS)?;
        compile(Path::new(&program), "perf/baselines/cuda_bare.c")?;
    }
    Ok(program)
}

/// Makes of what the benches of a GPU run what is not there yet, where it lies in the folder, too. Returns where the driver in
/// software is.
pub(crate) fn place() -> Result<PathBuf> {
    build::examples(&EXAMPLES.map(str::to_owned))?;
    bare()?;
    let soft = sh::root().join(PROGRAMS).join("cuda-soft");
    let _ = fs::remove_dir_all(&soft);
    fs::create_dir(&soft)?;
    symlink(sh::root().join("target/release/deps").join(DRIVER), soft.join("libcuda.so.1"))?;
    Ok(soft)
}

/// The file of a test program in the folder.
fn file(name: &str) -> &str {
    name.rsplit(' ').next().unwrap_or(name)
}

/// That these programs need no libraries but those of every system with glibc.
fn needs_little<'a>(all: impl Iterator<Item = &'a Path>) -> Result<()> {
    const SYSTEM: [&str; 4] = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux"];
    for program in all {
        let told = output(cmd("readelf", ["--dynamic", "--wide"]).arg(program))?;
        let needed = told.lines().filter(|line| line.contains("(NEEDED)"));
        let other: Vec<_> = needed.filter(|line| !SYSTEM.iter().any(|name| line.contains(name))).collect();
        ensure!(other.is_empty(), "{} needs more than glibc: {}", program.display(), other.join(", "));
    }
    Ok(())
}

/// Bytes of all files in a folder.
fn size(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(sum)
}

/// What one part of the tests came to.
struct Outcome {
    what: String,
    passed: bool,
    told: String,
}

/// In the folder: runs all tests and benches, and writes `results.md` and `tests.txt` to `out`.
pub(crate) fn run_all(out: &str) -> Result<()> {
    let Some(folder) = sh::bundle() else {
        bail!("this is for the folder that `cargo xtask gpu` makes: {FOLDER}/run.sh")
    };
    let began = Instant::now();
    let mut outcomes = texts(&folder)?;
    outcomes.extend(tests(&folder)?);
    outcomes.extend(bridges()?);
    let has_card = bench::has_card()?;
    outcomes.extend(foreign(&folder, Path::new(out), has_card)?);
    if has_card {
        outcomes.push(vectors(&folder, Path::new(out))?);
    }
    let soft = folder.join(PROGRAMS).join("cuda-soft");
    outcomes.push(outcome("each bench of a GPU, over its driver in software".into(), &mut bench::rows_over(&soft))?);
    let told: Vec<_> = outcomes.iter().map(|outcome| format!("== {}\n{}\n", outcome.what, outcome.told)).collect();
    fs::write(Path::new(out).join("tests.txt"), told.concat())?;
    let table = bench::gpu_table(began + ROWS);
    // What the benches write on their way is nobody's result.
    let _ = fs::remove_dir_all(bench::OUT);
    let early = match &table {
        Ok(table) => (table.failed > 0).then(|| format!("{} benches failed", table.failed)),
        Err(why) => Some(format!("the benches ended early: {why:#}")),
    };
    let table = table.map_or_else(|_| early.clone().unwrap_or_default(), |table| table.text);
    let verdict = |passed| if passed { "passed" } else { "FAILED, see tests.txt" };
    let lines = outcomes.iter().map(|Outcome { what, passed, .. }| format!("| {what} | {} |", verdict(*passed)));
    let lines = lines.collect::<Vec<_>>().join("\n");
    let seconds = began.elapsed().as_secs();
    let results = format!("| test | |\n|---|---|\n{lines}\n\nin {seconds} s\n\n{table}");
    fs::write(Path::new(out).join("results.md"), &results)?;
    println!("\n{results}");
    ensure!(outcomes.iter().all(|outcome| outcome.passed), "tests failed: {out}/tests.txt");
    if let Some(early) = early {
        bail!(early);
    }
    ensure!(began.elapsed() < LIMIT, "it took {seconds} s, more than {} s", LIMIT.as_secs());
    Ok(())
}

/// Runs a test and keeps what it says.
fn outcome(what: String, test: &mut Command) -> Result<Outcome> {
    eprintln!("+ {}", sh::line(test));
    let said = test.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", sh::line(test)))?;
    let told = [said.stdout, said.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    Ok(Outcome { what, passed: said.status.success(), told })
}

/// Checks every text.
fn texts(folder: &Path) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for text in TEXTS {
        let mut files: Vec<_> = fs::read_dir(folder.join(text))?.flatten().map(|entry| entry.path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "ptx"));
        files.sort();
        for file in files {
            let name = file.strip_prefix(folder)?.display().to_string();
            outcomes.push(outcome(format!("berth gpu check {name}"), cmd(BERTH, ["gpu", "check"]).arg(&file))?);
        }
    }
    Ok(outcomes)
}

/// Runs every test program.
fn tests(folder: &Path) -> Result<Vec<Outcome>> {
    let skipped = AT_HOME.iter().flat_map(|name| ["--skip", name]);
    let run = |name: &&str| {
        let mut program = Command::new(folder.join(PROGRAMS).join(file(name)));
        outcome((*name).to_owned(), program.args(skipped.clone()))
    };
    TESTS.iter().map(run).collect()
}

/// A hundred thousand answers by the bridge in each shape.
fn bridges() -> Result<Vec<Outcome>> {
    ["ring", "unified"].into_iter().map(|shape| bridge(shape, 100_000, &[&format!("--{shape}")], &[])).collect()
}

/// Answers by the bridge, with a program in C as the server that loads it.
fn bridge(shape: &str, count: u32, options: &[&str], variables: &[(&str, &OsStr)]) -> Result<Outcome> {
    let mut host = cmd(&format!("{PROGRAMS}/bridge_host"), [LIBRARY, shape]);
    let (host, line) = sh::server(host.args(options).envs(variables.iter().copied()), "ready ")?;
    let port = line.split(" port=").nth(1).and_then(|rest| rest.split(' ').next()).context("no port")?;
    let mut perf = cmd(BERTH, ["perf", "rpc", "--peer", &format!("127.0.0.1:{port}"), "--count", &count.to_string()]);
    perf.args(["--warmup", "0", "--window", "16", "--timeout", "20000", "--no-progress"]);
    let outcome = outcome(format!("bridge, {shape}, {count} answers"), &mut perf)?;
    host.finish(Duration::from_secs(20))?.check()?;
    Ok(outcome)
}

/// Somebody else's dispatcher on our ring, and ours on somebody else's: on the GPU in software, and on a GPU, if there is one;
/// with the committed text, and with what `nvcc` makes of the source, if there is one.
fn foreign(folder: &Path, out: &Path, has_card: bool) -> Result<Vec<Outcome>> {
    let library = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let soft = folder.join(PROGRAMS).join("cuda-soft");
    let mut drivers = vec![("software GPU", soft.as_os_str())];
    if has_card {
        drivers.push(("GPU", &library));
    }
    let committed = folder.join(FOREIGN).join("dispatcher.ptx");
    let made = out.join("dispatcher.ptx");
    let mut nvcc = cmd("nvcc", ["-ptx", "-arch=compute_75", "-o"]);
    let is_made = nvcc.arg(&made).arg(folder.join(FOREIGN).join("dispatcher.cu")).status().is_ok_and(|s| s.success());
    let mut outcomes = Vec::new();
    for (device, driver) in drivers {
        let named = |mut outcome: Outcome| {
            outcome.what = format!("{device}: {}", outcome.what);
            outcome
        };
        for text in [&committed, &made].into_iter().take(1 + usize::from(is_made)) {
            for shape in ["cuda", "cuda-early"] {
                let variables = [("LD_LIBRARY_PATH", driver), ("BERTH_TEST_PTX", text.as_os_str())];
                let options = ["--pinned-rings", "--unanswered-ms=20000"];
                let mut outcome = named(bridge(shape, 20_000, &options, &variables)?);
                outcome.what += if text == &made { ", by nvcc" } else { "" };
                outcomes.push(outcome);
            }
        }
        for blocks in ["1", "8"] {
            let mut producer = cmd(&format!("{PROGRAMS}/producer"), ["drivers/gpu/kernels", "20000", blocks]);
            let what = format!("berth_dispatch on a ring of others, {blocks} blocks, 20000 answers");
            outcomes.push(named(outcome(what, producer.env("LD_LIBRARY_PATH", driver))?));
        }
    }
    let _ = fs::remove_file(made);
    Ok(outcomes)
}

/// The golden vectors on a GPU, which leaves what it works out in a file.
fn vectors(folder: &Path, out: &Path) -> Result<Outcome> {
    let mut program = Command::new(folder.join(PROGRAMS).join("vectors"));
    program.args(["a_gpu_works_out_what_the_manual_says", "--exact"]).env("BERTH_VECTORS_OUT", out.join("vectors.txt"));
    outcome("GPU: golden vectors".into(), &mut program)
}
