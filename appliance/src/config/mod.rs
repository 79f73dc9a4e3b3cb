//! The configuration file: TOML, read in one pass that reports every mistake with its place and what would be right.
//!
//! `config/berth.toml` documents every key.

mod function;
mod port;
mod walk;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

pub use function::{Abi, Function, Handler, TypeSpec};
pub use port::{Dispatch, Driver, Fault, Header, Idle, OnUndispatchable, Pcap, Port, Ptp, Rpc};
use walk::Table;
pub use walk::{At, Note, Sink};

/// A whole configuration, free of mistakes that can be seen without starting anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What all ports share.
    pub runtime: Runtime,
    /// The ports, in file order.
    pub ports: Vec<Port>,
    /// The decoders, in file order: a decoder's position is its `decoder_id`.
    pub decoders: Vec<Decoder>,
    /// The functions that every port serves.
    pub functions: Vec<Function>,
}

/// `[runtime]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Where everything but the poll loops runs.
    pub housekeeping_cpus: Vec<usize>,
    /// Whether DPDK takes its memory from huge pages.
    pub hugepages: Hugepages,
    /// How much memory DPDK takes at start, in MiB.
    pub memory_mb: u32,
}

/// `runtime.dpdk.hugepages`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hugepages {
    /// Start only with huge pages.
    Always,
    /// Ordinary pages.
    Never,
    /// Huge pages where enough are free.
    Auto,
}

/// `[[decoder]]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoder {
    /// Unique name.
    pub name: String,
    /// Which decoder.
    pub algorithm: Algorithm,
    /// The Stim detector error model.
    pub model: At<PathBuf>,
    /// Which measurements make up each detector, as a sparse matrix; without it the measurements are the detectors.
    pub measurements: Option<At<PathBuf>>,
}

/// `decoder.algorithm`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Minimum-weight perfect matching.
    Mwpm,
    /// A table of the syndromes of up to `depth` errors.
    Lut {
        /// The most errors in an entry.
        depth: usize,
    },
}

/// What of the host the configuration is checked against.
#[derive(Debug, Clone)]
pub struct Host {
    /// The CPUs this process may run on.
    pub cpus: Vec<usize>,
    /// Whether this binary was built with DPDK.
    pub dpdk: bool,
    /// Whether there is a file at a path.
    pub is_file: fn(&Path) -> bool,
}

/// A configuration with the text it came from, so that later steps can point into it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Note>,
    /// The file.
    pub file: PathBuf,
    /// Its contents.
    pub text: String,
}

impl Loaded {
    /// A sink for what later steps find wrong.
    pub fn sink(&self) -> Sink<'_> {
        Sink::new(&self.file, &self.text)
    }
}

/// Reads and checks the file at `path`.
pub fn load(path: &Path, host: &Host) -> Result<Loaded, Vec<Note>> {
    let unreadable = |why: String| {
        let file = path.to_path_buf();
        vec![Note { file, line: 1, column: 1, field: String::new(), message: why }]
    };
    let bytes = fs::read(path).map_err(|e| unreadable(format!("cannot be read: {e}; name a TOML file")))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        unreadable(format!("byte {} is not UTF-8; save the file as UTF-8 text", e.utf8_error().valid_up_to()))
    })?;
    let (config, warnings) = parse(&text, path, host)?;
    Ok(Loaded { config, warnings, file: path.to_path_buf(), text })
}

/// Checks the document `text`; relative paths in it start at the folder of `file`. Returns the configuration and the
/// warnings, or every mistake.
pub fn parse(text: &str, file: &Path, host: &Host) -> Result<(Config, Vec<Note>), Vec<Note>> {
    let sink = Sink::new(file, text);
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        sink.mistake(error.span().unwrap_or_default(), "", format_args!("not TOML: {}", error.message()));
    }
    let mut root = Table::root(&sink, document.get_ref());
    let folder = file.parent().unwrap_or(Path::new(""));
    let config = read(&mut root, folder, host);
    root.finish();
    Ok((config, sink.finish()?))
}

