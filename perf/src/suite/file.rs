//! The files of suites and baselines: what they say, and every mistake with its place.
//!
//! Shapes are serde's; a mistake carries the file, the line, the column and the field, as those of the configuration do.
//! Commands are one line each, cut at spaces; `{name}` in them and in configurations is filled in when they run.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use clap::Parser;
use serde::{Deserialize, de::DeserializeOwned};
use toml::de::{DeTable, DeValue};

use super::vars;
use crate::PerfCommand;

/// A suite: `perf/suites/NAME.toml`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// What it is for, in a line.
    pub about: String,
    /// How often each case is measured, 1 to 10,000; turns of all cases and baselines alternate.
    #[serde(default = "one")]
    pub turns: u32,
    /// Seconds measured in each turn, more than 0 and at most 3600; 1 by default.
    #[serde(default = "one_second")]
    pub seconds: f64,
    /// Seconds of warm-up before them, at most 3600; 0.2 by default.
    #[serde(default = "warmup")]
    pub warmup: f64,
    /// The servers that cases ask.
    #[serde(default)]
    pub server: Vec<Server>,
    /// What is measured, turn by turn.
    #[serde(default)]
    pub case: Vec<Case>,
    /// Load from below to beyond what a server can answer.
    pub overload: Option<Overload>,
    /// Mixed load for a long time.
    pub soak: Option<Soak>,
}

/// A server: `berth run` with a configuration of its own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The name by which cases of this file refer to it.
    pub name: String,
    /// What the build and the host must have.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// The configuration of `berth run`, as TOML.
    pub config: String,
}

/// What a server or a baseline cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// The DPDK driver in this build.
    Dpdk,
    /// The libfabric driver in this build.
    Ofi,
    /// RDMA in this build, and a device.
    Rdma,
    /// An `io_uring` that this kernel allows.
    Uring,
}

/// A case.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it does, for people; no other case of the file has it, and reports are compared by it.
    pub name: String,
    /// Which server it asks; none with `--port loopback`.
    pub server: Option<String>,
    /// `berth perf`'s arguments, which begin with `rpc`, `lease`, `nvme`, `hip` or `stream`; with `--count` the suite gives it no time.
    pub client: String,
    /// What runs in turns with it: `perf/baselines/NAME.toml`.
    #[serde(default)]
    pub baselines: Vec<String>,
    /// Lost and doubled requests are no failure.
    #[serde(default)]
    pub expect_losses: bool,
    /// Distance of the code that a stream's rounds are of: the report names the largest that a core sustains.
    pub distance: Option<u32>,
}

/// Load from below to beyond what a server can answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overload {
    /// Name of the server that is loaded.
    pub server: String,
    /// `berth perf`'s arguments but for the pacing.
    pub client: String,
    /// Requests outstanding where saturation is measured, by a closed loop: 1 to 65,536.
    pub window: u32,
    /// Offered loads in parts of saturation, rising, from 0.01 to 100.
    pub loads: Vec<f64>,
    /// Requests that may wait before the port, as the server's configuration has it.
    pub queue: u32,
    /// Goodput past saturation, in parts of its peak, at least: 0 to 1.
    pub goodput: f64,
}

/// Mixed load for a long time.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Soak {
    /// Name of the server; its configuration has `[admin]`.
    pub server: String,
    /// Seconds, from 0.1 to a week, unless the command line says otherwise.
    pub seconds: f64,
    /// Seconds between two samples, from 0.1 to a week.
    pub every: f64,
    /// KiB that resident memory may grow from the second quarter of the time to the last.
    pub growth_kib: u64,
    /// The loads, which run at the same time.
    pub load: Vec<Load>,
}

/// One load of a soak.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Its name in the report.
    pub name: String,
    /// `berth perf`'s arguments; the client runs again and again.
    pub client: String,
    /// Seconds of each of its runs, from 0.1 to a week.
    pub seconds: f64,
    /// What the build and the host must have, beside what the server needs.
    #[serde(default)]
    pub needs: Vec<Need>,
}

