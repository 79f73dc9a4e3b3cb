//! The client's commands: keys, enrolment, tokens, leases, discovery; and kernels of GPUs, and decoding of files.

mod decode;
mod enrolled;
mod fence;
mod gpu;
mod handle;
mod hip;
mod key;
mod lease;
mod manual;
mod message;
#[cfg(feature = "wasm")]
mod module;
mod node;
mod output;
mod page;
mod status;
mod tasklet;
mod token;

use std::{env, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use berth_client::{Client, Token};
use berth_identity::{Identity, PublicKey};
use berth_tls::key_file;
use berth_wire::fabric::Perms;
use clap::Args;

pub use decode::DecodeCommand;
pub use enrolled::EnrolledCommand;
pub use fence::FenceCommand;
pub use gpu::GpuCommand;
pub use hip::HipCommand;
pub use key::KeyCommand;
pub use lease::LeaseCommand;
pub use manual::manual;
pub use message::MessageCommand;
pub use node::{EnrollCommand, NodesCommand};
pub use status::{AdminAddress, StatusCommand};
pub use tasklet::TaskletCommand;
pub use token::TokenCommand;

/// The client's key, and the form of output.
#[derive(Debug, Clone, Args)]
pub struct Own {
    /// The file with this client's key; `berth key new` makes one. Default: berth/key in the user's configuration
    /// folder.
    #[arg(long, value_name = "FILE", env = "BERTH_KEY")]
    key: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The node to talk to, and how.
#[derive(Debug, Clone, Args)]
pub struct Reach {
    /// The node's QUIC address; with --udp, its address for control over UDP.
    #[arg(long, value_name = "ADDR", env = "BERTH_NODE", default_value = "127.0.0.1:5701")]
    node: SocketAddr,
    /// Use signed datagrams instead of QUIC.
    #[arg(long)]
    udp: bool,
    /// The node's public key. A node with another key is refused; without this option, any node at the address is
    /// trusted.
    #[arg(long, value_name = "HEX", env = "BERTH_NODE_KEY")]
    node_key: Option<PublicKey>,
    #[command(flatten)]
    own: Own,
}

/// A node, and the token for the operation.
#[derive(Debug, Clone, Args)]
struct WithToken {
    /// A file with a token, as `berth token request` printed it. Default: ask the node for a token.
    #[arg(long, value_name = "FILE")]
    token: Option<PathBuf>,
    /// The scheduler's term; needed if the node has a fence and is asked for a token.
    #[arg(long, conflicts_with = "token")]
    epoch: Option<u64>,
    #[command(flatten)]
    node: Reach,
}

impl WithToken {
    /// Connects, and asks for a token of 60 s if none is given.
    async fn connect(&self, perms: Perms, resource: u128) -> anyhow::Result<(Client, Token)> {
        let client = self.node.connect().await?;
        let token = match &self.token {
            Some(path) => token::read(path)?,
            None => client.cap_request(perms, 60, resource, self.epoch).await?,
        };
        Ok((client, token))
    }
}

impl Own {
    fn path(&self) -> anyhow::Result<PathBuf> {
        match &self.key {
            Some(path) => Ok(path.clone()),
            None => Ok(folder("XDG_CONFIG_HOME", ".config")?.join("key")),
        }
    }

    fn identity(&self) -> anyhow::Result<Arc<Identity>> {
        let read = key_file::read(&self.path()?);
        let hint = read.as_ref().is_err_and(key_file::KeyFileError::is_missing);
        read.map(Arc::new).context(if hint { "there is no key yet; make one with `berth key new`" } else { "the key" })
    }
}

impl Own {
    /// The key; `None` where none was named and there is none yet.
    fn identity_if_any(&self) -> anyhow::Result<Option<Arc<Identity>>> {
        match key_file::read(&self.path()?) {
            Err(error) if error.is_missing() && self.key.is_none() => Ok(None),
            read => Ok(Some(Arc::new(read.context("the key")?))),
        }
    }
}

impl Reach {
    async fn connect(&self) -> anyhow::Result<Client> {
        let identity = self.own.identity()?;
        let client = if self.udp {
            Client::udp(identity, self.node, self.node_key).await?
        } else {
            Client::quic(identity, self.node, self.node_key).await?
        };
        Ok(client)
    }
}

/// Berth's folder of one kind, by the XDG base directory specification.
fn folder(variable: &str, below_home: &str) -> anyhow::Result<PathBuf> {
    let base = match env::var_os(variable).filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env::var_os("HOME").context("HOME is not set")?).join(below_home),
    };
    Ok(base.join("berth"))
}

/// Runs the future on a runtime of its own.
fn block_on<T>(command: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Parses an id, given in hex digits.
fn id(text: &str) -> Result<u128, String> {
    u128::from_str_radix(text, 16).map_err(|_| format!("{text:?} is not an id: up to 32 hex digits are wanted"))
}
