//! A suite: a script, and in the comments at its head what it needs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// One script of the lab.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Suite {
    pub(super) name: String,
    pub(super) script: PathBuf,
    /// Kernel modules to load before.
    pub(super) modules: Vec<String>,
    /// The guest's memory, in MiB; 768 by default.
    pub(super) memory: u32,
    /// The guest's CPUs; 2 by default.
    pub(super) cpus: u32,
    /// Names of `devices::arguments`.
    pub(super) devices: Vec<String>,
    /// More for the guest's kernel command line.
    pub(super) kernel: Vec<String>,
    /// What to build: `berth`, or examples by their names.
    pub(super) build: Vec<String>,
    /// Programs to compile from `lab/peers/NAME.c`.
    pub(super) peers: Vec<String>,
    /// Whether the guest's root is a clean Debian under systemd, with Berth's packages at hand, in place of the host's.
    pub(super) debian: bool,
    /// A command of the host that reaches the guest, run when the suite asks for it.
    pub(super) host: Option<String>,
    /// How long the script may run, in seconds; 60 by default.
    pub(super) timeout: u32,
}

impl Suite {
    /// Reads the head of a script: `# key: value` lines among the comments before the first command.
    pub(super) fn load(script: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(script).with_context(|| format!("cannot read {}", script.display()))?;
        let name = script.file_stem().context("a suite has a name")?.to_string_lossy().into_owned();
        let mut suite = Self {
            name,
            script: script.to_owned(),
            modules: Vec::new(),
            memory: 768,
            cpus: 2,
            devices: Vec::new(),
            kernel: Vec::new(),
            build: Vec::new(),
            peers: Vec::new(),
            debian: false,
            host: None,
            timeout: 60,
        };
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.strip_prefix('#') else { break };
            let Some((key, value)) = header(comment) else { continue };
            suite.set(key, value).with_context(|| format!("{}:{}", script.display(), number + 1))?;
        }
        Ok(suite)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        if value.is_empty() {
            bail!("`# {key}:` has no value; leave the line out where the suite needs nothing");
        }
        let list = || value.split_whitespace().map(str::to_owned).collect();
        let number = || value.parse().with_context(|| format!("`# {key}: {value}` is not a whole number"));
        match key {
            "modules" => self.modules = list(),
            "memory" => self.memory = number()?,
            "cpus" => self.cpus = number()?,
            "devices" => self.devices = list(),
            "kernel" => self.kernel = list(),
            "build" => self.build = list(),
            "peers" => self.peers = list(),
            "root" if value == "debian" => self.debian = true,
            "root" => bail!("`# root: {value}` is not debian; without this line the root is the host's"),
            "host" => self.host = Some(value.to_owned()),
            "timeout" => self.timeout = number()?,
            _ => {
                bail!("`# {key}:` is none of modules, memory, cpus, devices, kernel, build, peers, root, host, timeout")
            }
        }
        Ok(())
    }
}

/// A comment of one lower-case word, a colon and a value; other comments are for people.
fn header(comment: &str) -> Option<(&str, &str)> {
    let (key, value) = comment.strip_prefix(' ')?.split_once(':')?;
    let word = !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase());
    word.then_some((key, value.trim()))
}
