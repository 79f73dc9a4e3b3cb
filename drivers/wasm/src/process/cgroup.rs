//! A cgroup for each executor, where the unit's subtree is delegated (`Delegate=cpu cpuset memory`).

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rustix::process::Pid;

use super::{sandbox::OVERHEAD, slot::SIZE, start::Share};

const MOUNTED: &str = "/sys/fs/cgroup";

/// The unit's own subtree.
#[derive(Debug)]
pub(super) struct Subtree {
    root: PathBuf,
    next: AtomicU64,
}

impl Subtree {
    /// Moves this process to a leaf of its own, since a cgroup that has processes gives out nothing, and hands the controllers down.
    pub(super) fn take() -> io::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.trim_end().strip_prefix("0::/").filter(|own| !own.is_empty() && !own.contains('\n'));
        let own = own.ok_or_else(|| io::Error::other("cgroup v2 alone, with a cgroup of the unit's, is wanted"))?;
        let root = Path::new(MOUNTED).join(own);
        let keeper = root.join("keeper");
        made(&keeper)?;
        write(&keeper, "cgroup.procs", "0")?;
        write(&root, "cgroup.subtree_control", "+cpu +cpuset +memory")?;
        Ok(Self { root, next: AtomicU64::new(0) })
    }

    /// A cgroup with one core's time, on the CPUs of `share`, and with the memory that it says beside what a process needs.
    pub(super) fn cgroup(&self, share: &Share) -> io::Result<Cgroup> {
        let cgroup = Cgroup(self.root.join(format!("executor-{}", self.next.fetch_add(1, Relaxed))));
        made(&cgroup.0)?;
        let memory = share.memory.saturating_add(OVERHEAD).saturating_add(SIZE as u64);
        write(&cgroup.0, "memory.max", &memory.to_string())?;
        write(&cgroup.0, "cpu.max", "100000 100000")?;
        let cpus: Vec<_> = share.cpus().map(|cpu| cpu.to_string()).collect();
        if !cpus.is_empty() {
            write(&cgroup.0, "cpuset.cpus", &cpus.join(","))?;
        }
        Ok(cgroup)
    }
}

/// An executor's cgroup. It is removed on drop, when its process was waited for.
#[derive(Debug)]
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    pub(super) fn enter(&self, pid: Pid) -> io::Result<()> {
        write(&self.0, "cgroup.procs", &pid.as_raw_nonzero().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // One that cannot be removed goes with the unit.
        let _ = fs::remove_dir(&self.0);
    }
}

/// A folder that may be there from a keeper before this one.
fn made(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn write(folder: &Path, file: &str, text: &str) -> io::Result<()> {
    let path = folder.join(file);
    fs::write(&path, text).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
