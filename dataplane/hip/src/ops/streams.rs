//! Streams and events.

use berth_port::Nanos;
use berth_wire::hip::{Code, Header, Op, request as q, response as r};

use super::{handle, int, long, view};
use crate::{
    device::Device,
    objects::{Event, Node, Object, Recorded, Stream},
    session::{Flow, Session, done, put},
};

/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
/// `hipEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;
/// Handles of a batch.
const BATCH_MAX: u32 = 32;

impl<D: Device> Session<D> {
    /// Whether a stream is captured; 0 is the default stream, which never is.
    pub(super) fn is_captured(&self, stream: u64) -> Result<bool, Code> {
        Ok(stream != 0 && self.objects.stream(stream)?.capture.is_some())
    }

    /// Refuses a stream that is captured.
    pub(super) fn uncaptured(&self, stream: u64) -> Result<(), Code> {
        if self.is_captured(stream)? { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    pub(super) fn stream_op(&mut self, op: Op, header: &Header, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        match op {
            Op::StreamCreate | Op::StreamCreateWithFlags | Op::StreamCreateWithPriority => {
                let request = view::<q::StreamCreate>(payload)?;
                let stream = new_stream(request.flags.get(), request.priority.get())?;
                let stream = self.objects.add(Object::Stream(stream))?;
                Ok(long(room, stream))
            }
            Op::StreamCreateBatch => {
                let request = view::<q::HandleBatch>(payload)?;
                let flags = request.flags.get();
                new_stream(flags, 0)?;
                self.create_all(request.count.get(), room, || Object::Stream(Stream { flags, ..Stream::default() }))
            }
            Op::StreamDestroy => {
                let stream = handle(payload)?;
                self.objects.stream(stream)?;
                if let Some(Object::Stream(Stream { capture: Some(graph), .. })) = self.objects.remove(stream) {
                    self.drop_graph(graph);
                }
                Ok(done(room))
            }
            Op::StreamSynchronize => {
                self.uncaptured(handle(payload)?)?;
                self.tell(header, room)
            }
            Op::StreamQuery => {
                let stream = handle(payload)?;
                self.uncaptured(stream)?;
                let is_at_work = self.work.as_ref().is_some_and(|work| stream == 0 || work.stream == stream);
                if is_at_work { Err(Code::NOT_READY) } else { Ok(done(room)) }
            }
            Op::StreamWaitEvent => {
                let request = view::<q::StreamWaitEvent>(payload)?;
                self.is_captured(request.stream.get())?;
                self.objects.event(request.event.get())?;
                // All work is in order.
                Ok(done(room))
            }
            _ => {
                let stream = handle(payload)?;
                let (flags, priority) = if stream == 0 {
                    (0, 0)
                } else {
                    let stream = self.objects.stream(stream)?;
                    (stream.flags, stream.priority)
                };
                Ok(int(room, if op == Op::StreamGetFlags { flags as i32 } else { priority }))
            }
        }
    }

    /// So many handles, at most 32; all or none.
    fn create_all(&mut self, count: u32, room: &mut [u8], make: impl Fn() -> Object) -> Result<Flow, Code> {
        let count = count.min(BATCH_MAX);
        self.objects.room(count as usize)?;
        let mut answer = r::Handles { count: count.into(), ..r::Handles::zeroed() };
        for handle in &mut answer.handles[..count as usize] {
            *handle = self.objects.add(make())?.into();
        }
        Ok(put(room, &answer))
    }

    pub(super) fn event_op(
        &mut self,
        op: Op,
        header: &Header,
        payload: &[u8],
        room: &mut [u8],
        now: Nanos,
    ) -> Result<Flow, Code> {
        match op {
            Op::EventCreate | Op::EventCreateWithFlags => {
                let event = self.objects.add(new_event(view::<q::Flags>(payload)?.flags.get()))?;
                Ok(long(room, event))
            }
            Op::EventCreateBatch => {
                let request = view::<q::HandleBatch>(payload)?;
                let flags = request.flags.get();
                self.create_all(request.count.get(), room, || new_event(flags))
            }
            Op::EventDestroy => {
                let event = handle(payload)?;
                self.objects.event(event)?;
                self.objects.remove(event);
                self.pending.retain(|pending| *pending != event);
                Ok(done(room))
            }
            Op::EventRecord => {
                let request = view::<q::EventRecord>(payload)?;
                let (event, stream) = (request.event.get(), request.stream.get());
                self.objects.event(event)?;
                if self.is_captured(stream)? {
                    self.record(stream, Node::Record(event))?;
                } else {
                    self.record_event(event, now)?;
                }
                Ok(done(room))
            }
            Op::EventSynchronize => {
                self.objects.event(handle(payload)?)?;
                self.tell(header, room)
            }
            Op::EventQuery => match self.objects.event(handle(payload)?)?.state {
                Recorded::Pending => Err(Code::NOT_READY),
                Recorded::Never | Recorded::At(_) => Ok(done(room)),
            },
            _ => {
                let request = view::<q::EventElapsedTime>(payload)?;
                let time = |event: u64| {
                    let event = self.objects.event(event)?;
                    if event.has_time { Ok(event.state) } else { Err(Code::INVALID_HANDLE) }
                };
                match (time(request.start_event.get())?, time(request.stop_event.get())?) {
                    (Recorded::Never, _) | (_, Recorded::Never) => Err(Code::INVALID_HANDLE),
                    (Recorded::At(start), Recorded::At(stop)) => {
                        let milliseconds = (stop.0.cast_signed() - start.0.cast_signed()) as f32 / 1e6;
                        let answer = r::Milliseconds { error_code: 0.into(), milliseconds: milliseconds.into() };
                        Ok(put(room, &answer))
                    }
                    _ => Err(Code::NOT_READY),
                }
            }
        }
    }

    /// Records an event behind the work that goes on.
    pub(super) fn record_event(&mut self, event: u64, now: Nanos) -> Result<(), Code> {
        let is_at_work = self.work.is_some();
        let recorded = self.objects.event_mut(event)?;
        if !is_at_work {
            recorded.state = Recorded::At(now);
        } else if recorded.state != Recorded::Pending {
            recorded.state = Recorded::Pending;
            self.pending.push(event);
        }
        Ok(())
    }
}

fn new_stream(flags: u32, priority: i32) -> Result<Stream, Code> {
    if flags & !NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(Stream { flags, priority: priority.clamp(-1, 1), capture: None })
}

fn new_event(flags: u32) -> Object {
    Object::Event(Event { has_time: flags & DISABLE_TIMING == 0, state: Recorded::Never })
}
