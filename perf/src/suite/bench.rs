//! The place where a suite runs: its folder, its CPUs, its servers and clients.

use std::{
    collections::BTreeMap,
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use berth_host::UdpConfig;
use berth_process::{Process, Stop};
use berth_tls::key_file;
use berth_uring::UringSocket;
use tempfile::TempDir;

use super::{
    file::{Baseline, Need, Server},
    library,
    vars::Vars,
};
use crate::{
    ports::Cpus,
    report::{
        Report,
        json::{CaseReport, Setup},
    },
};

/// Where everything of a suite happens.
pub(super) struct Bench {
    /// This program.
    exe: PathBuf,
    /// Sockets, keys and state, gone afterwards; short, for the names of sockets are.
    run: TempDir,
    /// Where the report goes, and the configurations that were used.
    out: PathBuf,
    pub(super) vars: Vars,
    pub(super) cpus: Cpus,
    pub(super) stop: Stop,
    pub(super) started: Instant,
    /// Baselines that were built, or why not.
    built: BTreeMap<String, Result<(), String>>,
}

/// Where a device of RDMA would be.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// What a client's run may take beyond its own time: its start, its calibrations, a link that comes up, its timeouts.
const PATIENCE: Duration = Duration::from_mins(1);

/// Options that say whom a client asks; a baseline's replace them all.
const WHOM: [&str; 13] = [
    "--port",
    "--peer",
    "--device",
    "--address",
    "--neighbour",
    "--rendezvous",
    "--provider",
    "--bind",
    "--control",
    "--identity",
    "--to",
    "--nqn",
    "--host-nqn",
];

/// What a client measures in one run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measure {
    pub(super) seconds: f64,
    pub(super) warmup: f64,
    pub(super) expect_losses: bool,
}

impl Bench {
    pub(super) fn open(out: &Path, cpus: Cpus, stop: Stop) -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("cannot find this program's own file")?;
        let run = tempfile::Builder::new().prefix("berth-perf").tempdir().context("cannot make a temporary folder")?;
        library::unpack(run.path())?;
        let identity = run.path().join("client.key");
        let key = key_file::read_or_create(&identity)?.public_key().to_string();
        let mut vars = Vars::default();
        vars.set("run", run.path().to_string_lossy());
        vars.set("identity", identity.to_string_lossy());
        vars.set("key", key);
        vars.set("cpu", cpus.client.to_string());
        vars.set(
            "server_cpu",
            cpus.other.context("a suite needs two CPUs: one for clients, one for servers")?.to_string(),
        );
        vars.set("rdma_device", rdma_device().unwrap_or_default());
        Ok(Self { exe, run, out: out.to_path_buf(), vars, cpus, stop, started: Instant::now(), built: BTreeMap::new() })
    }

    /// Starts a server with a state of its own, and fills in where it is reached.
    pub(super) fn serve(&self, server: &Server) -> anyhow::Result<(Process, Vars)> {
        let state = self.run.path().join("state");
        if state.exists() {
            fs::remove_dir_all(&state).context("cannot clear the server's state")?;
        }
        let path = self.out.join(format!("{}.toml", slug(&server.name)));
        fs::write(&path, self.vars.fill(&server.config)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut berth = Command::new(&self.exe);
        berth.args(["run", "--config"]).arg(&path).stderr(Stdio::piped());
        let (process, ready) = Process::berth(&mut berth, &self.stop)?;
        let mut vars = self.vars.clone();
        for port in ready["ports"].as_array().into_iter().flatten() {
            let text = |key: &str| port[key].as_str().map(ToOwned::to_owned);
            let name = text("name").unwrap_or_default();
            vars.set(format!("port.{name}"), text("addr").unwrap_or_default());
            vars.set(format!("port.{name}.rendezvous"), text("rendezvous").unwrap_or_default());
        }
        for (name, address) in ready["endpoints"].as_object().into_iter().flatten() {
            vars.set(format!("endpoint.{name}"), address.as_str().unwrap_or_default());
        }
        Ok((process, vars))
    }

    /// Starts a baseline's server, and fills in what it says when it is ready.
    pub(super) fn serve_baseline(&self, baseline: &Baseline) -> anyhow::Result<(Process, Vars)> {
        let mut process = self.program(&self.vars.words(&baseline.server)?)?;
        let mut vars = self.vars.clone();
        if let Some(ready) = &baseline.ready {
            vars.set("ready", process.expect(ready)?.trim());
        } else {
            std::thread::sleep(Duration::from_millis(500));
            if !process.runs() {
                bail!(process.finish(Duration::ZERO)?.failure());
            }
        }
        Ok((process, vars))
    }

    /// Starts the program that the first word names, with the others as its arguments; keeps its standard error.
    pub(super) fn program(&self, words: &[String]) -> anyhow::Result<Process> {
        let (program, args) = words.split_first().context("an empty command")?;
        Process::start(Command::new(program).args(args).stderr(Stdio::piped()), &self.stop)
    }

    /// Starts a client; `name` keeps its report apart from others that run at the same time.
    pub(super) fn start(&self, words: &[String], name: &str, measure: Measure) -> anyhow::Result<Client> {
        let json = self.run.path().join(format!("{}.json", slug(name)));
        let mut all = vec![self.exe.to_string_lossy().into_owned(), "perf".into()];
        all.extend_from_slice(words);
        let Measure { seconds, warmup, expect_losses } = measure;
        all.extend(["--no-progress", "--cpu"].map(String::from));
        all.push(self.cpus.client.to_string());
        for (option, value) in self.cpus.other.iter().map(|cpu| ("--bounce-cpu", *cpu)) {
            all.extend([option.into(), value.to_string()]);
        }
        if !words.iter().any(|word| word.starts_with("--count")) {
            all.extend(["--duration".into(), seconds.to_string()]);
        }
        all.extend(["--warmup".into(), warmup.to_string()]);
        all.extend(["--json".into(), json.to_string_lossy().into_owned()]);
        all.extend(expect_losses.then(|| "--expect-losses".to_owned()));
        let process = self.program(&all)?;
        Ok(Client { process, json, limit: Duration::from_secs_f64(seconds + warmup) + PATIENCE })
    }

    /// Runs a client to its end: what it measured.
    pub(super) fn ask(&self, words: &[String], measure: Measure) -> anyhow::Result<(CaseReport, Option<Setup>)> {
        self.start(words, "client", measure)?.finish()
    }

    /// Whether a baseline can run here; builds it the first time.
    pub(super) fn prepare(&mut self, name: &str, baseline: &Baseline) -> Result<(), String> {
        if !installed(&baseline.program) {
            return Err(format!("{} is not installed: apt install {}", baseline.program, baseline.package));
        }
        for need in &baseline.needs {
            if let Some(why) = lacking(*need) {
                return Err(why);
            }
        }
        let Some(build) = &baseline.build else { return Ok(()) };
        if !self.built.contains_key(name) {
            let built = self.vars.words(build).map_err(Into::into).and_then(|words| self.program(&words));
            let built = built.and_then(|process| process.finish(PATIENCE)?.check());
            self.built.insert(name.to_owned(), built.map(drop).map_err(|error| format!("{error:#}")));
        }
        self.built[name].clone()
    }
}

