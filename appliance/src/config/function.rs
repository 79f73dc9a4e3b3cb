//! `[[function]]`: what a request can call, on every port.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_keys::{At, Table, instead};
use berth_plugin::Abi;
use berth_qec::{gap::Gap, mock::SyndromeFile, readout::Readout};
use berth_rpc::handlers::Shot;
use berth_wire::rpc::{HandlerSchema, TypeDesc, TypeId, fnv1a};

use super::{
    Decoder, Gpu, Host, Memory, Mode, Place, Port, RingKernel, Rpc, contents, name, resolve, rpc,
    schema::{DEVICE, PLUGIN},
    unique,
};

/// One function of the table.
#[derive(Debug, Clone)]
pub struct Function {
    /// The name whose FNV-1a hash is the function's id.
    pub name: String,
    /// The code that serves its calls.
    pub handler: At<Handler>,
    /// Inline or behind a ring; `None`: as `port.rpc.dispatch` says.
    pub dispatch: Option<Mode>,
    /// Name of the ring, where it is behind one; `None`: the port's own.
    pub ring: Option<String>,
    /// Microseconds, up to 10 s, beyond which a call counts as an overrun; `None`: no call does.
    pub budget_us: Option<u64>,
}

/// `function.handler` with the keys that belong to it.
#[derive(Debug, Clone)]
pub enum Handler {
    /// Adds one to every byte.
    RpcIncrement,
    /// Looks measurements up in a table file.
    MockDecode {
        /// The measurements that are known, and their corrections.
        table: Arc<SyndromeFile>,
    },
    /// Decodes a shot in one call.
    QecDecode(Decode),
    /// Decoding server: buffers measurements.
    EnqueueSyndromes,
    /// Decoding server: reads corrections.
    GetCorrections,
    /// Decoding server: starts a session over.
    ResetDecoder,
    /// A symbol of a shared library.
    Plugin {
        /// Path of the shared library.
        library: PathBuf,
        /// The exported function.
        symbol: String,
        /// Its calling convention: `HOST_CALL` or `DEVICE_CALL`.
        abi: Abi,
        /// Types of its arguments and results; bytes of any number where the configuration gives none.
        schema: Box<HandlerSchema>,
    },
    /// A device function of a PTX file.
    Gpu {
        /// Path of the PTX file.
        file: PathBuf,
        /// The text of that file, read with the configuration.
        text: Arc<str>,
        /// The device function, or with `graph` the kernel.
        symbol: String,
        /// All threads of a block call it, not one.
        parallel: bool,
        /// It is a kernel, which is launched for each request.
        graph: bool,
        /// Types of its arguments and results; bytes of any number where the configuration gives none.
        schema: Box<HandlerSchema>,
    },
}

/// A function with the handler `qec_decode`.
#[derive(Debug, Clone)]
pub struct Decode {
    /// Position in [`super::Config::decoders`].
    pub decoder: usize,
    /// What its shots are.
    pub shot: Shot,
    /// Of those that are outcomes: what a wrong one does in the decoder's model.
    pub readout: Option<Arc<Readout>>,
    /// Where it answers a confidence: what that needs.
    pub gap: Option<Arc<Gap>>,
}

/// `shots`
pub const SHOTS: [(&str, Shot); 6] = [
    ("events", Shot::Events),
    ("soft4", Shot::Soft4),
    ("soft8", Shot::Soft8),
    ("float32", Shot::Float32),
    ("leakage8", Shot::Leakage8),
    ("leakage32", Shot::Leakage32),
];

/// The words for the payload types of the messaging document.
const TYPES: [(&str, TypeId); 10] = [
    ("uint8", TypeId::UInt8),
    ("int32", TypeId::Int32),
    ("int64", TypeId::Int64),
    ("float32", TypeId::Float32),
    ("float64", TypeId::Float64),
    ("array_uint8", TypeId::ArrayUInt8),
    ("array_int32", TypeId::ArrayInt32),
    ("array_float32", TypeId::ArrayFloat32),
    ("array_float64", TypeId::ArrayFloat64),
    ("bit_packed", TypeId::BitPacked),
];

