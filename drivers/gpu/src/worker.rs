//! The worker process: it has the device, and lives no longer than `berth` and the kernel do.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, ErrorKind, Write as _},
    os::{
        fd::{FromRawFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};

use crate::{
    choice::Choice,
    control::{Command, Functions, Report, RingFd, line},
    device::DeviceError,
    dispatch::Dispatcher,
    lease::process,
    mapping::{At, Mapping},
    once,
};

/// How often it looks after its kernel.
const LOOK: Duration = Duration::from_millis(20);

/// The program `berth-gpu-worker`. Its standard input is the socket to `berth`; what else it inherits, it is told there. It does
/// not return: what a driver does at the end of a process would wait for a kernel that does not end.
pub fn main() -> ! {
    let network = confine();
    let mode = std::env::args().nth(1).unwrap_or_default();
    let served = match mode.as_str() {
        "probe" => once::probe(),
        "run" => once::perform(),
        _ => {
            // SAFETY: nothing else of this process uses standard input.
            let control = UnixStream::from(unsafe { OwnedFd::from_raw_fd(0) });
            match mode.as_str() {
                "lease" => process::serve(control, network),
                _ => (&control).write_all(&line(&Report::Hello { network })).and_then(|()| serve(&control)),
            }
        }
    };
    let status = match served {
        Ok(success) => i32::from(!success),
        Err(e) => {
            eprintln!("berth-gpu-worker: {e}; it is started by berth run, for a [[gpu]] of its configuration");
            1
        }
    };
    // SAFETY: it ends the process.
    unsafe { libc::_exit(status) }
}

/// Gives up what a worker does not need: new privileges, the network, core dumps, a life after its parent's. Returns whether
/// it still has the network.
fn confine() -> bool {
    let network = [libc::CLONE_NEWNET, libc::CLONE_NEWUSER | libc::CLONE_NEWNET];
    // SAFETY: numbers alone are passed, but for the limit, which outlives the call; the process has one thread.
    unsafe {
        let has_network = network.into_iter().all(|flags| libc::unshare(flags) != 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        // Who ends a service signals all of its processes: requests that are under way are still to be answered.
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        has_network
    }
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

fn open(device: &Choice, rings: &[RingFd], blocks: u32) -> io::Result<Result<Dispatcher, DeviceError>> {
    let mapped = |ring: &RingFd| Ok((Arc::new(Mapping::new(&inherited(ring.fd)?, At::Base)?), ring.header));
    let rings = rings.iter().map(mapped).collect::<io::Result<_>>()?;
    Ok(device.open().and_then(|device| Dispatcher::open(device, rings, blocks)))
}

/// Serves until the other end of `control` is closed, or the kernel ends: whether it was the former. It has the files that it
/// is told.
pub fn serve(mut control: &UnixStream) -> io::Result<bool> {
    control.set_read_timeout(Some(LOOK))?;
    let (mut input, mut read) = (BufReader::new(control), Vec::new());
    let mut dispatcher: Option<Dispatcher> = None;
    let mut next: Option<Functions> = None;
    loop {
        match input.read_until(b'\n', &mut read) {
            Ok(0) => return Ok(true),
            Ok(_) => {
                match serde_json::from_slice(&std::mem::take(&mut read))? {
                    Command::Open { device, rings, blocks } => match open(&device, &rings, blocks)? {
                        Ok(opened) => {
                            if let Some((kind, device)) = opened.identity() {
                                let (kind, device) = (kind.to_owned(), device.to_owned());
                                control.write_all(&line(&Report::Opened { kind, device }))?;
                            }
                            dispatcher = Some(opened);
                        }
                        Err(e) => {
                            control.write_all(&line(&Report::Refused(e.to_string())))?;
                            return Ok(false);
                        }
                    },
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
