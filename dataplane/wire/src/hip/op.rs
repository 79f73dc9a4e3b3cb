//! The operations: those that are served, and those that are known and are not.

use super::{request as q, response as r};

/// What of a payload has to be there before an operation is decided. Anything behind it is inline data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// A structure of so many bytes; a shorter payload is an error.
    Struct(usize),
    /// A structure of so many bytes, which may be left out.
    Optional(usize),
    /// A structure, and the rest of the payload: so many bytes at least, so many at most.
    Rest(usize, usize),
    /// A structure of so many bytes, and a name whose length it tells.
    Named(usize),
}

/// What comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The error code alone. If the client wants no reply, an error is deferred.
    Status,
    /// The same, of an operation that waits for work, and tells a deferred error if it is answered.
    Synchronize,
    /// A structure of so many bytes. Without a reply the operation would be lost, and is not executed.
    Value(usize),
    /// The error code, or data that follow it, by the direction of the copy.
    Data,
}

/// Longest payload of a launch that is looked at: descriptors and arguments are far below.
pub const LAUNCH_MAX: usize = 32 << 10;

/// Longest name of a function, with its NUL.
pub const NAME_MAX: usize = 1024;

macro_rules! ops {
    ($($(#[$doc:meta])* $code:literal $name:literal $op:ident: $prefix:expr => $answer:expr;)*) => {
        /// An operation that is served.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Op {
            $(#[doc = concat!("`", $name, "`")] $op = $code,)*
        }

        impl Op {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$op),*];

            /// Its name in the specification.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$op => $name,)*
                }
            }
        }

        /// What is known of each, in the order of [`Op::ALL`].
        static FORMS: [(Op, Prefix, Answer); Op::ALL.len()] = [$((Op::$op, $prefix, $answer)),*];
    };
}

/// Codes below this are looked up in [`INDEX`]; those of Berth's own operations are above it.
const CODES: usize = 0x0760;

/// Where the form of a code stands, plus one; 0 where it is not served. An operation is looked up several times for each
/// request, and a table costs less than an indirect jump.
static INDEX: [u8; CODES] = {
    let mut index = [0; CODES];
    let mut at = 0;
    while at < Op::ALL.len() {
        if (Op::ALL[at] as usize) < CODES {
            index[Op::ALL[at] as usize] = at as u8 + 1;
        }
        at += 1;
    }
    index
};

impl Op {
    #[inline(always)]
    fn form(code: u16) -> Option<&'static (Self, Prefix, Answer)> {
        match INDEX.get(usize::from(code)) {
            Some(index) => FORMS.get(usize::from(*index).wrapping_sub(1)),
            None => Self::form_beyond(code),
        }
    }

    #[cold]
    fn form_beyond(code: u16) -> Option<&'static (Self, Prefix, Answer)> {
        FORMS.iter().rev().find(|(op, ..)| *op as u16 == code)
    }

    /// The operation with this code, if it is served.
    #[inline]
    pub fn of(code: u16) -> Option<Self> {
        Self::form(code).map(|(op, ..)| *op)
    }

    /// What of its payload is looked at before it is executed.
    ///
    /// # Panics
    /// Never: each operation has a form.
    #[inline]
    pub fn prefix(self) -> Prefix {
        Self::form(self as u16).expect("each has a form").1
    }

    /// What it returns.
    ///
    /// # Panics
    /// Never: each operation has a form.
    #[inline]
    pub fn answer(self) -> Answer {
        Self::form(self as u16).expect("each has a form").2
    }
}

use Answer::{Data, Status, Synchronize, Value};
use Prefix::{Named, Optional, Rest, Struct};

const NONE: Prefix = Struct(0);
const HANDLE: Prefix = Struct(q::Handle::LEN);
const LAUNCH: Prefix = Rest(q::Launch::LEN, LAUNCH_MAX);

