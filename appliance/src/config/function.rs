//! `[[function]]`: what a request can call, on every port.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    Dispatch, Host, Port, name, port, unique,
    walk::{At, Table, instead},
};

/// One function of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name whose FNV-1a hash is the function's id.
    pub name: String,
    /// What runs.
    pub handler: At<Handler>,
    /// Where it runs; without it, where the port says.
    pub dispatch: Option<Dispatch>,
    /// A call that takes longer is counted as an overrun, in microseconds.
    pub budget_us: Option<u64>,
}

/// `function.handler` with the keys that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handler {
    /// Adds one to every byte.
    RpcIncrement,
    /// Looks measurements up in a table file.
    MockDecode {
        /// The table.
        table: PathBuf,
    },
    /// Decodes detection events in one call.
    QecDecode {
        /// Position in [`super::Config::decoders`].
        decoder: usize,
    },
    /// Decoding server: buffers measurements.
    EnqueueSyndromes,
    /// Decoding server: reads corrections.
    GetCorrections,
    /// Decoding server: starts a session over.
    ResetDecoder,
    /// A symbol of a shared library.
    Plugin {
        /// The library.
        library: PathBuf,
        /// The exported function.
        symbol: String,
        /// How it is called.
        abi: Abi,
        /// Its arguments, at most eight.
        args: Vec<TypeSpec>,
        /// Its results, at most four.
        results: Vec<TypeSpec>,
    },
}

/// `function.abi`: how CUDA-Q calls a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    /// The handler reads the whole request slot and writes the whole response slot.
    HostCall,
    /// The handler reads arguments and writes results; Berth writes the header.
    DeviceCall,
}

/// A payload type in the words of the messaging document, such as `int32` or `bit_packed[24]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeSpec {
    /// The `PayloadTypeID`.
    pub type_id: u8,
    /// Elements; bits where bit-packed.
    pub elements: u32,
}

/// Word, `PayloadTypeID`, and whether a count in brackets follows.
const TYPES: [(&str, u8, bool); 10] = [
    ("uint8", 0x10, false),
    ("int32", 0x11, false),
    ("int64", 0x12, false),
    ("float32", 0x13, false),
    ("float64", 0x14, false),
    ("array_uint8", 0x20, true),
    ("array_int32", 0x21, true),
    ("array_float32", 0x22, true),
    ("array_float64", 0x23, true),
    ("bit_packed", 0x30, true),
];

impl std::str::FromStr for TypeSpec {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (word, count) = match text.strip_suffix(']') {
            Some(rest) => rest.split_once('[').map(|(word, count)| (word, Some(count))).ok_or(())?,
            None => (text, None),
        };
        let (_, type_id, counted) = TYPES.iter().find(|entry| entry.0 == word).ok_or(())?;
        let elements = match (counted, count) {
            (true, Some(count)) => count.parse().ok().filter(|n| (1..=1 << 20).contains(n)).ok_or(())?,
            (false, None) => 1,
            _ => return Err(()),
        };
        Ok(Self { type_id: *type_id, elements })
    }
}

impl fmt::Display for TypeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match TYPES.iter().find(|entry| entry.1 == self.type_id) {
            Some((word, _, true)) => write!(f, "{word}[{}]", self.elements),
            Some((word, _, false)) => f.write_str(word),
            None => write!(f, "0x{:02x}[{}]", self.type_id, self.elements),
        }
    }
}

const BUILTINS: [&str; 6] =
    ["rpc_increment", "mock_decode", "qec_decode", "enqueue_syndromes", "get_corrections", "reset_decoder"];
const PLUGIN_KEYS: &[&str] = &["abi", "args", "results"];

pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    folder: &Path,
    host: &Host,
    decoders: &[&str],
    ports: &[Port],
) -> Vec<Function> {
    let mut names = Vec::new();
    let mut functions = Vec::new();
    let mut ids: BTreeMap<u32, String> = BTreeMap::new();
    let tables = root.tables("function").unwrap_or_default();
    if tables.is_empty() {
        let message = "no [[function]] is given, every request will be refused; add one, such as rpc_increment";
        root.sink().warn(0..0, "function", message);
    }
    for mut t in tables {
        let name = name(&mut t, "qec_decode");
        if let Some(name) = &name {
            let other = ids.insert(fnv1a(&name.value), name.value.clone()).filter(|other| *other != name.value);
            if let Some(other) = other {
                t.sink().wrong(name, format_args!("\"{}\" has the same id as \"{other}\"; rename one", name.value));
            }
        }
        let handler = handler(&mut t, folder, host, decoders);
        let dispatch = port::dispatch(&mut t);
        if dispatch == Some(Dispatch::Ring)
            && let Some(port) = ports.iter().find(|port| port.rpc.worker_cpus.is_empty())
        {
            let message = format_args!("port \"{}\" has no workers; give it rpc.worker_cpus", port.name);
            t.sink().mistake(t.span(), &format!("{}.dispatch", t.path()), message);
        }
        let budget_us = t.integer("budget_us", 1..=10_000_000).map(|at| at.value);
        t.finish();
        names.extend(name.clone());
        if let (Some(name), Some(handler)) = (name, handler) {
            functions.push(Function { name: name.value, handler, dispatch, budget_us });
        }
    }
    unique(root.sink(), names.iter());
    functions
}

