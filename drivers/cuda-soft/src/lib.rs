//! A `libcuda.so.1` for tests: the functions of NVIDIA's driver that Berth calls, over the GPU in software.
//!
//! It has two GPUs, which are one. What the driver would wait for beside a kernel that runs, perhaps for ever, is an error here,
//! as is a call by a thread without a context; what a kernel does that it must not costs the context, as with the driver. With
//! `CUDA_VISIBLE_DEVICES` set to nothing it has no GPU; `CUDA_SOFT_OPENS_MS` is how long it takes to open, `CUDA_SOFT_ROOM_MIB`
//! how much of its own memory a process can have; with `CUDA_SOFT_TELLS` it tells what memory it sets; `CUDA_SOFT_DMA_BUF` has
//! it export no such memory, or what is of no use; with `CUDA_SOFT_NVJITLINK` it links nothing that NVIDIA's own linker,
//! `libnvJitLink.so.12`, does not. A dma-buf is of one allocation alone. A cubin is the PTX that it was linked from; of a fat
//! binary it takes the PTX, as a driver does that has no code for its GPU, and NVIDIA's own cubins it refuses.
#![allow(non_snake_case, reason = "the functions are named by cuda.h")]

mod device;
mod launch;
mod linker;
mod memory;
mod module;
mod state;
mod vram;

use std::{env, io, os::unix::fs::symlink, path::PathBuf};

/// A folder for `LD_LIBRARY_PATH`, in which the library has the driver's name. It lies beside the test that asks for it.
pub fn folder() -> io::Result<PathBuf> {
    let test = env::current_exe()?;
    let folder = test.with_file_name("cuda-soft");
    std::fs::create_dir_all(&folder)?;
    match symlink(test.with_file_name("libberth_cuda_soft.so"), folder.join("libcuda.so.1")) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(folder),
    }
}
