//! What each operation does.

mod code;
mod devices;
mod graphs;
mod memory;
mod streams;

use berth_port::Nanos;
use berth_wire::hip::{
    Code, Header, Op, flags, request as q,
    response::{ErrorText, Int, Status, text},
};
pub(crate) use devices::LIMITS;
use zerocopy::FromBytes;

use crate::{
    device::Device,
    session::{Flow, Session, done, put},
};

/// `hipRuntimeGetVersion` and `hipDriverGetVersion`: 6.0.
const VERSION: i32 = 60_000_000;

/// Whether an operation needs the device, or is about work that may go on: it waits for launches before it.
pub(crate) fn waits(op: Op) -> bool {
    matches!(
        op,
        Op::DeviceSynchronize
            | Op::DeviceReset
            | Op::Malloc
            | Op::Free
            | Op::MallocAsync
            | Op::FreeAsync
            | Op::Memcpy
            | Op::MemcpyAsync
            | Op::Memcpy2d
            | Op::Memcpy2dAsync
            | Op::MemcpyPeer
            | Op::MemcpyPeerAsync
            | Op::Memset
            | Op::MemsetAsync
            | Op::MemGetInfo
            | Op::PointerGetAttributes
            | Op::StreamDestroy
            | Op::StreamSynchronize
            | Op::EventSynchronize
            | Op::ModuleLoadData
            | Op::ModuleLoadDataEx
            | Op::ModuleLoadAndGet
            | Op::ModuleUnload
            | Op::LaunchKernel
            | Op::ModuleLaunchKernel
            | Op::GraphLaunch
            | Op::GraphDestroy
            | Op::GraphExecDestroy
            | Op::MallocBatch
            | Op::MemPtrGetInfo
            | Op::BerthBind
    )
}

/// The structure of a request, which is there.
fn view<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
    payload: &[u8],
) -> Result<&T, Code> {
    T::ref_from_prefix(payload).map(|(view, _)| view).map_err(|_| Code::INVALID_VALUE)
}

/// The handle or pointer that is all of a request.
fn handle(payload: &[u8]) -> Result<u64, Code> {
    Ok(view::<q::Handle>(payload)?.handle.get())
}

/// A number as the answer.
fn int(room: &mut [u8], value: i32) -> Flow {
    put(room, &Int { error_code: 0.into(), value: value.into() })
}

/// A pointer or handle as the answer.
fn long(room: &mut [u8], value: u64) -> Flow {
    put(room, &berth_wire::hip::response::Long { error_code: 0.into(), value: value.into() })
}

impl<D: Device> Session<D> {
    /// Executes an operation whose structure is there, and whose answer, if any, is wanted.
    pub(crate) fn execute(
        &mut self,
        op: Op,
        header: &Header,
        payload: &[u8],
        room: &mut [u8],
        now: Nanos,
    ) -> Result<Flow, Code> {
        match op {
            Op::Init | Op::Ping => Ok(done(room)),
            Op::Shutdown => {
                put(room, &Status::zeroed());
                Ok(Flow::Close)
            }
            Op::RuntimeGetVersion | Op::DriverGetVersion => Ok(int(room, VERSION)),
            Op::GetLastError => {
                let last = self.deferred.take();
                last.map_or_else(|| Ok(done(room)), Err)
            }
            Op::PeekAtLastError => self.deferred.map_or_else(|| Ok(done(room)), Err),
            Op::GetErrorString | Op::GetErrorName => {
                let (name, meaning) = Code(view::<q::ErrorCode>(payload)?.error_code.get())
                    .describe()
                    .unwrap_or(("hipErrorUnknown", "unknown error"));
                let said = if op == Op::GetErrorName { name } else { meaning };
                Ok(put(room, &ErrorText { error_code: 0.into(), text: text(said) }))
            }
            Op::GetDeviceCount
            | Op::SetDevice
            | Op::GetDevice
            | Op::GetDeviceProperties
            | Op::DeviceGetAttribute
            | Op::DeviceGetLimit
            | Op::DeviceSetLimit
            | Op::DeviceCanAccessPeer
            | Op::DeviceEnablePeerAccess
            | Op::DeviceDisablePeerAccess
            | Op::DeviceReset => self.device_op(op, payload, room),
            Op::DeviceSynchronize => self.tell(header, room),
            Op::Malloc | Op::MallocAsync | Op::MallocBatch | Op::Free | Op::FreeAsync => {
                self.allocation_op(op, payload, room)
            }
            Op::MemGetInfo | Op::PointerGetAttributes | Op::MemPtrGetInfo => self.pointer_op(op, payload, room),
            Op::Memcpy | Op::MemcpyAsync => self.memcpy(header, view(payload)?, room),
            Op::Memcpy2d | Op::Memcpy2dAsync => self.memcpy_2d(header, view(payload)?, room),
            Op::MemcpyPeer | Op::MemcpyPeerAsync => self.memcpy_peer(view(payload)?, room),
            Op::Memset | Op::MemsetAsync => self.memset(view(payload)?, room),
            Op::StreamCreate
            | Op::StreamCreateWithFlags
            | Op::StreamCreateWithPriority
            | Op::StreamCreateBatch
            | Op::StreamDestroy
            | Op::StreamSynchronize
            | Op::StreamQuery
            | Op::StreamWaitEvent
            | Op::StreamGetFlags
            | Op::StreamGetPriority => self.stream_op(op, header, payload, room),
            Op::EventCreate
            | Op::EventCreateWithFlags
            | Op::EventCreateBatch
            | Op::EventDestroy
            | Op::EventRecord
            | Op::EventSynchronize
            | Op::EventQuery
            | Op::EventElapsedTime => self.event_op(op, header, payload, room, now),
            Op::ModuleLoadData | Op::ModuleLoadDataEx => self.load(handle(payload)?),
            Op::ModuleLoadAndGet => self.load_and_get(payload),
            Op::ModuleUnload => self.unload(handle(payload)?, room),
            Op::ModuleGetFunction => self.get_function(payload, room),
            Op::LaunchKernel | Op::ModuleLaunchKernel => self.launch(payload, room, now),
            Op::OccupancyBlockSize | Op::OccupancyBlocks => self.occupancy(op, payload, room),
            Op::GraphCreate
            | Op::GraphDestroy
            | Op::GraphInstantiate
            | Op::GraphExecDestroy
            | Op::StreamBeginCapture
            | Op::StreamEndCapture
            | Op::StreamIsCapturing => self.graph_op(op, payload, room),
            Op::BerthChallenge => self.challenge(room),
            Op::BerthBind => self.claim(payload),
            Op::GraphLaunch => self.graph_launch(view(payload)?, room, now),
        }
    }

    /// The answer of what tells deferred errors ("Deferred errors").
    fn tell(&mut self, header: &Header, room: &mut [u8]) -> Result<Flow, Code> {
        if header.has(flags::NO_REPLY) {
            return Ok(done(room));
        }
        let deferred = self.deferred.take();
        deferred.or(self.device.lost(self.current)).map_or_else(|| Ok(done(room)), Err)
    }
}
