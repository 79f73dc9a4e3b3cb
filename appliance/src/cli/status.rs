//! `berth status`: the state of a running appliance, from its admin address.

use std::{fs, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use ureq::Agent;

use crate::admin::Status;

/// Time limit for the appliance's answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The appliance to ask.
#[derive(Debug, Clone, Args)]
pub struct AdminAddress {
    /// The appliance's admin address, `[admin] listen` in its configuration.
    #[arg(long, value_name = "ADDR", env = "BERTH_ADMIN", default_value = "127.0.0.1:5780")]
    admin: SocketAddr,
    /// A file with the admin token, if the appliance requires one.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl AdminAddress {
    /// Asks for the status; returns it parsed and as JSON.
    pub(crate) fn status(&self) -> anyhow::Result<(Status, String)> {
        let agent: Agent = Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
        let mut request = agent.get(format!("http://{}/status", self.admin));
        if let Some(file) = &self.token_file {
            let token = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            request = request.header("Authorization", format!("Bearer {}", token.trim()));
        }
        let body = request.call().and_then(|mut response| response.body_mut().read_to_string());
        let body = body.with_context(|| format!("{} does not tell; is [admin] configured?", self.admin))?;
        let status = serde_json::from_str(&body).with_context(|| format!("{} is no berth", self.admin))?;
        Ok((status, body))
    }
}

/// Print the state of a running appliance; exits with 1 if it does not serve.
#[derive(Debug, Clone, Args)]
pub struct StatusCommand {
    #[command(flatten)]
    of: AdminAddress,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl StatusCommand {
    /// Asks once and prints. The exit status is a failure unless it is ready and no thread is stuck.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        let (status, body) = self.of.status()?;
        if self.json {
            println!("{body}");
        } else {
            print!("{}", status.table());
        }
        Ok(if status.ready && status.stuck.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
