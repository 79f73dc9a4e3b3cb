//! `[log]`: what is logged.

use super::walk::Table;
use crate::log::check_level;

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// As in `RUST_LOG`: a level, or levels of modules.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into() }
    }
}

pub(super) fn read(table: Option<Table<'_, '_>>) -> Log {
    let mut log = Log::default();
    let Some(mut t) = table else { return log };
    if let Some(level) = t.text("level") {
        if let Err(e) = check_level(level.value) {
            t.sink().wrong(&level, format_args!("{e}; say \"info\", or \"warn,berth_control=debug\""));
        }
        level.value.clone_into(&mut log.level);
    }
    t.finish();
    log
}
