//! The C structs and constants of the CUDA-Q Realtime host API, as LP64 little-endian memory layouts.
//!
//! `include/berth_ring.h` is the same for C and C++. Field names follow the host API; every offset is asserted at
//! compile time on both sides.

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
};

/// A slot flag: the slot is free (rx) or holds no answer (tx).
pub const FREE: u64 = 0;
/// A tx flag: the request was taken, its answer is still being made.
pub const IN_FLIGHT: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// Bits 63:48 of a tx flag that carries an error code in its low 48 bits instead of a slot address.
pub const ERROR_TAG: u64 = 0xDEAD;

/// `kernel_type`: one launch per poll loop.
pub const KERNEL_REGULAR: u32 = 0;
/// `kernel_type`: a cooperative launch.
pub const KERNEL_COOPERATIVE: u32 = 1;
/// `kernel_type`: transport and dispatch in one kernel.
pub const KERNEL_UNIFIED: u32 = 2;

/// `dispatch_mode`: the dispatcher calls a device function.
pub const DISPATCH_DEVICE_CALL: u8 = 0;
/// `dispatch_mode`: the dispatcher launches a graph.
pub const DISPATCH_GRAPH_LAUNCH: u8 = 1;
/// `dispatch_mode`: the dispatcher calls a host function.
pub const DISPATCH_HOST_CALL: u8 = 2;

/// `dispatch_path`: a device kernel polls the ring.
pub const PATH_DEVICE: u32 = 0;
/// `dispatch_path`: a host thread polls the ring.
pub const PATH_HOST: u32 = 1;

/// The most arguments a [`HandlerSchema`] describes.
pub const MAX_ARGS: usize = 8;
/// The most results a [`HandlerSchema`] describes.
pub const MAX_RESULTS: usize = 4;

/// A `HOST_CALL` handler: reads the request slot and writes the whole response, header included, into the tx slot.
pub type HostCall = unsafe extern "C" fn(rx_slot: *const c_void, tx_slot: *mut c_void, slot_size: usize);

/// A `DEVICE_CALL` handler: reads `arg_len` payload bytes, writes at most `max_result_len` and stores how many;
/// the dispatcher writes the response header. The return value is the response's status.
pub type DeviceCall = unsafe extern "C" fn(
    input: *const c_void,
    output: *mut c_void,
    arg_len: u32,
    max_result_len: u32,
    result_len: *mut u32,
) -> c_int;

/// One argument or result of a handler.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypeDesc {
    /// Payload type id (0x10 and up).
    pub type_id: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Size of the whole value in bytes.
    pub size_bytes: u32,
    /// 1 for scalars, elements for arrays, bits for bit-packed data.
    pub num_elements: u32,
}

/// What a handler takes and gives.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandlerSchema {
    /// How many of `args` are set.
    pub num_args: u8,
    /// How many of `results` are set.
    pub num_results: u8,
    /// Zero.
    pub reserved: u16,
    /// Arguments in payload order.
    pub args: [TypeDesc; MAX_ARGS],
    /// Results in payload order.
    pub results: [TypeDesc; MAX_RESULTS],
}

/// A handler's address; `dispatch_mode` of the entry says which member is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Handler {
    /// For [`DISPATCH_DEVICE_CALL`].
    pub device_call: Option<DeviceCall>,
    /// For [`DISPATCH_HOST_CALL`].
    pub host_call: Option<HostCall>,
    /// For [`DISPATCH_GRAPH_LAUNCH`]: an opaque graph handle.
    pub graph: *mut c_void,
}

/// One row of the function table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FunctionEntry {
    /// What to call.
    pub handler: Handler,
    /// FNV-1a 32 of the handler's name.
    pub function_id: u32,
    /// `DISPATCH_*`.
    pub dispatch_mode: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// What the handler takes and gives.
    pub schema: HandlerSchema,
    /// Selects an instance where several share a function id.
    pub routing_key: u64,
}

/// The function table: `count` entries at `entries`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FunctionTable {
    /// The first entry.
    pub entries: *mut FunctionEntry,
    /// How many entries there are.
    pub count: u32,
}

