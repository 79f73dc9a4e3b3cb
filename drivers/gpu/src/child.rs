//! How `berth` starts a worker.

use std::{
    env,
    ffi::OsStr,
    os::{fd::RawFd, unix::process::CommandExt as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use berth_process::supervise::Patience;

use crate::{choice::Choice, cuda};

/// Of the environment, what NVIDIA's driver is set up by.
fn is_drivers(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name == b"LD_LIBRARY_PATH" || name.starts_with(b"CUDA_") || name.starts_with(b"NVIDIA_")
}

/// A worker of this program, whose device is of this kind. It inherits these files under their numbers, and of the environment
/// what its driver is set up by.
pub(crate) fn worker(program: &Path, device: &Choice, files: Vec<RawFd>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().stdout(Stdio::null());
    if *device != Choice::Soft {
        command.envs(env::vars_os().filter(|(name, _)| is_drivers(name))).env(cuda::EAGER.0, cuda::EAGER.1);
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
    // SAFETY: between fork and exec it makes system calls that may be made there, and allocates nothing.
    unsafe { command.pre_exec(keep_files) };
    command
}

/// How long `berth` waits for the worker of one client. It rests for a short time only, since that client waits for the next.
pub(crate) fn patience(start: Duration, silence: Duration) -> Patience {
    Patience { start, silence, rest: Duration::from_millis(20), rest_max: Duration::from_secs(1) }
}
