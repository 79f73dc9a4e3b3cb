//! Runs of a module, each in a fresh instance (T2, T5).

use std::{
    fmt,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use berth_tasklet::{
    hostcall::Hostcalls,
    run::{Executor, Limits, Module, Outcome, Rejected, Status},
};
use wasmparser::ValType;
use wasmtime::{
    Engine, ExternType, InstancePre, Linker, Memory, ModuleExport, Result, Store, Trap, WasmBacktrace, WasmParams,
    WasmResults,
};

use crate::{
    code_memory::ReadExecute,
    compile::Compiler,
    engine::{self, FUEL_SLICE, Pool},
    hostcalls::{self, Guest, Host, Stopped},
    profile::{self, Checked, Role, Signatures},
};

/// The high word of what a tasklet returns when it failed by itself.
const FAILED: u32 = u32::MAX;

/// What a tasklet needs, as far as it shows before it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// Functions that it imports, as `module.name`.
    pub imports: Vec<String>,
    /// Bytes of linear memory that it begins with.
    pub memory: u64,
}

/// Compiles and runs tasklets, on the threads that ask.
pub struct Wasm {
    engine: Engine,
    linker: Linker<Guest>,
    signatures: Signatures,
    compiler: Compiler,
}

impl fmt::Debug for Wasm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wasm").field("compiler", &self.compiler).finish_non_exhaustive()
    }
}

impl Wasm {
    /// # Errors
    /// If the addresses of the pool cannot be reserved.
    pub fn new(pool: Pool, compiler: Compiler) -> Result<Self> {
        let engine = engine::runtime(pool, Arc::new(ReadExecute))?;
        let linker = hostcalls::linker(&engine)?;
        let signatures = signatures(&linker);
        Ok(Self { engine, linker, signatures, compiler })
    }

    /// What a tasklet needs.
    ///
    /// # Errors
    /// Why it does not run here.
    pub fn needs(&self, wasm: &[u8]) -> Result<Needs, Rejected> {
        let checked = profile::check(wasm, Role::Tasklet, &self.signatures)?;
        Ok(Needs { imports: checked.imports, memory: checked.memory })
    }

    /// Compiles a tasklet as [`Executor::compile`] does, but on the thread that asks and without limits: for fuzz targets,
    /// whose modules are short.
    ///
    /// # Errors
    /// Why it does not run here.
    pub fn compile_here(&self, wasm: &[u8]) -> Result<Arc<dyn Module>, Rejected> {
        let compile = |wasm: &[u8]| engine::compiler().and_then(|engine| engine.precompile_module(wasm));
        let program = self.made(wasm, Role::Tasklet, |wasm| compile(wasm).map_err(|error| format!("{error:#}")))?;
        Ok(Arc::new(Tasklet { program, slice: FUEL_SLICE }))
    }

    /// Checks, compiles and loads a module.
    pub(crate) fn program(&self, wasm: &[u8], role: Role) -> Result<Program, Rejected> {
        self.made(wasm, role, |wasm| self.compiler.compile(wasm))
    }

    fn made(
        &self,
        wasm: &[u8],
        role: Role,
        compile: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
    ) -> Result<Program, Rejected> {
        let checked = profile::check(wasm, role, &self.signatures)?;
        let code = compile(&checked.wasm).map_err(Rejected::Invalid)?;
        self.load(&checked, role, &code).map_err(|error| Rejected::Invalid(format!("{error:#}")))
    }

    fn load(&self, checked: &Checked, role: Role, code: &[u8]) -> Result<Program> {
        // SAFETY: the code is what the compiler wrote for us, here or through a pipe that nobody else has.
        let module = unsafe { wasmtime::Module::deserialize(&self.engine, code)? };
        let Checked { start, alloc, initialize, .. } = checked;
        Program::new(
            &self.linker,
            &module,
            role,
            &Entry { start: start.clone(), alloc: *alloc, initialize: *initialize },
        )
    }
}

/// What a module begins with, as [`Checked`] says.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) start: Option<String>,
    pub(crate) alloc: bool,
    pub(crate) initialize: bool,
}

