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
    Answer, Asked, MARKS, Refusal, SENT_MAX, What,
    chunks::{divided, mark},
};
use crate::{
    control::line,
    cuda::{Cuda, Exported, NOT_SUPPORTED},
    device::DeviceError,
    session::SessionDevice as _,
    walls::shut_in,
    worker::all_inherited,
};

/// Does what it is asked for.
pub(crate) fn give(control: &UnixStream) -> io::Result<bool> {
    let mut said = Vec::new();
    BufReader::new(control).read_until(b'\n', &mut said)?;
    let Asked { device, what } = serde_json::from_slice(&said)?;
    let imported = all_inherited(&what.inherited())?;
    let keep: Vec<_> = imported.iter().map(|handle| handle.as_fd()).collect();
    shut_in(&device, 0, &keep)?;
    let made = Cuda::open(&device).and_then(|mut gpu| match &what {
        What::Allocate { bytes, at } => {
            let made = marked(&mut gpu, *bytes, *at)?;
            Ok((made.bytes, vec![made.handle, made.dma_buf]))
        }
        What::Look { bytes, at, .. } => seen(&mut gpu, &imported, *bytes, *at).map(|()| (*bytes, Vec::new())),
        What::Chunks { bytes, at } => chunks(&mut gpu, *bytes, *at),
        What::DmaBuf(chunks) => {
            gpu.import(&imported, chunks.bytes, chunks.at)?;
            let made = gpu.dma_buf(imported.len() * chunks.bytes, chunks.at)?;
            Ok((chunks.bytes, vec![made]))
        }
    });
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
fn chunks(gpu: &mut Cuda, bytes: Option<u64>, at: u64) -> Result<(usize, Vec<OwnedFd>), DeviceError> {
    // Each process that maps them takes some memory for itself.
    let bytes = bytes.map_or_else(|| gpu.free().map(|free| free - free / 8), Ok)?;
    let (count, each) = divided(bytes).map_err(DeviceError::other)?;
    let handles = gpu.export_chunks(count, each as usize, at)?;
    for nth in 0..count {
        gpu.write(at + nth as u64 * each, &mark(nth))?;
    }
    Ok((each as usize, handles))
}

/// Allocates memory, and marks its ends.
fn marked(gpu: &mut Cuda, bytes: usize, at: u64) -> Result<Exported, DeviceError> {
    let exported = gpu.export(bytes, at)?;
    gpu.fill(at, exported.bytes as u64, 0)?;
    for end in ends(at, exported.bytes) {
        gpu.write(end, &MARKS[0])?;
    }
    Ok(exported)
}

fn ends(at: u64, bytes: usize) -> [u64; 2] {
    [at, at + (bytes - MARKS[0].len()) as u64]
}

/// That memory of a process that has ended holds what `berth` wrote; then all is zero.
fn seen(gpu: &mut Cuda, handle: &[OwnedFd], bytes: usize, at: u64) -> Result<(), DeviceError> {
    gpu.import(handle, bytes, at)?;
    for end in ends(at, bytes) {
        let mut found = [0; MARKS[1].len()];
        gpu.read(end, &mut found)?;
        if found != MARKS[1] {
            return Err(DeviceError::other(
                "what a CPU writes to the mapped dma-buf does not reach the GPU's next process",
            ));
        }
    }
    gpu.fill(at, bytes as u64, 0)
}
