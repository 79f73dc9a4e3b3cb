//! Which modules run here (T5, K6): what is looked at before anything is compiled.

use std::collections::HashMap;

use berth_tasklet::run::Rejected;
use wasmparser::{
    BinaryReader, Encoding, FuncType, Parser, Payload, ValType, Validator, WasmFeatures, types::EntityType,
};

use crate::engine::{FEATURES, TABLE_ELEMENTS, TABLES};

/// The import module of log records, the only one of ring kernels.
pub(crate) const LOG: &str = "fabricbios_log_v0";

/// Bytes of a page of linear memory.
const PAGE: u64 = 64 << 10;

const EXPORT_SECTION: u8 = 7;
const START_SECTION: u8 = 8;

/// What a module is meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs once, on an input.
    Tasklet,
    /// Answers messages.
    RingKernel,
}

impl Role {
    /// The function that takes room for bytes, and the one that is given them.
    pub(crate) fn functions(self) -> (&'static str, &'static str) {
        match self {
            Self::Tasklet => ("tasklet_alloc", "tasklet_run"),
            Self::RingKernel => ("ring_kernel_alloc", "ring_kernel_run"),
        }
    }
}

/// The functions that modules may import, by module and name.
pub(crate) type Signatures = HashMap<(String, String), (Vec<ValType>, Vec<ValType>)>;

/// A module that may run here.
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    /// To compile: the module, its start function exported instead of run by the instantiation.
    pub(crate) wasm: Vec<u8>,
    /// The export that is the start function.
    pub(crate) start: Option<String>,
    /// Whether it exports `_initialize`.
    pub(crate) initialize: bool,
    /// Whether it exports the role's function that takes room.
    pub(crate) alloc: bool,
    /// Bytes of linear memory that an instance begins with.
    pub(crate) memory: u64,
    /// Functions that it imports, as `module.name`.
    pub(crate) imports: Vec<String>,
}

/// Looks at a module. What makes it invalid is said before that it asks for another version of a profile (T1).
///
/// # Errors
/// Why it does not run here.
pub(crate) fn check(wasm: &[u8], role: Role, signatures: &Signatures) -> Result<Checked, Rejected> {
    let invalid = |error: wasmparser::BinaryReaderError| Rejected::Invalid(error.to_string());
    // Components would pass as such.
    if !Parser::is_core_wasm(wasm) {
        return refuse("this is no WebAssembly module");
    }
    let types = Validator::new_with_features(FEATURES).validate_all(wasm).map_err(|error| told(&error, wasm))?;
    let (alloc, run) = role.functions();
    let (mut exports, mut start, mut tables, mut newer) = (HashMap::new(), None, 0, None);
    let mut checked =
        Checked { wasm: Vec::new(), start: None, initialize: false, alloc: false, memory: 0, imports: Vec::new() };
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(invalid)? {
            Payload::Version { encoding: Encoding::Component, .. } => return refuse("components do not run here"),
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.map_err(invalid)?;
                    let EntityType::Func(id) = types.as_ref().entity_type_from_import(&import).expect("a valid module")
                    else {
                        return refuse(format!("{}.{} is not a function", import.module, import.name));
                    };
                    let name = format!("{}.{}", import.module, import.name);
                    let known = signatures.get(&(import.module.to_owned(), import.name.to_owned()));
                    let known = known.filter(|_| role == Role::Tasklet || import.module == LOG);
                    match known {
                        Some(known) if !is(types[id].unwrap_func(), known) => {
                            return refuse(format!("{name} has another signature"));
                        }
                        Some(_) => checked.imports.push(name),
                        None if version(import.module).is_some_and(|version| version > 0) => newer = Some(name),
                        None => return refuse(format!("{name} is unknown")),
                    }
                }
            }
            Payload::TableSection(section) => {
                for table in section {
                    tables += 1;
                    let elements = table.map_err(invalid)?.ty.initial;
                    if elements > u64::from(TABLE_ELEMENTS) {
                        return refuse(format!("a table of {elements} elements: at most {TABLE_ELEMENTS}"));
                    }
                }
            }
            Payload::MemorySection(section) => {
                for memory in section {
                    checked.memory = memory.map_err(invalid)?.initial * PAGE;
                }
            }
            Payload::ExportSection(section) => {
                for export in section {
                    let export = export.map_err(invalid)?;
                    let exported = types.as_ref().entity_type_from_export(&export).expect("a valid module");
                    exports.insert(export.name.to_owned(), exported);
                }
            }
            Payload::StartSection { func, .. } => start = Some(func),
            _ => {}
        }
    }
    if tables > TABLES {
        return refuse(format!("{tables} tables: at most {TABLES}"));
    }
    if !matches!(exports.get("memory"), Some(EntityType::Memory(_))) {
        return refuse("it does not export its memory as \"memory\"");
    }
    let i32s = |count| vec![ValType::I32; count];
    let function = |name: &str, (params, results)| match exports.get(name) {
        None => Ok(false),
        Some(EntityType::Func(id)) if is(types[*id].unwrap_func(), &(params, results)) => Ok(true),
        Some(_) => Err(Rejected::Invalid(format!("{name} has another signature"))),
    };
    if !function(run, (i32s(2), vec![ValType::I64]))? {
        return refuse(format!("it does not export {run}"));
    }
    checked.alloc = function(alloc, (i32s(1), i32s(1)))?;
    if role == Role::RingKernel && !checked.alloc {
        return refuse(format!("it does not export {alloc}"));
    }
    checked.initialize = function("_initialize", (vec![], vec![]))?;
    if let Some(newer) = newer {
        return Err(Rejected::UnsupportedProfile(format!("{newer}: this node has version 0")));
    }
    checked.start = start.map(|_| {
        let mut name = "start".to_owned();
        while exports.contains_key(&name) {
            name.push('\'');
        }
        name
    });
    checked.wasm = match (start, &checked.start) {
        (Some(function), Some(name)) => without_start(wasm, function, name).map_err(invalid)?,
        _ => wasm.to_vec(),
    };
    Ok(checked)
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Rejected> {
    Err(Rejected::Invalid(why.into()))
}