/// A baseline: `perf/baselines/NAME.toml`. Either a server that our client asks, or a program with a client of its own.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// What it is, in a line.
    pub about: String,
    /// The program that must be in a folder of `PATH`.
    pub program: String,
    /// The Debian package that brings it.
    pub package: String,
    /// What the host must have.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// A command that makes something first, once: a C program that is built.
    pub build: Option<String>,
    /// The server's command.
    pub server: String,
    /// The line on its standard output that says that it is ready begins so; without it, it has half a second.
    pub ready: Option<String>,
    /// Instead of a client of its own: what `berth perf` is told besides the case's own arguments, in place of
    /// `--port`, `--peer` and `--device`.
    pub client: Option<String>,
    /// The command of its own client, in place of `client`; it needs `figure`.
    pub run: Option<String>,
    /// What the figure is that its client prints.
    pub figure: Option<Figure>,
}

/// A figure in what a program prints.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// What it measures, such as `round trip, median`.
    pub what: String,
    /// Its unit, after scaling.
    pub unit: String,
    /// A regular expression, whose first group is the number; either this or `pointer`.
    pub regex: Option<String>,
    /// A JSON pointer to the number; either this or `regex`.
    pub pointer: Option<String>,
    /// What the number is multiplied by; 1 by default.
    #[serde(default = "unscaled")]
    pub scale: f64,
}

// A scale is a constant of a file and never NaN.
impl Eq for Figure {}

fn one() -> u32 {
    1
}

fn one_second() -> f64 {
    1.0
}

fn warmup() -> f64 {
    0.2
}

fn unscaled() -> f64 {
    1.0
}

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The file.
    pub file: PathBuf,
    /// 1-based line.
    pub line: usize,
    /// 1-based column, in characters.
    pub column: usize,
    /// The field as a path from the root, such as `case[0].client`; empty for what is no TOML.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, column, field, message } = self;
        write!(f, "{}:{line}:{column}: ", file.display())?;
        if !field.is_empty() {
            write!(f, "{field}: ")?;
        }
        f.write_str(message)
    }
}

/// Mistakes as an error: a line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Mistake::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Mistakes(pub Vec<Mistake>);

/// A document, for places.
struct Document<'i> {
    file: &'i Path,
    text: &'i str,
    mistakes: Vec<Mistake>,
}

impl<'i> Document<'i> {
    /// Reads the shape; a mistake in it ends the reading.
    fn read<T: DeserializeOwned>(file: &'i Path, text: &'i str) -> Result<(Self, T), Mistakes> {
        let mut document = Self { file, text, mistakes: Vec::new() };
        let read = toml::Deserializer::parse(text).map_err(|error| (String::new(), error)).and_then(|toml| {
            serde_path_to_error::deserialize(toml).map_err(|error| (error.path().to_string(), error.into_inner()))
        });
        match read {
            Ok(value) => Ok((document, value)),
            Err((field, error)) => {
                let field = if field == "." { String::new() } else { field };
                document.at(error.span().map_or(0, |span| span.start), field, error.message());
                Err(Mistakes(document.mistakes))
            }
        }
    }

    fn at(&mut self, offset: usize, field: String, message: impl fmt::Display) {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        self.mistakes.push(Mistake {
            file: self.file.to_path_buf(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            field,
            message: message.to_string(),
        });
    }

    /// Notes a mistake in a field, given as `case[0].client`.
    fn wrong(&mut self, field: impl Into<String>, message: impl fmt::Display) {
        let field = field.into();
        let offset = DeTable::parse(self.text).ok().map_or(0, |root| find(&root, &field));
        self.at(offset, field, message);
    }

    fn finish<T>(mut self, value: T) -> Result<T, Mistakes> {
        self.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        if self.mistakes.is_empty() { Ok(value) } else { Err(Mistakes(self.mistakes)) }
    }
}

/// Where a field stands; where it is absent, what would hold it.
fn find(root: &toml::Spanned<DeTable<'_>>, field: &str) -> usize {
    let mut at = root.span().start;
    let mut table = Some(root.get_ref());
    for part in field.split('.') {
        let (key, index) =
            part.split_once('[').map_or((part, None), |(key, rest)| (key, rest.trim_end_matches(']').parse().ok()));
        let Some((_, mut value)) = table.and_then(|table| table.iter().find(|(name, _)| name.get_ref() == key)) else {
            break;
        };
        if let (Some(index), DeValue::Array(all)) = (index, value.get_ref()) {
            let index: usize = index;
            let Some(element) = all.get(index) else { break };
            value = element;
        }
        at = value.span().start;
        table = value.get_ref().as_table();
    }
    at
}

impl Suite {
    /// Reads the text of a suite file; `file` only names it in mistakes.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Mistakes> {
        let (mut document, suite): (_, Self) = Document::read(file, text)?;
        suite.check(&mut document);
        document.finish(suite)
    }

