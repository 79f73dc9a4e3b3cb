//! The worker's half: it has the driver, allocates or imports, and ends. The handle that `berth` keeps holds the memory.

use std::{
    io::{self, BufRead as _, BufReader, IoSlice, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{
    Answer, Asked, ChunkFds, MARKS, Refusal, SENT_MAX, What,
    chunks::{divided, mark},
};
use crate::{
    control::line,
    cuda::{Cuda, Exported, NOT_SUPPORTED},
    device::DeviceError,
    session::SessionDevice as _,
    walls::shut_in,
    worker::inherited,
};

/// Does what it is asked for.
pub(crate) fn give(control: &UnixStream) -> io::Result<bool> {
    let mut said = Vec::new();
    BufReader::new(control).read_until(b'\n', &mut said)?;
    let asked: Asked = serde_json::from_slice(&said)?;
    let imported = asked.what.inherited().into_iter().map(|fd| inherited(fd).map(OwnedFd::from));
    let imported = imported.collect::<io::Result<Vec<_>>>()?;
    let keep: Vec<_> = imported.iter().map(|handle| handle.as_fd()).collect();
    shut_in(&asked.device, 0, &keep)?;
    let made = match &asked.what {
        What::Allocate => marked(&asked).map(|made| (made.bytes, vec![made.handle, made.dma_buf])),
        What::Look(_) => seen(&asked, &imported).map(|()| (asked.bytes, Vec::new())),
        What::Chunks(bytes) => chunks(&asked, *bytes),
        What::DmaBuf(chunks) => dma_buf(&asked, chunks, &imported).map(|made| (asked.bytes, vec![made])),
    };
    if let Ok((_, files)) = &made {
        for some in files.chunks(SENT_MAX) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SENT_MAX))];
            let some: Vec<_> = some.iter().map(|file| file.as_fd()).collect();
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if !beside.push(SendAncillaryMessage::ScmRights(&some)) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            // A byte must go with them, which JSON does not mind.
            sendmsg(control, &[IoSlice::new(b" ")], &mut beside, SendFlags::empty())?;
        }
    }
    let refusal = |e: &DeviceError| Refusal { why: e.to_string(), is_final: e.code == NOT_SUPPORTED };
    let answer: Answer = made.as_ref().map(|(bytes, files)| (*bytes, files.len())).map_err(refusal);
    (&*control).write_all(&line(&answer))?;
    Ok(true)
}

/// Allocates chunks, and marks each.
fn chunks(asked: &Asked, bytes: Option<u64>) -> Result<(usize, Vec<OwnedFd>), DeviceError> {
    let mut gpu = Cuda::open(&asked.device)?;
    // Each process that maps them takes some memory for itself.
    let bytes = bytes.map_or_else(|| gpu.free().map(|free| free - free / 8), Ok)?;
    let (count, each) = divided(bytes).map_err(DeviceError::other)?;
    let handles = gpu.export_chunks(count, each as usize, asked.at)?;
    for nth in 0..count {
        gpu.write(asked.at + nth as u64 * each, &mark(nth))?;
    }
    Ok((each as usize, handles))
}

/// A dma-buf of chunks.
fn dma_buf(asked: &Asked, chunks: &ChunkFds, imported: &[OwnedFd]) -> Result<OwnedFd, DeviceError> {
    let mut gpu = Cuda::open(&asked.device)?;
    gpu.import(imported, chunks.bytes, chunks.at)?;
    gpu.dma_buf(imported.len() * chunks.bytes, chunks.at)
}

/// Allocates memory, and marks its ends.
fn marked(asked: &Asked) -> Result<Exported, DeviceError> {
    let mut gpu = Cuda::open(&asked.device)?;
    let exported = gpu.export(asked.bytes, asked.at)?;
    gpu.fill(asked.at, exported.bytes as u64, 0)?;
    for at in ends(asked.at, exported.bytes) {
        gpu.write(at, &MARKS[0])?;
    }
    Ok(exported)
}

fn ends(at: u64, bytes: usize) -> [u64; 2] {
    [at, at + (bytes - MARKS[0].len()) as u64]
}

/// That memory of a process that has ended holds what `berth` wrote; then all is zero.
fn seen(asked: &Asked, handle: &[OwnedFd]) -> Result<(), DeviceError> {
    let mut gpu = Cuda::open(&asked.device)?;
    gpu.import(handle, asked.bytes, asked.at)?;
    for at in ends(asked.at, asked.bytes) {
        let mut found = [0; MARKS[1].len()];
        gpu.read(at, &mut found)?;
        if found != MARKS[1] {
            return Err(DeviceError::other(
                "what a CPU writes to the mapped dma-buf does not reach the GPU's next process",
            ));
        }
    }
    gpu.fill(asked.at, asked.bytes as u64, 0)
}
