//! A Berth, or a baseline server, running beside us for as long as we hold it.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::sh::{cmd, line, run};

/// A server process; stopped with SIGTERM when it is dropped.
pub(crate) struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
    name: String,
}

impl Server {
    /// Starts `cmd` and waits for the line on its stdout that begins with `ready`; returns the rest of that line too.
    pub(crate) fn start(cmd: &mut Command, ready: &str) -> Result<(Self, String)> {
        let name = line(cmd);
        eprintln!("+ {name} &");
        let mut child = cmd.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {name}"))?;
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut server = Self { child, stdout, name };
        let rest = server.expect(ready)?;
        Ok((server, rest))
    }

    /// The same for a program that ends when its stdin does.
    pub(crate) fn start_with_stdin(cmd: &mut Command, ready: &str) -> Result<(Self, String)> {
        Self::start(cmd.stdin(Stdio::piped()), ready)
    }

    /// Starts `berth run` and returns its ready line.
    pub(crate) fn berth(config: &str) -> Result<(Self, Value)> {
        Self::berth_of(BERTH, config)
    }

    /// The same of another build.
    pub(crate) fn berth_of(binary: &str, config: &str) -> Result<(Self, Value)> {
        let (server, ready) = Self::start(&mut cmd(binary, ["run", "--config", config]), "berth ready ")?;
        Ok((server, serde_json::from_str(&ready).context("the ready line is not JSON")?))
    }

    /// Reads lines until one begins with `prefix`.
    fn expect(&mut self, prefix: &str) -> Result<String> {
        for text in (&mut self.stdout).lines() {
            if let Some(rest) = text?.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
        }
        bail!("{} ended without printing {prefix:?}", self.name)
    }

    /// Stops a Berth and returns the counters that it prints then.
    pub(crate) fn stop(mut self) -> Result<Value> {
        self.terminate()?;
        let counters = self.expect("berth stopped ")?;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}", self.name);
        }
        serde_json::from_str(&counters).context("the stopped line is not JSON")
    }

    /// Stops the program and returns the rest of the line that begins with `last`, which it prints then.
    pub(crate) fn end(mut self, last: &str) -> Result<String> {
        self.terminate()?;
        let rest = self.expect(last)?;
        self.child.wait()?;
        Ok(rest)
    }

    /// Memory by a field of `proc_pid_status(5)`, such as `VmRSS:`, in MiB.
    pub(crate) fn memory_mib(&self, field: &str) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }

    fn terminate(&self) -> Result<()> {
        run(&mut cmd("kill", ["-TERM", &self.child.id().to_string()]))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            if self.terminate().is_err() {
                let _ = self.child.kill();
            }
            let _ = self.child.wait();
        }
    }
}

/// The program that [`crate::build::berth`] makes.
pub(crate) const BERTH: &str = "target/release/berth";
