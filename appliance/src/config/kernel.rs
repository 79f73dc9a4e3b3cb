//! `ring_kernel.kernel`: what answers messages, built in or a WASM module (K6).

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_kernels::{Builtin, Code, Format, Runs, Schema};
use berth_keys::{At, Table, instead};

use super::{Host, Port, RingKernel, resolve, schema::MODULE};

/// A WASM module with what its code was made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    wasm: Arc<[u8]>,
    fuel: u64,
    /// Bytes of a raw request and of a raw response.
    lengths: [usize; 2],
}

/// The form of a kernel by which the schema knows what belongs to it.
pub(super) fn owner(kernel: &str) -> Option<&'static str> {
    match kernel {
        _ if kernel.starts_with("builtin:") => Some("builtin:NAME"),
        _ if kernel.starts_with("wasm:") => Some(MODULE),
        _ => None,
    }
}

/// What a kernel is to be looked at with.
pub(super) struct Context<'a> {
    pub(super) folder: &'a Path,
    pub(super) host: &'a Host,
    pub(super) ports: &'a [Port],
    /// The kernels that run now. Their code is used again where it is the same.
    pub(super) known: &'a [RingKernel],
}

/// What `kernel` names.
pub(super) enum Named {
    Builtin(Builtin),
    Module(PathBuf),
}

pub(super) fn named(t: &Table<'_, '_>, at: &At<&str>, context: &Context<'_>) -> Option<Named> {
    if let Some(word) = at.value.strip_prefix("builtin:") {
        let found = Builtin::WORDS.iter().find(|(known, _)| *known == word);
        if found.is_none() {
            let advice = instead(word, Builtin::WORDS.into_iter().map(|(known, _)| known));
            t.sink().wrong(at, format_args!("\"{word}\" is not built in; {advice}"));
        }
        return found.map(|(_, builtin)| Named::Builtin(*builtin));
    }
    let Some(path) = at.value.strip_prefix("wasm:").filter(|path| !path.is_empty()) else {
        let message = format_args!(
            "\"{}\" is not a kernel; write \"builtin:vector_add\" or \"wasm:/path/to/file.wasm\"",
            at.value
        );
        t.sink().wrong(at, message);
        return None;
    };
    let file = resolve(t, at.clone().map(|_| path), context.folder, context.host.is_file)?;
    Some(Named::Module(file.value))
}

/// What is to run, with its module if it is one. Code of `known` is used again where it is the same.
pub(super) fn runs(
    t: &Table<'_, '_>,
    at: &At<&str>,
    named: Named,
    fuel: u64,
    messages: [&Schema; 2],
    context: &Context<'_>,
) -> Option<(Runs, Option<Module>)> {
    let path = match named {
        Named::Builtin(builtin) => return Some((Runs::Builtin(builtin), None)),
        Named::Module(path) => path,
    };
    let wasm = match fs::read(&path) {
        Ok(wasm) => wasm.into(),
        Err(e) => {
            t.sink().wrong(at, format_args!("{} cannot be read: {e}", path.display()));
            return None;
        }
    };
    let module = Module { wasm, fuel, lengths: messages.map(|schema| schema.len(Format::Raw)) };
    if let Some(same) = context.known.iter().find(|known| known.module.as_ref() == Some(&module)) {
        return Some((same.settings.runs.clone(), Some(module)));
    }
    match compile(&path, &module, instances(context.ports)) {
        Ok(code) => Some((Runs::Code(code), Some(module))),
        Err(why) => {
            t.sink().wrong(at, format_args!("{}: {why}", path.display()));
            None
        }
    }
}

/// Instances that there are at most: one for each queue and each of its workers, as many during a reload, and one to try.
fn instances(ports: &[Port]) -> u32 {
    let runners = |port: &Port| Some(port.cpus.len() * (1 + port.rpc()?.rings().count()));
    (1 + 2 * ports.iter().filter_map(runners).sum::<usize>()) as u32
}

#[cfg(feature = "wasm")]
fn compile(path: &Path, module: &Module, instances: u32) -> Result<Arc<dyn Code>, String> {
    use berth_wasm::{KernelCode, KernelLimits};

    /// Bytes of linear memory of an instance.
    const MEMORY: u64 = 64 << 20;

    let [request, response] = module.lengths.map(|len| len as u32);
    let limits = KernelLimits { fuel: module.fuel, memory: MEMORY, request, response };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Arc::new(KernelCode::new(name, &module.wasm, limits, instances, crate::wasm::compiler())?))
}

#[cfg(not(feature = "wasm"))]
fn compile(_: &Path, _: &Module, _: u32) -> Result<Arc<dyn Code>, String> {
    Err("this build has no WASM; build it with --features wasm".into())
}
