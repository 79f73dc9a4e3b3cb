//! Device memory, and copies.

use berth_wire::hip::{
    Code, Op, flags,
    request::{self as q, kind},
    response as r,
};
use zerocopy::IntoBytes as _;

use crate::{
    Result, Session,
    session::{Owned, refused},
};

/// Bytes of a copy to the device that are one request.
const PIECE_IN: usize = 64 << 20;
/// Bytes of a copy to the host that are one request: others are under way while it comes.
const PIECE_OUT: usize = 4 << 20;
/// Allocations of a batch.
const BATCH: usize = 64;

/// A copy to the host: where it begins on the device, and where it goes.
pub type CopyOut<'a> = (u64, &'a mut [u8]);

fn memcpy(dst: u64, src: u64, size: usize, kind: i32, stream: u64) -> q::Memcpy {
    q::Memcpy { dst: dst.into(), src: src.into(), size: (size as u64).into(), kind: kind.into(), stream: stream.into() }
}

/// The copy of a stream, or of the default stream.
fn op(stream: u64) -> Op {
    if stream == 0 { Op::Memcpy } else { Op::MemcpyAsync }
}

impl Session {
    /// Memory of so many bytes, all zero; 0 for 0 bytes.
    pub fn malloc(&self, bytes: u64) -> Result<u64> {
        self.long(Op::Malloc, q::Malloc { size: bytes.into(), flags: 0.into() }.as_bytes())
    }

    /// The same in the order of a stream.
    pub fn malloc_async(&self, bytes: u64, stream: u64) -> Result<u64> {
        self.long(Op::MallocAsync, q::MallocAsync { size: bytes.into(), stream: stream.into() }.as_bytes())
    }

    /// Up to 64 allocations in one round trip, all or none.
    pub fn malloc_batch(&self, sizes: &[u64]) -> Result<Vec<u64>> {
        if sizes.len() > BATCH {
            return refused(Op::MallocBatch, Code::INVALID_VALUE);
        }
        let mut request = q::MallocBatch { count: (sizes.len() as u32).into(), ..q::MallocBatch::zeroed() };
        for (field, size) in request.sizes.iter_mut().zip(sizes) {
            *field = (*size).into();
        }
        let answer: r::Pointers = self.ask(Op::MallocBatch, &[request.as_bytes()], 0)?;
        Ok(answer.ptrs[..sizes.len()].iter().map(|at| at.get()).collect())
    }

    /// Frees an allocation. Not waited for.
    pub fn free(&self, at: u64) -> Result<()> {
        self.post(Op::Free, &[q::Handle { handle: at.into() }.as_bytes()], 0)
    }

    /// The same in the order of a stream.
    pub fn free_async(&self, at: u64, stream: u64) -> Result<()> {
        self.post(Op::FreeAsync, &[q::FreeAsync { device_ptr: at.into(), stream: stream.into() }.as_bytes()], 0)
    }

    /// Copies to the device. The bytes are sent, or kept, when this returns.
    pub fn copy_in(&self, to: u64, from: &[u8], stream: u64) -> Result<()> {
        self.link.with(|wire| {
            for (index, piece) in from.chunks(PIECE_IN).enumerate() {
                let to = to.wrapping_add((index * PIECE_IN) as u64);
                let request = memcpy(to, 0, piece.len(), kind::HOST_TO_DEVICE, stream);
                wire.post(self.device, op(stream), &[request.as_bytes(), piece], flags::HAS_INLINE_DATA)?;
            }
            Ok(())
        })
    }

    /// Copies to the host, behind all work before, and tells what failed in it.
    pub fn copy_out(&self, into: &mut [u8], from: u64, stream: u64) -> Result<()> {
        self.copy_out_all(&mut [(from, into)], stream)
    }

