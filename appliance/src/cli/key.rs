//! `berth key`

use std::fs;

use anyhow::Context as _;
use berth_identity::Identity;
use berth_tls::key_file;
use clap::{Args, Subcommand};

use super::{Own, output};

/// Make a key, or show its public half.
#[derive(Debug, Args)]
pub struct KeyCommand {
    #[command(subcommand)]
    command: Key,
}

#[derive(Debug, Subcommand)]
enum Key {
    /// Make a key. If there is one already, it is kept, and the command fails.
    New(Own),
    /// Print the id and the public key, for the configurations of nodes.
    Show(Own),
}

impl KeyCommand {
    /// Runs the command. `new` makes the folder of the key, too.
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            Key::New(own) => {
                let path = own.path()?;
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
                }
                let key = key_file::generate()?;
                key_file::create(&path, &key)?;
                show(own, &key)
            }
            Key::Show(own) => show(own, &*own.identity()?),
        }
    }
}

fn show(own: &Own, key: &Identity) -> anyhow::Result<()> {
    let (file, public) = (own.path()?.display().to_string(), key.public_key().to_string());
    let id = key.id().to_string();
    output::pairs(own.json, &[("file", file.into()), ("id", id.into()), ("public_key", public.into())]);
    Ok(())
}
