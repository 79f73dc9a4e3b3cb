//! What responses carry. The first four bytes are the error code; behind another one than 0 nothing follows.
#![allow(missing_docs, reason = "fields have the names of the specification")]

use zerocopy::little_endian::{F32, I32, U32, U64};

use crate::nvme::macros::layout;

layout! {
    /// `HipRemoteResponseHeader`: of requests that return nothing, and of all that fail.
    pub struct Status: 4 {
        0 pub error_code: I32,
    }

    /// A number: `GET_DEVICE_COUNT`, `GET_DEVICE`, `DEVICE_GET_ATTRIBUTE`, the versions and the like.
    pub struct Int: 8 {
        0 pub error_code: I32,
        4 pub value: I32,
    }

    /// `EVENT_ELAPSED_TIME`.
    pub struct Milliseconds: 8 {
        0 pub error_code: I32,
        4 pub milliseconds: F32,
    }

    /// A pointer, a handle or a size.
    pub struct Long: 12 {
        0 pub error_code: I32,
        4 pub value: U64,
    }

    /// `MEM_GET_INFO`.
    pub struct MemInfo: 20 {
        0 pub error_code: I32,
        4 pub free_bytes: U64,
        12 pub total_bytes: U64,
    }

    /// `POINTER_GET_ATTRIBUTES`.
    pub struct PointerAttributes: 36 {
        0 pub error_code: I32,
        /// 2: device memory.
        4 pub memory_type: I32,
        8 pub device: I32,
        12 pub device_pointer: U64,
        20 pub host_pointer: U64,
        28 pub is_managed: I32,
        32 pub allocation_flags: U32,
    }

    /// `GET_DEVICE_PROPERTIES`.
    pub struct DeviceProperties: 628 {
        0 pub error_code: I32,
        4 pub name: [u8; 256],
        260 pub total_global_mem: U64,
        268 pub shared_mem_per_block: U64,
        276 pub regs_per_block: I32,
        280 pub warp_size: I32,
        284 pub max_threads_per_block: I32,
        288 pub max_threads_dim: [I32; 3],
        300 pub max_grid_size: [I32; 3],
        312 pub clock_rate: I32,
        316 pub memory_clock_rate: I32,
        320 pub memory_bus_width: I32,
        324 pub major: I32,
        328 pub minor: I32,
        332 pub multi_processor_count: I32,
        336 pub l2_cache_size: I32,
        340 pub max_threads_per_multi_processor: I32,
        344 pub compute_mode: I32,
        348 pub pci_bus_id: I32,
        352 pub pci_device_id: I32,
        356 pub pci_domain_id: I32,
        360 pub integrated: I32,
        364 pub can_map_host_memory: I32,
        368 pub concurrent_kernels: I32,
        372 pub gcn_arch_name: [u8; 256],
    }

    /// Where an argument lies in the argument buffer.
    pub struct Parameter: 8 {
        0 pub offset: U32,
        4 pub size: U32,
    }

    /// `MODULE_GET_FUNCTION`.
    pub struct Function: 532 {
        0 pub error_code: I32,
        4 pub function: U64,
        /// Bytes of the argument buffer.
        12 pub num_args: U32,
        16 pub num_params: U32,
        20 pub params: [Parameter; 64],
    }

    /// `MODULE_LOAD_AND_GET_FUNCTION`.
    pub struct ModuleFunction: 540 {
        0 pub error_code: I32,
        4 pub module: U64,
        12 pub function: U64,
        /// Bytes of the argument buffer.
        20 pub num_args: U32,
        24 pub num_params: U32,
        28 pub params: [Parameter; 64],
    }

    /// `GET_ERROR_STRING`, `GET_ERROR_NAME`.
    pub struct ErrorText: 260 {
        0 pub error_code: I32,
        4 pub text: [u8; 256],
    }

    /// `OCCUPANCY_MAX_POTENTIAL_BLOCK_SIZE`.
    pub struct BlockSize: 12 {
        0 pub error_code: I32,
        4 pub min_grid_size: I32,
        8 pub block_size: I32,
    }

    /// `BERTH_CHALLENGE`.
    pub struct Nonce: 36 {
        0 pub error_code: I32,
        4 pub nonce: [u8; 32],
    }

    /// `MALLOC_BATCH`.
    pub struct Pointers: 524 {
        0 pub error_code: I32,
        4 pub count: U32,
        8 pub reserved: U32,
        12 pub ptrs: [U64; 64],
    }

    /// `STREAM_CREATE_BATCH`, `EVENT_CREATE_BATCH`.
    pub struct Handles: 268 {
        0 pub error_code: I32,
        4 pub count: U32,
        8 pub reserved: U32,
        12 pub handles: [U64; 32],
    }
}

/// A text in a field of fixed length, cut so that a NUL ends it.
pub fn text<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}
