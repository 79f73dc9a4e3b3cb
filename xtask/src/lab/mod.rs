//! `cargo xtask lab`: suites that need kernel features or devices which this host may lack, each in a guest of its own.
//! See docs/lab.md.

mod debian;
mod devices;
mod guest;
mod host;
mod initramfs;
mod suite;
mod sysroot;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    build, package, setup,
    sh::{cmd, line, output, root, run},
};
use guest::Hypervisor;
use host::Host;
use suite::Suite;

const FOLDER: &str = "target/lab";
const SUITES: &str = "lab/suites";

/// Where the suite is that runs tests of others, which are no part of this repository.
const BLKTESTS: &str = "lab/blktests";

/// What `timeout` ends with when it had to stop the program.
const TIMED_OUT: i32 = 124;

/// How many answers the checks that ask for many want.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// A sample of them.
    Sample,
    All,
}

impl Answers {
    fn count(self) -> u32 {
        match self {
            Self::Sample => 2_000,
            Self::All => 100_000,
        }
    }
}

/// What to run, and where.
struct Options {
    /// On this host, not in a guest.
    native: bool,
    /// The folder with the suites.
    from: PathBuf,
    /// All of the folder if empty.
    names: Vec<String>,
    /// Whether a suite that fails runs once more.
    again: bool,
    answers: Answers,
    /// Whose tests the suite runs.
    checkout: Option<PathBuf>,
}

/// Lines that began with `ok` and with `not ok`.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Those that were `not ok`, also where the suite passed when it ran again.
    pub(crate) told: Vec<String>,
    /// How long each suite ran, in seconds.
    pub(crate) times: Vec<(f64, String)>,
}

impl Tally {
    fn fail(&mut self, told: String) {
        self.failed += 1;
        self.told.push(told);
    }
}

/// `cargo xtask lab [--native] [--from FOLDER] [SUITE...]`, or `cargo xtask lab blktests CHECKOUT`.
pub(crate) fn command(args: &[&str]) -> Result<()> {
    let mut options = Options::new(SUITES, Answers::All);
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match arg {
            "--native" => options.native = true,
            "blktests" => {
                let checkout = args.next().context("`cargo xtask lab blktests` wants a checkout of blktests")?;
                options.checkout = Some(fs::canonicalize(checkout).with_context(|| format!("no {checkout}"))?);
                (options.from, options.names) = (BLKTESTS.into(), vec![arg.to_owned()]);
            }
            "--from" => options.from = args.next().context("--from wants a folder")?.into(),
            _ if arg.starts_with('-') => bail!("{arg} is none of --native, --from"),
            name => options.names.push(name.to_owned()),
        }
    }
    let tally = Lab::new(options)?.run()?;
    println!("{} passed, {} failed", tally.passed, tally.failed);
    ensure!(tally.failed == 0, "{} checks of the lab failed", tally.failed);
    Ok(())
}

/// Suites whose programs are built, and where they run.
pub(crate) struct Lab {
    options: Options,
    suites: Vec<Suite>,
    hypervisor: Option<Hypervisor>,
    /// One lab at a time in a checkout: runs write to the same folders.
    _lock: fs::File,
}

/// Runs suites of `lab/bench`, which no test does, and returns the lines that they left in `rows`.
pub(crate) fn bench(names: &[&str]) -> Result<String> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let lab = Lab::new(Options { names, ..Options::new("lab/bench", Answers::All) })?;
    let tally = lab.run()?;
    ensure!(tally.failed == 0, "{} turns in the lab failed", tally.failed);
    let mut rows = String::new();
    for suite in &lab.suites {
        let path = format!("{FOLDER}/{}/out/rows", suite.name);
        rows += &fs::read_to_string(&path).with_context(|| format!("no figures in {path}"))?;
    }
    Ok(rows)
}

impl Options {
    /// Every suite of a folder.
    fn new(from: &str, answers: Answers) -> Self {
        Self { native: false, from: from.into(), names: Vec::new(), again: false, answers, checkout: None }
    }

    fn suites(&self) -> Result<Vec<Suite>> {
        let entries = fs::read_dir(&self.from).with_context(|| format!("no suites in {}", self.from.display()))?;
        let scripts = entries.flatten().map(|entry| entry.path());
        let mut scripts: Vec<_> = scripts.filter(|path| path.extension().is_some_and(|ext| ext == "sh")).collect();
        scripts.sort();
        let name = |script: &Path| script.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let all: Vec<_> = scripts.iter().filter_map(|script| name(script)).collect();
        if let Some(unknown) = self.names.iter().find(|name| !all.contains(name)) {
            bail!("there is no suite {unknown:?} in {}; there are {}", self.from.display(), all.join(", "));
        }
        if !self.names.is_empty() {
            scripts.retain(|script| name(script).is_some_and(|name| self.names.contains(&name)));
        }
        scripts.iter().map(|script| Suite::load(script)).collect()
    }
}

