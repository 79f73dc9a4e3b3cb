//! Code objects of AMD's GPUs, as clients send them: which part is for a GPU, and what its kernels take. No I/O.
//!
//! ```text
//! offload bundle ── entry of the GPU's instruction set (`bundle`, `Isa`) ──▶ ELF file (`elf`) ──▶ note AMDGPU, type 32
//!                                                                                                   └─▶ kernels (`metadata`)
//! ```
//!
//! Bundles are those of clang-offload-bundler, code objects and their metadata those of LLVM's user guide for AMDGPU, from
//! version 3 on. Lengths that a file announces are looked at before anything is taken from there, and nothing is allocated for
//! what is only announced.
#![forbid(unsafe_code)]

mod bundle;
mod elf;
mod isa;
mod metadata;

pub use isa::Isa;
pub use metadata::{Kernel, PARAMETERS_MAX};

/// Why bytes are no code object for a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It breaks the format.
    #[error("{0}")]
    Broken(&'static str),
    /// It is for other GPUs.
    #[error("{0}")]
    Foreign(&'static str),
    /// It may be sound, and is not taken.
    #[error("{0}")]
    Refused(&'static str),
}

/// A code object for one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeObject<'a> {
    /// The ELF file.
    pub elf: &'a [u8],
    /// Its kernels, in its order.
    pub kernels: Vec<Kernel>,
}

/// The code object for a GPU of this instruction set in a bundle, or in a file that is one. Bytes behind it are ignored.
///
/// # Errors
/// [`Error::Foreign`] where nothing is for that GPU.
pub fn find<'a>(bytes: &'a [u8], gpu: &Isa<'_>) -> Result<CodeObject<'a>, Error> {
    let elf = if bundle::is_one(bytes) { bundle::entry(bytes, gpu)? } else { bytes };
    let (target, kernels) = metadata::read(elf::metadata(elf)?)?;
    // Metadata of version 3 do not tell, and the driver looks.
    if let Some(target) = target
        && !Isa::of_target(target).is_some_and(|isa| isa.runs_on(gpu))
    {
        return Err(Error::Foreign("a code object for another GPU"));
    }
    Ok(CodeObject { elf, kernels })
}
