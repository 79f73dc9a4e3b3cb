//! Params and result of GPU_SUBMIT (section "GPU operations").

use super::{
    MAX_MESSAGE,
    codec::{Bytes, FabricError, List, Reader, ShortText, Wire},
    macros::{codes, wire},
};

/// Limit on a kernel's name, in bytes.
pub const MAX_KERNEL_NAME: usize = 1024;
/// Limit on the arguments of a kernel.
pub const MAX_ARGS: usize = 1024;

codes! {
    /// GPU status codes.
    pub enum GpuStatus: u8 {
        Ok = 0, "OK", "success";
        Invalid = 1, "INVALID", "the request is not valid";
        Unauthorized = 2, "UNAUTHORIZED", "not permitted";
        LoadFailed = 3, "LOAD_FAILED", "the binary could not be loaded";
        LaunchFailed = 4, "LAUNCH_FAILED", "the kernel could not be started";
        Unsupported = 5, "UNSUPPORTED", "not done here";
        ReadFailed = 6, "READ_FAILED", "the output could not be read";
    }
}

/// Params of GPU_SUBMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuSubmit<'a> {
    /// The GPU resource, from GET_INVENTORY.
    pub resource_id: u128,
    /// Compiled GPU code: HSACO, PTX or cubin.
    pub binary: Bytes<'a, MAX_MESSAGE>,
    /// Name of the kernel function within `binary`.
    pub kernel_name: ShortText<'a, MAX_KERNEL_NAME>,
    /// Number of blocks in x, y and z.
    pub grid_dim: [u32; 3],
    /// Threads per block in x, y and z.
    pub block_dim: [u32; 3],
    /// Kernel arguments, packed without gaps.
    pub args: Bytes<'a, MAX_MESSAGE>,
    /// Size of each argument in bytes; the sum is the length of `args`.
    pub arg_sizes: List<'a, u32, MAX_ARGS>,
    /// Offset in the lease's GPU memory at which the output starts, in bytes.
    pub output_offset: u64,
    /// Bytes to return from there once the kernel ends; 0 for none.
    pub output_size: u32,
}

impl GpuSubmit<'_> {
    /// Whether `arg_sizes` are together the length of `args`; where not, the answer is [`GpuStatus::Invalid`].
    pub fn adds_up(&self) -> bool {
        self.arg_sizes.iter().map(u64::from).sum::<u64>() == self.args.len() as u64
    }
}

impl<'a> Wire<'a> for GpuSubmit<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, FabricError> {
        Ok(Self {
            resource_id: from.get()?,
            binary: from.get()?,
            kernel_name: from.get()?,
            grid_dim: [from.get()?, from.get()?, from.get()?],
            block_dim: [from.get()?, from.get()?, from.get()?],
            args: from.get()?,
            arg_sizes: from.get()?,
            output_offset: from.get()?,
            output_size: from.get()?,
        })
    }

    fn write(&self, to: &mut Vec<u8>) {
        self.resource_id.write(to);
        self.binary.write(to);
        self.kernel_name.write(to);
        self.grid_dim.iter().chain(&self.block_dim).for_each(|dim| dim.write(to));
        self.args.write(to);
        self.arg_sizes.write(to);
        self.output_offset.write(to);
        self.output_size.write(to);
    }
}

wire! {
    /// Result of GPU_SUBMIT.
    pub struct GpuSubmitted<'a> {
        /// Outcome of the load and the launch.
        pub status: GpuStatus,
        /// Chosen by the node; rises with each launch.
        pub submit_id: u64,
        /// The kernel's exit code, 0 for success; on the wire the u32 with the same bits.
        pub exit_code: i32,
        /// The bytes asked for by `output_offset` and `output_size`.
        pub output: Bytes<'a, MAX_MESSAGE>,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::testing::{exact, hex},
        *,
    };

    const BYTES: &str = "00000000000000000000000000000001 00000002 aabb 0003 616464
        00000001 00000002 00000003 00000004 00000005 00000006 00000003 010203";

    #[test]
    fn launches_are_laid_out_as_documented() {
        let submit = GpuSubmit {
            resource_id: 1,
            binary: Bytes::of(&[0xAA, 0xBB]).unwrap(),
            kernel_name: ShortText::of("add").unwrap(),
            grid_dim: [1, 2, 3],
            block_dim: [4, 5, 6],
            args: Bytes::of(&[1, 2, 3]).unwrap(),
            arg_sizes: List::of(&[1, 2]).unwrap(),
            output_offset: 7,
            output_size: 8,
        };
        exact(&submit, &format!("{BYTES} 0002 00000001 00000002 0000000000000007 00000008"));
        let answer = GpuSubmitted {
            status: GpuStatus::ReadFailed,
            submit_id: 1,
            exit_code: -1,
            output: Bytes::of(&[5]).unwrap(),
        };
        exact(&answer, "06 0000000000000001 ffffffff 00000001 05");
    }

    #[test]
    fn argument_sizes_add_up() {
        for sizes in ["0001 00000002", "0001 00000004", "0000", "0002 00000004 ffffffff"] {
            let bytes = format!("{BYTES} {sizes} 0000000000000007 00000008");
            assert!(!GpuSubmit::parse(&hex(&bytes)).unwrap().adds_up(), "{sizes}");
        }
    }
}
