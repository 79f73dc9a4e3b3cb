//! Runs WASM tasklets and ring kernels (`docs/wasm.md`): modules are checked, compiled in a process of its own, and run
//! metered, in memory of their own.
//!
//! What is trusted: wasmtime, the compiler in the child process too. A child limits what compiling costs; a child that was taken over
//! could return any machine code, as code is not checked once more where it is loaded. Compiled code is authenticated, so that
//! nobody else's is.

mod code;
mod code_memory;
mod compile;
mod engine;
mod fuel;
mod hostcalls;
mod kernel;
mod process;
mod profile;
mod run;

pub use code::KernelCode;
pub use compile::{Compiler, child};
pub use engine::Pool;
pub use kernel::{KernelLimits, NoAnswer, RingKernel};
pub use process::{Isolated, Isolation, Parent, Starter, UNIT, executor, shut_in};
pub use run::{Needs, Wasm};
