//! The worker's half: it has the driver, allocates or imports, and ends. The handle that `berth` keeps holds the memory.

use std::{
    io::{self, BufRead as _, BufReader, IoSlice},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Answer, Asked, MARKS};
use crate::{
    control::line,
    cuda::{Cuda, Exported},
    device::{Device as _, DeviceError},
    session::SessionDevice as _,
    walls::shut_in,
    worker::inherited,
};

/// Does what it is asked for.
pub(crate) fn give(control: &UnixStream) -> io::Result<bool> {
    let mut said = Vec::new();
    BufReader::new(control).read_until(b'\n', &mut said)?;
    let asked: Asked = serde_json::from_slice(&said)?;
    let imported = asked.exported.map(|fd| inherited(fd).map(OwnedFd::from)).transpose()?;
    let keep: Vec<_> = imported.iter().map(|handle| handle.as_fd()).collect();
    shut_in(&asked.device, 0, &keep)?;
    let made = match &imported {
        None => marked(&asked).map(|exported| (exported.bytes, Some(exported))),
        Some(handle) => seen(&asked, handle).map(|()| (asked.bytes, None)),
    };
    let answer: Answer = made.as_ref().map(|(bytes, _)| *bytes).map_err(ToString::to_string);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let files = match &made {
        Ok((_, Some(Exported { handle, dma_buf, .. }))) => vec![handle.as_fd(), dma_buf.as_fd()],
        _ => Vec::new(),
    };
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    sendmsg(control, &[IoSlice::new(&line(&answer))], &mut beside, SendFlags::empty())?;
    Ok(true)
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
fn seen(asked: &Asked, handle: &OwnedFd) -> Result<(), DeviceError> {
    let mut gpu = Cuda::open(&asked.device)?;
    gpu.attach(handle, asked.bytes, asked.at)?;
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
