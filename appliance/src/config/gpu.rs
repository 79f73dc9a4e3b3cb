//! `[[gpu]]`: GPUs that serve rings, and what they run; those that are leased; those of HIP Remote.

use std::time::Duration;

use berth_gpu::{Choice, Code, Functions, Module};
use berth_keys::{At, Table};
use berth_qec::{gpu::ModuleError, mock::SyndromeFile};
use berth_wire::rpc::fnv1a;

use super::{Backing, Config, Handler, Hip, Memory, Port, Region, Rpc, name, unique};

/// A GPU that serves rings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Unique name: 1 to 64 printable ASCII characters, no spaces.
    pub name: String,
    /// The GPU in software, NVIDIA's first, or one by its PCI address or UUID.
    pub device: Choice,
    /// Thread blocks that serve a ring, 1 to 256. The slots of a ring are a multiple of them.
    pub blocks: u32,
    /// How long its kernel may show no life before it is killed: 100 ms to 10 min.
    pub limit: Duration,
}

/// The GPUs of a document.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// Those that serve rings.
    pub(super) all: Vec<Gpu>,
    names: Vec<At<String>>,
    /// Those for sessions of HIP Remote, with their device.
    pub(super) hip: Vec<(At<String>, Choice)>,
    /// Those whose memory is leased, with their device and the time limit of their kernels.
    pub(super) leased: Vec<(At<String>, Choice, Duration)>,
}

/// `gpu.use`
#[derive(Debug, Clone, Copy)]
enum Use {
    Dispatch,
    Hip,
    Lease,
}

impl Gpus {
    /// Warns of those that nothing names.
    pub(super) fn warn_of_unused(&self, root: &Table<'_, '_>, ports: &[Port], hip: Option<&Hip>, regions: &[Region]) {
        for (index, name) in self.names.iter().enumerate() {
            let serves = |rpc: &Rpc| serves(rpc, index);
            if !ports.iter().filter_map(Port::rpc).any(serves) {
                let message =
                    format_args!("no port names it; write rpc.gpu = \"{}\" in those that are to use it", name.value);
                root.sink().warn(name.span.clone(), &name.field, message);
            }
        }
        for (name, ..) in &self.leased {
            let is_its = |region: &Region| matches!(&region.backing, Backing::Gpu(gpu) if gpu.name == name.value);
            if !regions.iter().any(is_its) {
                let message = format_args!(
                    "no region names it; write a [[region]] with kind = \"vram\" and gpu = \"{}\"",
                    name.value
                );
                root.sink().warn(name.span.clone(), &name.field, message);
            }
        }
        for (name, _) in &self.hip {
            if !hip.is_some_and(|hip| hip.devices.iter().any(|(gpu, ..)| *gpu == name.value)) {
                let message = format_args!("no [[hip.device]] names it; write gpu = \"{}\" in one", name.value);
                root.sink().warn(name.span.clone(), &name.field, message);
            }
        }
    }
}

/// Reads `[[gpu]]`. One whose device is wrong stands as `Choice::Soft`: its mistake was noted.
pub(super) fn read_all(root: &mut Table<'_, '_>) -> Gpus {
    let mut gpus = Gpus::default();
    for mut t in root.tables("gpu").into_iter().flatten() {
        let name = name(&mut t, "gpu0");
        let device = t.text("device");
        let device = t.require("device", device, "device = \"auto\", or \"soft\", the GPU in software");
        let uses = t.chosen("use", &[("dispatch", Use::Dispatch), ("lease", Use::Lease), ("hip", Use::Hip)]);
        let blocks = t.number("blocks") as u32;
        let limit = Duration::from_millis(t.number("time_limit_ms"));
        // Whether it is there, who starts its worker will see.
        let choice = device.and_then(|at| match (at.value.parse::<Choice>(), uses) {
            (Ok(Choice::Hip(_)), Use::Dispatch | Use::Lease) => {
                t.sink().wrong(&at, "GPUs of AMD's serve sessions of HIP Remote alone; write use = \"hip\"");
                None
            }
            (Ok(choice), _) => Some(choice),
            (Err(what), _) => {
                t.sink().wrong(&at, format_args!("\"{}\" is no device; write {what}", at.value));
                None
            }
        });
        t.finish();
        // What is wrong was told.
        let device = choice.unwrap_or(Choice::Soft);
        match uses {
            Use::Dispatch => {
                gpus.names.extend(name.clone());
                gpus.all.extend(name.map(|name| Gpu { name: name.value, device, blocks, limit }));
            }
            Use::Hip => gpus.hip.extend(name.map(|name| (name, device))),
            Use::Lease => gpus.leased.extend(name.map(|name| (name, device, limit))),
        }
    }
    let leased = gpus.leased.iter().map(|(name, ..)| name);
    unique(root.sink(), gpus.names.iter().chain(gpus.hip.iter().map(|(name, _)| name)).chain(leased));
    gpus
}