/// A type such as `int32`, `bit_packed[24]`, or `array_uint8[]` for one of any length.
fn type_desc(text: &str) -> Option<TypeDesc> {
    let (word, count) = match text.strip_suffix(']') {
        Some(rest) => rest.split_once('[').map(|(word, count)| (word, Some(count)))?,
        None => (text, None),
    };
    let (_, id) = *TYPES.iter().find(|entry| entry.0 == word)?;
    match count {
        None => id.is_scalar().then(|| TypeDesc::one(id)),
        Some(_) if id.is_scalar() => None,
        Some("") => Some(TypeDesc::variable(id)),
        Some(count) => {
            let count = count.parse().ok().filter(|n| (1..=MAX_ELEMENTS).contains(n))?;
            let bytes = if id == TypeId::BitPacked { count.div_ceil(8) } else { count * id.element_size() as u32 };
            TypeDesc::new(id, bytes, count).ok()
        }
    }
}

/// How the configuration writes a type: `int32`, `bit_packed[24]`, or `array_uint8[]` for any number.
pub fn type_word(desc: &TypeDesc) -> String {
    let word = TYPES.iter().find(|entry| entry.1 == desc.type_id()).map_or("?", |entry| entry.0);
    match desc {
        desc if desc.type_id().is_scalar() => word.to_string(),
        desc if desc.is_variable() => format!("{word}[]"),
        desc => format!("{word}[{}]", desc.num_elements()),
    }
}

/// No frame carries more elements, of any type.
const MAX_ELEMENTS: u32 = 65507 * 8;

const BUILTINS: [&str; 6] =
    ["rpc_increment", "mock_decode", "qec_decode", "enqueue_syndromes", "get_corrections", "reset_decoder"];
pub(super) fn read_all(
    root: &mut Table<'_, '_>,
    folder: &Path,
    host: &Host,
    (decoders, decoder_names): (&[Decoder], &[String]),
    (ports, gpus): (&[Port], &[Gpu]),
    rings: &[At<String>],
    kernels: &[RingKernel],
) -> Vec<Function> {
    // Where one has a mistake, positions are not those of all.
    let decoders = if decoders.len() == decoder_names.len() { decoders } else { &[] };
    let mut names = Vec::new();
    let mut functions = Vec::new();
    let messages = kernels.iter().map(|kernel| kernel.settings.request.name());
    let mut ids: BTreeMap<u32, String> = messages.clone().map(|name| (fnv1a(name), name.to_owned())).collect();
    let tables = root.tables("function").unwrap_or_default();
    if tables.is_empty() && ids.is_empty() && ports.iter().any(|port| port.rpc().is_some()) {
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
            if messages.clone().any(|message| message == name.value) {
                t.sink().wrong(
                    name,
                    format_args!("a ring kernel answers \"{}\"; give the function another name", name.value),
                );
            }
        }
        let handler = handler(&mut t, folder, host, (decoders, decoder_names));
        let dispatch = t.choice("dispatch", rpc::DISPATCH).map(|at| at.value);
        let ring = t.text("ring");
        check_ring(&t, dispatch, ring.as_ref(), ports);
        if let Some(handler) = &handler {
            check_device(&t, dispatch, handler, ports, (decoders, gpus));
        }
        let ring = ring.map(|at| at.value.to_owned());
        let budget_us = t.integer("budget_us").map(|at| at.value);
        t.finish();
        names.extend(name.clone());
        if let (Some(name), Some(handler)) = (name, handler) {
            functions.push(Function { name: name.value, handler, dispatch, ring, budget_us });
        }
    }
    unique(root.sink(), names.iter());
    one_session_place(root, &functions, ports);
    let of_functions = functions.iter().filter_map(|function| function.ring.as_ref());
    let used = of_functions.chain(kernels.iter().filter_map(|kernel| kernel.ring.as_ref()));
    let is_used = |ring: &At<String>| used.clone().any(|used| *used == ring.value);
    for ring in rings.iter().filter(|ring| !is_used(ring)) {
        let message = format_args!("no function names it; write ring = \"{}\" in those that are to use it", ring.value);
        root.sink().warn(ring.span.clone(), &ring.field, message);
    }
    functions
}