/// What a file of shared memory with a ring in it begins with. Offsets are from the file's first byte.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedRing {
    /// [`SHARED_MAGIC`], written when all the rest is there.
    pub magic: u64,
    /// [`SHARED_VERSION`]
    pub version: u32,
    /// Slots of the ring.
    pub slots: u32,
    /// Bytes of each slot.
    pub slot_size: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
    /// Bytes of the file.
    pub size: u64,
    /// The address of the file's first byte in the dispatcher's view: flags hold this and an offset.
    pub base: u64,
    /// The offset of the request flags.
    pub rx_flags: u64,
    /// The offset of the response flags.
    pub tx_flags: u64,
    /// The offset of the request slots.
    pub rx_data: u64,
    /// The offset of the response slots.
    pub tx_data: u64,
}

/// `SharedRing::magic`: "BERTHRNG".
pub const SHARED_MAGIC: u64 = u64::from_le_bytes(*b"BERTHRNG");

/// `SharedRing::version` of this layout.
pub const SHARED_VERSION: u32 = 1;

/// How a dispatcher is launched.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatcherConfig {
    /// Device ordinal.
    pub device_id: u32,
    /// Blocks of the kernel.
    pub num_blocks: u32,
    /// Threads of each block.
    pub threads_per_block: u32,
    /// Slots of the ring.
    pub num_slots: u32,
    /// Bytes of each slot.
    pub slot_size: u32,
    /// Virtual port.
    pub vp_id: u32,
    /// `KERNEL_*`.
    pub kernel_type: u32,
    /// `DISPATCH_*`.
    pub dispatch_mode: u32,
    /// `PATH_*`.
    pub dispatch_path: u32,
    /// Non-zero: the dispatcher does not write [`IN_FLIGHT`].
    pub skip_tx_markers: u32,
    /// Non-zero: several dispatchers share the ring.
    pub shared_ring_mode: u32,
}

/// Where a ring lies. The unsuffixed pointers are the dispatcher's view, the `_host` ones the host's view of the same
/// memory; on host memory both are equal.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ringbuffer {
    /// Request flags, one u64 per slot.
    pub rx_flags: *mut u64,
    /// Response flags, one u64 per slot.
    pub tx_flags: *mut u64,
    /// Request slots.
    pub rx_data: *mut u8,
    /// Response slots.
    pub tx_data: *mut u8,
    /// Bytes from one request slot to the next.
    pub rx_stride: usize,
    /// Bytes from one response slot to the next.
    pub tx_stride: usize,
    /// The host's view of `rx_flags`.
    pub rx_flags_host: *mut u64,
    /// The host's view of `tx_flags`.
    pub tx_flags_host: *mut u64,
    /// The host's view of `rx_data`.
    pub rx_data_host: *mut u8,
    /// The host's view of `tx_data`.
    pub tx_data_host: *mut u8,
}

// SAFETY: a description of memory: plain numbers until somebody dereferences them, which takes unsafe code that answers
// for the thread it does so from.
unsafe impl Send for Ringbuffer {}
// SAFETY: as above.
unsafe impl Sync for Ringbuffer {}

macro_rules! layout {
    ($ty:ty, $size:literal, { $($field:ident: $at:literal),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$ty>() == $size);
            $(assert!(offset_of!($ty, $field) == $at);)*
        };
    };
}

layout!(TypeDesc, 12, { type_id: 0, reserved: 1, size_bytes: 4, num_elements: 8 });
layout!(HandlerSchema, 148, { num_args: 0, num_results: 1, reserved: 2, args: 4, results: 100 });
layout!(FunctionEntry, 176, {
    handler: 0, function_id: 8, dispatch_mode: 12, reserved: 13, schema: 16, routing_key: 168,
});
layout!(FunctionTable, 16, { entries: 0, count: 8 });
layout!(DispatcherConfig, 44, {
    device_id: 0, num_blocks: 4, threads_per_block: 8, num_slots: 12, slot_size: 16, vp_id: 20, kernel_type: 24,
    dispatch_mode: 28, dispatch_path: 32, skip_tx_markers: 36, shared_ring_mode: 40,
});
layout!(SharedRing, 80, {
    magic: 0, version: 8, slots: 12, slot_size: 16, stride: 24, size: 32, base: 40,
    rx_flags: 48, tx_flags: 56, rx_data: 64, tx_data: 72,
});
layout!(Ringbuffer, 80, {
    rx_flags: 0, tx_flags: 8, rx_data: 16, tx_data: 24, rx_stride: 32, tx_stride: 40,
    rx_flags_host: 48, tx_flags_host: 56, rx_data_host: 64, tx_data_host: 72,
});
