//! `berth tasklet`

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, bail};
use berth_client::{Client, Error, Tasklet};
use berth_wire::fabric::{
    Bytes, CapEntry, List, Perms, ResourceType, Status, TaskletAffinity, TaskletInput, TaskletLeaseAlloc,
    TaskletLimits, TaskletRights, TaskletStatus, Wire as _,
};
use clap::{Args, Subcommand};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{Reach, WithToken, block_on, id, output};
use crate::config::parse_bytes;

/// How often a run that takes longer is asked for.
const PAUSE: Duration = Duration::from_millis(100);

/// Run WASM tasklets on a node, beside what it leases (docs/tasklets.md).
#[derive(Debug, Args)]
pub struct TaskletCommand {
    #[command(subcommand)]
    command: Tasklets,
}

#[derive(Debug, Subcommand)]
enum Tasklets {
    /// Run a tasklet: its output goes to standard output, its log to standard error.
    Run(Box<Run>),
    /// Print how a tasklet stands, or how it ended.
    Status {
        #[command(flatten)]
        of: Of,
    },
    /// Write a tasklet's output to standard output.
    Result {
        #[command(flatten)]
        of: Of,
    },
    /// Print what a tasklet logged so far.
    Logs {
        #[command(flatten)]
        of: Of,
    },
    /// Stop a tasklet.
    Cancel {
        #[command(flatten)]
        of: Of,
    },
    /// Say whether a node would take a module, what it imports and needs, and what a run without leases or input uses. Exits with
    /// 1 where the module is refused.
    #[cfg(feature = "wasm")]
    Check {
        /// The module.
        file: PathBuf,
    },
    /// Cores and memory of one's own for tasklets.
    #[command(subcommand)]
    Lease(Box<Composite>),
}

#[derive(Debug, Subcommand)]
enum Composite {
    /// Lease cores, and memory for what runs on them.
    Alloc {
        /// How many cores.
        #[arg(long, default_value_t = 1)]
        cores: u16,
        /// How much memory, such as "64 MiB".
        #[arg(long, value_parser = parse_bytes, default_value = "64 MiB")]
        memory: u64,
        /// How long the lease is active, in seconds.
        #[arg(long, default_value_t = 600)]
        duration: u32,
        /// How long after that it can still be renewed, in seconds.
        #[arg(long, default_value_t = 60)]
        grace: u32,
        #[command(flatten)]
        with: WithToken,
    },
    /// Return a lease of cores before it ends.
    Free {
        /// The lease's id, as `berth tasklet lease alloc` printed it.
        #[arg(value_parser = id)]
        lease: u128,
        #[command(flatten)]
        node: Reach,
    },
}

/// A tasklet of a node.
#[derive(Debug, Args)]
struct Of {
    /// The tasklet's id, as `berth tasklet run --detach` printed it.
    tasklet: u64,
    #[command(flatten)]
    node: Reach,
}

#[derive(Debug, Args)]
struct Run {
    /// The module.
    file: PathBuf,
    /// A file whose bytes are the payload of the tasklet's input, or `-` for standard input. Before it the input names the leases, and with
    /// --alloc the token.
    #[arg(long)]
    input: Option<PathBuf>,
    /// A lease that it may read and write, by its id; or ID:RIGHTS, where rights are `query`, `revoke`, `fbmu_alloc`, `fbmu_lease_io`,
    /// `fbbu_alloc` and `fbbu_lease_io`, joined by `+`. A handle needs them. May be given again.
    #[arg(long, value_name = "ID[:RIGHTS]", value_parser = capability)]
    lease: Vec<Capability>,
    /// Let it make leases.
    #[arg(long)]
    alloc: bool,
    /// How much fuel it may use.
    #[arg(long, default_value_t = 1_000_000_000)]
    fuel: u64,
    /// How much memory it may have.
    #[arg(long, value_parser = parse_bytes, default_value = "16 MiB")]
    memory: u64,
    /// How much it may return.
    #[arg(long, value_parser = parse_bytes, default_value = "64 KiB")]
    output: u64,
    /// How many calls of the host it may make.
    #[arg(long, default_value_t = 100_000)]
    hostcalls: u32,
    /// The resource id of a lease of cores, as `berth tasklet lease alloc` printed it; 0 for what is not leased.
    #[arg(long, value_parser = id, default_value = "0")]
    cpu: u128,
    /// Send the module's hash alone: the node knows it from an earlier run.
    #[arg(long)]
    hash_only: bool,
    /// Print the tasklet's id, and do not wait for its end.
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    with: WithToken,
}

/// A lease or handle, and the rights if they are given.
type Capability = (u128, Option<TaskletRights>);

fn capability(text: &str) -> Result<Capability, String> {
    let Some((lease, rights)) = text.split_once(':') else { return Ok((id(text)?, None)) };
    let right =
        |name| TaskletRights::from_name(name).ok_or_else(|| format!("{name:?} is no right; one is fbmu_lease_io"));
    let rights = rights.split('+').map(right).try_fold(TaskletRights::NONE, |all, one| Ok::<_, String>(all | one?))?;
    Ok((id(lease)?, Some(rights)))
}