fn handler(t: &mut Table<'_, '_>, folder: &Path, host: &Host, decoders: &[&str]) -> Option<At<Handler>> {
    let text = t.text("handler");
    let decoder = t.text("decoder");
    let table = t.text("table");
    let abi = t.choice("abi", &[("host_call", Abi::HostCall), ("device_call", Abi::DeviceCall)]);
    let args = types(t, "args", 8);
    let results = types(t, "results", 4);
    let text =
        t.require("handler", text, "handler = \"builtin:rpc_increment\" or \"plugin:/usr/lib/berth/mine.so#symbol\"")?;

    if let Some(plugin) = text.value.strip_prefix("plugin:") {
        t.refuse(&["decoder", "table"], "plug-ins have abi, args and results");
        let abi = t.require("abi", abi, "abi = \"host_call\" or \"device_call\"");
        let Some((library, symbol)) = plugin.split_once('#').filter(|(lib, sym)| !lib.is_empty() && !sym.is_empty())
        else {
            t.sink().wrong(&text, "names no symbol; write \"plugin:/path/to/library.so#symbol\"");
            return None;
        };
        let path = super::file_at(t, text.clone().map(|_| library), folder, host)?;
        let (library, symbol) = (path.value, symbol.to_string());
        return Some(text.map(|_| Handler::Plugin {
            library,
            symbol,
            abi: abi.map_or(Abi::HostCall, |a| a.value),
            args,
            results,
        }));
    }
    t.refuse(PLUGIN_KEYS, "only plug-ins have it, the schema of a builtin is known");
    let Some(builtin) = text.value.strip_prefix("builtin:") else {
        t.sink().wrong(
            &text,
            format_args!("\"{}\" is not a handler; write \"builtin:NAME\" or \"plugin:PATH#SYMBOL\"", text.value),
        );
        return None;
    };
    if builtin != "qec_decode" {
        t.refuse(&["decoder"], "only builtin:qec_decode names a decoder");
    }
    if builtin != "mock_decode" {
        t.refuse(&["table"], "only builtin:mock_decode has a table");
    }
    let handler = match builtin {
        "rpc_increment" => Handler::RpcIncrement,
        "mock_decode" => {
            let table = t.require("table", table, "table = \"table.txt\"")?;
            Handler::MockDecode { table: super::file_at(t, table, folder, host)?.value }
        }
        "qec_decode" => {
            let at = t.require("decoder", decoder, "decoder = the name of a [[decoder]]")?;
            let Some(decoder) = decoders.iter().position(|name| *name == at.value) else {
                let advice = instead(at.value, decoders.iter().copied());
                t.sink().wrong(&at, format_args!("there is no decoder \"{}\"; {advice}", at.value));
                return None;
            };
            Handler::QecDecode { decoder }
        }
        "enqueue_syndromes" => Handler::EnqueueSyndromes,
        "get_corrections" => Handler::GetCorrections,
        "reset_decoder" => Handler::ResetDecoder,
        other => {
            t.sink()
                .wrong(&text, format_args!("\"{other}\" is not built in; {}", instead(other, BUILTINS.into_iter())));
            return None;
        }
    };
    Some(text.map(|_| handler))
}

fn types(t: &mut Table<'_, '_>, key: &'static str, most: usize) -> Vec<TypeSpec> {
    let Some(list) = t.texts(key) else { return Vec::new() };
    if list.value.len() > most {
        t.sink().wrong(&list, format_args!("has {} types; a schema has at most {most} {key}", list.value.len()));
    }
    let mut all = Vec::new();
    for at in &list.value {
        if let Ok(spec) = at.value.parse() {
            all.push(spec);
        } else {
            let words = TYPES.map(|(word, _, counted)| format!("{word}{}", if counted { "[N]" } else { "" }));
            t.sink().wrong(at, format_args!("\"{}\" is not a type; there are: {}", at.value, words.join(", ")));
        }
    }
    all
}

/// FNV-1a over the name: the function id of the messaging document.
fn fnv1a(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