fn read(root: &mut Table<'_, '_>, folder: &Path, host: &Host) -> Config {
    let runtime = runtime(root.table("runtime"), host);
    let mut names = Vec::new();
    let decoders =
        root.tables("decoder").into_iter().flatten().filter_map(|t| decoder(t, folder, host, &mut names)).collect();
    unique(root.sink(), names.iter());
    let names: Vec<_> = names.iter().map(|at| at.value.as_str()).collect();
    let ports = port::read_all(root, folder, &runtime, host);
    let functions = function::read_all(root, folder, host, &names, &ports);
    Config { runtime, ports, decoders, functions }
}

fn runtime(table: Option<Table<'_, '_>>, host: &Host) -> Runtime {
    let mut runtime = Runtime {
        housekeeping_cpus: host.cpus.first().copied().into_iter().collect(),
        hugepages: Hugepages::Auto,
        memory_mb: 256,
    };
    let Some(mut table) = table else { return runtime };
    if let Some(cpus) = port::cpu_list(&mut table, "housekeeping_cpus", host) {
        runtime.housekeeping_cpus = cpus;
    }
    if let Some(mut dpdk) = table.table("dpdk") {
        let pages = dpdk.value("hugepages", "true, false or \"auto\"", |value| match value {
            DeValue::Boolean(true) => Some(Hugepages::Always),
            DeValue::Boolean(false) => Some(Hugepages::Never),
            DeValue::String(s) if s == "auto" => Some(Hugepages::Auto),
            _ => None,
        });
        runtime.hugepages = pages.map_or(Hugepages::Auto, |at| at.value);
        runtime.memory_mb = dpdk.integer("memory_mb", 16..=1 << 20).map_or(256, |at| at.value as u32);
        dpdk.finish();
    }
    table.finish();
    runtime
}

fn decoder(mut t: Table<'_, '_>, folder: &Path, host: &Host, names: &mut Vec<At<String>>) -> Option<Decoder> {
    let name = name(&mut t, "surface-d5");
    names.extend(name.clone());
    let kind = t.choice("algorithm", &[("mwpm", false), ("lut", true)]);
    let is_lut = t.require("algorithm", kind, "algorithm = \"mwpm\" or \"lut\"");
    let depth = t.integer("depth", 1..=8);
    if is_lut.as_ref().is_some_and(|at| !at.value) {
        t.refuse(&["depth"], "only algorithm = \"lut\" has a depth");
    }
    let model = t.text("model");
    let model =
        t.require("model", model, "model = \"decoders/surface_d5.dem\"").and_then(|at| file_at(&t, at, folder, host));
    let measurements = t.text("measurements").and_then(|at| file_at(&t, at, folder, host));
    t.finish();
    let depth = depth.map_or(1, |at| at.value as usize);
    let algorithm = if is_lut?.value { Algorithm::Lut { depth } } else { Algorithm::Mwpm };
    Some(Decoder { name: name?.value, algorithm, model: model?, measurements })
}

/// The key `name`: 1 to 64 printable characters without spaces.
fn name(t: &mut Table<'_, '_>, example: &str) -> Option<At<String>> {
    let at = t.text("name");
    let at = t.require("name", at, format_args!("name = \"{example}\""))?;
    if !(1..=64).contains(&at.value.len()) || !at.value.bytes().all(|b| b.is_ascii_graphic()) {
        t.sink().wrong(
            &at,
            format_args!("{:?} is not a name; use 1 to 64 printable ASCII characters, no spaces", at.value),
        );
        return None;
    }
    Some(at.map(str::to_string))
}

/// A path relative to `folder` at which there must be a file.
fn file_at(t: &Table<'_, '_>, at: At<&str>, folder: &Path, host: &Host) -> Option<At<PathBuf>> {
    let path = folder.join(at.value);
    if !(host.is_file)(&path) {
        t.sink().wrong(&at, format_args!("there is no file {}; paths are relative to this file", path.display()));
        return None;
    }
    Some(at.map(|_| path))
}

/// Reports names that were given before.
fn unique<'n>(sink: &Sink<'_>, names: impl Iterator<Item = &'n At<String>>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(&name.value) {
            sink.wrong(name, format_args!("\"{}\" is taken; each name is used once", name.value));
        }
    }
}
