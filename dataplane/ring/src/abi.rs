//! The C structs and constants of the CUDA-Q Realtime host API, as LP64 little-endian memory layouts.
//!
//! `include/berth_ring.h` is the same layout for C and C++. Field names follow the host API; every offset is asserted
//! at compile time on both sides.

use std::{
    ffi::{c_int, c_void},
    mem::{offset_of, size_of},
};

/// Slot flag: the slot is free (rx), or holds no answer (tx).
pub const FREE: u64 = 0;
/// Tx flag: the request was taken, and its answer is not ready yet.
pub const IN_FLIGHT: u64 = 0xEEEE_EEEE_EEEE_EEEE;
/// Bits 63:48 of a tx flag whose low 48 bits are an error code instead of a slot address.
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

/// Limit on the arguments that a [`HandlerSchema`] describes.
pub const MAX_ARGS: usize = 8;
/// Limit on the results that a [`HandlerSchema`] describes.
pub const MAX_RESULTS: usize = 4;

/// A `HOST_CALL` handler. It reads the request slot and writes the whole response with its header into the tx slot.
pub type HostCall = unsafe extern "C" fn(rx_slot: *const c_void, tx_slot: *mut c_void, slot_size: usize);

/// A `DEVICE_CALL` handler. It reads `arg_len` bytes of payload, writes at most `max_result_len` and stores how many;
/// the dispatcher writes the response header. The return value is the response's status.
pub type DeviceCall = unsafe extern "C" fn(
    input: *const c_void,
    output: *mut c_void,
    arg_len: u32,
    max_result_len: u32,
    result_len: *mut u32,
) -> c_int;

/// Type and size of one argument or result: 12 bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TypeDesc {
    /// A payload type id, from 0x10 on.
    pub type_id: u8,
    /// Must be zero.
    pub reserved: [u8; 3],
    /// Size of the whole value in bytes.
    pub size_bytes: u32,
    /// 1 for scalars, the number of elements for arrays, the number of bits for bit-packed data.
    pub num_elements: u32,
}

/// Arguments and results of a handler.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HandlerSchema {
    /// Number of valid entries in `args`.
    pub num_args: u8,
    /// Number of valid entries in `results`.
    pub num_results: u8,
    /// Must be zero.
    pub reserved: u16,
    /// Arguments in the order of the payload.
    pub args: [TypeDesc; MAX_ARGS],
    /// Results in the order of the payload.
    pub results: [TypeDesc; MAX_RESULTS],
}

/// Address of a handler. `dispatch_mode` of the entry says which member is valid.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Handler {
    /// Valid with [`DISPATCH_DEVICE_CALL`].
    pub device_call: Option<DeviceCall>,
    /// Valid with [`DISPATCH_HOST_CALL`].
    pub host_call: Option<HostCall>,
    /// Valid with [`DISPATCH_GRAPH_LAUNCH`]: an opaque graph handle.
    pub graph: *mut c_void,
}

/// One entry of the function table.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FunctionEntry {
    /// The function or graph that serves the request.
    pub handler: Handler,
    /// 32-bit FNV-1a hash of the handler's name; requests carry it.
    pub function_id: u32,
    /// One of the `DISPATCH_` constants; selects the member of `handler`.
    pub dispatch_mode: u8,
    /// Must be zero.
    pub reserved: [u8; 3],
    /// Arguments and results of the handler.
    pub schema: HandlerSchema,
    /// Selects an instance if several share a function id.
    pub routing_key: u64,
}

/// A function table: `count` entries from `entries` on.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FunctionTable {
    /// Address of the first entry.
    pub entries: *mut FunctionEntry,
    /// Number of entries.
    pub count: u32,
}

/// Header of a shared-memory file that holds a ring. Offsets count from the file's first byte.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SharedRing {
    /// [`SHARED_MAGIC`]; written last, when everything else is in place.
    pub magic: u64,
    /// [`SHARED_VERSION`]; other versions have another layout.
    pub version: u32,
    /// Number of slots each way.
    pub slots: u32,
    /// Usable size of a slot in bytes.
    pub slot_size: u64,
    /// Bytes from the start of one slot to the next.
    pub stride: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Address of the file's first byte in the dispatcher's view. Flags hold this plus an offset.
    pub base: u64,
    /// Offset of the request flags.
    pub rx_flags: u64,
    /// Offset of the response flags.
    pub tx_flags: u64,
    /// Offset of the request slots.
    pub rx_data: u64,
    /// Offset of the response slots.
    pub tx_data: u64,
}

/// `SharedRing::magic`: "BERTHRNG" in ASCII.
pub const SHARED_MAGIC: u64 = u64::from_le_bytes(*b"BERTHRNG");

/// `SharedRing::version` of this layout.
pub const SHARED_VERSION: u32 = 1;

/// Launch parameters of a dispatcher.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DispatcherConfig {
    /// Ordinal of the device.
    pub device_id: u32,
    /// Number of blocks of the kernel.
    pub num_blocks: u32,
    /// Number of threads per block.
    pub threads_per_block: u32,
    /// Number of slots of the ring.
    pub num_slots: u32,
    /// Size of a slot in bytes.
    pub slot_size: u32,
    /// Number of the virtual port.
    pub vp_id: u32,
    /// One of the `KERNEL_` constants.
    pub kernel_type: u32,
    /// One of the `DISPATCH_` constants.
    pub dispatch_mode: u32,
    /// One of the `PATH_` constants.
    pub dispatch_path: u32,
    /// If not zero, the dispatcher does not write [`IN_FLIGHT`].
    pub skip_tx_markers: u32,
    /// If not zero, several dispatchers share the ring.
    pub shared_ring_mode: u32,
}

/// Addresses of a ring's parts. The pointers without suffix are the dispatcher's view, those with `_host` the host's
/// view of the same memory. On host memory both are equal.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ringbuffer {
    /// Request flags, one u64 per slot, in the dispatcher's view.
    pub rx_flags: *mut u64,
    /// Response flags, one u64 per slot, in the dispatcher's view.
    pub tx_flags: *mut u64,
    /// Request slots, in the dispatcher's view.
    pub rx_data: *mut u8,
    /// Response slots, in the dispatcher's view.
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