impl Program {
    /// Of a module that was checked.
    pub(crate) fn new(linker: &Linker<Guest>, module: &wasmtime::Module, role: Role, entry: &Entry) -> Result<Self> {
        let export = |name: &str| module.get_export_index(name);
        let missing = |name| move || wasmtime::Error::msg(format!("no export {name}"));
        let (alloc, run) = role.functions();
        let run = export(run).ok_or_else(missing(run))?;
        let memory = export("memory").ok_or_else(missing("memory"))?;
        let alloc = entry.alloc.then(|| export(alloc)).flatten();
        let initialize = entry.initialize.then(|| export("_initialize")).flatten();
        let before = [entry.start.as_deref().and_then(export), initialize].into_iter().flatten().collect();
        let bounded = matches!(module.get_export("memory"), Some(ExternType::Memory(ty)) if ty.maximum().is_some());
        let image = module.image_range();
        let size = image.end as u64 - image.start as u64;
        Ok(Self { pre: linker.instantiate_pre(module)?, before, alloc, run, memory, bounded, size })
    }
}

impl Executor for Wasm {
    fn compile(&self, wasm: &[u8]) -> Result<Arc<dyn Module>, Rejected> {
        Ok(Arc::new(Tasklet { program: self.program(wasm, Role::Tasklet)?, slice: FUEL_SLICE }))
    }
}

/// The types of the linker's functions, by module and name.
pub(crate) fn signatures(linker: &Linker<Guest>) -> Signatures {
    let value = |ty: wasmtime::ValType| if ty.is_i64() { ValType::I64 } else { ValType::I32 };
    let none = Limits { fuel: 0, memory: 0, output: 0, hostcalls: 0 };
    let mut store = Store::new(linker.engine(), Guest::new(None, none));
    let mut types = Vec::new();
    for (module, name, function) in linker.iter(&mut store) {
        types.push((module.to_owned(), name.to_owned(), function));
    }
    let typed = types.into_iter().filter_map(|(module, name, function)| match function.ty(&store) {
        ExternType::Func(ty) => {
            Some(((module, name), (ty.params().map(value).collect(), ty.results().map(value).collect())))
        }
        _ => None,
    });
    typed.collect()
}

/// Compiled code, with where its exports are.
pub(crate) struct Program {
    pub(crate) pre: InstancePre<Guest>,
    /// The start function and `_initialize`.
    pub(crate) before: Vec<ModuleExport>,
    pub(crate) alloc: Option<ModuleExport>,
    pub(crate) run: ModuleExport,
    pub(crate) memory: ModuleExport,
    /// Whether its memory has a maximum of the module's own.
    pub(crate) bounded: bool,
    pub(crate) size: u64,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("size", &self.size).finish_non_exhaustive()
    }
}

/// A compiled tasklet.
#[derive(Debug)]
pub(crate) struct Tasklet {
    pub(crate) program: Program,
    /// Units of guest code between two looks at whether it may go on.
    pub(crate) slice: u64,
}

impl Module for Tasklet {
    fn size(&self) -> u64 {
        self.program.size
    }

    fn takes_input(&self) -> bool {
        self.program.alloc.is_some()
    }

    fn run(&self, input: &[u8], limits: &Limits, host: &mut dyn Hostcalls) -> Outcome {
        // SAFETY: both copies are gone when this function returns, the store and with it the guest's end before; one of them is used while
        // the guest runs, the other while it does not.
        let (hosted, mut turns) = unsafe { Host::two(host) };
        let mut store = Store::new(self.program.pre.module().engine(), Guest::new(Some(hosted), *limits));
        store.limiter(|guest| guest);
        let returned = {
            let mut guest = pin!(self.guest(&mut store, input));
            let mut context = Context::from_waker(Waker::noop());
            loop {
                match guest.as_mut().poll(&mut context) {
                    Poll::Ready(returned) => break returned,
                    Poll::Pending if turns.get().turn() => {}
                    Poll::Pending => break Err(Stopped::Host.into()),
                }
            }
        };
        let left = store.get_fuel().expect("fuel is on");
        let ended = match returned {
            Ok(_) if left == 0 => Err(Stopped::Fuel.into()),
            Ok((memory, returned)) => output(&store, memory, returned),
            Err(error) => Err(error),
        };
        let (status, output, reason) = match ended {
            Ok(Ok(output)) => (Status::Ok, output.to_vec(), None),
            Ok(Err(code)) => (
                Status::ExecFailed,
                code.to_be_bytes().to_vec(),
                Some(format!("the tasklet failed with code {}", code.cast_signed())),
            ),
            Err(error) => {
                let (status, reason) = why(&error, limits);
                (status, Vec::new(), reason)
            }
        };
        // The store's one unit more than the run's is no fuel of it.
        let fuel = limits.fuel.saturating_add(1).saturating_sub(left).min(limits.fuel);
        Outcome { status, output, fuel, hostcalls: store.data().hostcalls, reason }
    }
}

