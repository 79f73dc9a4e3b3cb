//! What requests carry: the structures that follow the header, each at least as long as told; more is ignored.
#![allow(missing_docs, reason = "fields have the names of the specification")]

use zerocopy::little_endian::{I32, U32, U64};

use crate::nvme::macros::layout;

layout! {
    /// `SET_DEVICE`, `GET_DEVICE_PROPERTIES`.
    pub struct Device: 4 {
        0 pub device_id: I32,
    }

    /// `DEVICE_GET_ATTRIBUTE`.
    pub struct Attribute: 8 {
        0 pub device_id: I32,
        4 pub attribute: I32,
    }

    /// `DEVICE_GET_LIMIT`, `DEVICE_SET_LIMIT`.
    pub struct Limit: 12 {
        0 pub limit: I32,
        /// Of `DEVICE_SET_LIMIT`.
        4 pub value: U64,
    }

    /// `DEVICE_CAN_ACCESS_PEER`.
    pub struct Peers: 8 {
        0 pub device_id: I32,
        4 pub peer_device_id: I32,
    }

    /// `DEVICE_ENABLE_PEER_ACCESS`, `DEVICE_DISABLE_PEER_ACCESS`.
    pub struct PeerAccess: 8 {
        0 pub peer_device_id: I32,
        4 pub flags: U32,
    }

    /// `BERTH_BIND`. The token follows.
    pub struct Bind: 88 {
        0 pub lease_id: [u8; 16],
        16 pub signature: [u8; 64],
        80 pub token_length: U32,
        84 reserved: U32,
    }

    /// MALLOC.
    pub struct Malloc: 12 {
        0 pub size: U64,
        8 pub flags: U32,
    }

    /// `MALLOC_ASYNC`.
    pub struct MallocAsync: 16 {
        0 pub size: U64,
        8 pub stream: U64,
    }

    /// `FREE_ASYNC`.
    pub struct FreeAsync: 16 {
        0 pub device_ptr: U64,
        8 pub stream: U64,
    }

    /// MEMCPY, `MEMCPY_ASYNC`. Of a copy to the device, `size` bytes follow.
    pub struct Memcpy: 36 {
        0 pub dst: U64,
        8 pub src: U64,
        16 pub size: U64,
        /// See [`kind`].
        24 pub kind: I32,
        28 pub stream: U64,
    }

    /// `MEMCPY_2D`, `MEMCPY_2D_ASYNC`. Of a copy to the device, `spitch * height` bytes follow.
    pub struct Memcpy2d: 64 {
        0 pub dst: U64,
        8 pub dpitch: U64,
        16 pub src: U64,
        24 pub spitch: U64,
        32 pub width: U64,
        40 pub height: U64,
        48 pub kind: I32,
        52 pub reserved: U32,
        56 pub stream: U64,
    }

    /// `MEMCPY_PEER`, `MEMCPY_PEER_ASYNC`.
    pub struct MemcpyPeer: 40 {
        0 pub dst: U64,
        8 pub dst_device: I32,
        12 pub src: U64,
        20 pub src_device: I32,
        24 pub size: U64,
        32 pub stream: U64,
    }

    /// MEMSET, `MEMSET_ASYNC`.
    pub struct Memset: 28 {
        0 pub dst: U64,
        /// The low byte counts.
        8 pub value: I32,
        12 pub size: U64,
        20 pub stream: U64,
    }

    /// A pointer or a handle alone.
    pub struct Handle: 8 {
        0 pub handle: U64,
    }

    /// `STREAM_CREATE`.
    pub struct StreamCreate: 8 {
        0 pub flags: U32,
        4 pub priority: I32,
    }

    /// `STREAM_WAIT_EVENT`.
    pub struct StreamWaitEvent: 20 {
        0 pub stream: U64,
        8 pub event: U64,
        16 pub flags: U32,
    }

    /// `EVENT_CREATE`, `GRAPH_CREATE`.
    pub struct Flags: 4 {
        0 pub flags: U32,
    }

    /// `EVENT_RECORD`.
    pub struct EventRecord: 16 {
        0 pub event: U64,
        8 pub stream: U64,
    }

    /// `EVENT_ELAPSED_TIME`.
    pub struct EventElapsedTime: 16 {
        0 pub start_event: U64,
        8 pub stop_event: U64,
    }

    /// `MODULE_LOAD_DATA`. `data_size` bytes follow.
    pub struct ModuleLoad: 8 {
        0 pub data_size: U64,
    }

    /// `MODULE_GET_FUNCTION`: the part before the name, whose field has 256 bytes, or 1,024.
    pub struct ModuleGetFunction: 8 {
        0 pub module: U64,
    }

    /// `MODULE_LOAD_AND_GET_FUNCTION`. The name follows, without a NUL, then `data_size` bytes.
    pub struct ModuleLoadAndGet: 16 {
        0 pub data_size: U64,
        8 pub name_length: U32,
        12 pub reserved: U32,
    }

    /// `LAUNCH_KERNEL`, without what some clients add ([`super::launch`]).
    pub struct Launch: 72 {
        0 pub function: U64,
        /// Blocks: x, y, z.
        8 pub grid: [U32; 3],
        /// Threads of a block: x, y, z.
        20 pub block: [U32; 3],
        /// Bytes of dynamic shared memory.
        32 pub shared_mem: U32,
        36 pub stream: U64,
        /// Descriptors that follow.
        44 pub num_args: U32,
        /// 0: an argument each; 1: one buffer.
        48 pub launch_flags: U32,
        52 pub start_event: U64,
        60 pub stop_event: U64,
        68 pub ext_flags: U32,
    }

    /// `GET_ERROR_STRING`, `GET_ERROR_NAME`.
    pub struct ErrorCode: 4 {
        0 pub error_code: I32,
    }

    /// `OCCUPANCY_MAX_POTENTIAL_BLOCK_SIZE`.
    pub struct PotentialBlockSize: 24 {
        0 pub function: U64,
        8 pub dyn_shared_mem: U64,
        16 pub block_size_limit: I32,
        20 pub flags: U32,
    }

    /// `OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_SM`.
    pub struct ActiveBlocks: 20 {
        0 pub function: U64,
        8 pub block_size: I32,
        12 pub dyn_shared_mem: U64,
    }

    /// `GRAPH_INSTANTIATE`.
    pub struct GraphInstantiate: 12 {
        0 pub graph: U64,
        8 pub flags: U32,
    }

    /// `GRAPH_LAUNCH`.
    pub struct GraphLaunch: 16 {
        0 pub graph_exec: U64,
        8 pub stream: U64,
    }

    /// `STREAM_BEGIN_CAPTURE`.
    pub struct BeginCapture: 12 {
        0 pub stream: U64,
        8 pub mode: I32,
    }

    /// `MALLOC_BATCH`.
    pub struct MallocBatch: 520 {
        0 pub count: U32,
        4 pub reserved: U32,
        8 pub sizes: [U64; 64],
    }

    /// `STREAM_CREATE_BATCH`, `EVENT_CREATE_BATCH`.
    pub struct HandleBatch: 8 {
        0 pub count: U32,
        4 pub flags: U32,
    }
}

impl Bind {
    /// Label of the TLS exporter, without a context, that binds a claim to its connection.
    pub const EXPORTER: &'static [u8] = b"EXPORTER-berth-hip";

    /// What the lease's holder signs: the connection's nonce, the lease, and under TLS 32 bytes of its exporter.
    pub fn signed(nonce: &[u8; 32], lease_id: &[u8; 16], exporter: Option<&[u8; 32]>) -> Vec<u8> {
        [&b"berth-hip-bind"[..], nonce, lease_id, exporter.map_or(&[], |exporter| &exporter[..])].concat()
    }
}

/// Directions of a copy, `hipMemcpyKind`.
pub mod kind {
    /// From the request into device memory.
    pub const HOST_TO_DEVICE: i32 = 1;
    /// From device memory into the response.
    pub const DEVICE_TO_HOST: i32 = 2;
    /// Within device memory.
    pub const DEVICE_TO_DEVICE: i32 = 3;
    /// To the device with inline data, within it without.
    pub const DEFAULT: i32 = 4;
}
