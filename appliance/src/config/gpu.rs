//! `[[gpu]]`: GPUs that serve rings, and what they run.

use std::{path::PathBuf, time::Duration};

use berth_gpu::{Code, Functions, Module};
use berth_keys::{At, Table};
use berth_qec::mock::SyndromeFile;
use berth_wire::rpc::fnv1a;

use super::{Config, Handler, Hip, Memory, Port, Rpc, name, unique};

/// A GPU: the one in software, since no other is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Unique name.
    pub name: String,
    /// Thread blocks of each ring.
    pub blocks: u32,
    /// How long its kernel may show no life.
    pub limit: Duration,
}

/// The GPUs of a document.
#[derive(Debug, Default)]
pub(super) struct Gpus {
    /// Those that serve rings.
    pub(super) all: Vec<Gpu>,
    names: Vec<At<String>>,
    /// The names of those for sessions of HIP Remote.
    pub(super) hip: Vec<At<String>>,
}

impl Gpus {
    /// Warns of those that nothing names.
    pub(super) fn warn_of_unused(&self, root: &Table<'_, '_>, ports: &[Port], hip: Option<&Hip>) {
        for (index, name) in self.names.iter().enumerate() {
            let serves = |rpc: &Rpc| rpc.ring.memory == Memory::Gpu(index);
            if !ports.iter().filter_map(Port::rpc).any(serves) {
                let message =
                    format_args!("no port names it; write rpc.gpu = \"{}\" in those that are to use it", name.value);
                root.sink().warn(name.span.clone(), &name.field, message);
            }
        }
        for name in &self.hip {
            if !hip.is_some_and(|hip| hip.devices.iter().any(|(gpu, _)| *gpu == name.value)) {
                let message = format_args!("no [[hip.device]] names it; write gpu = \"{}\" in one", name.value);
                root.sink().warn(name.span.clone(), &name.field, message);
            }
        }
    }
}

/// Reads `[[gpu]]`.
pub(super) fn read_all(root: &mut Table<'_, '_>) -> Gpus {
    let mut gpus = Gpus::default();
    for mut t in root.tables("gpu").into_iter().flatten() {
        let name = name(&mut t, "gpu0");
        let device = t.text("device");
        let device = t.require("device", device, "device = \"soft\", the GPU in software");
        if let Some(at) = device.filter(|at| at.value != "soft") {
            let message =
                format_args!("\"{}\" needs NVIDIA's driver, which this Berth does not use; write \"soft\"", at.value);
            t.sink().wrong(&at, message);
        }
        let serves_rings = t.chosen("use", &[("dispatch", true), ("hip", false)]);
        let blocks = t.number("blocks") as u32;
        let limit = Duration::from_millis(t.number("time_limit_ms"));
        t.finish();
        if serves_rings {
            gpus.names.extend(name.clone());
            gpus.all.extend(name.map(|name| Gpu { name: name.value, blocks, limit }));
        } else {
            gpus.hip.extend(name);
        }
    }
    unique(root.sink(), gpus.names.iter().chain(&gpus.hip));
    gpus
}

impl Config {
    /// What a GPU runs, of all ports, and which function of the configuration each is.
    pub fn gpu_functions(&self, gpu: usize) -> (Functions, Vec<usize>) {
        let serves = |rpc: &&Rpc| rpc.ring.memory == Memory::Gpu(gpu);
        let rpcs: Vec<_> = self.ports.iter().filter_map(|port| port.rpc()).filter(serves).collect();
        let (mut functions, mut places, mut files) = (Functions::default(), Vec::new(), Vec::<&PathBuf>::new());
        for (place, function) in self.functions.iter().enumerate() {
            if !rpcs.iter().any(|rpc| rpc.is_on_gpu(function.dispatch)) {
                continue;
            }
            let (code, parallel, (fixed, unit)) = match &function.handler.value {
                Handler::RpcIncrement => (Code::Increment, false, (0, 1)),
                Handler::MockDecode { table } => {
                    let measurements = table.num_measurements() as u32;
                    (Code::MockDecode { measurements, observables: 1, rows: rows(table) }, false, (measurements, 0))
                }
                Handler::Gpu { file, text, symbol, parallel, schema } => {
                    let known = files.iter().position(|known| *known == file);
                    let module = known.unwrap_or_else(|| {
                        files.push(file);
                        functions.modules.push(Module { name: file.display().to_string(), text: text.to_string() });
                        files.len() - 1
                    });
                    (Code::Symbol { module, symbol: symbol.clone() }, *parallel, schema.arg_lengths().parts())
                }
                _ => continue,
            };
            functions.all.push(berth_gpu::Function { id: fnv1a(&function.name), code, parallel, fixed, unit });
            places.push(place);
        }
        (functions, places)
    }
}

/// The table of `mock_decode` in hex digits: measurements and correction of each shot.
fn rows(table: &SyndromeFile) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = table.shots().flat_map(|(measurements, correction)| measurements.iter().copied().chain([correction]));
    bytes.flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}
