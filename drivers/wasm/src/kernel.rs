//! Ring kernels (K6): instances that live on and answer messages on the thread that asks.

use std::sync::Arc;

use berth_tasklet::{
    hostcall::Hostcalls,
    run::{Limits, Rejected},
};
use wasmtime::{Extern, Memory, Result, Store, TypedFunc};

use crate::{
    hostcalls::{Guest, Host, Stopped},
    profile::Role,
    run::{BadAlloc, Program, Wasm, output, why},
};

/// What a ring kernel may have.
#[derive(Debug, Clone, Copy)]
pub struct KernelLimits {
    /// Fuel units for a message; as many to make an instance.
    pub fuel: u64,
    /// Most bytes of linear memory.
    pub memory: u64,
    /// Most bytes of a message; the instance takes room for as many when it is made.
    pub request: u32,
    /// Most bytes of an answer.
    pub response: u32,
}

/// Why a message has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The kernel says so, with a code of its own. Its state lives on.
    #[error("the kernel failed with code {0}")]
    Failed(u32),
    /// It trapped, used its fuel or returned what is not in its memory; the next message finds a fresh instance.
    #[error("{0}")]
    Trapped(String),
}

/// A ring kernel of one core.
pub struct RingKernel {
    program: Arc<Program>,
    limits: KernelLimits,
    instance: Option<Instance>,
}

impl std::fmt::Debug for RingKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RingKernel").field("limits", &self.limits).finish_non_exhaustive()
    }
}

struct Instance {
    store: Store<Guest>,
    memory: Memory,
    run: TypedFunc<(i32, i32), i64>,
    /// Where the room for messages begins in memory, by `ring_kernel_alloc`.
    room: u32,
}

impl Wasm {
    /// Compiles a ring kernel. It has no instance before its first message.
    ///
    /// # Errors
    /// Why it cannot run here.
    pub fn ring_kernel(&self, wasm: &[u8], limits: KernelLimits) -> Result<RingKernel, Rejected> {
        Ok(RingKernel { program: Arc::new(self.program(wasm, Role::RingKernel)?), limits, instance: None })
    }
}

impl RingKernel {
    /// A kernel that has its instance already.
    ///
    /// # Errors
    /// What its start functions or its `ring_kernel_alloc` did.
    pub(crate) fn started(
        program: Arc<Program>,
        limits: KernelLimits,
        log: &mut dyn Hostcalls,
    ) -> Result<Self, NoAnswer> {
        // SAFETY: it is taken out of the store below, or dropped with it, before this returns.
        let (host, _) = unsafe { Host::two(log) };
        let mut kernel = Self { program, limits, instance: None };
        let mut instance = kernel.program.instance(limits, host).map_err(|error| kernel.trapped(&error))?;
        instance.store.data_mut().host = None;
        kernel.instance = Some(instance);
        Ok(kernel)
    }

    fn trapped(&self, error: &wasmtime::Error) -> NoAnswer {
        NoAnswer::Trapped(why(error, &self.limits.of_run()).1.unwrap_or_default())
    }

    /// Answers a message in its raw format, and says how long the answer in `out` is. `log` gets the kernel's log records, and
    /// no other call.
    ///
    /// # Errors
    /// [`NoAnswer`].
    ///
    /// # Panics
    /// If the message is longer than [`KernelLimits::request`], or `out` shorter than [`KernelLimits::response`].
    pub fn answer(&mut self, message: &[u8], log: &mut dyn Hostcalls, out: &mut [u8]) -> Result<usize, NoAnswer> {
        // SAFETY: it is taken out of the store below, or dropped with it, before this returns.
        let (host, _) = unsafe { Host::two(log) };
        let answered = match self.instance.take() {
            Some(mut instance) => {
                instance.store.data_mut().host = Some(host);
                Ok(instance)
            }
            None => self.program.instance(self.limits, host),
        }
        .and_then(|mut instance| {
            let answer = instance.answer(message, self.limits.fuel, out)?;
            instance.store.data_mut().host = None;
            self.instance = Some(instance);
            Ok(answer)
        });
        match answered {
            Ok(Ok(len)) => Ok(len),
            Ok(Err(code)) => Err(NoAnswer::Failed(code)),
            Err(error) => Err(self.trapped(&error)),
        }
    }
}

impl Program {
    /// An instance with room for messages.
    fn instance(&self, limits: KernelLimits, host: Host) -> Result<Instance> {
        let mut store = Store::new(self.pre.module().engine(), Guest::new(Some(host), limits.of_run()));
        store.limiter(|guest| guest);
        store.set_fuel(u64::MAX)?;
        let instance = self.pre.instantiate(&mut store)?;
        let memory = instance.get_module_export(&mut store, &self.memory).and_then(Extern::into_memory);
        let memory = memory.expect("checked");
        store.data_mut().memory = Some(memory);
        store.data_mut().bounded = self.bounded;
        store.set_fuel(limits.fuel.saturating_add(1))?;
        let mut function = |export| instance.get_module_export(&mut store, export).and_then(Extern::into_func);
        let before: Vec<_> = self.before.iter().filter_map(&mut function).collect();
        let alloc = self.alloc.as_ref().and_then(&mut function).expect("checked");
        let run = function(&self.run).expect("checked").typed(&store)?;
        for function in before {
            function.typed::<(), ()>(&store)?.call(&mut store, ())?;
        }
        let room = alloc.typed::<i32, i32>(&store)?.call(&mut store, limits.request.cast_signed())?.cast_unsigned();
        let end = u64::from(room) + u64::from(limits.request);
        if end > memory.data_size(&store) as u64 {
            return Err(BadAlloc.into());
        }
        Ok(Instance { store, memory, run, room })
    }
}

impl Instance {
    fn answer(&mut self, message: &[u8], fuel: u64, out: &mut [u8]) -> Result<Result<usize, u32>> {
        let store = &mut self.store;
        store.set_fuel(fuel.saturating_add(1))?;
        let room = self.room as usize;
        // Memory never shrinks.
        self.memory.data_mut(&mut *store)[room..room + message.len()].copy_from_slice(message);
        let returned = self.run.call(&mut *store, (self.room.cast_signed(), message.len() as i32))?;
        if store.get_fuel()? == 0 {
            return Err(Stopped::Fuel.into());
        }
        Ok(output(store, self.memory, returned)?.map(|answer| {
            out[..answer.len()].copy_from_slice(answer);
            answer.len()
        }))
    }
}

impl KernelLimits {
    /// Calls are bounded by their price; no turn is asked for, as fuel bounds a message to less than one.
    fn of_run(self) -> Limits {
        Limits { fuel: self.fuel, memory: self.memory, output: u64::from(self.response), hostcalls: u64::MAX }
    }
}
