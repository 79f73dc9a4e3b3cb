//! The `berth` command.
#![forbid(unsafe_code)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use berth::{
    check, cli,
    config::{self, Loaded, Origin},
    doctor, log, run, top, tune,
};
use clap::{Args, CommandFactory as _, Parser, Subcommand};

/// Kernel-bypass dataplane appliance: answers an FPGA's requests from pinned poll-mode cores.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT; read the configuration again at SIGHUP. Prints `berth ready {..}` and `berth stopped
    /// {..}` on standard output.
    Run {
        /// The configuration file; conf.d/*.toml beside it are merged into it.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        #[command(flatten)]
        sets: Sets,
    },
    /// Check a configuration file: prints every mistake and exits with 2, or says what would run. With --against it says
    /// what a reload would do, and exits with 3 where it would be refused.
    Check {
        /// The configuration file; conf.d/*.toml beside it are merged into it.
        file: PathBuf,
        #[command(flatten)]
        sets: Sets,
        /// Say what a reload would change and what it would refuse, of an appliance that runs this other file.
        #[arg(long, value_name = "FILE")]
        against: Option<PathBuf>,
    },
    #[command(subcommand)]
    Config(ConfigCommand),
    Perf(berth_perf::PerfCommand),
    /// Report what this host supports, and the command that fixes each gap. Changes nothing.
    Doctor {
        /// Look also at what the bindings of this configuration need.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    #[command(subcommand)]
    Tune(TuneCommand),
    Status(cli::StatusCommand),
    Top(top::TopCommand),
    Key(cli::KeyCommand),
    Enroll(cli::EnrollCommand),
    Enrolled(Box<cli::EnrolledCommand>),
    Token(cli::TokenCommand),
    Lease(Box<cli::LeaseCommand>),
    Tasklet(Box<cli::TaskletCommand>),
    Fence(Box<cli::FenceCommand>),
    Nodes(cli::NodesCommand),
    Message(cli::MessageCommand),
    Decode(Box<cli::DecodeCommand>),
    Gpu(cli::GpuCommand),
    Hip(cli::HipCommand),
    /// Compile the WASM module on standard input: what `berth run` starts for each new one.
    #[cfg(feature = "wasm")]
    #[command(hide = true)]
    CompileWasm,
    /// Write the man pages and the shells' completions, for packages.
    #[command(hide = true)]
    Manual {
        /// Where to.
        folder: PathBuf,
    },
}

/// Print what a configuration can say.
#[derive(Subcommand)]
enum ConfigCommand {
    /// The commented default file.
    Default,
    /// A JSON schema, for editors.
    Schema,
    /// The reference, in Markdown.
    Docs,
}

#[derive(Args, Default)]
struct Sets {
    /// Override a value of all files, such as port[0].cpu=3 or log.level='"debug"'. Can be given several times.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    sets: Vec<String>,
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
    berth_ports::prepare_process();
    execute(Cli::parse().command).unwrap_or_else(|e| {
        eprintln!("berth: {e:#}");
        ExitCode::FAILURE
    })
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run { config, sets } => match load(config, sets) {
            Ok(loaded) => {
                log::start(&loaded.config.log)?;
                run::run(loaded)?;
            }
            Err(status) => return Ok(status),
        },
        Command::Check { file, sets, against } => {
            let running = |loaded| Ok((loaded, against.map(|file| load(file, Sets::default())).transpose()?));
            let loaded = load(file, sets).and_then(running);
            match loaded {
                Ok((loaded, None)) => print!("{}", check::summary(&loaded.config)),
                Ok((loaded, Some(running))) => {
                    let changes = loaded.changes_from(&running);
                    for change in &changes {
                        println!("{}", change.note);
                    }
                    return Ok(if changes.iter().all(|change| change.live) {
                        ExitCode::SUCCESS
                    } else {
                        ExitCode::from(3)
                    });
                }
                Err(status) => return Ok(status),
            }
        }
        Command::Config(command) => print!(
            "{}",
            match command {
                ConfigCommand::Default => config::schema::default_file(),
                ConfigCommand::Schema => config::schema::json_schema(),
                ConfigCommand::Docs => config::schema::reference(),
            }
        ),
        Command::Perf(command) => {
            log::start(&config::Log { level: "warn".into(), format: log::Format::Text })?;
            return berth_perf::run(&command);
        }
        Command::Tune(command) => {
            let (reports, json) = match command {
                TuneCommand::Apply { config, common } => match load(config, Sets::default()) {
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
        Command::Top(command) => command.run()?,
        Command::Key(command) => command.run()?,
        Command::Enroll(command) => command.run()?,
        Command::Enrolled(command) => command.run()?,
        Command::Token(command) => command.run()?,
        Command::Fence(command) => command.run()?,
        Command::Lease(command) => command.run()?,
        Command::Tasklet(command) => return command.run(),
        #[cfg(feature = "wasm")]
        Command::CompileWasm => return Ok(berth_wasm::child()),
        Command::Nodes(command) => command.run()?,
        Command::Message(command) => return command.run(),
        Command::Decode(command) => command.run()?,
        Command::Gpu(command) => return command.run(),
        Command::Hip(command) => return command.run(),
        Command::Manual { folder } => cli::manual(Cli::command(), &folder)?,
        Command::Doctor { config, json } => {
            let root = Path::new("/");
            let loaded = match config.map(|file| load(file, Sets::default())).transpose() {
                Ok(loaded) => loaded,
                Err(code) => return Ok(code),
            };
            let config = loaded.map(|loaded| loaded.config);
            let mut findings = doctor::examine(root, config.as_ref().map_or(&[], |config| &config.regions));
            if let Some(config) = config {
                findings.extend(doctor::examine_bindings(root, &config.bindings));
                findings.extend(doctor::examine_gpus(root, &config));
            }
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
fn load(file: PathBuf, Sets { sets }: Sets) -> Result<Loaded, ExitCode> {
    let loaded = config::load(&Origin { file, sets }, &check::this_host());
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
