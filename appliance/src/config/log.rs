//! `[log]`: what is logged, and how.

use berth_keys::Table;

use crate::log::{Format, check_level};

/// `[log]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// As in `RUST_LOG`: a level, or levels of modules.
    pub level: String,
    /// Text or JSON to stderr, or the journal.
    pub format: Format,
}

pub(super) fn read(mut t: Table<'_, '_>) -> Log {
    let level = t.text("level");
    if let Some(at) = &level
        && let Err(e) = check_level(at.value)
    {
        t.sink().wrong(at, format_args!("{e}; say \"info\", or \"warn,berth_control=debug\""));
    }
    let level = level.map_or(t.default_text("level"), |at| at.value).to_owned();
    let formats = [Format::Auto, Format::Text, Format::Json, Format::Journal].map(|format| (format.word(), format));
    let format = t.choice("format", &formats).map_or(Format::Auto, |at| at.value);
    t.finish();
    Log { level, format }
}