impl TaskletCommand {
    /// Runs the command. The exit status is 10 and the tasklet's status where that is not OK; of `check`, a failure if the module is
    /// refused.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Tasklets::Run(run) => block_on(run.run()),
            Tasklets::Status { of } => block_on(of.status()),
            Tasklets::Result { of } => block_on(of.result()),
            Tasklets::Logs { of } => block_on(of.logs()),
            Tasklets::Cancel { of } => block_on(of.cancel()),
            #[cfg(feature = "wasm")]
            Tasklets::Check { file } => super::module::check_file(&file),
            Tasklets::Lease(command) => block_on(command.run()).map(|()| ExitCode::SUCCESS),
        }
    }
}

impl Composite {
    async fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Alloc { cores: num_cores, memory: mem_bytes, duration, grace, with } => {
                let (client, token) = with.connect(Perms::EXEC, 0).await?;
                let wanted = TaskletLeaseAlloc {
                    duration_secs: duration,
                    grace_secs: grace,
                    num_cores,
                    mem_bytes,
                    affinity: TaskletAffinity::SameNode,
                    max_threads: 1,
                };
                let lease = client.tasklet_lease_alloc(&token, &wanted).await?;
                output::pairs(
                    with.node.own.json,
                    &[
                        ("lease_id", json!(format!("{:032x}", lease.lease_id))),
                        ("cpu", json!(format!("{:032x}", lease.cpu_resource_id))),
                        ("memory", json!(format!("{:032x}", lease.mem_resource_id))),
                        ("cores", json!(lease.num_cores)),
                        ("bytes", json!(lease.arena_size)),
                        ("expires_at", json!(lease.expires_at)),
                    ],
                );
            }
            Self::Free { lease, node } => node.connect().await?.tasklet_lease_free(lease).await?,
        }
        Ok(())
    }
}

impl Of {
    async fn status(self) -> anyhow::Result<ExitCode> {
        let status = self.node.connect().await?.tasklet_status(self.tasklet).await?;
        output::pairs(self.node.own.json, &[("status", json!(status.name())), ("meaning", json!(status.meaning()))]);
        Ok(if status == TaskletStatus::NotFound { code(status) } else { ExitCode::SUCCESS })
    }

    async fn result(self) -> anyhow::Result<ExitCode> {
        let client = self.node.connect().await?;
        let (status, output) = client.tasklet_result(self.tasklet).await?;
        write(status, &output)?;
        // Why it did not end well.
        for (level, message) in client.tasklet_logs(self.tasklet).await?.1.iter().filter(|(level, _)| *level == 255) {
            eprintln!("{}", line(*level, message));
        }
        Ok(judge(status, self.tasklet))
    }

