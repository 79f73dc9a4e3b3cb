//! `berth enrolled`

use berth_identity::{NodeId, PublicKey};
use berth_wire::fabric::{KeyStanding, Perms};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{WithToken, block_on, output};

/// The keys that a node serves. For administrators; on the node's host, its own key is one: `--key STATE_DIR/node.key`
#[derive(Debug, Args)]
pub struct EnrolledCommand {
    #[command(subcommand)]
    command: Enrolled,
}

#[derive(Debug, Subcommand)]
enum Enrolled {
    /// List the enrolled keys, and those that were removed.
    List {
        #[command(flatten)]
        with: WithToken,
    },
    /// Remove a key for good: its tokens, leases and connections end at once, and it is never served again, even if the
    /// configuration lists it.
    Remove {
        /// The public key, or its id.
        #[arg(value_name = "KEY", value_parser = key_id)]
        removed: NodeId,
        #[command(flatten)]
        with: WithToken,
    },
}

impl EnrolledCommand {
    /// Runs the command. Without a given token it asks the node for one with `admin`.
    pub fn run(&self) -> anyhow::Result<()> {
        block_on(self.command.run())
    }
}

impl Enrolled {
    async fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::List { with } => {
                let (client, token) = with.connect(Perms::ADMIN, 0).await?;
                let keys = client.key_list(&token).await?;
                client.close().await;
                let rows = keys.iter().map(|entry| {
                    let removed = entry.standing == KeyStanding::Removed;
                    let key = if removed { String::new() } else { output::hex(&entry.public_key) };
                    [NodeId(entry.key_id).to_string(), entry.standing.name().to_ascii_lowercase(), key]
                });
                let rows: Vec<_> = rows.collect();
                if with.node.own.json {
                    let all = rows.iter().map(|[id, standing, key]| {
                        json!({ "id": id, "standing": standing, "public_key": (!key.is_empty()).then_some(key) })
                    });
                    println!("{}", all.collect::<Value>());
                } else {
                    print!("{}", output::table(["ID", "STANDING", "PUBLIC KEY"], &rows));
                }
            }
            Self::Remove { removed, with } => {
                let (client, token) = with.connect(Perms::ADMIN, 0).await?;
                let revoked = client.key_revoke(&token, *removed, true).await?;
                client.close().await;
                let removed = ("removed", Value::from(removed.to_string()));
                output::pairs(with.node.own.json, &[removed, ("leases", revoked.leases.into())]);
            }
        }
        Ok(())
    }
}

/// The id of a key, given as the id or the public key.
pub(super) fn key_id(text: &str) -> Result<NodeId, String> {
    let key = text.parse::<PublicKey>().map(|key| key.id());
    key.or_else(|_| text.parse())
        .map_err(|_| format!("{text:?} is neither a public key nor an id: 64 or 32 hex digits"))
}
