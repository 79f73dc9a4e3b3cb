//! A stage in a process of its own, which has what the others leave of the CPUs: most tests wait, for peers and for guests.

use std::{
    fs::{self, File},
    process::{Child, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, anyhow};

use super::{Stage, programs::number_before};
use crate::sh::{cmd, line};

const FOLDER: &str = "target/tmp";

/// A stage that runs. It goes on to its end whatever happens to the others.
pub(super) struct Beside {
    stage: Stage,
    log: String,
    child: Child,
    start: Instant,
}

impl Beside {
    /// Starts `cargo xtask test STAGE`. Whatever else wants a CPU gets it at once.
    pub(super) fn start(stage: Stage) -> Result<Self> {
        fs::create_dir_all(FOLDER)?;
        let log = format!("{FOLDER}/test-{}.log", stage.name());
        let file = File::create(&log).with_context(|| format!("cannot write {log}"))?;
        let mut command = cmd("chrt", ["--idle", "0"]);
        command.arg(std::env::current_exe()?).args(["test", stage.name()]);
        eprintln!("+ {} > {log} &", line(&command));
        let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
        let child = child.with_context(|| format!("cannot start {}", line(&command)))?;
        Ok(Self { stage, log, child, start: Instant::now() })
    }

    pub(super) fn name(&self) -> &'static str {
        self.stage.name()
    }

    /// Waits for its end and shows what it printed. Returns how many of its tests passed, or why it failed, and how long it ran,
    /// in seconds.
    pub(super) fn wait(mut self) -> Result<(Result<u32>, f64)> {
        let status = self.child.wait()?;
        let seconds = self.start.elapsed().as_secs_f64();
        let text = fs::read_to_string(&self.log)?;
        println!("\nstage {}, which ran beside the others:\n{text}", self.name());
        let last = text.lines().last().unwrap_or_default();
        let passed =
            if status.success() { Ok(number_before(last, " passed")) } else { Err(anyhow!("{last}; {status}")) };
        Ok((passed, seconds))
    }
}