/// Reports a function or a ring kernel that goes to a ring which a port does not have.
pub(super) fn check_ring(t: &Table<'_, '_>, dispatch: Option<Mode>, ring: Option<&At<&str>>, ports: &[Port]) {
    // Where the port says, it has the workers.
    let lacks = |rpc: &Rpc| dispatch.is_some() && rpc.dispatch_of(dispatch, ring.map(|at| at.value)).is_none();
    let mut rpcs = ports.iter().filter_map(|port| Some((&port.name, port.rpc()?)));
    let Some((port, rpc)) = rpcs.find(|(_, rpc)| lacks(rpc)) else { return };
    if let Some(at) = ring {
        let advice = instead(at.value, rpc.named.iter().filter_map(|ring| ring.name.as_deref()));
        t.sink().wrong(at, format_args!("port \"{port}\" has no ring \"{}\"; {advice}", at.value));
        return;
    }
    if dispatch == Some(Mode::Gpu) {
        let message = format_args!("port \"{port}\" has no GPU; give it rpc.gpu");
        t.sink().mistake(t.span(), &format!("{}.dispatch", t.path()), message);
        return;
    }
    let (own, or) = if rpc.named.is_empty() { ("", "") } else { (" of its own", ", or name one of its rings") };
    let message = format_args!("port \"{port}\" has no workers{own}; give it rpc.worker_cpus{or}");
    t.sink().mistake(t.span(), &format!("{}.dispatch", t.path()), message);
}

/// Reports a function that is to run on a GPU and has no code for it, or the other way round.
fn check_device(
    t: &Table<'_, '_>,
    dispatch: Option<Mode>,
    handler: &At<Handler>,
    ports: &[Port],
    (decoders, gpus): (&[Decoder], &[Gpu]),
) {
    let on_cpus = |decoder: &&Decoder| !decoder.tables.runs_on_gpus();
    for (port, rpc) in ports.iter().filter_map(|port| Some((&port.name, port.rpc()?))) {
        let is_on_gpu = rpc.is_on_gpu(dispatch);
        let lacking = match &handler.value {
            Handler::Gpu { .. } if !is_on_gpu => {
                let message = format_args!("port \"{port}\" runs it on no GPU; write dispatch = \"gpu\"");
                return t.sink().wrong(handler, message);
            }
            _ if !is_on_gpu => continue,
            Handler::Gpu { graph: true, .. } if matches!(rpc.ring.memory, Memory::Gpu(_, Place::Vram)) => {
                let message = format_args!(
                    "port \"{port}\" has requests in the GPU's memory, and a graph's are in memory of the host; write \
                     memory = \"pinned\" there"
                );
                return t.sink().wrong(handler, message);
            }
            Handler::Plugin { .. } => {
                let message = format_args!(
                    "port \"{port}\" runs it on a GPU, which has no code for it; give it another dispatch"
                );
                return t.sink().wrong(handler, message);
            }
            Handler::QecDecode(decode) if decode.shot != Shot::Events || decode.gap.is_some() => {
                let message = format_args!(
                    "port \"{port}\" runs it on a GPU, where shots are events and answers have no confidence; give it \
                     another dispatch"
                );
                return t.sink().wrong(handler, message);
            }
            Handler::QecDecode(decode) => decoders.get(decode.decoder).filter(on_cpus),
            Handler::EnqueueSyndromes | Handler::GetCorrections | Handler::ResetDecoder => {
                if let Memory::Gpu(gpu, _) = rpc.ring.memory
                    && let Some(Gpu { name, .. }) = gpus.get(gpu).filter(|gpu| gpu.blocks != 1)
                {
                    let message = format_args!(
                        "the blocks of GPU \"{name}\" share the requests of port \"{port}\", and have no sessions in \
                         common; write blocks = 1"
                    );
                    return t.sink().wrong(handler, message);
                }
                decoders.iter().find(on_cpus)
            }
            Handler::RpcIncrement | Handler::MockDecode { .. } | Handler::Gpu { .. } => None,
        };
        if let Some(Decoder { name, .. }) = lacking {
            let message = format_args!(
                "port \"{port}\" runs it on a GPU, and decoder \"{name}\" runs on CPUs alone: lut and relay_bp in fixed point run on GPUs, \
                 with up to 64 observables"
            );
            return t.sink().wrong(handler, message);
        }
    }
}

