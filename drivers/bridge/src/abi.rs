//! The C structs and constants of the bridge, as LP64 memory layouts. Those of a ring are `berth_ring::abi`.

use std::{
    ffi::{c_char, c_int, c_void},
    mem::offset_of,
};

use berth_ring::abi::Ringbuffer;

/// What a caller knows a bridge by. Ours is a number and leads to no memory.
pub type Handle = *mut c_void;

/// All went well.
pub const OK: c_int = 0;
/// A pointer is null, a handle or an option is wrong, a buffer is too small.
pub const INVALID_ARG: c_int = 1;
/// The port cannot be opened or has ended; a slot that no request is in was published.
pub const INTERNAL: c_int = 2;
/// Pinned rings were asked for, and the driver or the GPU does not give them.
pub const CUDA: c_int = 3;
/// The bridge has the other shape, or nobody knows such a context.
pub const UNSUPPORTED: c_int = 4;

/// `rx_poll`: a request is in the slot that was told.
pub const READY: c_int = 0;
/// `rx_poll`: there is no request.
pub const EMPTY: c_int = 1;

/// Type of a context: a [`Ringbuffer`].
pub const RING_BUFFER: c_int = 0;
/// Type of a context: a [`Unified`].
pub const UNIFIED: c_int = 1;

/// Version of the table below.
pub const VERSION: c_int = 3;

/// The table of functions that `cudaq_realtime_get_bridge_interface` returns. An absent one is not supported.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Interface {
    /// 1 to [`VERSION`]; functions of later versions are not looked at.
    pub version: c_int,
    /// Makes a bridge of options; those that it does not know are passed over.
    pub create: Option<unsafe extern "C" fn(out: *mut Handle, argc: c_int, argv: *const *const c_char) -> c_int>,
    /// Ends a bridge; its rings are gone then.
    pub destroy: Option<unsafe extern "C" fn(Handle) -> c_int>,
    /// Fills in a context of the type that is asked for.
    pub get_transport_context: Option<unsafe extern "C" fn(Handle, kind: c_int, out: *mut c_void) -> c_int>,
    /// Waits for peers, where the port has to.
    pub connect: Option<unsafe extern "C" fn(Handle) -> c_int>,
    /// Lets requests into the ring.
    pub launch: Option<unsafe extern "C" fn(Handle) -> c_int>,
    /// Lets no more requests into the ring.
    pub disconnect: Option<unsafe extern "C" fn(Handle) -> c_int>,
    /// Version 2: the functions that a dispatcher without provider threads calls.
    pub get_cpu_dataplane: Option<unsafe extern "C" fn(Handle, out: *mut CpuDataplane) -> c_int>,
    /// Version 2: a line of text for peers, with a NUL at its end; `room` counts that, too.
    pub get_endpoint_info: Option<unsafe extern "C" fn(Handle, text: *mut c_char, room: usize) -> c_int>,
    /// Version 2: number of slots, and bytes of each.
    pub get_ring_geometry: Option<unsafe extern "C" fn(Handle, slots: *mut u32, slot_size: *mut u32) -> c_int>,
    /// Version 3. Absent: upstream's header and document do not agree about its arguments.
    pub set_function_table: Option<unsafe extern "C" fn(Handle) -> c_int>,
}

/// The context of type [`UNIFIED`].
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Unified {
    /// Launches a kernel; null where the caller has the loop.
    pub launch: *mut c_void,
    /// The argument of `launch`.
    pub context: *mut c_void,
}

/// What a dispatcher on a CPU calls in place of looking at flags.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CpuDataplane {
    /// First argument of both functions.
    pub context: *mut c_void,
    /// Where the slots are. The flags are not used.
    pub ring: Ringbuffer,
    /// Says [`READY`] and a slot, or [`EMPTY`]. Does not block.
    pub rx_poll: Option<unsafe extern "C" fn(context: *mut c_void, slot: *mut u32) -> c_int>,
    /// Sends the answer in a slot. Slots may be published in any order.
    pub tx_publish: Option<unsafe extern "C" fn(context: *mut c_void, slot: u32) -> c_int>,
}

const _: () = {
    assert!(size_of::<Interface>() == 88 && offset_of!(Interface, version) == 0);
    assert!(offset_of!(Interface, create) == 8 && offset_of!(Interface, destroy) == 16);
    assert!(offset_of!(Interface, get_transport_context) == 24 && offset_of!(Interface, connect) == 32);
    assert!(offset_of!(Interface, launch) == 40 && offset_of!(Interface, disconnect) == 48);
    assert!(offset_of!(Interface, get_cpu_dataplane) == 56 && offset_of!(Interface, get_endpoint_info) == 64);
    assert!(offset_of!(Interface, get_ring_geometry) == 72 && offset_of!(Interface, set_function_table) == 80);
    assert!(size_of::<Unified>() == 16 && offset_of!(Unified, context) == 8);
    assert!(size_of::<CpuDataplane>() == 104 && offset_of!(CpuDataplane, context) == 0);
    assert!(offset_of!(CpuDataplane, ring) == 8 && offset_of!(CpuDataplane, rx_poll) == 88);
    assert!(offset_of!(CpuDataplane, tx_publish) == 96);
};
