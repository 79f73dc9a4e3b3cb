//! Memory: allocation, copies, sets.

use berth_wire::hip::{
    Code, Header, Op, flags,
    request::{self as q, kind},
    response as r,
};

use super::{handle, long, view};
use crate::{
    device::{Copy2d, Device, Job},
    jobs::{Captured, Then},
    objects::Node,
    rows::Rows,
    session::{Flow, Session, done, put},
};

/// Device memory, of `hipMemoryType`.
const DEVICE_MEMORY: i32 = 2;

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    In,
    Out,
    Within,
}

/// Bytes from the first of the first row to the last of the last one.
fn span(pitch: u64, width: u64, height: u64) -> Result<u64, Code> {
    let rows = height.checked_sub(1).and_then(|rows| rows.checked_mul(pitch));
    rows.and_then(|rows| rows.checked_add(width)).ok_or(Code::INVALID_VALUE)
}

fn direction(kind: i32, header: &Header) -> Result<Direction, Code> {
    match kind {
        kind::HOST_TO_DEVICE => Ok(Direction::In),
        kind::DEVICE_TO_HOST if header.has(flags::NO_REPLY) => Err(Code::INVALID_VALUE),
        kind::DEVICE_TO_HOST => Ok(Direction::Out),
        kind::DEFAULT if header.has(flags::HAS_INLINE_DATA) => Ok(Direction::In),
        kind::DEVICE_TO_DEVICE | kind::DEFAULT => Ok(Direction::Within),
        _ => Err(Code::INVALID_DIRECTION),
    }
}

impl<D: Device> Session<D> {
    pub(super) fn allocation_op(&mut self, op: Op, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        match op {
            Op::Malloc => {
                let size = view::<q::Malloc>(payload)?.size.get();
                Ok(self.allocate(size, room))
            }
            Op::MallocAsync => {
                let request = view::<q::MallocAsync>(payload)?;
                self.uncaptured(request.stream.get())?;
                Ok(self.allocate(request.size.get(), room))
            }
            Op::MallocBatch => self.allocate_all(view(payload)?, room),
            Op::Free => {
                self.free(handle(payload)?)?;
                Ok(done(room))
            }
            _ => {
                let request = view::<q::FreeAsync>(payload)?;
                self.uncaptured(request.stream.get())?;
                self.free(request.device_ptr.get())?;
                Ok(done(room))
            }
        }
    }

    fn allocate(&mut self, len: u64, room: &mut [u8]) -> Flow {
        if len == 0 {
            return long(room, 0);
        }
        Flow::Job(Job::Allocate { device: self.current, sizes: vec![len] }, Then::Pointer)
    }

    fn free(&mut self, at: u64) -> Result<(), Code> {
        if at == 0 { Ok(()) } else { self.device.free(at) }
    }

    /// All of them or none.
    fn allocate_all(&mut self, request: &q::MallocBatch, room: &mut [u8]) -> Result<Flow, Code> {
        let count = request.count.get() as usize;
        let sizes = request.sizes.get(..count).ok_or(Code::INVALID_VALUE)?;
        if sizes.is_empty() {
            return Ok(put(room, &r::Pointers::zeroed()));
        }
        let sizes = sizes.iter().map(|size| size.get()).collect();
        Ok(Flow::Job(Job::Allocate { device: self.current, sizes }, Then::Pointers))
    }

    pub(super) fn pointer_op(&mut self, op: Op, payload: &[u8], room: &mut [u8]) -> Result<Flow, Code> {
        if op == Op::MemGetInfo {
            let total = self.device.properties()[self.current].memory;
            let free = self.device.free_bytes(self.current).min(total);
            let answer = r::MemInfo { error_code: 0.into(), free_bytes: free.into(), total_bytes: total.into() };
            return Ok(put(room, &answer));
        }
        let at = handle(payload)?;
        let found = self.device.find(at).ok_or(Code::INVALID_DEVICE_POINTER)?;
        if op == Op::MemPtrGetInfo {
            return Ok(long(room, found.len));
        }
        let answer = r::PointerAttributes {
            memory_type: DEVICE_MEMORY.into(),
            device: (found.device as i32).into(),
            device_pointer: at.into(),
            ..r::PointerAttributes::zeroed()
        };
        Ok(put(room, &answer))
    }

    pub(super) fn memcpy(&mut self, header: &Header, request: &q::Memcpy, room: &mut [u8]) -> Result<Flow, Code> {
        let size = request.size.get();
        let (dst, src) = (request.dst.get(), request.src.get());
        let copy = Copy2d { dst, dpitch: size, src, spitch: size, width: size, height: 1 };
        self.copy(header, &copy, request.kind.get(), request.stream.get(), room)
    }