impl Config {
    /// What the GPU at this position runs, of all ports, and the position of each function in the configuration.
    pub fn gpu_functions(&self, gpu: usize) -> (Functions, Vec<usize>) {
        let serves = |rpc: &Rpc| serves(rpc, gpu);
        let rpcs: Vec<_> =
            self.ports.iter().filter_map(|port| Some((port, port.rpc()?))).filter(|(_, rpc)| serves(rpc)).collect();
        let rings: usize = rpcs.iter().map(|(port, _)| port.cpus.len()).sum();
        let blocks = self.gpus.get(gpu).map_or(1, |gpu| gpu.blocks) * rings as u32;
        let (mut functions, mut places, mut modules) = (Vec::new(), Vec::new(), Modules::default());
        for (place, function) in self.functions.iter().enumerate() {
            if !rpcs.iter().any(|(_, rpc)| rpc.is_on_gpu(function.dispatch)) {
                continue;
            }
            let (code, parallel, (fixed, unit)) = match &function.handler.value {
                Handler::RpcIncrement => (Code::Increment, false, (0, 1)),
                Handler::MockDecode { table } => {
                    let measurements = table.num_measurements() as u32;
                    (Code::MockDecode { measurements, observables: 1, rows: rows(table) }, false, (measurements, 0))
                }
                Handler::QecDecode(super::Decode { decoder, .. }) => {
                    let (name, tables) = (&self.decoders[*decoder].name, &self.decoders[*decoder].tables);
                    let symbol = format!("berth_decoder_{decoder}");
                    let made = || berth_qec::gpu::module(&symbol, tables, blocks);
                    // Bits of any number, and their number.
                    let Some(code) = modules.decoder(format!("decoder {name}"), symbol.clone(), made) else { continue };
                    (code, tables.is_parallel(), (4, 1))
                }
                Handler::EnqueueSyndromes | Handler::GetCorrections | Handler::ResetDecoder => {
                    let [enqueue, get, reset] = berth_qec::gpu::SERVER;
                    let (name, parallel) = match function.handler.value {
                        Handler::EnqueueSyndromes => enqueue,
                        Handler::GetCorrections => get,
                        _ => reset,
                    };
                    let all: Vec<_> = self.decoders.iter().map(|one| (&*one.tables, &one.measurements)).collect();
                    let made = || berth_qec::gpu::server("berth_server", &all, blocks);
                    let symbol = format!("berth_server_{name}");
                    let Some(code) = modules.decoder(SERVER.to_owned(), symbol, made) else { continue };
                    (code, parallel, (0, 1))
                }
                Handler::Gpu { file, text, symbol, parallel, schema, .. } => {
                    let module = modules.add(file.display().to_string(), || text.to_string());
                    (Code::Symbol { module, symbol: symbol.clone() }, *parallel, schema.arg_lengths().parts())
                }
                Handler::Plugin { .. } => continue,
            };
            let built_in = !matches!(function.handler.value, Handler::Gpu { .. });
            let checks_length = matches!(
                function.handler.value,
                Handler::EnqueueSyndromes | Handler::GetCorrections | Handler::ResetDecoder
            );
            let graph = matches!(function.handler.value, Handler::Gpu { graph: true, .. });
            let id = fnv1a(&function.name);
            functions.push(berth_gpu::Function { id, code, parallel, graph, built_in, checks_length, fixed, unit });
            places.push(place);
        }
        (Functions { all: functions, modules: modules.0, lost: false }, places)
    }
}

/// Whether the GPU at this position serves the port's own ring.
fn serves(rpc: &Rpc, gpu: usize) -> bool {
    matches!(rpc.ring.memory, Memory::Gpu(at, _) if at == gpu)
}

/// What errors call the module of the decoding server.
const SERVER: &str = "the decoding server";

/// Whether a GPU has sessions of the decoding server.
pub fn has_sessions(functions: &Functions) -> bool {
    functions.modules.iter().any(|module| module.name == SERVER)
}

/// Texts, each once.
#[derive(Default)]
struct Modules(Vec<Module>);

impl Modules {
    fn add(&mut self, name: String, text: impl FnOnce() -> String) -> usize {
        self.0.iter().position(|module| module.name == name).unwrap_or_else(|| {
            self.0.push(Module { name, text: text() });
            self.0.len() - 1
        })
    }

    /// A function of a decoder, with the code of all decoders beside it; `None` of one that GPUs have not, which was told.
    fn decoder(
        &mut self,
        name: String,
        symbol: String,
        made: impl FnOnce() -> Result<String, ModuleError>,
    ) -> Option<Code> {
        let known = self.0.iter().position(|module| module.name == name);
        let module = known.map_or_else(|| made().ok().map(|text| self.add(name, || text)), Some)?;
        self.add("the decoders".to_owned(), || berth_qec::gpu::DECODERS.to_owned());
        Some(Code::Symbol { module, symbol })
    }
}

/// The table of `mock_decode` in hex digits: measurements and correction of each shot.
fn rows(table: &SyndromeFile) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = table.shots().flat_map(|(measurements, correction)| measurements.iter().copied().chain([correction]));
    bytes.flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}