    /// Several copies to the host: each is under way while the one before it comes. If one is refused the others may be
    /// missing.
    pub fn copy_out_all(&self, copies: &mut [CopyOut<'_>], stream: u64) -> Result<()> {
        let mut pieces = Vec::new();
        for (from, into) in copies {
            for (index, piece) in into.chunks_mut(PIECE_OUT).enumerate() {
                let from = from.wrapping_add((index * PIECE_OUT) as u64);
                pieces.push((memcpy(0, from, piece.len(), kind::DEVICE_TO_HOST, stream), piece));
            }
        }
        self.link.with(|wire| wire.fetch(self.device, op(stream), &mut pieces))
    }

    /// Copies `bytes` bytes within the device, on a stream; 0 is the default stream.
    pub fn copy(&self, to: u64, from: u64, bytes: usize, stream: u64) -> Result<()> {
        let request = memcpy(to, from, bytes, kind::DEVICE_TO_DEVICE, stream);
        self.post(op(stream), &[request.as_bytes()], 0)
    }

    /// Copies `height` rows of `width` bytes within the device. `to` and `from`: address of the first row, and pitch in
    /// bytes.
    pub fn copy_rows(&self, to: (u64, u64), from: (u64, u64), width: u64, height: u64, stream: u64) -> Result<()> {
        let request = q::Memcpy2d {
            dst: to.0.into(),
            dpitch: to.1.into(),
            src: from.0.into(),
            spitch: from.1.into(),
            width: width.into(),
            height: height.into(),
            kind: kind::DEVICE_TO_DEVICE.into(),
            reserved: 0.into(),
            stream: stream.into(),
        };
        self.post(Op::Memcpy2dAsync, &[request.as_bytes()], 0)
    }

    /// Copies from one device to another. `to` and `from`: address and device number.
    pub fn copy_peer(&self, to: (u64, i32), from: (u64, i32), bytes: u64, stream: u64) -> Result<()> {
        let request = q::MemcpyPeer {
            dst: to.0.into(),
            dst_device: to.1.into(),
            src: from.0.into(),
            src_device: from.1.into(),
            size: bytes.into(),
            stream: stream.into(),
        };
        self.post(Op::MemcpyPeerAsync, &[request.as_bytes()], 0)
    }

    /// Sets `bytes` bytes from `at` on, on a stream; 0 is the default stream.
    pub fn fill(&self, at: u64, byte: u8, bytes: u64, stream: u64) -> Result<()> {
        let request =
            q::Memset { dst: at.into(), value: i32::from(byte).into(), size: bytes.into(), stream: stream.into() };
        self.post(if stream == 0 { Op::Memset } else { Op::MemsetAsync }, &[request.as_bytes()], 0)
    }

    /// Bytes of the device that are free for this session, and in all.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let answer: r::MemInfo = self.ask(Op::MemGetInfo, &[], 0)?;
        Ok((answer.free_bytes.get(), answer.total_bytes.get()))
    }

    /// Kind and device of the memory at an address; refused with `INVALID_DEVICE_POINTER` where there is none.
    pub fn pointer_attributes(&self, at: u64) -> Result<r::PointerAttributes> {
        self.ask(Op::PointerGetAttributes, &[q::Handle { handle: at.into() }.as_bytes()], 0)
    }
}

/// Memory of a device, freed when this is dropped, behind the work that was asked for before.
#[derive(Debug)]
pub struct Buffer {
    owned: Owned,
    bytes: u64,
}

impl Buffer {
    pub(crate) fn new(session: &Session, at: u64, bytes: u64) -> Self {
        Self { owned: Owned::new(session, at, Session::free), bytes }
    }

    /// Where it begins on the device; 0 where it has no bytes.
    pub fn address(&self) -> u64 {
        self.owned.handle
    }

    /// Its length in bytes, as it was asked for.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether it has no bytes; its address is 0 then.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Where `len` bytes at `offset` are; refused with `INVALID_VALUE` if they reach beyond the end.
    pub(crate) fn range(&self, offset: u64, len: u64, op: Op) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(self.owned.handle + offset),
            _ => refused(op, Code::INVALID_VALUE),
        }
    }

    /// Copies to the device, on the default stream; refused with `INVALID_VALUE` if it would reach beyond the end.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.range(offset, bytes.len() as u64, Op::Memcpy)?;
        self.owned.session.copy_in(at, bytes, 0)
    }

    /// Copies from the device, behind all work before, and tells what failed in it.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let at = self.range(offset, into.len() as u64, Op::Memcpy)?;
        self.owned.session.copy_out(into, at, 0)
    }

    /// Sets all its bytes, on the default stream.
    pub fn fill(&self, byte: u8) -> Result<()> {
        self.owned.session.fill(self.owned.handle, byte, self.bytes, 0)
    }
}