impl Tasklet {
    /// What `tasklet_run` returned. It is pending each time that so many units were used as a slice has.
    async fn guest(&self, store: &mut Store<Guest>, input: &[u8]) -> Result<(Memory, i64)> {
        // Initializing memory and tables has no price.
        store.set_fuel(u64::MAX)?;
        let instance = self.program.pre.instantiate(&mut *store)?;
        let memory =
            instance.get_module_export(&mut *store, &self.program.memory).and_then(wasmtime::Extern::into_memory);
        let memory = memory.expect("checked");
        store.data_mut().memory = Some(memory);
        store.data_mut().bounded = self.program.bounded;
        // wasmtime stops a guest when it has used all. One unit more, and it stops when it has used more than all.
        let fuel = store.data().limits.fuel.saturating_add(1);
        store.data_mut().asked = fuel;
        store.data_mut().slice = self.slice;
        store.set_fuel(fuel)?;
        store.fuel_async_yield_interval(Some(self.slice))?;
        for function in &self.program.before {
            call::<(), ()>(store, instance, function, ()).await?;
        }
        let len = input.len() as u32;
        let mut start = 0;
        if let Some(alloc) = self.program.alloc.as_ref().filter(|_| len > 0) {
            start = call::<_, i32>(store, instance, alloc, len.cast_signed()).await?;
            let at = start.cast_unsigned() as usize;
            let room = memory.data_mut(&mut *store).get_mut(at..at + input.len());
            room.ok_or(BadAlloc)?.copy_from_slice(input);
        }
        let returned = call(store, instance, &self.program.run, (start, len.cast_signed())).await?;
        Ok((memory, returned))
    }
}

/// The output that a returned value names, or the code of a guest that failed by itself.
pub(crate) fn output(store: &Store<Guest>, memory: Memory, returned: i64) -> Result<Result<&[u8], u32>> {
    let (high, low) = ((returned >> 32) as u32, returned as u32);
    if high == FAILED {
        return Ok(Err(low));
    }
    let (start, len) = (high as usize, low as usize);
    let output = memory.data(store).get(start..start + len).ok_or(BadOutput { start: high, len: low })?;
    if u64::from(low) > store.data().limits.output {
        return Err(LongOutput(low).into());
    }
    Ok(Ok(output))
}

async fn call<P: WasmParams + Sync, R: WasmResults + Sync>(
    store: &mut Store<Guest>,
    instance: wasmtime::Instance,
    export: &ModuleExport,
    params: P,
) -> Result<R> {
    let function = instance.get_module_export(&mut *store, export).and_then(wasmtime::Extern::into_func);
    function.expect("checked").typed::<P, R>(&*store)?.call_async(store, params).await
}

#[derive(Debug, thiserror::Error)]
#[error("it gave room outside memory for what it is to work on")]
pub(crate) struct BadAlloc;

#[derive(Debug, thiserror::Error)]
#[error("it returned {len} bytes at {start}, which is outside memory")]
struct BadOutput {
    start: u32,
    len: u32,
}

#[derive(Debug, thiserror::Error)]
#[error("output of {0} bytes")]
struct LongOutput(u32);

/// How a run that failed went, and what a person needs to know of it.
pub(crate) fn why(error: &wasmtime::Error, limits: &Limits) -> (Status, Option<String>) {
    let within = || {
        let function = error.downcast_ref::<WasmBacktrace>().and_then(|trace| trace.frames().first());
        function.map_or_else(String::new, |frame| match frame.func_name() {
            Some(name) => format!(" in {name}"),
            None => format!(" in function {}", frame.func_index()),
        })
    };
    let fuel = || (Status::FuelExhausted, Some(format!("out of fuel{}: the limit is {} units", within(), limits.fuel)));
    if let Some(stopped) = error.downcast_ref::<Stopped>() {
        return match stopped {
            Stopped::Fuel => fuel(),
            Stopped::Hostcalls => {
                (Status::HostcallLimit, Some(format!("{stopped}{}: the limit is {}", within(), limits.hostcalls)))
            }
            Stopped::Memory(_) => {
                (Status::OutOfMemory, Some(format!("{stopped}{}: the limit is {}", within(), limits.memory)))
            }
            Stopped::Pointer => (Status::ExecFailed, Some(format!("{stopped}{}", within()))),
            Stopped::Host => (Status::ExecFailed, None),
        };
    }
    if let Some(long) = error.downcast_ref::<LongOutput>() {
        return (Status::OutOfMemory, Some(format!("{long}: the limit is {}", limits.output)));
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => fuel(),
        Some(trap) => (Status::ExecFailed, Some(format!("{trap}{}", within()))),
        None => (Status::ExecFailed, Some(error.to_string())),
    }
}
