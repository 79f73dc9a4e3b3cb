//! How `berth` starts a worker.

use std::{
    env,
    ffi::OsString,
    os::{fd::RawFd, unix::process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use berth_process::supervise::Patience;

use crate::{choice::Choice, cuda, hip};

/// What the variables begin with that the driver of a device is set up by; then one that it is given.
fn variables(device: &Choice) -> Option<(&'static [&'static str], (&'static str, &'static str))> {
    match device {
        Choice::Soft => None,
        Choice::Hip(_) => Some((&["HIP_", "HSA_", "ROCR_", "AMD_"], hip::AFFINITY)),
        _ => Some((&["CUDA_", "NVIDIA_"], cuda::EAGER)),
    }
}

/// A worker of this program, whose device is of this kind. It inherits these files under their numbers, and of the environment
/// what its driver is set up by. Where the host is short of memory, the kernel ends it before others.
pub(crate) fn worker(program: &Path, device: &Choice, files: Vec<RawFd>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().stdout(Stdio::null());
    if let Some((prefixes, (name, value))) = variables(device) {
        let is_drivers = |(name, _): &(OsString, OsString)| {
            let name = name.to_string_lossy();
            name == "LD_LIBRARY_PATH" || prefixes.iter().any(|prefix| name.starts_with(prefix))
        };
        command.envs(env::vars_os().filter(is_drivers)).env(name, value);
    }
    let keep_files = move || {
        for file in &files {
            // SAFETY: numbers of open files. Only in the child, so that no other program inherits them.
            if unsafe { libc::fcntl(*file, libc::F_SETFD, 0) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // Of all processes of the node, workers are what it can lose. It is no matter if it cannot be said.
    let expendable = || {
        // SAFETY: a path that ends with a zero, bytes that are there, and a file that nobody else has.
        unsafe {
            let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            libc::write(file, b"1000".as_ptr().cast(), 4);
            libc::close(file);
        }
        Ok(())
    };
    // SAFETY: between fork and exec they make system calls that may be made there, and allocate nothing.
    unsafe { command.pre_exec(keep_files).pre_exec(expendable) };
    command
}

/// How long `berth` waits for the worker of one client. It rests for a short time only, since that client waits for the next.
pub(crate) fn patience(start: Duration, silence: Duration) -> Patience {
    Patience { start, silence, rest: Duration::from_millis(20), rest_max: Duration::from_secs(1) }
}