impl Lab {
    /// Every suite, which runs once more if it fails.
    pub(crate) fn all(answers: Answers) -> Result<Self> {
        Self::new(Options { again: true, ..Options::new(SUITES, answers) })
    }

    /// Installs and builds what is wanted.
    fn new(options: Options) -> Result<Self> {
        let suites = options.suites()?;
        setup::lab()?;
        fs::create_dir_all(FOLDER)?;
        let lock = fs::File::create(format!("{FOLDER}/lock"))?;
        lock.lock()?;
        let hypervisor = if options.native { None } else { Some(Hypervisor::make(&root().join(FOLDER))?) };
        // Packages have the program without drivers too, which lies where the others want it with all of them.
        let (debian, others): (Vec<_>, Vec<_>) = suites.iter().partition(|suite| suite.debian);
        debian.into_iter().chain(others).try_for_each(prepare)?;
        Ok(Self { options, suites, hypervisor, _lock: lock })
    }

    /// Runs the suites one after the other, each in its guest.
    pub(crate) fn run(&self) -> Result<Tally> {
        let mut tally = Tally::default();
        let run_one = |suite| run_one(suite, self.hypervisor.as_ref(), &self.options);
        for suite in &self.suites {
            let (mut one, mut died) = run_one(suite)?;
            // A guest that dies tells nothing of Berth: translated ones stand still now and then, or QEMU gives up.
            let mut runs = 1;
            while died && runs < 4 || self.options.again && one.failed > 0 && runs < 2 {
                println!("suite {}: {}; once more", suite.name, if died { "the guest died" } else { "it failed" });
                keep(suite)?;
                tally.told.extend(one.told);
                (one, died) = run_one(suite)?;
                runs += 1;
            }
            if died {
                println!("not ok {}: the guest ended without an exit code", suite.name);
                one.fail(format!("suite {}: the guest ended without an exit code", suite.name));
            }
            tally.passed += one.passed;
            tally.failed += one.failed;
            tally.told.extend(one.told);
            tally.times.extend(one.times);
        }
        Ok(tally)
    }
}

/// Puts what a run left aside, as `NAME.failed`.
fn keep(suite: &Suite) -> Result<()> {
    let folder = root().join(FOLDER).join(&suite.name);
    let kept = folder.with_extension("failed");
    let _ = fs::remove_dir_all(&kept);
    fs::rename(&folder, &kept).with_context(|| format!("cannot keep {}", folder.display()))
}

/// Runs a suite to its end and counts its checks. Tells too whether the guest died under it.
fn run_one(suite: &Suite, hypervisor: Option<&Hypervisor>, options: &Options) -> Result<(Tally, bool)> {
    let start = Instant::now();
    let folder = root().join(FOLDER).join(&suite.name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("out"))?;
    let host = suite.host.as_deref().map(Host::new).transpose()?;
    let mut command = match hypervisor {
        Some(hypervisor) => {
            // The guest sees the folder as /run/lab.
            let exports = environment(suite, Path::new("/run/lab"), options)
                .map(|(key, value)| format!("export {key}='{value}'\n"));
            fs::write(folder.join("env"), exports.concat())?;
            let mut qemu = hypervisor.command(suite, &folder)?;
            qemu.args(host.iter().flat_map(Host::device));
            qemu
        }
        None => native(suite, &folder, options)?,
    };
    println!("\nsuite {} ({})", suite.name, hypervisor.map_or("on this host", Hypervisor::accelerator));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", line(&command)))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let over = AtomicBool::new(false);
    let mut tally = thread::scope(|scope| {
        let host = scope.spawn(|| host.map_or(Ok(()), |host| host.run(&folder.join("out"), &over)));
        let tally = follow(stdout, &folder.join("log"));
        over.store(true, Relaxed);
        host.join().expect("it does not panic")?;
        tally
    })?;
    let status = child.wait()?.code();
    let code = match hypervisor {
        Some(_) => fs::read_to_string(folder.join("exit")).ok().and_then(|code| code.trim().parse().ok()),
        None => status,
    };
    let verdict = match code {
        Some(0) if tally.passed + tally.failed == 0 => Some("it checked nothing".to_owned()),
        Some(0) => None,
        Some(TIMED_OUT) => Some(format!("stopped after {} s", suite.timeout)),
        // What it said was wrong is why.
        Some(_) if tally.failed > 0 => None,
        Some(code) => Some(format!("ended with exit code {code}")),
        None => {
            show_console(&folder);
            None
        }
    };
    if let Some(why) = verdict {
        println!("not ok {}: {why}", suite.name);
        tally.fail(why);
    }
    tally.told.iter_mut().for_each(|told| *told = format!("suite {}: {told}", suite.name));
    let seconds = start.elapsed().as_secs_f64();
    println!("suite {}: {} passed, {} failed, {seconds:.1} s", suite.name, tally.passed, tally.failed);
    tally.times.push((seconds, format!("lab {}", suite.name)));
    Ok((tally, code.is_none()))
}