ops! {
    0x0001 "INIT" Init: NONE => Status;
    0x0002 "SHUTDOWN" Shutdown: NONE => Status;
    0x0003 "PING" Ping: NONE => Status;
    0x0100 "GET_DEVICE_COUNT" GetDeviceCount: NONE => Value(r::Int::LEN);
    0x0101 "SET_DEVICE" SetDevice: Struct(q::Device::LEN) => Status;
    0x0102 "GET_DEVICE" GetDevice: NONE => Value(r::Int::LEN);
    0x0103 "GET_DEVICE_PROPERTIES" GetDeviceProperties: Optional(q::Device::LEN) => Value(r::DeviceProperties::LEN);
    0x0104 "DEVICE_SYNCHRONIZE" DeviceSynchronize: NONE => Synchronize;
    0x0105 "DEVICE_RESET" DeviceReset: NONE => Status;
    0x0106 "DEVICE_GET_ATTRIBUTE" DeviceGetAttribute: Struct(q::Attribute::LEN) => Value(r::Int::LEN);
    0x0107 "DEVICE_GET_LIMIT" DeviceGetLimit: Struct(q::Limit::LEN) => Value(r::Long::LEN);
    0x0108 "DEVICE_SET_LIMIT" DeviceSetLimit: Struct(q::Limit::LEN) => Status;
    0x0109 "DEVICE_CAN_ACCESS_PEER" DeviceCanAccessPeer: Struct(q::Peers::LEN) => Value(r::Int::LEN);
    0x010A "DEVICE_ENABLE_PEER_ACCESS" DeviceEnablePeerAccess: Struct(q::PeerAccess::LEN) => Status;
    0x010B "DEVICE_DISABLE_PEER_ACCESS" DeviceDisablePeerAccess: Struct(q::PeerAccess::LEN) => Status;
    0x0200 "MALLOC" Malloc: Struct(q::Malloc::LEN) => Value(r::Long::LEN);
    0x0201 "FREE" Free: HANDLE => Status;
    0x0205 "MALLOC_ASYNC" MallocAsync: Struct(q::MallocAsync::LEN) => Value(r::Long::LEN);
    0x0206 "FREE_ASYNC" FreeAsync: Struct(q::FreeAsync::LEN) => Status;
    0x0210 "MEMCPY" Memcpy: Struct(q::Memcpy::LEN) => Data;
    0x0211 "MEMCPY_ASYNC" MemcpyAsync: Struct(q::Memcpy::LEN) => Data;
    0x0212 "MEMCPY_2D" Memcpy2d: Struct(q::Memcpy2d::LEN) => Data;
    0x0213 "MEMCPY_2D_ASYNC" Memcpy2dAsync: Struct(q::Memcpy2d::LEN) => Data;
    0x021C "MEMCPY_PEER" MemcpyPeer: Struct(q::MemcpyPeer::LEN) => Status;
    0x021D "MEMCPY_PEER_ASYNC" MemcpyPeerAsync: Struct(q::MemcpyPeer::LEN) => Status;
    0x0220 "MEMSET" Memset: Struct(q::Memset::LEN) => Status;
    0x0221 "MEMSET_ASYNC" MemsetAsync: Struct(q::Memset::LEN) => Status;
    0x0230 "MEM_GET_INFO" MemGetInfo: NONE => Value(r::MemInfo::LEN);
    0x0231 "POINTER_GET_ATTRIBUTES" PointerGetAttributes: HANDLE => Value(r::PointerAttributes::LEN);
    0x0300 "STREAM_CREATE" StreamCreate: Struct(q::StreamCreate::LEN) => Value(r::Long::LEN);
    0x0301 "STREAM_CREATE_WITH_FLAGS" StreamCreateWithFlags: Struct(q::StreamCreate::LEN) => Value(r::Long::LEN);
    0x0302 "STREAM_CREATE_WITH_PRIORITY" StreamCreateWithPriority: Struct(q::StreamCreate::LEN) => Value(r::Long::LEN);
    0x0303 "STREAM_DESTROY" StreamDestroy: HANDLE => Status;
    0x0304 "STREAM_SYNCHRONIZE" StreamSynchronize: HANDLE => Synchronize;
    0x0305 "STREAM_QUERY" StreamQuery: HANDLE => Value(r::Status::LEN);
    0x0306 "STREAM_WAIT_EVENT" StreamWaitEvent: Struct(q::StreamWaitEvent::LEN) => Status;
    0x0307 "STREAM_GET_FLAGS" StreamGetFlags: HANDLE => Value(r::Int::LEN);
    0x0308 "STREAM_GET_PRIORITY" StreamGetPriority: HANDLE => Value(r::Int::LEN);
    0x0400 "EVENT_CREATE" EventCreate: Struct(q::Flags::LEN) => Value(r::Long::LEN);
    0x0401 "EVENT_CREATE_WITH_FLAGS" EventCreateWithFlags: Struct(q::Flags::LEN) => Value(r::Long::LEN);
    0x0402 "EVENT_DESTROY" EventDestroy: HANDLE => Status;
    0x0403 "EVENT_RECORD" EventRecord: Struct(q::EventRecord::LEN) => Status;
    0x0404 "EVENT_SYNCHRONIZE" EventSynchronize: HANDLE => Synchronize;
    0x0405 "EVENT_QUERY" EventQuery: HANDLE => Value(r::Status::LEN);
    0x0406 "EVENT_ELAPSED_TIME" EventElapsedTime: Struct(q::EventElapsedTime::LEN) => Value(r::Milliseconds::LEN);
    0x0500 "MODULE_LOAD_DATA" ModuleLoadData: Struct(q::ModuleLoad::LEN) => Value(r::Long::LEN);
    0x0501 "MODULE_LOAD_DATA_EX" ModuleLoadDataEx: Struct(q::ModuleLoad::LEN) => Value(r::Long::LEN);
    0x0502 "MODULE_UNLOAD" ModuleUnload: HANDLE => Status;
    0x0503 "MODULE_GET_FUNCTION" ModuleGetFunction: Rest(q::ModuleGetFunction::LEN + 256, q::ModuleGetFunction::LEN + NAME_MAX) => Value(r::Function::LEN);
    0x0510 "LAUNCH_KERNEL" LaunchKernel: LAUNCH => Status;
    0x0512 "MODULE_LAUNCH_KERNEL" ModuleLaunchKernel: LAUNCH => Status;
    0x0600 "GET_LAST_ERROR" GetLastError: NONE => Value(r::Status::LEN);
    0x0601 "PEEK_AT_LAST_ERROR" PeekAtLastError: NONE => Value(r::Status::LEN);
    0x0602 "GET_ERROR_STRING" GetErrorString: Struct(q::ErrorCode::LEN) => Value(r::ErrorText::LEN);
    0x0603 "GET_ERROR_NAME" GetErrorName: Struct(q::ErrorCode::LEN) => Value(r::ErrorText::LEN);
    0x0700 "RUNTIME_GET_VERSION" RuntimeGetVersion: NONE => Value(r::Int::LEN);
    0x0701 "DRIVER_GET_VERSION" DriverGetVersion: NONE => Value(r::Int::LEN);
    0x0710 "OCCUPANCY_MAX_POTENTIAL_BLOCK_SIZE" OccupancyBlockSize: Struct(q::PotentialBlockSize::LEN) => Value(r::BlockSize::LEN);
    0x0711 "OCCUPANCY_MAX_ACTIVE_BLOCKS_PER_SM" OccupancyBlocks: Struct(q::ActiveBlocks::LEN) => Value(r::Int::LEN);
    0x0720 "GRAPH_CREATE" GraphCreate: Struct(q::Flags::LEN) => Value(r::Long::LEN);
    0x0721 "GRAPH_DESTROY" GraphDestroy: HANDLE => Status;
    0x0722 "GRAPH_INSTANTIATE" GraphInstantiate: Struct(q::GraphInstantiate::LEN) => Value(r::Long::LEN);
    0x0723 "GRAPH_LAUNCH" GraphLaunch: Struct(q::GraphLaunch::LEN) => Status;
    0x0724 "GRAPH_EXEC_DESTROY" GraphExecDestroy: HANDLE => Status;
    0x0725 "STREAM_BEGIN_CAPTURE" StreamBeginCapture: Struct(q::BeginCapture::LEN) => Value(r::Status::LEN);
    0x0726 "STREAM_END_CAPTURE" StreamEndCapture: HANDLE => Value(r::Long::LEN);
    0x0727 "STREAM_IS_CAPTURING" StreamIsCapturing: HANDLE => Value(r::Int::LEN);
    0x0744 "MODULE_LOAD_AND_GET_FUNCTION" ModuleLoadAndGet: Named(q::ModuleLoadAndGet::LEN) => Value(r::ModuleFunction::LEN);
    0x0745 "MALLOC_BATCH" MallocBatch: Struct(q::MallocBatch::LEN) => Value(r::Pointers::LEN);
    0x0746 "STREAM_CREATE_BATCH" StreamCreateBatch: Struct(q::HandleBatch::LEN) => Value(r::Handles::LEN);
    0x0747 "EVENT_CREATE_BATCH" EventCreateBatch: Struct(q::HandleBatch::LEN) => Value(r::Handles::LEN);
    0x0751 "MEM_PTR_GET_INFO" MemPtrGetInfo: HANDLE => Value(r::Long::LEN);
    0x7E00 "BERTH_CHALLENGE" BerthChallenge: NONE => Value(r::Nonce::LEN);
    0x7E01 "BERTH_BIND" BerthBind: Rest(q::Bind::LEN, LAUNCH_MAX) => Value(r::Status::LEN);
}

