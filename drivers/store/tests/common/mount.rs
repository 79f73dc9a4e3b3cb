//! File systems and devices that go away with the test. Tests of other crates include this file too.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// Mounts for this thread and those it starts, until they end.
pub(crate) fn mount(args: &[&str]) -> bool {
    succeeds("mount", args)
}

/// A memory file system that this thread and those it starts see, until they end. None without the right to mount.
pub(crate) fn private_tmpfs(size: &str) -> Option<TempDir> {
    let dir = TempDir::new().unwrap();
    // SAFETY: no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return None;
    }
    let mounted = mount(&["--make-rprivate", "/"])
        && mount(&["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", dir.path().to_str().unwrap()]);
    mounted.then_some(dir)
}

/// A loop device, taken down when dropped.
pub(crate) struct Loop(PathBuf);

impl Loop {
    /// On a new file. None without the right or a free device.
    pub(crate) fn new(file: &Path, len: u64, sectors: u32) -> Option<Self> {
        std::fs::File::create(file).and_then(|file| file.set_len(len)).unwrap();
        let sectors = sectors.to_string();
        let setup = Command::new("losetup").args(["--find", "--show", "--sector-size", &sectors]).arg(file).output();
        let setup = setup.ok().filter(|setup| setup.status.success())?;
        Some(Self(String::from_utf8(setup.stdout).unwrap().trim().into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
    }
}