/// Shows and keeps what a suite prints, and counts its checks.
fn follow(stdout: impl Read, log: &Path) -> Result<Tally> {
    let mut log = fs::File::create(log)?;
    let mut tally = Tally::default();
    for text in BufReader::new(stdout).split(b'\n') {
        let text = text?;
        let text = String::from_utf8_lossy(&text);
        println!("{text}");
        writeln!(log, "{text}")?;
        tally.passed += u32::from(text.starts_with("ok "));
        if let Some(check) = text.strip_prefix("not ok ") {
            tally.fail(format!("not ok {check}"));
        }
    }
    Ok(tally)
}

/// What a suite finds in its environment.
fn environment(suite: &Suite, folder: &Path, options: &Options) -> [(&'static str, String); 12] {
    let text = |path: &Path| path.display().to_string();
    [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("ROOT", text(&root())),
        ("SUITE", text(&root().join(&suite.script))),
        ("BERTH", text(&root().join("target/release/berth"))),
        ("PEERS", text(&root().join(FOLDER).join("peers"))),
        ("OUT", text(&folder.join("out"))),
        ("MODULES", suite.modules.join(" ")),
        ("DEBIAN", if suite.debian { "yes".into() } else { String::new() }),
        ("PACKAGES", text(&root().join(package::FOLDER))),
        ("TIMEOUT", suite.timeout.to_string()),
        ("ANSWERS", options.answers.count().to_string()),
        ("CHECKOUT", options.checkout.as_deref().map_or_else(String::new, text)),
    ]
}

/// The suite as a command of this host, whose devices and settings it takes as they are.
fn native(suite: &Suite, folder: &Path, options: &Options) -> Result<Command> {
    for module in &suite.modules {
        run(&mut cmd("modprobe", [module])).with_context(|| format!("suite {} needs {module}", suite.name))?;
    }
    let mut command = cmd("timeout", ["-k", "5", &suite.timeout.to_string()]);
    command.arg(root().join(&suite.script)).envs(environment(suite, folder, options));
    Ok(command)
}

/// Builds what a suite runs: our programs, and their peers in C.
fn prepare(suite: &Suite) -> Result<()> {
    match &suite.build[..] {
        [] => {}
        [name] if name == "berth" => build::berth()?,
        examples => build::examples(examples)?,
    }
    if suite.debian {
        debian::make(&root().join(FOLDER))?;
    }
    suite.peers.iter().try_for_each(|peer| compile(peer))
}

/// Compiles `lab/peers/NAME.c`, whose first line may name libraries: `// pkg-config: libibverbs`.
fn compile(name: &str) -> Result<()> {
    let source = format!("lab/peers/{name}.c");
    let text = fs::read_to_string(&source).with_context(|| format!("cannot read {source}"))?;
    let folder = format!("{FOLDER}/peers");
    fs::create_dir_all(&folder)?;
    let mut cc = cmd("cc", ["-O2", "-Wall", "-Werror", "-o", &format!("{folder}/{name}"), &source]);
    if let Some(libraries) = text.lines().next().and_then(|line| line.strip_prefix("// pkg-config:")) {
        let flags = output(cmd("pkg-config", ["--cflags", "--libs"]).args(libraries.split_whitespace()))?;
        cc.args(flags.split_whitespace());
    }
    run(&mut cc)
}

/// The end of what the guest's kernel and QEMU said.
fn show_console(folder: &Path) {
    for name in ["console", "qemu"] {
        let text = fs::read(folder.join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        println!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
    }
}
