//! The worker process: it has the device, and lives no longer than `berth` and the kernel do.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, ErrorKind, Write as _},
    os::{
        fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};

use berth_memory::Memory as _;
use berth_process::sandbox::{self, Walls};

use crate::{
    control::{Command, Functions, Report, RingFd, line},
    dispatch::{Dispatcher, ServedRing},
    lease::process,
    mapping::{At, FileMap, Mapping},
    once, session, vram,
    walls::shut_in,
};

/// How often it looks after its kernel.
const LOOK: Duration = Duration::from_millis(20);

/// The program `berth-gpu-worker`. Its standard input is the socket to `berth`; what else it inherits, it is told there. It does
/// not return: what a driver does at the end of a process would wait for a kernel that does not end.
pub fn main() -> ! {
    sandbox::end_with_parent();
    // SAFETY: nothing else of this process uses standard input.
    let control = || UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
    let served = match std::env::args().nth(1).as_deref() {
        Some("probe") => once::probe(),
        Some("run") => once::perform(),
        Some("vram") => vram::process::give(&control()),
        Some("lease") => process::serve(control()),
        Some("session") => session::process::serve(control()),
        _ => serve(&control()),
    };
    let status = match served {
        Ok(success) => i32::from(!success),
        Err(e) => {
            // Once it is shut in, it has no standard error.
            let _ = writeln!(
                io::stderr(),
                "berth-gpu-worker: {e}; it is started by berth run, for a [[gpu]] of its configuration"
            );
            1
        }
    };
    // SAFETY: it ends the process.
    unsafe { libc::_exit(status) }
}

/// Takes over a file that was inherited.
pub(crate) fn inherited(fd: RawFd) -> io::Result<File> {
    // SAFETY: a number is passed, which may be no file's.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::new(ErrorKind::InvalidInput, "no such file was inherited"));
    }
    // SAFETY: `berth` names each file once, and nothing else of this process has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Takes over several, in order.
pub(crate) fn all_inherited(fds: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    fds.iter().map(|fd| inherited(*fd).map(OwnedFd::from)).collect()
}

/// The rings of these files.
fn mapped(rings: &[RingFd]) -> io::Result<Vec<ServedRing>> {
    let mapped = |ring: &RingFd| {
        let mapping = Arc::new(Mapping::new(&inherited(ring.fd)?, At::Base)?);
        let posted =
            ring.vram.map(|vram| Ok::<_, io::Error>((OwnedFd::from(inherited(vram.fd)?), vram))).transpose()?;
        let frames = ring.frames.map(|frames| FileMap::frames(&inherited(frames.fd)?, frames.bytes, frames.at));
        Ok(ServedRing { mapping, header: ring.header, posted, frames: frames.transpose()?.map(Arc::new) })
    };
    rings.iter().map(mapped).collect()
}

/// Serves until the other end of `control` is closed, or the kernel ends: whether it was the former. It has the files that it
/// is told.
fn serve(mut control: &UnixStream) -> io::Result<bool> {
    control.set_read_timeout(Some(LOOK))?;
    let (mut input, mut read) = (BufReader::new(control), Vec::new());
    let mut dispatcher: Option<Dispatcher> = None;
    let mut next: Option<Functions> = None;
    loop {
        match input.read_until(b'\n', &mut read) {
            Ok(0) => return Ok(true),
            Ok(_) => {
                match serde_json::from_slice(&std::mem::take(&mut read))? {
                    Command::Open { device, rings, blocks } => {
                        let rings = mapped(&rings)?;
                        let mapped = |ring: &ServedRing| {
                            (ring.mapping.size() + ring.frames.as_ref().map_or(0, |frames| frames.size())) as u64
                        };
                        let bytes = rings.iter().map(mapped).sum();
                        let posted = rings.iter().filter_map(|ring| ring.posted.as_ref());
                        let keep: Vec<_> = posted.map(|(exported, _)| exported.as_fd()).collect();
                        let Walls { namespaces, landlock } = shut_in(&device, bytes, &keep)?;
                        control.write_all(&line(&Report::Hello { namespaces, landlock }))?;
                        match device.open().and_then(|device| Dispatcher::open(device, rings, blocks)) {
                            Ok(opened) => {
                                if let Some((kind, device)) = opened.identity() {
                                    let (kind, device) = (kind.to_owned(), device.to_owned());
                                    let unread = opened.unread().map(str::to_owned);
                                    control.write_all(&line(&Report::Opened { kind, device, unread }))?;
                                }
                                dispatcher = Some(opened);
                            }
                            Err(e) => {
                                control.write_all(&line(&Report::Refused(e.to_string())))?;
                                return Ok(false);
                            }
                        }
                    }
                    Command::Load(functions) => next = Some(functions),
                }
                // What it waits for is done before it looks for more.
                if let Some(running) = dispatcher.as_ref().filter(|_| next.is_some()) {
                    running.drain();
                }
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
        let Some(dispatcher) = &mut dispatcher else { continue };
        if let Some(Err(fault)) = dispatcher.ended() {
            control.write_all(&line(&Report::Fault(fault.to_string())))?;
            return Ok(false);
        }
        if !dispatcher.is_running()
            && let Some(functions) = next.take()
        {
            if let Err(e) = dispatcher.start(&functions) {
                control.write_all(&line(&Report::Refused(e.to_string())))?;
                return Ok(false);
            }
            control.write_all(&line(&Report::Loaded))?;
        }
        if dispatcher.is_running() && dispatcher.has_beaten() {
            control.write_all(&line(&Report::Beat))?;
        }
    }
}
