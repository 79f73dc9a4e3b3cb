//! HIP's C functions, on the GPUs of a HIP Remote worker.
//!
//! The worker is where `BERTH_HIP_WORKER` says, `HOST:PORT`, by default `127.0.0.1:18515`. The first call that needs it
//! connects. What fails later than the call that asked for it is told by the next one that waits, as on a GPU of this host.
//!
//! ```text
//! a C program ─▶ devices, memory, streams, modules, graphs ─▶ library: what the program made ─▶ berth_hip ─▶ worker
//!       its kernels' stubs ─▶ fat: code objects that the compiler put into it
//!       any other function of HIP ─▶ unsupported: 801
//! ```
#![allow(non_snake_case, reason = "the names are HIP's")]

mod args;
mod devices;
mod errors;
mod fat;
mod graphs;
mod image;
mod library;
mod memory;
mod modules;
mod rows;
mod streams;
mod unsupported;
