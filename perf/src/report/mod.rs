//! Results, and the forms they are given in.

pub mod case;
pub mod hlog;
pub mod html;
pub mod json;
pub mod table;

use std::{fs, path::Path};

use anyhow::Context;
pub use json::Report;

use crate::args::LoadArgs;

/// Writes the files that the command line asks for.
pub(crate) fn write_files(report: &Report, args: &LoadArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        write(path, &text)?;
    }
    if let Some(path) = &args.html {
        write(path, &html::render(report))?;
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