/// The codes that are known and not served.
const UNSERVED: &[(u16, &str)] = &[
    (0x0202, "MALLOC_HOST"),
    (0x0203, "FREE_HOST"),
    (0x0204, "MALLOC_MANAGED"),
    (0x0214, "MEMCPY_3D"),
    (0x0215, "MEMCPY_3D_ASYNC"),
    (0x0216, "MEMCPY_DTOD"),
    (0x0217, "MEMCPY_DTOD_ASYNC"),
    (0x0218, "MEMCPY_HTOD"),
    (0x0219, "MEMCPY_HTOD_ASYNC"),
    (0x021A, "MEMCPY_DTOH"),
    (0x021B, "MEMCPY_DTOH_ASYNC"),
    (0x0222, "MEMSET_D8"),
    (0x0223, "MEMSET_D16"),
    (0x0224, "MEMSET_D32"),
    (0x0280, "MALLOC_VADDR"),
    (0x0281, "MALLOC_ASYNC_VADDR"),
    (0x0504, "MODULE_GET_GLOBAL"),
    (0x0511, "LAUNCH_COOPERATIVE_KERNEL"),
    (0x0730, "LAUNCH_HOST_FUNC"),
    (0x0740, "MEMPOOL_GET_ATTRIBUTE"),
    (0x0741, "MEMPOOL_SET_ATTRIBUTE"),
    (0x0742, "MEMPOOL_SET_ACCESS"),
    (0x0743, "MEMPOOL_TRIM_TO"),
    (0x0750, "FUNC_GET_ATTRIBUTES"),
    (0x0752, "POINTER_GET_ATTRIBUTE"),
    (0x0800, "SMI_INIT"),
    (0x0801, "SMI_SHUTDOWN"),
    (0x0802, "SMI_GET_COUNT"),
    (0x0820, "SMI_GET_METRICS"),
    (0x0821, "SMI_GET_POWER"),
    (0x0822, "SMI_GET_CLOCK"),
    (0x0823, "SMI_GET_TEMPERATURE"),
    (0x0824, "SMI_GET_ACTIVITY"),
    (0x0825, "SMI_GET_VRAM"),
    (0x0830, "SMI_GET_ASIC"),
];