    fn check(&self, document: &mut Document<'_>) {
        if !(1..=10_000).contains(&self.turns) {
            document.wrong("turns", "choose from 1 to 10000 turns");
        }
        for (field, value) in [("seconds", self.seconds), ("warmup", self.warmup)] {
            if !(0.0..=3600.0).contains(&value) || field == "seconds" && value <= 0.0 {
                document.wrong(field, "choose at most an hour, 3600 seconds");
            }
        }
        for (i, server) in self.server.iter().enumerate() {
            if self.server[..i].iter().any(|other| other.name == server.name) {
                document.wrong(format!("server[{i}].name"), "another server has this name");
            }
            let field = format!("server[{i}].config");
            match vars::dummy(&server.config) {
                Err(error) => document.wrong(field, error),
                Ok(config) => {
                    if let Err(error) = config.parse::<toml::Table>() {
                        document.wrong(field, format_args!("is no TOML: {}", error.message()));
                    }
                }
            }
        }
        for (i, case) in self.case.iter().enumerate() {
            if self.case[..i].iter().any(|other| other.name == case.name) {
                document.wrong(format!("case[{i}].name"), "another case has this name");
            }
            if let Some(server) = &case.server {
                self.check_server(document, format!("case[{i}].server"), server);
            }
            check_client(document, format!("case[{i}].client"), &case.client);
        }
        if let Some(overload) = &self.overload {
            self.check_server(document, "overload.server".into(), &overload.server);
            check_client(document, "overload.client".into(), &overload.client);
            let rising = overload.loads.windows(2).all(|pair| pair[0] < pair[1]);
            if overload.loads.is_empty() || !rising || !overload.loads.iter().all(|load| (0.01..=100.0).contains(load))
            {
                document.wrong("overload.loads", "loads rise, from 0.01 to 100 times saturation");
            }
            if !(0.0..=1.0).contains(&overload.goodput) {
                document.wrong("overload.goodput", "choose from 0 to 1");
            }
            if !(1..=65_536).contains(&overload.window) {
                document.wrong("overload.window", "choose from 1 to 65536");
            }
        }
        if let Some(soak) = &self.soak {
            self.check_server(document, "soak.server".into(), &soak.server);
            for (field, value) in [("soak.seconds", soak.seconds), ("soak.every", soak.every)] {
                if !(0.1..=604_800.0).contains(&value) {
                    document.wrong(field, "choose from 0.1 seconds to a week");
                }
            }
            for (i, load) in soak.load.iter().enumerate() {
                check_client(document, format!("soak.load[{i}].client"), &load.client);
                if !(0.1..=604_800.0).contains(&load.seconds) {
                    document.wrong(format!("soak.load[{i}].seconds"), "choose from 0.1 seconds to a week");
                }
            }
        }
        if self.case.is_empty() && self.overload.is_none() && self.soak.is_none() {
            document.wrong("case", "a suite has [[case]], [overload] or [soak]");
        }
    }

    fn check_server(&self, document: &mut Document<'_>, field: String, name: &str) {
        if !self.server.iter().any(|server| server.name == name) {
            let names: Vec<_> = self.server.iter().map(|server| server.name.as_str()).collect();
            document.wrong(field, format_args!("there is no server \"{name}\"; there are: {}", names.join(", ")));
        }
    }
}