    async fn logs(self) -> anyhow::Result<ExitCode> {
        let (status, logs) = self.node.connect().await?.tasklet_logs(self.tasklet).await?;
        if status == TaskletStatus::NotFound {
            return Ok(judge(status, self.tasklet));
        }
        for (level, message) in &logs {
            println!("{}", line(*level, message));
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn cancel(self) -> anyhow::Result<ExitCode> {
        Ok(judge(self.node.connect().await?.tasklet_cancel(self.tasklet).await?, self.tasklet))
    }
}

impl Run {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let wasm = fs::read(&self.file).with_context(|| self.file.display().to_string())?;
        let perms = if self.alloc { Perms::ALLOC | Perms::READ | Perms::WRITE } else { Perms::NONE };
        let (client, token) = self.with.connect(Perms::EXEC | perms, 0).await?;
        let mut caps = Vec::new();
        for (lease, rights) in &self.lease {
            let rights = match rights {
                Some(rights) => *rights,
                None => TaskletRights::QUERY | access(&client, *lease).await?,
            };
            caps.push((*lease, rights));
        }
        if self.alloc {
            caps.push((token.fields().token_id, TaskletRights::FBMU_ALLOC | TaskletRights::FBBU_ALLOC));
        }
        let limits = TaskletLimits {
            max_fuel: self.fuel,
            max_linear_memory: self.memory.try_into().context("--memory")?,
            max_output_bytes: self.output.try_into().context("--output")?,
            max_hostcalls: self.hostcalls,
        };
        let tasklet = Tasklet {
            mem_resource_id: 0,
            cpu_resource_id: self.cpu,
            sha256: Sha256::digest(&wasm).into(),
            wasm: if self.hash_only { Vec::new() } else { wasm },
            input: input(self.input.as_deref(), &caps)?,
            caps,
            limits,
        };
        let ran = client.tasklet_submit(&token, &tasklet).await.map_err(|error| match advice(&error) {
            Some(advice) => anyhow::Error::new(error).context(advice),
            None => error.into(),
        })?;
        if self.detach && ran.tasklet_id != 0 {
            output::pairs(
                self.with.node.own.json,
                &[("tasklet", json!(ran.tasklet_id)), ("status", json!(ran.status.name()))],
            );
            return Ok(ExitCode::SUCCESS);
        }
        if ran.status == TaskletStatus::Unknown {
            let id = ran.tasklet_id;
            eprintln!("tasklet {id} runs, or waits for a core; `berth tasklet cancel {id}` stops it");
        }
        let (mut status, mut out, mut logs) = (ran.status, ran.output, ran.logs);
        while status == TaskletStatus::Unknown {
            tokio::time::sleep(PAUSE).await;
            (status, out) = client.tasklet_result(ran.tasklet_id).await?;
            if status != TaskletStatus::Unknown {
                logs = client.tasklet_logs(ran.tasklet_id).await?.1;
            }
        }
        for (level, message) in &logs {
            eprintln!("{}", line(*level, message));
        }
        write(status, &out)?;
        Ok(judge(status, ran.tasklet_id))
    }
}

/// The right to read and write a lease of this client.
async fn access(client: &Client, lease: u128) -> anyhow::Result<TaskletRights> {
    let listed = client.lease_list().await?.into_iter().find(|entry| entry.lease_id == lease);
    let listed = listed.with_context(|| {
        format!("the node has no active lease {lease:032x}: has it expired? A handle needs ID:RIGHTS")
    })?;
    let resources = client.inventory().await?;
    let of = resources.iter().find(|resource| resource.resource_id == listed.resource_id);
    match of.and_then(|of| ResourceType::from_code(of.resource_type)) {
        Some(ResourceType::Mem) => Ok(TaskletRights::FBMU_LEASE_IO),
        Some(ResourceType::Block) => Ok(TaskletRights::FBBU_LEASE_IO),
        _ => bail!("lease {lease:032x} has no bytes"),
    }
}

/// The input as tasklets know it, with their capabilities; nothing where there is neither.
fn input(file: Option<&Path>, caps: &[(u128, TaskletRights)]) -> anyhow::Result<Vec<u8>> {
    let payload = match file {
        None if caps.is_empty() => return Ok(Vec::new()),
        None => Vec::new(),
        Some(path) if path == Path::new("-") => {
            let mut payload = Vec::new();
            io::stdin().lock().read_to_end(&mut payload).context("reading standard input")?;
            payload
        }
        Some(path) => fs::read(path).with_context(|| path.display().to_string())?,
    };
    let caps: Vec<_> = caps.iter().map(|&(cap_token, rights)| CapEntry { cap_token, rights }).collect();
    let input = TaskletInput { version: 0, flags: 0, caps: List::of(&caps)?, payload: Bytes::of(&payload)? };
    Ok(input.to_vec())
}

/// Writes the output of a run that ended well. What there is of another is a code, and its log says which.
fn write(status: TaskletStatus, bytes: &[u8]) -> anyhow::Result<()> {
    if status != TaskletStatus::Ok {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("writing to standard output")
}

fn line(level: u8, message: &[u8]) -> String {
    let level = match level {
        0 => "error",
        1 => "warn",
        2 => "info",
        3 => "debug",
        4 => "trace",
        255 => "node",
        _ => "other",
    };
    format!("{level}: {}", String::from_utf8_lossy(message).escape_debug())
}

/// What a refusal of a submission is about, where the status alone does not say.
fn advice(error: &Error) -> Option<&'static str> {
    let Error::Refused { status, .. } = error else { return None };
    match status {
        Status::CapacityExceeded => Some(
            "--fuel, --memory, --output or --hostcalls is more than max_* in the node's [tasklet], or --memory more than the lease of --cpu has",
        ),
        Status::ResourceNotFound => Some("the node has no CPU of this id: look at --cpu"),
        _ => None,
    }
}

/// The exit status of a tasklet's status that is not OK.
fn code(status: TaskletStatus) -> ExitCode {
    ExitCode::from(10 + status as u8)
}

/// Says what a status other than OK means, and what to do.
fn judge(status: TaskletStatus, tasklet: u64) -> ExitCode {
    let advice = match status {
        TaskletStatus::Ok => return ExitCode::SUCCESS,
        TaskletStatus::Invalid => "; `berth tasklet check FILE` says why",
        TaskletStatus::FuelExhausted => "; raise --fuel",
        TaskletStatus::Oom => "; raise --memory or --output",
        TaskletStatus::HostcallLimit => "; raise --hostcalls",
        TaskletStatus::ModuleNotFound => "; run it once without --hash-only",
        TaskletStatus::Unauthorized => {
            "; look at --lease: it is not yours, not active, or has not these rights; or your token may not --alloc"
        }
        _ => "",
    };
    match tasklet {
        0 => eprintln!("berth: the tasklet was not admitted: {status}, {}{advice}", status.meaning()),
        tasklet => eprintln!("berth: tasklet {tasklet}: {status}, {}{advice}", status.meaning()),
    }
    code(status)
}
