//! The unit of executors (`docs/wasm.md`): it starts them for the nodes of this host, which are another user, and sends them the
//! signals that a node may not send itself.
//!
//! ```text
//! node: connects ── socket, slot, share ──▶ keeper: one thread ── child: an executor
//!         S, C, or the connection's end ──▶   SIGSTOP, SIGCONT, SIGKILL
//!                                 status ◀──   it has ended
//! ```

use std::{
    env,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, FromRawFd as _, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::ExitStatusExt as _,
        },
    },
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use berth_process::{sandbox::undumpable, supervise::Running};
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use super::{
    cgroup::Subtree,
    descriptor,
    start::{CONTINUE, STOP, Share},
};

/// How long a node may take to say what it wants.
const GREETING: Duration = Duration::from_secs(5);

/// Serves the listening socket that is standard input, until there is none.
pub(super) fn serve() -> io::Result<std::convert::Infallible> {
    // SAFETY: nothing else of this process uses its standard input.
    let nodes = UnixListener::from(unsafe { OwnedFd::from_raw_fd(0) });
    let program = env::current_exe()?;
    let subtree = match Subtree::take() {
        Ok(subtree) => Some(Arc::new(subtree)),
        Err(error) => {
            eprintln!("executors have no cgroups of their own: {error}");
            None
        }
    };
    // Nobody of its user, as executors are, looks into it.
    undumpable();
    loop {
        let (node, _) = nodes.accept()?;
        let (program, subtree) = (program.clone(), subtree.clone());
        thread::Builder::new().name("keeper".into()).spawn(move || {
            if let Err(error) = keep(&node, &program, subtree.as_deref()) {
                eprintln!("an executor: {error}");
            }
        })?;
    }
}

/// Starts the executor of one connection, and keeps it until either ends. An executor ends with its thread.
fn keep(node: &UnixStream, program: &Path, subtree: Option<&Subtree>) -> io::Result<()> {
    node.set_read_timeout(Some(GREETING))?;
    let (socket, slot) = (descriptor::receive(node)?, descriptor::receive(node)?);
    let mut share = [0; Share::LEN];
    (&*node).read_exact(&mut share)?;
    let share = Share::from_bytes(share);
    share.stay();
    let cgroup = subtree.map(|subtree| subtree.cgroup(&share)).transpose()?;
    let mut kept = Running(share.command(program, socket, slot).spawn()?);
    let pid = Pid::from_child(&kept.0);
    if let Some(cgroup) = &cgroup {
        cgroup.enter(pid)?;
    }
    (&*node).write_all(&[u8::from(cgroup.is_some())])?;
    let end = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut ready = [PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN), PollFd::new(&end, PollFlags::IN)];
        poll(&mut ready, None)?;
        if !ready[1].revents().is_empty() {
            let status = kept.0.wait()?;
            // Nobody may be there any more.
            let _ = (&*node).write_all(&status.into_raw().to_le_bytes());
            return Ok(());
        }
        let mut word = [0];
        let signal = match (&*node).read(&mut word)? {
            0 => return Ok(()),
            _ if word == [STOP] => Signal::STOP,
            _ if word == [CONTINUE] => Signal::CONT,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        kill_process(pid, signal)?;
    }
}
