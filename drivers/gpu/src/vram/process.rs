//! The worker's half: it has the driver, allocates, and ends. The handle that `berth` keeps holds the memory.

use std::{
    io::{self, BufRead as _, BufReader, IoSlice},
    mem::MaybeUninit,
    os::{fd::AsFd as _, unix::net::UnixStream},
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::{Answer, Asked, MARKS};
use crate::{
    control::line,
    cuda::{Cuda, Exported},
    device::DeviceError,
    session::SessionDevice as _,
    walls::shut_in,
};

/// Allocates what it is asked for, and looks whether `berth` reaches it.
pub(crate) fn give(control: &UnixStream) -> io::Result<bool> {
    let (mut input, mut said) = (BufReader::new(control), Vec::new());
    input.read_until(b'\n', &mut said)?;
    let asked: Asked = serde_json::from_slice(&said)?;
    shut_in(&asked.device, 0, &[])?;
    let made = marked(&asked);
    let (told, files) = match &made {
        Ok((_, exported)) => (Ok(exported.bytes), vec![exported.handle.as_fd(), exported.dma_buf.as_fd()]),
        Err(e) => (Err(e.to_string()), Vec::new()),
    };
    let answer: Answer<usize> = told;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    sendmsg(control, &[IoSlice::new(&line(&answer))], &mut beside, SendFlags::empty())?;
    let Ok((mut gpu, exported)) = made else { return Ok(true) };
    // Its end is told where it has mapped nothing.
    if input.read_until(b'\n', &mut said)? == 0 {
        return Ok(true);
    }
    let answer: Answer<()> = seen(&mut gpu, &asked, &exported).map_err(|e| e.to_string());
    sendmsg(control, &[IoSlice::new(&line(&answer))], &mut SendAncillaryBuffer::default(), SendFlags::empty())?;
    Ok(true)
}

fn marked(asked: &Asked) -> Result<(Cuda, Exported), DeviceError> {
    let mut gpu = Cuda::open(&asked.device)?;
    let exported = gpu.export(asked.bytes, asked.at)?;
    gpu.fill(asked.at, exported.bytes as u64, 0)?;
    for at in ends(asked, &exported) {
        gpu.write(at, &MARKS[0])?;
    }
    Ok((gpu, exported))
}

fn ends(asked: &Asked, exported: &Exported) -> [u64; 2] {
    [asked.at, asked.at + (exported.bytes - MARKS[0].len()) as u64]
}

/// That the GPU sees what `berth` wrote; then all is zero.
fn seen(gpu: &mut Cuda, asked: &Asked, exported: &Exported) -> Result<(), DeviceError> {
    for at in ends(asked, exported) {
        let mut found = [0; MARKS[1].len()];
        gpu.read(at, &mut found)?;
        if found != MARKS[1] {
            return Err(DeviceError::other("what a CPU writes to the mapped dma-buf does not reach the GPU"));
        }
    }
    gpu.fill(asked.at, exported.bytes as u64, 0)
}
