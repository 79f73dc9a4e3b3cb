//! Streams and events.

use berth_wire::hip::{Op, request as q, response as r};
use zerocopy::IntoBytes as _;

use crate::{Arguments, Buffer, Capture, Error, Function, GraphExec, Result, Session, Shape, session::Owned};

/// Flags of events.
pub mod events {
    /// Only marks work: it has no time, and costs less.
    pub const WITHOUT_TIME: u32 = 2;
}

fn handle(handle: u64) -> q::Handle {
    q::Handle { handle: handle.into() }
}

/// Whether a query says that work is done.
fn is_done(answer: Result<r::Status>) -> Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(Error::Refused { code: berth_wire::hip::Code::NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Session {
    /// Creates a stream; returns its handle. Flags: 1 non-blocking.
    pub fn stream_create(&self, flags: u32, priority: i32) -> Result<u64> {
        let request = q::StreamCreate { flags: flags.into(), priority: priority.into() };
        self.long(Op::StreamCreateWithPriority, request.as_bytes())
    }

    /// Ends a stream, behind its work. Not waited for.
    pub fn stream_destroy(&self, stream: u64) -> Result<()> {
        self.post(Op::StreamDestroy, &[handle(stream).as_bytes()], 0)
    }

    /// Waits for the work of a stream; fails with what failed.
    pub fn stream_synchronize(&self, stream: u64) -> Result<()> {
        self.done(Op::StreamSynchronize, handle(stream).as_bytes())
    }

    /// Whether the work of a stream is done.
    pub fn stream_is_done(&self, stream: u64) -> Result<bool> {
        is_done(self.ask(Op::StreamQuery, &[handle(stream).as_bytes()], 0))
    }

    /// Makes the stream wait for an event.
    pub fn stream_wait(&self, stream: u64, event: u64) -> Result<()> {
        let request = q::StreamWaitEvent { stream: stream.into(), event: event.into(), flags: 0.into() };
        self.post(Op::StreamWaitEvent, &[request.as_bytes()], 0)
    }

    /// The flags that a stream was created with.
    pub fn stream_flags(&self, stream: u64) -> Result<u32> {
        Ok(self.int(Op::StreamGetFlags, handle(stream).as_bytes())? as u32)
    }

    /// The priority that a stream was created with.
    pub fn stream_priority(&self, stream: u64) -> Result<i32> {
        self.int(Op::StreamGetPriority, handle(stream).as_bytes())
    }

    /// An event; see [`events`] for its flags.
    pub fn event_create(&self, flags: u32) -> Result<u64> {
        self.long(Op::EventCreateWithFlags, q::Flags { flags: flags.into() }.as_bytes())
    }

    /// Ends an event. Not waited for.
    pub fn event_destroy(&self, event: u64) -> Result<()> {
        self.post(Op::EventDestroy, &[handle(event).as_bytes()], 0)
    }

    /// Marks where a stream is.
    pub fn event_record(&self, event: u64, stream: u64) -> Result<()> {
        let request = q::EventRecord { event: event.into(), stream: stream.into() };
        self.post(Op::EventRecord, &[request.as_bytes()], 0)
    }

    /// Waits for what precedes an event; fails with what failed.
    pub fn event_synchronize(&self, event: u64) -> Result<()> {
        self.done(Op::EventSynchronize, handle(event).as_bytes())
    }

    /// Whether what precedes an event is done; so it is where it was never recorded.
    pub fn event_is_done(&self, event: u64) -> Result<bool> {
        is_done(self.ask(Op::EventQuery, &[handle(event).as_bytes()], 0))
    }

    /// Milliseconds from `start` to `stop`; both are recorded, and have time.
    pub fn elapsed(&self, start: u64, stop: u64) -> Result<f32> {
        let request = q::EventElapsedTime { start_event: start.into(), stop_event: stop.into() };
        let answer: r::Milliseconds = self.ask(Op::EventElapsedTime, &[request.as_bytes()], 0)?;
        Ok(answer.milliseconds.get())
    }
}

/// Work in order. Ends when this is dropped, behind its work.
#[derive(Debug)]
pub struct Stream(pub(crate) Owned);

impl Stream {
    /// Its handle; 0 is the default stream.
    pub fn handle(&self) -> u64 {
        self.0.handle
    }

    /// Copies to the device, from `offset` on; refused with `INVALID_VALUE` if it would reach beyond the end.
    pub fn write(&self, to: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = to.range(offset, bytes.len() as u64, Op::MemcpyAsync)?;
        self.0.session.copy_in(at, bytes, self.0.handle)
    }

    /// Copies to the host, behind all work before, and tells what failed in it.
    pub fn read(&self, from: &Buffer, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = from.range(offset, into.len() as u64, Op::MemcpyAsync)?;
        self.0.session.copy_out(into, at, self.0.handle)
    }

    /// Copies `bytes` bytes from one buffer's begin to another's; refused with `INVALID_VALUE` beyond the end of
    /// either.
    pub fn copy(&self, to: &Buffer, from: &Buffer, bytes: u64) -> Result<()> {
        let (to, from) = (to.range(0, bytes, Op::MemcpyAsync)?, from.range(0, bytes, Op::MemcpyAsync)?);
        self.0.session.copy(to, from, bytes as usize, self.0.handle)
    }

    /// Sets all bytes of a buffer, behind the stream's work.
    pub fn fill(&self, buffer: &Buffer, byte: u8) -> Result<()> {
        self.0.session.fill(buffer.address(), byte, buffer.len(), self.0.handle)
    }

    /// Starts a kernel; refused with `INVALID_VALUE` unless each parameter has an argument that is at least as long.
    pub fn launch(&self, function: &Function, shape: Shape, arguments: &Arguments) -> Result<()> {
        let buffer = arguments.buffer(function.info())?;
        self.0.session.launch(function.info().handle, shape, self.0.handle, &buffer)
    }

    /// Starts a graph, behind the stream's work.
    pub fn launch_graph(&self, graph: &GraphExec) -> Result<()> {
        self.0.session.graph_launch(graph.0.handle, self.0.handle)
    }

    /// Marks where it is.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.0.session.event_record(event.0.handle, self.0.handle)
    }

    /// Waits, on the device, for an event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.0.session.stream_wait(self.0.handle, event.0.handle)
    }

    /// Waits for its work; fails with what failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.session.stream_synchronize(self.0.handle)
    }

    /// Whether its work is done.
    pub fn is_done(&self) -> Result<bool> {
        self.0.session.stream_is_done(self.0.handle)
    }

    /// Records work instead of doing it, until [`Capture::end`]. The default stream is never captured.
    pub fn capture(&self) -> Result<Capture<'_>> {
        Capture::begin(self)
    }
}

/// A mark in a stream. Ends when this is dropped.
#[derive(Debug)]
pub struct Event(pub(crate) Owned);

impl Event {
    /// Waits for what precedes it; fails with what failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.session.event_synchronize(self.0.handle)
    }

    /// Whether what precedes it is done; so it is where it was never recorded.
    pub fn is_done(&self) -> Result<bool> {
        self.0.session.event_is_done(self.0.handle)
    }

    /// Milliseconds from another event to this one; both are recorded, and have time.
    pub fn since(&self, start: &Self) -> Result<f32> {
        self.0.session.elapsed(start.0.handle, self.0.handle)
    }
}