/// The words of a client that asks a baseline what it would ask us.
pub(super) fn asking_baseline(vars: &Vars, client: &str, whom: &str) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let mut given = client.split_whitespace();
    while let Some(word) = given.next() {
        if WHOM.contains(&word) {
            given.next();
        } else {
            words.push(vars.fill(word)?);
        }
    }
    words.extend(vars.words(whom)?);
    Ok(words)
}

/// A client under way.
pub(super) struct Client {
    process: Process,
    json: PathBuf,
    limit: Duration,
}

impl Client {
    /// Waits for the end. Its report counts, whatever its exit status says: what is wrong stands in the report.
    pub(super) fn finish(self) -> anyhow::Result<(CaseReport, Option<Setup>)> {
        let finished = self.process.finish(self.limit)?;
        let Ok(text) = fs::read_to_string(&self.json) else { return Err(finished.failure()) };
        fs::remove_file(&self.json)?;
        let Report { mut cases, setup, .. } = serde_json::from_str(&text).context("a client's report")?;
        match cases.pop() {
            Some(case) if cases.is_empty() => Ok((case, setup)),
            _ => Err(anyhow!("a case of a suite measures one thing: give the client one --payload or --size")),
        }
    }

    /// Whether it still runs.
    pub(super) fn runs(&mut self) -> bool {
        self.process.runs()
    }
}

/// What this build or this host lacks for something, and what helps.
pub(super) fn lacking(need: Need) -> Option<String> {
    let feature = |what: &str, name: &str| {
        (!berth_ports::has_feature(name)).then(|| {
            format!("this program was built without {what}: install berth-full, or build with --features {name}")
        })
    };
    match need {
        Need::Dpdk => feature("DPDK", "dpdk"),
        Need::Ofi => feature("libfabric", "ofi"),
        Need::Rdma => feature("RDMA", "verbs")
            .or_else(|| rdma_device().is_none().then(|| format!("no RDMA device: {RDMA_DEVICES} is empty"))),
        Need::Uring => {
            let opened = UringSocket::bind(&UdpConfig::new((Ipv4Addr::LOCALHOST, 0).into()));
            let error = match opened.map(UringSocket::into_port) {
                Ok(Ok(_)) => return None,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            Some(format!("io_uring: {error}"))
        }
    }
}

fn rdma_device() -> Option<String> {
    let mut names: Vec<_> =
        fs::read_dir(RDMA_DEVICES).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names.into_iter().next()
}

/// Whether a program can be found as the shell would.
pub(super) fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A name as part of a file's name.
pub(super) fn slug(name: &str) -> String {
    let words =
        name.split(|c: char| !c.is_ascii_alphanumeric() && c != '.' && c != '_').filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_files() {
        assert_eq!(slug("rpc_increment 32 B, memif, window 256"), "rpc_increment-32-B-memif-window-256");
        assert_eq!(slug("../etc/x y"), "..-etc-x-y");
    }

    #[test]
    fn programs_are_found_in_the_path() {
        assert!(installed("sh") && !installed("no-such-program-of-berth"));
    }
}
