//! What `cargo test` prints, read while it is shown.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::sh::line;

/// How many lines that a failed test printed are kept, the last ones.
const OUTPUT_LINES: usize = 40;

/// A test that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Failure {
    /// What Cargo calls its program: `tests/NAME.rs`, `unittests src/lib.rs`, `doc PACKAGE`.
    pub(super) program: String,
    pub(super) name: String,
    /// The end of what it printed.
    pub(super) output: Vec<String>,
}

impl Failure {
    /// `cmd`, a `cargo test`, for this test alone.
    pub(super) fn again(&self, cmd: &Command) -> Command {
        let mut again = Command::new(cmd.get_program());
        again.args(cmd.get_args());
        for (name, value) in cmd.get_envs() {
            match value {
                Some(value) => again.env(name, value),
                None => again.env_remove(name),
            };
        }
        let path = Path::new(self.program.rsplit(' ').next().unwrap_or_default());
        let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match self.program.split(['/', ' ']).next() {
            Some("doc") => again.arg("--doc"),
            // Programs of several files are `tests/NAME/main.rs`.
            Some("tests") if path.ends_with("main.rs") => again.args(["--test", &stem(path.parent().unwrap_or(path))]),
            Some("tests") => again.args(["--test", &stem(path)]),
            _ if path.ends_with("lib.rs") => again.arg("--lib"),
            _ => again.arg("--bins"),
        };
        again.args(["--", "--exact", &self.name]);
        again
    }
}

/// What a `cargo test` did.
#[derive(Debug, Default)]
pub(super) struct TestRun {
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) failures: Vec<Failure>,
    /// Programs that ended without a summary: by a signal, or because they cannot start.
    pub(super) unfinished: Vec<String>,
    pub(super) succeeded: bool,
    /// How long each program ran, in seconds.
    pub(super) times: Vec<(f64, String)>,
    /// The program whose output comes, until its summary.
    program: Option<String>,
    /// The failed test whose output comes.
    output_of: Option<String>,
}

impl TestRun {
    /// Runs `cmd`, a `cargo test`, and shows what it prints.
    pub(super) fn of(cmd: &mut Command) -> Result<Self> {
        eprintln!("+ {}", line(cmd));
        // Cargo names the programs on its stderr, and they print to stdout: one pipe keeps the order.
        let (reader, writer) = std::io::pipe()?;
        let mut child = cmd
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()
            .with_context(|| format!("cannot start {}", line(cmd)))?;
        // The command holds the pipe open until it is given something else.
        cmd.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let mut run = Self::default();
        for text in BufReader::new(reader).split(b'\n') {
            let text = String::from_utf8_lossy(&text?).into_owned();
            println!("{text}");
            run.read(text);
        }
        run.unfinished.extend(run.program.take());
        let status = child.wait()?;
        run.succeeded = status.success();
        if !run.succeeded && run.failed == 0 && run.unfinished.is_empty() {
            bail!("{} ended with {status}", line(cmd));
        }
        Ok(run)
    }

    /// Reads one line.
    fn read(&mut self, text: String) {
        let words = text.trim_start();
        let program = match words.strip_prefix("Running ").and_then(|rest| rest.rsplit_once(" (target/")) {
            Some((program, _)) => Some(program.to_owned()),
            None => words.strip_prefix("Doc-tests ").map(|package| format!("doc {package}")),
        };
        if let Some(program) = program {
            self.unfinished.extend(self.program.replace(program));
        } else if let Some(counts) = text.strip_prefix("test result: ") {
            self.passed += number_before(counts, " passed");
            self.failed += number_before(counts, " failed");
            let seconds = counts.rsplit_once("finished in ").and_then(|(_, time)| time.strip_suffix('s')?.parse().ok());
            self.times.extend(seconds.zip(self.program.take()));
            self.output_of = None;
        } else if let Some(name) = text.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            let program = self.program.clone().unwrap_or_default();
            self.failures.push(Failure { program, name: name.to_owned(), output: Vec::new() });
        } else if let Some(name) = text.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.output_of = Some(name.to_owned());
        } else if let Some(name) = &self.output_of
            && let Some(failure) = self.failures.iter_mut().rfind(|failure| failure.name == *name)
        {
            if failure.output.len() == OUTPUT_LINES {
                failure.output.remove(0);
            }
            failure.output.push(text);
        }
    }
}

/// The number that stands before `word` in `text`.
fn number_before(text: &str, word: &str) -> u32 {
    let digits = text.split(word).next().unwrap_or_default();
    digits.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> TestRun {
        let mut run = TestRun::default();
        text.lines().for_each(|line| run.read(line.to_owned()));
        run.unfinished.extend(run.program.take());
        run
    }

    #[test]
    fn failures_and_what_they_printed_are_found() {
        let run = read(
            "     Running tests/crash.rs (target/release/deps/crash-1)\n\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\
             \nfailures:\n\n---- b stdout ----\nassertion failed: no\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.34s\n\
             \x20    Running unittests src/lib.rs (target/release/deps/x-2)\n\nrunning 1 test\n\
             test c::d ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!((run.passed, run.failed), (2, 1));
        assert_eq!(run.unfinished, [] as [String; 0]);
        let [failure] = &run.failures[..] else { panic!("one failed: {run:?}") };
        assert_eq!((&*failure.program, &*failure.name), ("tests/crash.rs", "b"));
        assert_eq!(failure.output[0], "assertion failed: no");
        assert_eq!(run.times, [(12.34, "tests/crash.rs".to_owned())]);
    }

    #[test]
    fn a_program_that_dies_is_told() {
        let run = read(
            "     Running tests/a.rs (target/release/deps/a-1)\n\nrunning 2 tests\ntest a ... ok\n\
             \x20    Running tests/b.rs (target/release/deps/b-1)\n\nrunning 1 test\n",
        );
        assert_eq!(run.unfinished, ["tests/a.rs", "tests/b.rs"]);
    }

    #[test]
    fn a_test_runs_again_alone() {
        let again = |program: &str| {
            let failure = Failure { program: program.into(), name: "m::x".into(), output: Vec::new() };
            let mut cmd = Command::new("cargo");
            cmd.args(["test", "--workspace"]);
            line(&failure.again(&cmd))
        };
        assert_eq!(again("tests/crash.rs"), "cargo test --workspace --test crash -- --exact m::x");
        assert_eq!(again("tests/faults/main.rs"), "cargo test --workspace --test faults -- --exact m::x");
        assert_eq!(again("unittests src/lib.rs"), "cargo test --workspace --lib -- --exact m::x");
        assert_eq!(again("unittests src/main.rs"), "cargo test --workspace --bins -- --exact m::x");
        assert_eq!(again("doc berth_ring"), "cargo test --workspace --doc -- --exact m::x");
    }
}