/// The three functions of the decoding server share sessions, which live where the functions run.
fn one_session_place(root: &Table<'_, '_>, functions: &[Function], ports: &[Port]) {
    use Handler::{EnqueueSyndromes, GetCorrections, ResetDecoder};
    let server = |f: &&Function| matches!(f.handler.value, EnqueueSyndromes | GetCorrections | ResetDecoder);
    for (port, rpc) in ports.iter().filter_map(|port| Some((port, port.rpc()?))) {
        let place = |function: &Function| rpc.dispatch_of(function.dispatch, function.ring.as_deref());
        let mut served = functions.iter().filter(server);
        let Some(first) = served.next() else { return };
        if let Some(other) = served.find(|function| place(function) != place(first)) {
            let message = format_args!(
                "port \"{}\" runs it elsewhere than \"{}\", without its sessions; give both the same dispatch and ring",
                port.name, first.name
            );
            root.sink().wrong(&other.handler, message);
        }
    }
}

/// The form of a handler by which the schema knows what belongs to it.
fn owner(handler: &str) -> Option<&'static str> {
    match handler {
        "builtin:qec_decode" => Some("builtin:qec_decode"),
        "builtin:mock_decode" => Some("builtin:mock_decode"),
        _ if handler.starts_with("builtin:") => Some("builtin:NAME"),
        _ if handler.starts_with("plugin:") => Some(PLUGIN),
        _ if handler.starts_with("gpu:") => Some(DEVICE),
        _ => None,
    }
}

