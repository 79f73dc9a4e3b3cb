//! Kernels of GPU leases.

use berth_wire::fabric::{BindingTlv, Bytes, GpuStatus, GpuSubmit, GpuSubmitted, List, Op, ShortText, Tlvs, Wire as _};

use crate::{Client, Error, Grant, Token};

/// Arguments of GPU_SUBMIT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// The GPU, of the node's inventory. Where the presenter has several leases of it, the token names the lease.
    pub resource: u128,
    /// PTX text.
    pub binary: Vec<u8>,
    /// The kernel's name.
    pub name: String,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Each argument; pointers into the lease count from [`Grant::vram`].
    pub args: Vec<Vec<u8>>,
    /// Offset in the lease, and length, of what is returned.
    pub output: (u64, u32),
}

/// How a kernel ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRan {
    /// The status.
    pub status: GpuStatus,
    /// Its number on the node; 0 if it was not run.
    pub submit_id: u64,
    /// 0, or what CUDA calls the error.
    pub exit_code: i32,
    /// What was asked for; or why the binary is not loaded.
    pub output: Vec<u8>,
}

impl Client {
    /// Runs a kernel in a lease of a GPU. The answer comes when it has ended. `token` must permit EXEC.
    pub async fn gpu_submit(&self, token: &Token, kernel: &Kernel) -> Result<KernelRan, Error> {
        let sizes: Vec<u32> = kernel.args.iter().map(|arg| arg.len() as u32).collect();
        let args = kernel.args.concat();
        let params = GpuSubmit {
            resource_id: kernel.resource,
            binary: Bytes::of(&kernel.binary)?,
            kernel_name: ShortText::of(&kernel.name)?,
            grid_dim: kernel.grid,
            block_dim: kernel.block,
            args: Bytes::of(&args)?,
            arg_sizes: List::of(&sizes)?,
            output_offset: kernel.output.0,
            output_size: kernel.output.1,
        };
        let result = self.call(Op::GpuSubmit, 0, Some(token), &params.to_vec()).await?;
        let GpuSubmitted { status, submit_id, exit_code, output } = GpuSubmitted::parse(&result)?;
        Ok(KernelRan { status, submit_id, exit_code, output: output.get().to_vec() })
    }
}

impl Grant {
    /// Where kernels of the lease see its first byte; `None` if it is of no GPU.
    pub fn vram(&self) -> Option<u64> {
        let tlvs = Tlvs::parse(&self.bindings).ok()?;
        tlvs.iter().find_map(|tlv| match BindingTlv::read(tlv) {
            Ok(Some(BindingTlv::GpuVram { base, .. })) => Some(base),
            _ => None,
        })
    }
}
