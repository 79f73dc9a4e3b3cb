//! What `berth run` says of itself, on standard error.

use std::{env, io, sync::OnceLock};

use anyhow::Context as _;
use tracing_subscriber::{Registry, filter::Targets, layer::SubscriberExt as _, reload, util::SubscriberInitExt as _};

use crate::config;

static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging as `settings` say; the variable `RUST_LOG` goes before their level. Once.
pub fn start(settings: &config::Log) -> anyhow::Result<()> {
    let wanted = env::var("RUST_LOG").unwrap_or_else(|_| settings.level.clone());
    let (filter, level) = reload::Layer::new(check_level(&wanted)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    tracing_subscriber::registry().with(filter).with(lines).init();
    // Set once, as the subscriber is.
    let _ = LEVEL.set(level);
    Ok(())
}

/// What is logged from now on: a level, or levels of modules, as in `RUST_LOG`.
pub fn set_level(level: &str) -> anyhow::Result<()> {
    let filter = check_level(level)?;
    LEVEL.get().context("nothing is logged yet")?.reload(filter).context("the log is gone")
}

/// Reads a level, or levels of modules.
pub fn check_level(level: &str) -> anyhow::Result<Targets> {
    level.parse().with_context(|| format!("{level:?} is no level"))
}
