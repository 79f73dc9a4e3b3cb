//! A request in progress, step by step: what an engine's own ring and those of poll cores have in common.

use std::os::fd::AsRawFd;

use berth_lease::{BlockError, BlockOp, BlockRequest};
use io_uring::{
    opcode, squeue,
    types::{Fd, FsyncFlags},
};

use crate::target::Target;

/// The most bytes that are moved at once.
const MOST: usize = 1 << 30;

/// A request in progress.
pub(crate) struct Task {
    pub(crate) request: BlockRequest,
    /// Bytes of it that are done.
    pub(crate) progress: usize,
}

/// What the kernel does for a task with no other memory than the request's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plain {
    /// Reads or writes so many bytes of one of the request's pieces.
    Move(usize),
    Flush,
}

/// What comes after a step.
pub(crate) enum After {
    /// The next one, or the same again.
    GoOn,
    End(Result<(), BlockError>),
}

impl Task {
    pub(crate) fn new(request: BlockRequest) -> Self {
        Self { request, progress: 0 }
    }

    /// Bytes that are to be done.
    pub(crate) fn left(&self) -> u64 {
        self.request.len() - self.progress as u64
    }

    /// The next step, if it is a plain one.
    pub(crate) fn plain(&self, target: &Target) -> Option<Plain> {
        match self.request.op {
            BlockOp::Flush => Some(Plain::Flush),
            BlockOp::Read | BlockOp::Write => Some(self.whole_sectors(target)).filter(|len| *len > 0).map(Plain::Move),
            BlockOp::Compare | BlockOp::Zero(_) | BlockOp::Discard(_) => None,
        }
    }

    /// Bytes of whole sectors that can be moved next from or to a piece of the request itself.
    fn whole_sectors(&self, target: &Target) -> usize {
        let Some((piece, here)) = self.request.piece(self.progress) else { return 0 };
        let at = self.request.at + self.progress as u64;
        let aligned = at.is_multiple_of(target.align)
            && ((piece.base().addr().get() + here) as u64).is_multiple_of(target.memory_align);
        let len = (piece.size() - here).min(MOST);
        if aligned { len - len % target.align as usize } else { 0 }
    }

    /// What the kernel is told of a plain step. `index` says by which number it knows the memory at an address.
    pub(crate) fn entry(
        &self,
        step: Plain,
        target: &Target,
        index: impl FnOnce(usize) -> Option<u16>,
    ) -> squeue::Entry {
        match step {
            Plain::Move(len) => {
                let (piece, here) = self.request.piece(self.progress).expect("a piece that is moved");
                // SAFETY: within the piece.
                let at = unsafe { piece.base().as_ptr().add(here) };
                let writes = self.request.op == BlockOp::Write;
                transfer(target, writes, (at, len), self.request.at + self.progress as u64, index(at.addr()))
            }
            Plain::Flush => opcode::Fsync::new(Fd(target.file.as_raw_fd())).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// A plain step is over.
    pub(crate) fn stepped(&mut self, step: Plain, result: i32) -> After {
        match (step, result) {
            (_, result) if is_interrupted(result) => After::GoOn,
            (_, ..0) => After::End(Err(BlockError::Io(-result))),
            (Plain::Flush, _) => After::End(Ok(())),
            // Nothing is left of the file, or of the device.
            (Plain::Move(_), 0) => After::End(Err(BlockError::Io(libc::EIO))),
            (Plain::Move(len), moved) => {
                self.progress += len.min(moved as usize);
                if self.left() == 0 { After::End(Ok(())) } else { After::GoOn }
            }
        }
    }
}

/// Whether the step has to be done again.
pub(crate) fn is_interrupted(result: i32) -> bool {
    [-libc::EINTR, -libc::EAGAIN].contains(&result)
}

/// Moves `len` bytes between memory and the target.
pub(crate) fn transfer(
    target: &Target,
    writes: bool,
    (at, len): (*mut u8, usize),
    offset: u64,
    index: Option<u16>,
) -> squeue::Entry {
    let (fd, len) = (Fd(target.file.as_raw_fd()), len as u32);
    match (writes, index) {
        (false, Some(index)) => opcode::ReadFixed::new(fd, at, len, index).offset(offset).build(),
        (false, None) => opcode::Read::new(fd, at, len).offset(offset).build(),
        (true, Some(index)) => opcode::WriteFixed::new(fd, at, len, index).offset(offset).build(),
        (true, None) => opcode::Write::new(fd, at, len).offset(offset).build(),
    }
}
