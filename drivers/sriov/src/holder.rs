//! Who has a function open: processes with a descriptor of its group's node.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The processes that have the node of a group open. `proc` is where processes are listed. One that keeps the function's own
/// descriptor and closed that of the group is not found: the kernel does not tell whose such a descriptor is.
pub(crate) fn holders(proc: &Path, node: &Path) -> Vec<Holder> {
    let Ok(wanted) = fs::metadata(node) else { return Vec::new() };
    let wanted = (wanted.dev(), wanted.ino(), wanted.rdev());
    let name = node.file_name();
    let is_it = |descriptor: &Path| {
        // Its link first: a look at what another file system does not answer for would wait.
        let same_name = fs::read_link(descriptor).is_ok_and(|target| target.file_name() == name);
        let found = |found: fs::Metadata| (found.dev(), found.ino(), found.rdev());
        same_name && fs::metadata(descriptor).is_ok_and(|other| found(other) == wanted)
    };
    let processes = fs::read_dir(proc).into_iter().flatten().flatten();
    let processes =
        processes.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())));
    let descriptors = |path: &Path| fs::read_dir(path.join("fd")).into_iter().flatten().flatten();
    let holders = processes.filter_map(|(pid, path)| {
        let descriptor = descriptors(&path).map(|entry| entry.path()).find(|descriptor| is_it(descriptor))?;
        Some(Holder { pid, descriptor })
    });
    holders.collect()
}

/// A process that has a group's node open.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    descriptor: PathBuf,
}

impl Holder {
    /// Ends the process, unless it is this one or does not have the node open any more; says whether it was told to.
    pub(crate) fn kill(&self, node: &Path) -> bool {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| self.pid != process::id()) else { return false };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        // From here on this is one process. It is the holder if it has the node open now.
        let still = match (fs::metadata(&self.descriptor), fs::metadata(node)) {
            (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
            _ => false,
        };
        still && pidfd_send_signal(process, Signal::KILL).is_ok()
    }
}