/// Why a module is not valid; where all that WASM has would take it, that it is the proposal.
fn told(error: &wasmparser::BinaryReaderError, wasm: &[u8]) -> Rejected {
    let known = Validator::new_with_features(WasmFeatures::all()).validate_all(wasm).is_ok();
    Rejected::Invalid(if known {
        format!("a feature that this profile leaves out: {error}")
    } else {
        error.to_string()
    })
}

fn is(function: &FuncType, (params, results): &(Vec<ValType>, Vec<ValType>)) -> bool {
    function.params() == params && function.results() == results
}

/// N of `fabricbios_<name>_v<N>`.
fn version(module: &str) -> Option<u64> {
    let (name, version) = module.strip_prefix("fabricbios_")?.rsplit_once("_v")?;
    let plain = !name.is_empty() && version.starts_with(|first| ('1'..='9').contains(&first));
    let plain = plain && version.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too long is one that is greater than 0, too.
    plain.then(|| version.parse().unwrap_or(u64::MAX))
}

/// The same module, whose start function is exported by this name instead. What initializes memory and tables is then out of
/// the way when fuel begins to count, whatever wasmtime charges for it: T4 has no price for it.
fn without_start(wasm: &[u8], function: u32, name: &str) -> Result<Vec<u8>, wasmparser::BinaryReaderError> {
    let (header, sections) = wasm.split_at(8);
    let mut reader = BinaryReader::new(sections, 8);
    let mut out = header.to_vec();
    while !reader.eof() {
        let id = reader.read_u8()?;
        let len = reader.read_var_u32()?;
        let contents = reader.read_bytes(len as usize)?;
        match id {
            START_SECTION => {}
            EXPORT_SECTION => {
                let mut exports = BinaryReader::new(contents, 0);
                let count = exports.read_var_u32()?;
                let mut section = leb128(count + 1);
                section.extend_from_slice(exports.read_bytes(exports.bytes_remaining())?);
                section.extend(leb128(name.len() as u32));
                section.extend_from_slice(name.as_bytes());
                section.push(0);
                section.extend(leb128(function));
                out.push(id);
                out.extend(leb128(section.len() as u32));
                out.extend(section);
            }
            _ => {
                out.push(id);
                out.extend(leb128(len));
                out.extend_from_slice(contents);
            }
        }
    }
    Ok(out)
}

fn leb128(mut value: u32) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}
