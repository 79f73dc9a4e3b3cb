//! The `berth` command.
#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use berth::{
    check, cli,
    config::{self, Loaded},
    doctor, run, tune,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

/// Kernel-bypass dataplane appliance: answers an FPGA's requests from pinned poll-mode cores.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT. Prints `berth ready {..}` and `berth stopped {..}` on standard output.
    Run {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check a configuration file: prints every mistake and exits with 2, or says what would run.
    Check {
        /// The configuration file.
        file: PathBuf,
    },
    Perf(berth_perf::PerfCommand),
    /// Say what this host can do, and which command mends what it cannot. Changes nothing.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    #[command(subcommand)]
    Tune(TuneCommand),
    Status(cli::StatusCommand),
    Key(cli::KeyCommand),
    Enroll(cli::EnrollCommand),
    Token(cli::TokenCommand),
    Lease(Box<cli::LeaseCommand>),
    Fence(Box<cli::FenceCommand>),
    Nodes(cli::NodesCommand),
    /// Write the man pages and the shells' completions, for packages.
    #[command(hide = true)]
    Manual {
        /// Where to.
        folder: PathBuf,
    },
}

/// Make the host fit for the ports of a configuration, or as it was before.
#[derive(Subcommand)]
enum TuneCommand {
    /// Turn every knob that the configuration asks for, and say what changed.
    Apply {
        /// The configuration file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        common: TuneArgs,
    },
    /// Give every knob back what it held before.
    Revert {
        #[command(flatten)]
        common: TuneArgs,
    },
}

#[derive(Args)]
struct TuneArgs {
    /// Where to remember what the knobs held.
    #[arg(long, value_name = "FILE", default_value = "/run/berth-tune.json")]
    state: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    #[cfg(feature = "ofi")]
    berth_ofi::reset_signals();
    execute(Cli::parse().command).unwrap_or_else(|e| {
        eprintln!("berth: {e:#}");
        ExitCode::FAILURE
    })
}

/// Logs what the variable `RUST_LOG` names, such as `warn` or `berth::run=debug,info`; `info` where it is not set.
fn log_to_stderr() -> anyhow::Result<()> {
    let wanted = std::env::var("RUST_LOG").unwrap_or_else(|_| "info".into());
    let filter: Targets = wanted.parse().with_context(|| format!("RUST_LOG={wanted}"))?;
    let stderr = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(stderr).with(filter).init();
    Ok(())
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run { config } => match load(&config) {
            Ok(loaded) => {
                log_to_stderr()?;
                run::run(loaded.config)?;
            }
            Err(status) => return Ok(status),
        },
        Command::Check { file } => match load(&file) {
            Ok(loaded) => print!("{}", check::summary(&loaded.config)),
            Err(status) => return Ok(status),
        },
        Command::Perf(command) => return berth_perf::run(&command),
        Command::Tune(command) => {
            let (reports, json) = match command {
                TuneCommand::Apply { config, common } => match load(&config) {
                    Ok(loaded) => (tune::apply(&loaded.config, Path::new("/"), &common.state)?, common.json),
                    Err(status) => return Ok(status),
                },
                TuneCommand::Revert { common } => (tune::revert(Path::new("/"), &common.state)?, common.json),
            };
            if json {
                println!("{}", serde_json::to_string_pretty(&reports)?);
            } else {
                print!("{}", tune::table(&reports));
            }
        }
        Command::Status(command) => return command.run(),
        Command::Key(command) => command.run()?,
        Command::Enroll(command) => command.run()?,
        Command::Token(command) => command.run()?,
        Command::Fence(command) => command.run()?,
        Command::Lease(command) => command.run()?,
        Command::Nodes(command) => command.run()?,
        Command::Manual { folder } => cli::manual(Cli::command(), &folder)?,
        Command::Doctor { json } => {
            let findings = doctor::examine(Path::new("/"));
            if json {
                println!("{}", serde_json::to_string_pretty(&findings)?);
            } else {
                print!("{}", doctor::table(&findings));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the configuration; prints its warnings, or every mistake.
fn load(file: &Path) -> Result<Loaded, ExitCode> {
    let loaded = config::load(file, &check::this_host());
    let loaded = loaded.and_then(|loaded| check::load_plugins(&loaded).map(|()| loaded)).map_err(|mistakes| {
        for note in mistakes {
            eprintln!("{note}");
        }
        ExitCode::from(2)
    })?;
    for note in &loaded.warnings {
        eprintln!("warning: {note}");
    }
    Ok(loaded)
}
