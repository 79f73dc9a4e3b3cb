//! `[log]`: what is logged.

use super::walk::Table;
use crate::log::check_level;

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// As in `RUST_LOG`: a level, or levels of modules.
    pub level: String,
}

pub(super) fn read(mut t: Table<'_, '_>) -> Log {
    let level = t.text("level");
    if let Some(at) = &level
        && let Err(e) = check_level(at.value)
    {
        t.sink().wrong(at, format_args!("{e}; say \"info\", or \"warn,berth_control=debug\""));
    }
    let level = level.map_or(t.default_text("level"), |at| at.value).to_owned();
    t.finish();
    Log { level }
}
