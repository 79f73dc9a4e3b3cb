//! The `berth` command.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use berth::{check, config, doctor};
use clap::{Parser, Subcommand};

/// Kernel-bypass dataplane appliance: answers an FPGA's requests from pinned poll-mode cores.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a configuration file: prints every mistake and exits with 2, or says what would run.
    Check {
        /// The configuration file.
        file: PathBuf,
    },
    /// Say what this host can do, and which command mends what it cannot. Changes nothing.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Check { file } => match config::load(&file, &check::this_host()) {
            Ok(loaded) => {
                for note in &loaded.warnings {
                    eprintln!("warning: {note}");
                }
                print!("{}", check::summary(&loaded.config));
                ExitCode::SUCCESS
            }
            Err(mistakes) => {
                for note in mistakes {
                    eprintln!("{note}");
                }
                ExitCode::from(2)
            }
        },
        Command::Doctor { json } => {
            let findings = doctor::examine(std::path::Path::new("/"));
            if json {
                println!("{}", serde_json::to_string_pretty(&findings).expect("findings are plain data"));
            } else {
                print!("{}", doctor::table(&findings));
            }
            ExitCode::SUCCESS
        }
    }
}
