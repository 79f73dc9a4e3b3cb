//! Test programs: what Cargo builds, run here one after the other, so that a stage is a choice of them.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    build,
    sh::{cmd, line, output, root, run},
};

/// How many lines that a failed test printed are kept, the last ones.
const OUTPUT_LINES: usize = 40;

/// A test program that was built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The folder of its package and the name of its target: `dataplane/lease simulation`.
    pub(super) name: String,
    /// The folder of its package, in which it runs.
    folder: PathBuf,
    pub(crate) path: PathBuf,
    /// Whether it holds the tests inside of a library or program.
    is_inner: bool,
}

impl Program {
    pub(super) fn command(&self) -> Command {
        let mut command = cmd::<&str>(&self.path.to_string_lossy(), []);
        command.current_dir(&self.folder);
        command
    }

    fn is_unit(&self) -> bool {
        self.is_inner || self.name.starts_with("dataplane/")
    }

    /// Reads one message of Cargo.
    fn read(message: &Value) -> Option<Self> {
        let path = message["executable"].as_str()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
        let target = &message["target"];
        let package = folder.strip_prefix(root()).unwrap_or(folder).display();
        Some(Self {
            name: format!("{package} {}", target["name"].as_str()?),
            folder: folder.to_owned(),
            path: path.into(),
            is_inner: target["kind"][0] != "test",
        })
    }
}

/// Builds those of all stages at once.
pub(super) fn build_all() -> Result<()> {
    run(build::all("test").args(["--no-run", "--lib", "--bins", "--tests"]))
}

/// Those of [`super::Stage::Unit`].
pub(super) fn unit() -> Result<Vec<Program>> {
    let names = test_targets(|folder| folder.starts_with("dataplane"))?;
    build(["--lib".to_owned(), "--bins".to_owned()].into_iter().chain(names), Program::is_unit)
}

/// Those of [`super::Stage::System`].
pub(super) fn system() -> Result<Vec<Program>> {
    build(test_targets(|folder| !folder.starts_with("dataplane"))?, |program| !program.is_unit())
}

/// Those of these names, which all have to be there, in the order of their names.
pub(crate) fn named(names: &[&str]) -> Result<Vec<Program>> {
    let targets = names.iter().filter_map(|name| name.split_once(' '));
    let arguments = targets.flat_map(|(_, target)| ["--test".to_owned(), target.to_owned()]);
    let programs = build(arguments, |program| names.contains(&&*program.name))?;
    ensure!(programs.len() == names.len(), "of {names:?} there are {programs:?}");
    Ok(programs)
}

/// The arguments that choose the test programs of packages in such folders, and those of the same names elsewhere.
fn test_targets(chosen: impl Fn(&Path) -> bool) -> Result<Vec<String>> {
    let metadata: Value =
        serde_json::from_str(&output(&mut crate::sh::cargo(["metadata", "--format-version", "1", "--no-deps"]))?)?;
    let mut arguments = Vec::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
        let folder = Path::new(manifest).strip_prefix(root())?;
        let targets = package["targets"].as_array().into_iter().flatten().filter(|_| chosen(folder));
        for target in targets.filter(|target| target["kind"][0] == "test") {
            arguments.extend(["--test".to_owned(), target["name"].as_str().context("a target without a name")?.into()]);
        }
    }
    Ok(arguments)
}

/// Builds targets, and returns the programs among them that are wanted, those of a package together.
fn build(arguments: impl IntoIterator<Item = String>, wanted: impl Fn(&Program) -> bool) -> Result<Vec<Program>> {
    let mut cargo = build::all("test");
    cargo.args(["--no-run", "--message-format", "json-render-diagnostics"]).args(arguments);
    let messages = output(&mut cargo)?;
    let mut programs = Vec::new();
    for message in messages.lines() {
        programs.extend(Program::read(&serde_json::from_str(message)?).filter(&wanted));
    }
    programs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(programs)
}

/// A test that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) name: String,
    /// The end of what it printed.
    pub(super) output: Vec<String>,
}

/// What a test program, or several, did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) passed: u32,
    pub(super) failed: u32,
    pub(super) failures: Vec<Failure>,
    pub(super) seconds: f64,
    /// How often a program said that its tests begin, and how often that they have ended.
    begun: u32,
    ended: u32,
    /// The failed test whose output comes.
    output_of: Option<String>,
}

impl Outcome {
    /// Runs `command` and shows what it printed when it has ended, for others may run beside it.
    pub(super) fn of(name: &str, command: &mut Command) -> Result<Self> {
        let mut shown = format!("\n{name}\n");
        let start = Instant::now();
        // One pipe keeps the order.
        let (reader, writer) = std::io::pipe()?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()
            .with_context(|| format!("cannot start {}", line(command)))?;
        // The command holds the pipe open until it is given something else.
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
        let mut outcome = Self::default();
        for text in BufReader::new(reader).split(b'\n') {
            let text = String::from_utf8_lossy(&text?).into_owned();
            shown.extend([&text, "\n"]);
            outcome.read(text);
        }
        print!("{shown}");
        let status = child.wait()?;
        if !status.success() && outcome.failed == 0 && outcome.finished() {
            bail!("{} ended with {status}", line(command));
        }
        outcome.seconds = start.elapsed().as_secs_f64();
        Ok(outcome)
    }

    /// Whether all that began has ended: a program may die before its tests have.
    pub(super) fn finished(&self) -> bool {
        self.begun > 0 && self.begun == self.ended
    }

    /// Reads one line.
    fn read(&mut self, text: String) {
        if text.starts_with("running ") && (text.ends_with(" tests") || text.ends_with(" test")) {
            self.begun += 1;
        } else if let Some(counts) = text.strip_prefix("test result: ") {
            self.passed += number_before(counts, " passed");
            self.failed += number_before(counts, " failed");
            self.ended += 1;
            self.output_of = None;
        } else if let Some(name) = text.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(Failure { name: name.to_owned(), output: Vec::new() });
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

    fn read(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.read(line.to_owned()));
        outcome
    }

    #[test]
    fn failures_and_what_they_printed_are_found() {
        let outcome = read(
            "\nrunning 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\
             assertion failed: no\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 12.34s\n\
             \nrunning 1 test\ntest c::d ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n",
        );
        assert_eq!((outcome.passed, outcome.failed), (2, 1));
        assert!(outcome.finished());
        let [failure] = &outcome.failures[..] else { panic!("one failed: {outcome:?}") };
        assert_eq!(failure.name, "b");
        assert_eq!(failure.output[0], "assertion failed: no");
    }

    #[test]
    fn a_program_that_dies_has_not_finished() {
        assert!(!read("\nrunning 2 tests\ntest a ... ok\n").finished());
        assert!(!read("").finished());
    }

    #[test]
    fn programs_are_read_from_the_messages_of_cargo() {
        let message = |test, kind| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": root().join("dataplane/lease/Cargo.toml"),
                "target": { "kind": [kind], "name": "simulation" },
                "profile": { "test": test },
                "executable": "/x/simulation-1",
            })
        };
        let program = Program::read(&message(true, "test")).unwrap();
        assert_eq!((&*program.name, program.is_inner), ("dataplane/lease simulation", false));
        assert_eq!(program.folder, root().join("dataplane/lease"));
        assert!(Program::read(&message(true, "lib")).unwrap().is_inner);
        assert_eq!(Program::read(&message(false, "test")), None);
        assert_eq!(Program::read(&serde_json::json!({ "reason": "build-finished" })), None);
    }
}
