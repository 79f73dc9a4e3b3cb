//! How executors are started: as children, or by their unit, which is another user's. Either way with one command line, and with
//! signals that stop and continue them.

use std::{
    fmt,
    io::{self, Read as _, Write as _},
    mem,
    net::Shutdown,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use berth_process::supervise::Running;
use rustix::{
    net::{RecvFlags, SendFlags, recv, send},
    process::{Pid, Signal, kill_process},
};

use super::descriptor;

/// How long an executor may take until it has shut itself in.
pub(super) const START: Duration = Duration::from_secs(10);

/// The file name of the socket of executors' unit, which starts them as another user.
pub const UNIT: &str = "/run/berth-executor.sock";

/// Who starts executors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starter {
    /// This process, from a program whose `main` ends in [`executor`](super::executor()).
    Child(PathBuf),
    /// A program that serves the socket of this name, as `executor` does when it is told `serve`.
    Unit(PathBuf),
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "children of berth, taking turns by time",
            Self::Unit { cgroup: true } => "their unit's, a cgroup each",
            Self::Unit { cgroup: false } => "their unit's, taking turns by time",
        })
    }
}

impl fmt::Display for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Child(path) | Self::Unit(path)) = self;
        path.display().fmt(f)
    }
}

/// What an executor is given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    /// Bytes of linear memory that a run may have.
    pub(super) memory: u64,
    /// CPUs that it may use, as bits; none is all.
    pub(super) cpus: [u64; 16],
}

impl Share {
    /// Bytes of [`Share::to_bytes`].
    pub(super) const LEN: usize = 8 + 128;

    pub(super) fn new(memory: u64, cpus: &[usize]) -> Self {
        let mut bits = [0; 16];
        for cpu in cpus {
            if let Some(word) = bits.get_mut(cpu / 64) {
                *word |= 1 << (cpu % 64);
            }
        }
        Self { memory, cpus: bits }
    }

    /// The memory and the CPUs, little-endian.
    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        for (at, word) in [self.memory].iter().chain(&self.cpus).enumerate() {
            bytes[8 * at..][..8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        Self { memory: word(0), cpus: std::array::from_fn(|at| word(at + 1)) }
    }

    /// The CPUs.
    pub(super) fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..1024).filter(|cpu| self.cpus[cpu / 64] >> (cpu % 64) & 1 == 1)
    }

    /// Keeps this thread, and what it starts, on these CPUs, where there are such.
    pub(super) fn stay(&self) {
        if self.cpus == [0; 16] {
            return;
        }
        // SAFETY: a set of bits without any, in which bits below its size are set, and which outlives the call.
        unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            for cpu in self.cpus() {
                libc::CPU_SET(cpu, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
        }
    }

    /// The command of an executor, whose standard input is its socket and whose standard output its slot.
    pub(super) fn command(&self, program: &Path, socket: OwnedFd, slot: OwnedFd) -> Command {
        let mut command = Command::new(program);
        command.args([self.memory.to_string(), std::process::id().to_string()]);
        command.env_clear().current_dir("/").stdin(socket).stdout(slot).stderr(Stdio::null());
        command
    }
}

/// An executor's process. It is killed on drop.
#[derive(Debug)]
pub(super) enum Process {
    Child(Running),
    /// The connection to who keeps it, which kills it when the connection ends.
    Kept {
        keeper: UnixStream,
        cgroup: bool,
    },
}

/// Whose children executors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// This process's.
    Node,
    /// Their unit's.
    Unit {
        /// Each has its own, with a core's time and the memory that it may have.
        cgroup: bool,
    },
}

/// What a node tells who keeps its executor, after the share. It is told one byte, whether there is a cgroup, and at the end four:
/// the status, as of waitpid(2), little-endian.
pub(super) const STOP: u8 = b'S';
pub(super) const CONTINUE: u8 = b'C';

impl Process {
    /// Starts an executor. A child ends with the thread that calls.
    pub(super) fn start(by: &Starter, share: &Share, socket: OwnedFd, slot: OwnedFd) -> io::Result<Self> {
        match by {
            Starter::Child(program) => {
                share.stay();
                Ok(Self::Child(Running(share.command(program, socket, slot).spawn()?)))
            }
            Starter::Unit(path) => {
                let keeper = UnixStream::connect(path)?;
                descriptor::send(&keeper, socket.as_fd())?;
                descriptor::send(&keeper, slot.as_fd())?;
                (&keeper).write_all(&share.to_bytes())?;
                keeper.set_read_timeout(Some(START))?;
                let mut cgroup = [0];
                (&keeper)
                    .read_exact(&mut cgroup)
                    .map_err(|error| io::Error::other(format!("it starts none: {error}")))?;
                Ok(Self::Kept { keeper, cgroup: cgroup == [1] })
            }
        }
    }

    pub(super) fn parent(&self) -> Parent {
        match self {
            Self::Child(_) => Parent::Node,
            Self::Kept { cgroup, .. } => Parent::Unit { cgroup: *cgroup },
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self {
            Self::Child(Running(child)) => child.try_wait().ok().flatten().map(|status| status.to_string()),
            Self::Kept { keeper, .. } => {
                let mut status = [0; 4];
                match recv(&*keeper, &mut status, RecvFlags::DONTWAIT) {
                    Ok((4, _)) => Some(ExitStatus::from_raw(i32::from_le_bytes(status)).to_string()),
                    Err(rustix::io::Errno::AGAIN) => None,
                    _ => Some("its unit keeps it no more".into()),
                }
            }
        }
    }

    /// Stops it, wherever it is, or lets it go on.
    pub(super) fn stands(&self, stands: bool) {
        // It may have ended by itself.
        match self {
            Self::Child(Running(child)) => {
                // It was not waited for, so the id is still its own.
                if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process(pid, if stands { Signal::STOP } else { Signal::CONT });
                }
            }
            Self::Kept { keeper, .. } => {
                let word = [if stands { STOP } else { CONTINUE }];
                if send(keeper, &word, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
                    // A keeper that takes nothing in cannot hold it to its turns: it is given up.
                    let _ = keeper.shutdown(Shutdown::Both);
                }
            }
        }
    }
}