fn handler(
    t: &mut Table<'_, '_>,
    folder: &Path,
    host: &Host,
    (decoders, names): (&[Decoder], &[String]),
) -> Option<At<Handler>> {
    let text = t.text("handler");
    t.decide("handler", text.as_ref().and_then(|at| owner(at.value)));
    let decoder = t.text("decoder");
    let (shot, confidence) = (t.chosen("shots", &SHOTS), t.is_on("confidence"));
    let table = t.text("table");
    let abi = t.choice("abi", &[("host_call", Abi::HostCall), ("device_call", Abi::DeviceCall)]);
    let parallel = t.choice("parallel", &[("thread", false), ("block", true)]).is_some_and(|at| at.value);
    let graph = t.choice("mode", &[("call", false), ("graph", true)]).is_some_and(|at| at.value);
    let args = types(t, "args");
    let results = types(t, "results");
    let text =
        t.require("handler", text, "handler = \"builtin:rpc_increment\" or \"plugin:/usr/lib/berth/mine.so#symbol\"")?;

    let file = text.value.strip_prefix("plugin:").map(|rest| (rest, "plugin:/path/to/library.so#symbol"));
    let file = file.or_else(|| text.value.strip_prefix("gpu:").map(|rest| (rest, "gpu:/path/to/file.ptx#symbol")));
    if let Some((file, example)) = file {
        let is_device = text.value.starts_with("gpu:");
        let abi = if is_device { abi } else { t.require("abi", abi, "abi = \"host_call\" or \"device_call\"") };
        let Some((file, symbol)) = file.split_once('#').filter(|(file, sym)| !file.is_empty() && !sym.is_empty())
        else {
            t.sink().wrong(&text, format_args!("names no symbol; write \"{example}\""));
            return None;
        };
        let path = resolve(t, text.clone().map(|_| file), folder, host.is_file)?;
        let code = if is_device { Some(contents(t, &path, host)?) } else { None };
        let (library, symbol) = (path.value, symbol.to_string());
        let schema = match HandlerSchema::new(&args, &results) {
            Ok(schema) => schema,
            Err(e) => {
                t.sink().wrong(&text, format_args!("its args and results make no schema: {e}"));
                return None;
            }
        };
        let schema = Box::new(schema);
        if let Some(code) = code {
            return Some(text.map(|_| Handler::Gpu {
                file: library,
                text: code.into(),
                symbol,
                parallel,
                graph,
                schema,
            }));
        }
        let abi = abi?.value;
        return Some(text.map(|_| Handler::Plugin { library, symbol, abi, schema }));
    }
    let Some(builtin) = text.value.strip_prefix("builtin:") else {
        t.sink().wrong(
            &text,
            format_args!(
                "\"{}\" is not a handler; write \"builtin:NAME\", \"plugin:PATH#SYMBOL\" or \"gpu:PATH#SYMBOL\"",
                text.value
            ),
        );
        return None;
    };
    let handler = match builtin {
        "rpc_increment" => Handler::RpcIncrement,
        "mock_decode" => {
            let table = t.require("table", table, "table = \"table.txt\"")?;
            Handler::MockDecode { table: syndromes(t, &resolve(t, table, folder, host.is_file)?, host)? }
        }
        "qec_decode" => {
            let at = t.require("decoder", decoder, "decoder = the name of a [[decoder]]")?;
            let Some(decoder) = names.iter().position(|name| *name == at.value) else {
                let advice = instead(at.value, names.iter().map(String::as_str));
                t.sink().wrong(&at, format_args!("there is no decoder \"{}\"; {advice}", at.value));
                return None;
            };
            Handler::QecDecode(decode(t, decoder, decoders.get(decoder), shot, confidence))
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

/// What a `qec_decode` takes and answers; reports what its decoder cannot do.
fn decode(t: &Table<'_, '_>, at: usize, decoder: Option<&Decoder>, shot: Shot, confidence: bool) -> Decode {
    let mut decode = Decode { decoder: at, shot, readout: None, gap: None };
    // One with a mistake has reported it.
    let Some(Decoder { name, tables, measurements, .. }) = decoder else { return decode };
    let wrong = |key: &str, message: std::fmt::Arguments<'_>| {
        t.sink().mistake(t.place(key), &format!("{}.{key}", t.path()), message);
    };
    if shot != Shot::Events {
        match Readout::new(tables, measurements) {
            Ok(readout) => decode.readout = Some(Arc::new(readout)),
            Err(e) => wrong("shots", format_args!("decoder \"{name}\" takes events alone: {e}")),
        }
    }
    if confidence {
        match Gap::new(tables) {
            Ok(gap) => decode.gap = Some(Arc::new(gap)),
            Err(e) => wrong("confidence", format_args!("decoder \"{name}\" has no confidence: {e}")),
        }
    }
    decode
}

/// Reads the table of `mock_decode`, a syndrome file.
fn syndromes(t: &Table<'_, '_>, at: &At<PathBuf>, host: &Host) -> Option<Arc<SyndromeFile>> {
    match SyndromeFile::parse(&contents(t, at, host)?) {
        Ok(file) => Some(Arc::new(file)),
        Err(e) => {
            t.sink().wrong(at, format_args!("not a syndrome file: {}:{}: {}", at.value.display(), e.line, e.message));
            None
        }
    }
}

/// The types under `key`; without it, bytes of any number.
fn types(t: &mut Table<'_, '_>, key: &'static str) -> Vec<TypeDesc> {
    let Some(list) = t.texts(key) else { return vec![TypeDesc::variable(TypeId::ArrayUInt8)] };
    let mut all = Vec::new();
    for at in list.value {
        if let Some(desc) = type_desc(at.value) {
            all.push(desc);
        } else {
            let words = TYPES.map(|(word, id)| format!("{word}{}", if id.is_scalar() { "" } else { "[N]" }));
            t.sink().wrong(&at, format_args!("\"{}\" is not a type; there are: {}", at.value, words.join(", ")));
        }
    }
    all
}
