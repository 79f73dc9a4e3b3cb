//! Results, and the forms they are given in.

pub mod case;
pub mod hlog;
pub mod html;
pub mod json;
pub mod sparse;
pub mod stream;
pub mod suite;
pub mod table;

use std::{
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
pub use json::Report;

use crate::args::{PaceArgs, ReportArgs};

/// No report is longer, in bytes.
const LONGEST: u64 = 1 << 28;

/// Reads a report: the file, or `report.json` in the folder. One of more than 256 MiB is an error.
pub fn read(path: &Path) -> anyhow::Result<Report> {
    let file = if path.is_dir() { path.join("report.json") } else { path.to_path_buf() };
    let mut text = String::new();
    File::open(&file)
        .and_then(|opened| opened.take(LONGEST + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read {}", file.display()))?;
    if text.len() as u64 > LONGEST {
        bail!("{} is longer than any report: {} MiB at most", file.display(), LONGEST >> 20);
    }
    parse(&text).with_context(|| format!("{} is no report of `berth perf`", file.display()))
}

/// Reads the text of a report; any other version than [`json::SCHEMA_VERSION`] is an error.
pub fn parse(text: &str) -> anyhow::Result<Report> {
    let report: Report = serde_json::from_str(text)?;
    if report.schema_version != json::SCHEMA_VERSION {
        bail!("its schema_version is {}; this program reads {}", report.schema_version, json::SCHEMA_VERSION);
    }
    Ok(report)
}

/// `berth perf report`: one page of several reports.
pub(crate) fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let reports = args.reports.iter().map(|path| Ok((label(path), read(path)?)));
    let reports = reports.collect::<anyhow::Result<Vec<(String, Report)>>>()?;
    let named: Vec<_> = reports.iter().map(|(name, report)| (name.as_str(), report)).collect();
    write(&args.html, &html::render(&named))?;
    println!("{}", args.html.display());
    Ok(ExitCode::SUCCESS)
}

/// What a report is called beside others: its file without the extension, or its folder.
fn label(path: &Path) -> String {
    let whole: PathBuf = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let named = if whole.ends_with("report.json") { whole.parent().unwrap_or(&whole) } else { &whole };
    named.file_stem().unwrap_or(named.as_os_str()).to_string_lossy().into_owned()
}

/// Writes the JSON document and the page, where `args` name files for them.
pub(crate) fn write_files(report: &Report, args: &PaceArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.json {
        write_json(path, report)?;
    }
    if let Some(path) = &args.html {
        write(path, &html::render(&[(report.name(), report)]))?;
    }
    Ok(())
}

/// Writes the JSON document.
pub(crate) fn write_json(path: &Path, report: &Report) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    write(path, &text)
}

pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