/// Whether `berth perf` would take this command line.
fn check_client(document: &mut Document<'_>, field: String, client: &str) {
    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        _perf: PerfCommand,
    }
    let line = match vars::dummy(client) {
        Ok(line) => line,
        Err(error) => return document.wrong(field, error),
    };
    if !["rpc ", "lease ", "nvme ", "hip ", "stream "].iter().any(|command| line.starts_with(command)) {
        return document.wrong(field, "begins with rpc, lease, nvme, hip or stream, as after `berth perf`");
    }
    if let Err(error) = Cli::try_parse_from(std::iter::once("perf").chain(line.split_whitespace())) {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        document.wrong(field, format_args!("`berth perf` says: {}", first.trim_start_matches("error: ")));
    }
}

impl Baseline {
    /// Reads the text of a baseline file; `file` only names it in mistakes.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Mistakes> {
        let (mut document, baseline): (_, Self) = Document::read(file, text)?;
        let commands = [("build", &baseline.build), ("client", &baseline.client), ("run", &baseline.run)];
        let commands = commands.into_iter().filter_map(|(field, command)| Some((field, command.as_ref()?)));
        for (field, command) in commands.chain([("server", &baseline.server)]) {
            if let Err(error) = vars::dummy(command) {
                document.wrong(field, error);
            }
        }
        match (&baseline.client, &baseline.run, &baseline.figure) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => {}
            _ => document.wrong("client", "a baseline has `client`, or `run` and [figure]"),
        }
        if let Some(figure) = &baseline.figure {
            match (&figure.regex, &figure.pointer) {
                (Some(regex), None) => match regex_lite::Regex::new(regex) {
                    Ok(regex) if regex.captures_len() > 1 => {}
                    Ok(_) => document.wrong("figure.regex", "has no group (..) around the number"),
                    Err(error) => document.wrong("figure.regex", error),
                },
                (None, Some(pointer)) if pointer.starts_with('/') => {}
                _ => document.wrong("figure", "has `regex`, or a JSON `pointer` such as /end/figure"),
            }
        }
        document.finish(baseline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let mistakes = Suite::parse(Path::new("s.toml"), text).unwrap_err();
        mistakes.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn mistakes_have_their_place() {
        assert_eq!(
            mistakes("about = \"x\"\n[[case]]\nname = \"a\"\nclient = \"rpc --port loopback\"\nturn = 3\n"),
            [
                "s.toml:5:1: case[0].turn: unknown field `turn`, expected one of `name`, `server`, `client`, `baselines`, `expect_losses`, `distance`"
            ]
        );
        assert_eq!(
            mistakes("about = \"x\"\nturns = \"three\"\n"),
            ["s.toml:2:9: turns: invalid type: string \"three\", expected u32"]
        );
        assert_eq!(mistakes("about = \n").len(), 1);
        assert_eq!(
            mistakes(
                "about = \"x\"\nturns = 0\n[[server]]\nname = \"u\"\nconfig = \"port = {nowhere}\"\n[[case]]\nname = \"a\"\n\
                 server = \"v\"\nclient = \"rpc --port ipc\"\n"
            ),
            [
                "s.toml:2:9: turns: choose from 1 to 10000 turns",
                "s.toml:5:10: server[0].config: {nowhere} is unknown; there are {cpu}, {server_cpu}, {run}, {identity}, {key}, \
                 {rdma_device}, {port.NAME}, {endpoint.NAME} and {ready}",
                "s.toml:8:10: case[0].server: there is no server \"v\"; there are: u",
                "s.toml:9:10: case[0].client: `berth perf` says: invalid value 'ipc' for '--port <PORT>'",
            ]
        );
        assert_eq!(mistakes("about = \"x\"\n"), ["s.toml:1:1: case: a suite has [[case]], [overload] or [soak]"]);
    }

    #[test]
    fn baselines_have_a_client_or_a_figure() {
        let parse = |text: &str| Baseline::parse(Path::new("b.toml"), text).unwrap_err().0[0].to_string();
        let head = "about = \"x\"\nprogram = \"p\"\npackage = \"q\"\nserver = \"p\"\n";
        assert_eq!(parse(head), "b.toml:1:1: client: a baseline has `client`, or `run` and [figure]");
        assert_eq!(
            parse(&format!("{head}run = \"p\"\n[figure]\nwhat = \"x\"\nunit = \"us\"\nregex = '\\d+'\n")),
            "b.toml:9:9: figure.regex: has no group (..) around the number"
        );
    }
}
