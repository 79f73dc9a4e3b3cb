//! `berth tune`: makes the host fit for the ports of a configuration, says what it changed, and takes it back.
//!
//! Every knob is a file of `/proc` or `/sys`. Before one is written, what it held goes to the state file: after a crash in
//! between, [`revert`] still finds everything. What the kernel or somebody else has changed since is left alone.

mod settings;

use std::{collections::BTreeSet, fmt::Write as _, fs, io::ErrorKind, path::Path};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

pub use settings::Setting;
pub(crate) use settings::settings;

use crate::{
    config::Config,
    sys::{Root, cpu_list},
};

/// What was written where, and what it held before: the state file, in the order of the changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    what: String,
    path: String,
    before: String,
    after: String,
}

/// How one knob ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What the knob does, such as `governor of CPU 2`.
    pub what: String,
    /// Its file below `/proc` or `/sys`.
    pub path: String,
    /// What it held before; empty where it could not be read.
    pub before: String,
    /// What it holds now, as it was read back.
    pub after: String,
    /// What became of it.
    pub outcome: Outcome,
    /// Why it failed; `None` of any other outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What became of a knob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was written, and holds what is wanted.
    Changed,
    /// It held already what is wanted, or what it is to be given back.
    Kept,
    /// It was given back what it held before.
    Reverted,
    /// It is not as wanted, or not as before.
    Failed,
}

/// Sets every knob that `config` asks for, below `root`. Fails only over `state`; a knob that fails is reported.
pub fn apply(config: &Config, root: &Path, state: &Path) -> anyhow::Result<Vec<Report>> {
    let root = Root::new(root);
    let mut changes = read(state)?;
    let mut reports = Vec::new();
    for setting in settings(config, &root) {
        let Setting { what, path, wanted } = setting;
        let before = root.read(&path).unwrap_or_default();
        if wanted.holds(&before) {
            reports.push(Report { what, path, after: before.clone(), before, outcome: Outcome::Kept, why: None });
            continue;
        }
        let after = wanted.text();
        let known = changes.iter().position(|change| change.path == path);
        let at = known.unwrap_or_else(|| {
            let (what, path, before) = (what.clone(), path.clone(), before.clone());
            changes.push(Change { what, path, before, after: String::new() });
            changes.len() - 1
        });
        changes[at].after.clone_from(&after);
        write(state, &changes)?;
        let written = fs::write(root.path(&path), &after);
        let now = root.read(&path).unwrap_or_default();
        let (outcome, why) = match written {
            Ok(()) if wanted.holds(&now) => (Outcome::Changed, None),
            Ok(()) => (Outcome::Failed, Some(format!("the kernel made it {now}, not {after}"))),
            Err(e) => (Outcome::Failed, Some(e.to_string())),
        };
        if known.is_none() && now == before {
            changes.pop();
        } else {
            changes[at].after.clone_from(&now);
        }
        write(state, &changes)?;
        reports.push(Report { what, path, before, after: now, outcome, why });
    }
    Ok(reports)
}

/// Gives every knob in the state file back what it held, the last one first. Removes the file unless some are left.
pub fn revert(root: &Path, state: &Path) -> anyhow::Result<Vec<Report>> {
    let root = Root::new(root);
    let mut changes = read(state)?;
    let mut reports = Vec::new();
    let mut left = Vec::new();
    while let Some(change) = changes.pop() {
        let Change { what, path, before, after } = change.clone();
        let held = root.read(&path).unwrap_or_default();
        let (outcome, why) = if same(&held, &before) {
            (Outcome::Kept, None)
        } else if !same(&held, &after) {
            (Outcome::Failed, Some(format!("somebody has made it {held} since; it is left alone")))
        } else {
            match fs::write(root.path(&path), &before) {
                Ok(()) => (Outcome::Reverted, None),
                Err(e) => {
                    left.push(change);
                    (Outcome::Failed, Some(e.to_string()))
                }
            }
        };
        let now = root.read(&path).unwrap_or_default();
        reports.push(Report { what, path, before: held, after: now, outcome, why });
    }
    left.reverse();
    if left.is_empty() {
        match fs::remove_file(state) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("removing {}", state.display()));
            }
            _ => {}
        }
    } else {
        write(state, &left)?;
    }
    Ok(reports)
}

/// Equal as text, or as lists of CPUs.
fn same(a: &str, b: &str) -> bool {
    let set = |list: &str| cpu_list(list).into_iter().collect::<BTreeSet<_>>();
    a == b || !set(a).is_empty() && set(a) == set(b)
}

fn read(state: &Path) -> anyhow::Result<Vec<Change>> {
    match fs::read(state) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is not a state of `berth tune`; remove it", state.display())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e).with_context(|| format!("reading {}", state.display())),
    }
}

/// Replaces the state file in one step.
fn write(state: &Path, changes: &[Change]) -> anyhow::Result<()> {
    let new = state.with_extension("new");
    let written = fs::write(&new, serde_json::to_vec_pretty(changes)?).and_then(|()| fs::rename(&new, state));
    written.with_context(|| format!("writing {}", state.display()))
}

/// The reports as a table for people.
pub fn table(reports: &[Report]) -> String {
    let mut lines = String::new();
    for Report { what, path, before, after, outcome, why } in reports {
        let done = match outcome {
            Outcome::Changed => format!("{before} -> {after}"),
            Outcome::Kept => format!("{after}, as it was"),
            Outcome::Reverted => format!("{after} again"),
            Outcome::Failed => format!("FAILED: {}", why.as_deref().unwrap_or_default()),
        };
        // Writing to a string succeeds.
        let _ = writeln!(lines, "{what}: {done}   ({path})");
    }
    if lines.is_empty() {
        lines.push_str("nothing to do\n");
    }
    lines
}
