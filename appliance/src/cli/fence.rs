//! `berth fence`

use berth_wire::fabric::Perms;
use clap::{Args, Subcommand};

use super::{Reach, WithToken, block_on, output};

/// A node's scheduler fence: once one is installed, tokens of earlier terms are refused.
#[derive(Debug, Args)]
pub struct FenceCommand {
    #[command(subcommand)]
    command: Fence,
}

#[derive(Debug, Subcommand)]
enum Fence {
    /// Print the installed term.
    Get {
        #[command(flatten)]
        node: Reach,
    },
    /// Install a term. Only higher terms can replace it, and it can never be removed.
    Set {
        /// The new term; it must be higher than the installed one.
        term: u64,
        #[command(flatten)]
        with: WithToken,
    },
}

impl FenceCommand {
    /// Runs the command.
    pub fn run(&self) -> anyhow::Result<()> {
        block_on(self.command.run())
    }
}

impl Fence {
    async fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Get { node } => {
                let client = node.connect().await?;
                let fence = client.fence_get().await?;
                client.close().await;
                let installed = fence.installed.into();
                output::pairs(node.own.json, &[("installed", installed), ("epoch", fence.epoch.into())]);
            }
            Self::Set { term, with } => {
                let (client, token) = with.connect(Perms::ADMIN, 0).await?;
                client.fence_set(&token, *term).await?;
                client.close().await;
                output::pairs(with.node.own.json, &[("installed", true.into()), ("epoch", (*term).into())]);
            }
        }
        Ok(())
    }
}