    pub(super) fn memcpy_2d(&mut self, header: &Header, request: &q::Memcpy2d, room: &mut [u8]) -> Result<Flow, Code> {
        let copy = Copy2d {
            dst: request.dst.get(),
            dpitch: request.dpitch.get(),
            src: request.src.get(),
            spitch: request.spitch.get(),
            width: request.width.get(),
            height: request.height.get(),
        };
        self.copy(header, &copy, request.kind.get(), request.stream.get(), room)
    }

    fn copy(&mut self, header: &Header, copy: &Copy2d, kind: i32, stream: u64, room: &mut [u8]) -> Result<Flow, Code> {
        let direction = direction(kind, header)?;
        let captured = self.is_captured(stream)?;
        let Copy2d { dst, dpitch, src, spitch, width, height } = *copy;
        if width > dpitch || width > spitch {
            return Err(Code::INVALID_PITCH);
        }
        let is_empty = width == 0 || height == 0;
        match direction {
            Direction::Out => {
                if captured {
                    return Err(Code::CAPTURE_UNSUPPORTED);
                }
                let len = if is_empty { 0 } else { dpitch.checked_mul(height).ok_or(Code::INVALID_VALUE)? };
                // The answer is a payload, too.
                if len > self.settings.max_payload.saturating_sub(r::Status::LEN as u64) {
                    return Err(Code::INVALID_VALUE);
                }
                if !is_empty {
                    self.device.check(src, span(spitch, width, height)?)?;
                }
                // The last of all: what was wrong with the request itself leaves a deferred error to the next.
                self.deferred.take().map_or(Ok(()), Err)?;
                Ok(Flow::Out(Rows { device: src, device_pitch: spitch, host_pitch: dpitch.max(1), width, at: 0, len }))
            }
            _ if is_empty => Ok(done(room)),
            Direction::In => {
                if !header.has(flags::HAS_INLINE_DATA) || self.rest < span(spitch, width, height)? {
                    return Err(Code::INVALID_VALUE);
                }
                self.device.check(dst, span(dpitch, width, height)?)?;
                let len = spitch.saturating_mul(height).min(self.rest);
                let rows = Rows { device: dst, device_pitch: dpitch, host_pitch: spitch, width, at: 0, len };
                if !captured {
                    return Ok(Flow::In(rows));
                }
                let captured = Captured { stream, buffer: 0, copy: Copy2d { spitch: width, ..*copy } };
                let then = Then::Receive(Rows { device_pitch: width, ..rows }, captured);
                let device = self.device.find(dst).map_or(self.current, |found| found.device);
                Ok(Flow::Job(Job::Allocate { device, sizes: vec![width * height] }, then))
            }
            Direction::Within => {
                self.check_copy(copy)?;
                self.within(*copy, stream, captured, room)
            }
        }
    }

    /// Whether both ranges of a copy, of one byte at least, are the session's.
    pub(crate) fn check_copy(&self, copy: &Copy2d) -> Result<(), Code> {
        self.device.check(copy.src, span(copy.spitch, copy.width, copy.height)?)?;
        self.device.check(copy.dst, span(copy.dpitch, copy.width, copy.height)?)
    }

    fn within(&mut self, copy: Copy2d, stream: u64, captured: bool, room: &mut [u8]) -> Result<Flow, Code> {
        if captured {
            self.record(stream, Node::Copy(copy))?;
            return Ok(done(room));
        }
        Ok(Flow::Job(Job::Copy(copy), Then::Answer))
    }

    pub(super) fn memcpy_peer(&mut self, request: &q::MemcpyPeer, room: &mut [u8]) -> Result<Flow, Code> {
        self.device_index(request.dst_device.get())?;
        self.device_index(request.src_device.get())?;
        let (stream, size) = (request.stream.get(), request.size.get());
        let captured = self.is_captured(stream)?;
        if size == 0 {
            return Ok(done(room));
        }
        let (dst, src) = (request.dst.get(), request.src.get());
        let copy = Copy2d { dst, dpitch: size, src, spitch: size, width: size, height: 1 };
        self.check_copy(&copy)?;
        self.within(copy, stream, captured, room)
    }

    pub(super) fn memset(&mut self, request: &q::Memset, room: &mut [u8]) -> Result<Flow, Code> {
        let (dst, len, stream) = (request.dst.get(), request.size.get(), request.stream.get());
        let value = request.value.get() as u8;
        let captured = self.is_captured(stream)?;
        if len == 0 {
            return Ok(done(room));
        }
        if captured {
            self.device.check(dst, len)?;
            self.record(stream, Node::Set { dst, len, value })?;
            return Ok(done(room));
        }
        if self.device.set(dst, len, value)? {
            return Ok(done(room));
        }
        Ok(Flow::Job(Job::Set { dst, len, value }, Then::Answer))
    }
}
