//! A software GPU: PTX text, as clang and nvcc emit it, is parsed, linked, checked and interpreted. No I/O.
//!
//! [`Module::parse`] reads a text, [`Program::link`] joins modules and decodes their functions, [`Device::launch`] runs a
//! kernel over a [`Memory`]. What is not covered is refused when it is loaded, by line; every access of a kernel is
//! checked, and what a kernel does wrong is told by thread and line. [`binary`] reads what other compilers make of it. Sections are those of the PTX ISA manual, 8.5.
#![forbid(unsafe_code)]

mod alu;
pub mod binary;
mod bound;
mod decode;
mod error;
mod exec;
mod layout;
mod lex;
mod link;
mod memory;
mod module;
mod parse;
mod program;
mod types;

pub use error::{Access, Fault, FaultKind, LaunchError, LoadError, Reason};
pub use exec::{Device, Host, Launch, Scratch, Statistics};
pub use link::check;
pub use memory::{Allocations, Memory, Order, Refused, Scope, Semantics, Width};
pub use module::{Function, Linkage, Module, Param, Signature};
pub use parse::TEXT_MAX;
pub use program::{Parameter, Program};
pub use types::{Class, Space, Type};
