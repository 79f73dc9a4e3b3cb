//! The library, the program in C that loads it, and whom it answers.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::LazyLock,
    time::Duration,
};

use berth_perf::{PerfCommand, report::Report};
use berth_process::{Process, Stop};
use clap::Parser;
use tempfile::TempDir;

/// Whatever valgrind finds makes the exit status 9 and is told on standard error, which is empty otherwise. What is possibly lost
/// is not told: Rust's handles of threads are known by addresses inside of them. Without the last option a thread that spins
/// keeps the others out.
pub(crate) const VALGRIND: &[&str] = &[
    "valgrind",
    "-q",
    "--error-exitcode=9",
    "--leak-check=full",
    "--errors-for-leak-kinds=definite,indirect",
    "--show-leak-kinds=definite,indirect",
    "--fair-sched=yes",
];

/// The library, which Cargo builds beside the tests.
pub(crate) fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libberth_bridge.so")
}

/// Compiles a file of this folder into a folder of its own.
pub(crate) fn compiled(source: &str, name: &str, flags: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(dir.path().join(name));
    cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source)).args(flags);
    assert!(cc.status().unwrap().success());
    dir
}

/// The program in C, under another one or none.
pub(crate) fn host(under: &[&str], arguments: &str) -> Command {
    static HOST: LazyLock<TempDir> = LazyLock::new(|| compiled("host.c", "host", &["-ldl"]));
    let words = under.iter().map(|word| PathBuf::from(*word)).chain([HOST.path().join("host"), library()]);
    let words: Vec<_> = words.chain(arguments.split_whitespace().map(PathBuf::from)).collect();
    let mut host = Command::new(&words[0]);
    host.args(&words[1..]).stderr(Stdio::piped());
    host
}

/// The program in C, which has printed where it is reached.
pub(crate) struct Host {
    process: Process,
    pub(crate) line: String,
}

impl Host {
    pub(crate) fn start(under: &[&str], arguments: &str) -> Self {
        Self::run(&mut host(under, arguments))
    }

    pub(crate) fn run(host: &mut Command) -> Self {
        let mut process = Process::start(host, &Stop::default()).unwrap();
        let line = process.expect("ready ").unwrap();
        Self { process, line }
    }

    pub(crate) fn port(&self) -> u16 {
        let rest = self.line.split_once(" port=").unwrap().1;
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    /// Ends it properly; its last line and its standard error.
    pub(crate) fn end(self) -> (String, String) {
        let ended = self.process.finish(Duration::from_mins(1)).unwrap();
        assert!(ended.status.success(), "{}", ended.stderr);
        assert_eq!(ended.lines.len(), 1, "{:?}", ended.lines);
        (ended.lines[0].clone(), ended.stderr)
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    perf: PerfCommand,
}

/// Runs `berth perf rpc`; its exit code and its report.
pub(crate) fn perf(arguments: &str) -> (ExitCode, Report) {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("report.json");
    let command = format!("perf rpc --no-progress --warmup 0 --json {} {arguments}", json.display());
    let code = berth_perf::run(&Cli::try_parse_from(command.split_whitespace()).unwrap().perf).unwrap();
    (code, serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap())
}
