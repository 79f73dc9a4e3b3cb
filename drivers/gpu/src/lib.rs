//! RPC functions on a GPU: devices, the dispatcher that never stops, and the worker process that has the device.
//!
//! ```text
//! berth ── Gpu ── control socket ──▶ berth-gpu-worker ── Device: soft, cuda ──▶ berth_dispatch, a kernel that never stops
//!   └── Producer ── ring in memory that both map (host API's layout) ──────────────┘
//! ```
//!
//! [`Device`] is what the worker needs of a GPU; [`Soft`] is the one in software, [`Cuda`] has NVIDIA's driver. Sessions of HIP
//! Remote need less (`session/device.rs`), which AMD's have as well (`hip`). The dispatcher, built-in functions and
//! plug-ins are PTX, which [`Functions`] checks and links, the same for every device. [`Gpu`] keeps the worker running. No
//! GPU driver is ever opened in the process of `berth`: after a fault only a new process has a device that works. A worker shuts itself in
//! ([`shut_in`]) before it opens a device.

mod child;
mod choice;
mod control;
mod cuda;
mod device;
mod dispatch;
mod functions;
mod gpu;
mod graphs;
mod hip;
mod lease;
mod mapping;
mod once;
mod ptx_entries;
mod session;
mod soft;
mod vram;
mod walls;
pub mod worker;

pub use choice::{Address, Choice, NoChoice};
pub use control::{Code, Function, Functions, Module};
pub use cuda::{Card, Cards, Cuda, Health, refused_node};
pub use device::{Buffer, Device, DeviceError, GraphId, Launch, Parameter, ProgramId};
pub use functions::{Problem, check};
pub use gpu::{COUNTERS, Gpu, GpuCounts, GpuError, RingFile, RingFrames, RingVram, Settings};
pub use lease::{LeaseSettings, LeasedGpu, LeasedMemory};
pub use once::{Argument, Job, Ran, cards, run};
pub use session::{
    Command, Facts, KernelFacts, Rows, SLOT, SLOTS, SessionCounts, SessionGpu, SessionSettings, Standing, Value,
    is_told,
};
pub use soft::Soft;
pub use vram::{Vram, VramBlocks};
pub use walls::shut_in;
