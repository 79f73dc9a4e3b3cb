//! What `berth run` says of itself: to journald with fields, or as lines on standard error.
//!
//! Nothing that a peer does alone is logged; it is counted. A line is about the appliance: its start, its end, a device
//! that is gone, a thread that hangs.

use std::{
    env, fs,
    io::{self, IsTerminal as _},
    os::unix::fs::MetadataExt as _,
    sync::OnceLock,
};

use anyhow::{Context as _, ensure};
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    reload,
    util::SubscriberInitExt as _,
};

use crate::config;

/// `log.format`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// To journald where standard error leads there, else text.
    Auto,
    /// Lines for people; coloured on a terminal.
    Text,
    /// One JSON object a line.
    Json,
    /// To journald, with a field for each value.
    Journal,
}

impl Format {
    /// Its word in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
            Self::Journal => "journal",
        }
    }
}

static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging as `settings` say; the variable `RUST_LOG` goes before their level. Once.
pub fn start(settings: &config::Log) -> anyhow::Result<()> {
    let wanted = env::var("RUST_LOG").unwrap_or_else(|_| settings.level.clone());
    let (filter, level) = reload::Layer::new(check_level(&wanted)?);
    let lines = || tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let journal = || -> anyhow::Result<_> {
        let journal = tracing_journald::layer().context("log.format: there is no journald at /run/systemd/journal")?;
        Ok(journal.with_field_prefix(None).with_syslog_identifier("berth".into()).boxed())
    };
    let text = || lines().with_ansi(io::stderr().is_terminal()).boxed();
    let out = match settings.format {
        Format::Journal => journal()?,
        // Lines reach the journal too, without fields.
        Format::Auto if stderr_is_journal() => journal().unwrap_or_else(|_| text()),
        Format::Auto | Format::Text => text(),
        Format::Json => lines().json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(out.with_filter(filter)).init();
    // Set once, as the subscriber is.
    let _ = LEVEL.set(level);
    Ok(())
}

/// What is logged from now on: a level, or levels of modules, as in `RUST_LOG`. Fails before [`start`].
pub fn set_level(level: &str) -> anyhow::Result<()> {
    let filter = check_level(level)?;
    let handle = LEVEL.get().context("nothing is logged yet")?;
    Ok(handle.modify(|layer| *layer = filter)?)
}

/// Reads a level, or levels of modules as `MODULE=LEVEL`, with commas between them.
pub fn check_level(level: &str) -> anyhow::Result<Targets> {
    // A word alone would be taken for a module, all of which is logged.
    let is_said = |part: &str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    ensure!(level.split(',').all(is_said), "{level:?} is no level");
    level.parse().with_context(|| format!("{level:?} is no level"))
}

/// Whether `$JOURNAL_STREAM` names the file that standard error is: see systemd.exec(5).
fn stderr_is_journal() -> bool {
    let named = env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = fs::metadata("/proc/self/fd/2");
    stderr.is_ok_and(|stderr| named == format!("{}:{}", stderr.dev(), stderr.ino()))
}