/// The name of a code, served or not; `None` of one that is not known.
pub fn name(code: u16) -> Option<&'static str> {
    let unserved = || UNSERVED.iter().find(|(known, _)| *known == code).map(|(_, name)| *name);
    Op::of(code).map(Op::name).or_else(unserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_known_once() {
        let mut codes: Vec<_> =
            Op::ALL.iter().map(|op| *op as u16).chain(UNSERVED.iter().map(|(code, _)| *code)).collect();
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all);
        for op in Op::ALL {
            assert_eq!((Op::of(*op as u16), name(*op as u16)), (Some(*op), Some(op.name())));
        }
        assert_eq!((Op::of(0x0800), name(0x0800), name(0x7FFF)), (None, Some("SMI_INIT"), None));
    }

    #[test]
    fn sizes_are_those_of_the_structures() {
        assert_eq!((Op::Memcpy.prefix(), Op::GetDeviceProperties.answer()), (Struct(36), Value(628)));
        assert_eq!((Op::ModuleGetFunction.prefix(), Op::ModuleGetFunction.answer()), (Rest(264, 1032), Value(532)));
        assert_eq!((Op::MallocBatch.prefix(), Op::MallocBatch.answer()), (Struct(520), Value(524)));
        assert_eq!((Op::ModuleLoadAndGet.prefix(), Op::ModuleLoadAndGet.answer()), (Named(16), Value(540)));
    }
}
