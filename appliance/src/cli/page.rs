//! `berth lease page`

use berth_client::Client;
use berth_wire::fabric::data::page::PageRef;
use clap::{Args, Subcommand};

use super::{Reach, id, lease::input, output};

#[derive(Debug, Subcommand)]
pub(super) enum Pages {
    /// Read bytes of a page to standard output; with --json as hex digits.
    Read {
        #[command(flatten)]
        page: One,
        /// The first byte to read, counted within the page.
        #[arg(long, default_value_t = 0)]
        offset: u32,
        /// How many bytes to read.
        #[arg(long)]
        len: u32,
        #[command(flatten)]
        node: Reach,
    },
    /// Write standard input, or a given text, to a page.
    Write {
        #[command(flatten)]
        page: One,
        /// The text to write. Default: standard input.
        data: Option<String>,
        /// The first byte to write, counted within the page.
        #[arg(long, default_value_t = 0)]
        offset: u32,
        #[command(flatten)]
        node: Reach,
    },
    /// Copy a page over another one, of this lease or of another lease of this client.
    Copy {
        #[command(flatten)]
        page: One,
        /// The id of the lease to copy to.
        #[arg(value_parser = id)]
        to_lease: u128,
        /// The index of the page to overwrite in that lease.
        to_page: u32,
        #[command(flatten)]
        node: Reach,
    },
    /// Fill a page with zeros.
    Zero {
        #[command(flatten)]
        page: One,
        #[command(flatten)]
        node: Reach,
    },
    /// Replace a page's advice flags.
    Advise {
        #[command(flatten)]
        page: One,
        /// The sum of the flags: 1 will need, 2 don't need, 4 sequential, 8 random, 16 evict late, 32 evict early.
        flags: u32,
        #[command(flatten)]
        node: Reach,
    },
    /// Print the tracked state of a page.
    Query {
        #[command(flatten)]
        page: One,
        #[command(flatten)]
        node: Reach,
    },
}

#[derive(Debug, Args)]
pub(super) struct One {
    /// The lease's id, as `berth lease alloc` printed it.
    #[arg(value_parser = id)]
    lease: u128,
    /// The page's index within the lease, from 0.
    page: u32,
}

impl One {
    /// Connects; returns the page that the arguments name, too.
    async fn of(&self, node: &Reach) -> anyhow::Result<(Client, PageRef)> {
        Ok((node.connect().await?, PageRef { lease_id: self.lease, page: self.page }))
    }
}

impl Pages {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        match self {
            Self::Read { page, offset, len, node } => {
                let (client, page) = page.of(node).await?;
                let bytes = client.page_read(page, *offset, *len).await?;
                client.close().await;
                output::bytes(node.own.json, (*offset).into(), &bytes)?;
            }
            Self::Write { page, data, offset, node } => {
                let bytes = input(data.as_deref())?;
                let (client, page) = page.of(node).await?;
                client.page_write(page, *offset, &bytes).await?;
                client.close().await;
                output::pairs(node.own.json, &[("offset", (*offset).into()), ("written", bytes.len().into())]);
            }
            Self::Copy { page, to_lease, to_page, node } => {
                let (client, page) = page.of(node).await?;
                client.page_copy(page, PageRef { lease_id: *to_lease, page: *to_page }).await?;
                client.close().await;
                output::pairs(node.own.json, &[("copied", page.page.into()), ("to", (*to_page).into())]);
            }
            Self::Zero { page, node } => {
                let (client, page) = page.of(node).await?;
                client.page_zero(page).await?;
                client.close().await;
                output::pairs(node.own.json, &[("zeroed", page.page.into())]);
            }
            Self::Advise { page, flags, node } => {
                let (client, page) = page.of(node).await?;
                client.page_advise(page, *flags).await?;
                client.close().await;
                output::pairs(node.own.json, &[("page", page.page.into()), ("advice", (*flags).into())]);
            }
            Self::Query { page, node } => {
                let (client, page) = page.of(node).await?;
                let state = client.page_query(page).await?;
                client.close().await;
                output::pairs(
                    node.own.json,
                    &[
                        ("page", state.page.into()),
                        ("tier", state.tier.into()),
                        ("dirty", state.dirty.into()),
                        ("access_count", state.accesses.into()),
                        ("last_access_ms", state.last_access_ms.into()),
                        ("advice", state.advice.into()),
                    ],
                );
            }
        }
        Ok(())
    }
}
