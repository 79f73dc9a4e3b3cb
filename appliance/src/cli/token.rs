//! `berth token`

use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use berth_client::Token;
use berth_identity::NodeId;
use berth_wire::fabric::{Caveat, Perms};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::{Own, Reach, WithToken, block_on, enrolled::key_id, id, output};

/// Capability tokens: request, inspect, delegate and revoke them.
#[derive(Debug, Args)]
pub struct TokenCommand {
    #[command(subcommand)]
    command: Tokens,
}

#[derive(Debug, Subcommand)]
enum Tokens {
    /// Ask a node for a token; prints it as hex digits.
    Request(Box<Request>),
    /// Print what a token permits.
    Show {
        /// The file that holds the token, or `-` for standard input.
        token: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Pass a token on to another holder, with further restrictions; prints the new token as hex digits.
    Delegate(Delegate),
    /// Revoke a token and every lease that was allocated with it, or all tokens and leases of a holder. The token that
    /// permits this needs `revoke`, or `admin` for all of a holder's.
    Revoke(Box<Revoke>),
}

#[derive(Debug, Args)]
struct Request {
    #[command(flatten)]
    node: Reach,
    /// The permissions: read, write, alloc, revoke, exec, admin, delegate.
    #[arg(long, value_delimiter = ',', default_value = "read,write,alloc")]
    perms: Vec<String>,
    /// How long the token is valid, in seconds; at most 300.
    #[arg(long, default_value_t = 300)]
    ttl: u32,
    /// The id of the only resource that the token is for; 0 for any.
    #[arg(long, value_parser = id, default_value = "0")]
    resource: u128,
    /// The id of the key that will hold the token. Default: this client's.
    #[arg(long, value_name = "ID")]
    holder: Option<NodeId>,
    /// The scheduler's term; needed if the node has a fence.
    #[arg(long)]
    epoch: Option<u64>,
}

#[derive(Debug, Args)]
struct Revoke {
    /// The `token_id` to revoke, as `berth token show` prints it.
    #[arg(value_parser = id, required_unless_present = "holder")]
    token_id: Option<u128>,
    /// Instead of one token, revoke all that this key (or id of a key) may hold, and all its leases. Needs `admin`.
    #[arg(long, value_name = "KEY", value_parser = key_id, conflicts_with_all = ["token_id", "ttl"])]
    holder: Option<NodeId>,
    /// How long the node remembers the revocation, in seconds; at least 300.
    #[arg(long, default_value_t = 300)]
    ttl: u32,
    #[command(flatten)]
    with: WithToken,
}

#[derive(Debug, Args)]
struct Delegate {
    /// The file that holds the token, or `-` for standard input.
    token: PathBuf,
    /// The id of the next holder's key.
    #[arg(long, value_name = "ID")]
    to: NodeId,
    /// Allow only these bytes of a lease: the first one, and how many.
    #[arg(long, value_names = ["OFFSET", "LEN"], num_args = 2)]
    range: Vec<u64>,
    /// Allow requests only from this address.
    #[arg(long)]
    source_ip: Option<IpAddr>,
    /// Allow at most this many requests per second.
    #[arg(long)]
    rate: Option<u32>,
    /// Allow at most this many further delegations.
    #[arg(long)]
    depth: Option<u8>,
    /// Allow requests only before this Unix time, in seconds.
    #[arg(long)]
    until: Option<u64>,
    #[command(flatten)]
    own: Own,
}

impl TokenCommand {
    /// Runs the command. `show` and `delegate` need no node.
    pub fn run(&self) -> anyhow::Result<()> {
        match &self.command {
            Tokens::Request(asked) => {
                let perms = perms(&asked.perms)?;
                let token = block_on(async {
                    let client = asked.node.connect().await?;
                    let holder = asked.holder.unwrap_or_else(|| client.identity().id());
                    let token = client.cap_request_for(holder, perms, asked.ttl, asked.resource, asked.epoch).await?;
                    client.close().await;
                    Ok(token)
                })?;
                print(&token, asked.node.own.json);
            }
            Tokens::Show { token, json } => show(&read(token)?, *json),
            Tokens::Revoke(asked) => block_on(asked.run())?,
            Tokens::Delegate(asked) => {
                let token = read(&asked.token)?;
                let caveats = [
                    asked.until.map(|end| Caveat::TimeBound { start: 0, end }),
                    asked.source_ip.map(Caveat::SourceIp),
                    asked
                        .range
                        .first()
                        .zip(asked.range.get(1))
                        .map(|(offset, len)| Caveat::Range { offset: *offset, len: *len }),
                    asked.rate.map(Caveat::RateLimit),
                    asked.depth.map(Caveat::Depth),
                ];
                let caveats: Vec<_> = caveats.into_iter().flatten().collect();
                print(&token.delegate(&*asked.own.identity()?, asked.to, &caveats)?, asked.own.json);
            }
        }
        Ok(())
    }
}

impl Revoke {
    async fn run(&self) -> anyhow::Result<()> {
        let perms = if self.holder.is_some() { Perms::ADMIN } else { Perms::REVOKE };
        let (client, token) = self.with.connect(perms, 0).await?;
        let mut pairs = Vec::new();
        if let Some(holder) = self.holder {
            let revoked = client.key_revoke(&token, holder, false).await?;
            pairs.push(("revoked", Value::from(holder.to_string())));
            pairs.extend([("leases", revoked.leases.into()), ("until", revoked.until.into())]);
        } else if let Some(token_id) = self.token_id {
            let until = client.cap_revoke(&token, token_id, self.ttl).await?;
            pairs.extend([("revoked", format!("{token_id:032x}").into()), ("until", until.into())]);
        }
        client.close().await;
        output::pairs(self.with.node.own.json, &pairs);
        Ok(())
    }
}

/// Permissions from their names; an unknown one is an error that lists all.
pub(super) fn perms(words: &[String]) -> anyhow::Result<Perms> {
    let known: Vec<_> = Perms::ALL.names().collect();
    words.iter().try_fold(Perms::NONE, |perms, word| {
        let perm = Perms::from_name(word);
        Ok(perms | perm.with_context(|| format!("{word:?} is not a permission; there are: {}", known.join(", ")))?)
    })
}

/// Reads a token from a file that `berth token` wrote, or from standard input if the path is `-`.
pub(super) fn read(path: &Path) -> anyhow::Result<Token> {
    let text = if path == Path::new("-") { io::read_to_string(io::stdin()) } else { fs::read_to_string(path) };
    let text = text.with_context(|| path.display().to_string())?;
    let bytes = output::unhex(&text).map_err(anyhow::Error::msg)?;
    Token::from_bytes(bytes).with_context(|| format!("{} holds no token", path.display()))
}

fn print(token: &Token, json: bool) {
    if json {
        show(token, true);
    } else {
        println!("{}", output::hex(token.as_bytes()));
    }
}

fn show(token: &Token, json: bool) {
    let fields = token.fields();
    let id = |id: u128| Value::from(format!("{id:032x}"));
    let caveats = fields.caveats.iter().map(|caveat| Value::from(describe(&caveat)));
    let mut pairs = vec![
        ("token_id", id(fields.token_id)),
        ("issuer", id(fields.issuer)),
        ("audience", id(fields.audience)),
        ("resource_id", id(fields.resource_id)),
        ("perms", fields.perms.names().map(Value::from).collect()),
        ("issued_at", fields.issued_at.into()),
        ("expires_at", fields.expires_at.into()),
        ("epoch", fields.epoch.into()),
        ("caveats", caveats.collect()),
        ("links", fields.links.iter().map(|link| id(link.delegate)).collect()),
    ];
    for link in fields.links.iter().filter(|link| !link.caveats.is_empty()) {
        pairs.push(("link_caveats", link.caveats.iter().map(|caveat| Value::from(describe(&caveat))).collect()));
    }
    if json {
        pairs.push(("token", output::hex(token.as_bytes()).into()));
    } else {
        pairs.push(("left", output::left(fields.expires_at).into()));
    }
    output::pairs(json, &pairs);
}

fn describe(caveat: &Caveat) -> String {
    match caveat {
        Caveat::TimeBound { start, end } => format!("time:{start}..{end}"),
        Caveat::SourceIp(address) => format!("source:{address}"),
        Caveat::Range { offset, len } => format!("range:{offset}+{len}"),
        Caveat::RateLimit(rate) => format!("rate:{rate}/s"),
        Caveat::Depth(depth) => format!("depth:{depth}"),
        Caveat::Audience(id) => format!("audience:{id:032x}"),
    }
}
