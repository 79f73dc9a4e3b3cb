//! Waiting for completions, and file systems and devices that go away with the test.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
};

use berth_lease::{BlockDone, BlockError, BlockOp, BlockRequest, Blocks};
use berth_store::BlockEngine;
use tempfile::TempDir;

pub(crate) struct Done {
    pub(crate) tag: u64,
    pub(crate) buffer: Box<[u8]>,
    pub(crate) result: Result<(), BlockError>,
}

/// Gathers completions.
pub(crate) struct Waiter {
    sender: Arc<Told>,
    receiver: Receiver<Done>,
}

struct Told(Mutex<Sender<Done>>);

impl BlockDone for Told {
    fn done(&self, tag: u64, buffer: Box<[u8]>, result: Result<(), BlockError>) {
        // A test that failed does not listen any more.
        let _ = self.0.lock().unwrap().send(Done { tag, buffer, result });
    }
}

impl Waiter {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel();
        Self { sender: Arc::new(Told(Mutex::new(sender))), receiver }
    }

    pub(crate) fn submit(&self, engine: &BlockEngine, op: BlockOp, at: u64, buffer: Vec<u8>, tag: u64) {
        engine.submit(BlockRequest { op, at, buffer: buffer.into(), tag, done: self.sender.clone() });
    }

    pub(crate) fn next(&self) -> Done {
        self.receiver.recv().unwrap()
    }
}

/// One operation, to its end.
pub(crate) fn run(engine: &BlockEngine, op: BlockOp, at: u64, buffer: Vec<u8>) -> Result<(), BlockError> {
    let waiter = Waiter::new();
    waiter.submit(engine, op, at, buffer, 77);
    let done = waiter.next();
    assert_eq!(done.tag, 77);
    done.result
}

pub(crate) fn write(engine: &BlockEngine, at: u64, data: Vec<u8>) -> Result<(), BlockError> {
    run(engine, BlockOp::Write, at, data)
}

pub(crate) fn read(engine: &BlockEngine, at: u64, len: usize) -> Result<Vec<u8>, BlockError> {
    let waiter = Waiter::new();
    waiter.submit(engine, BlockOp::Read, at, vec![0xee; len], 78);
    let done = waiter.next();
    done.result.map(|()| done.buffer.into())
}

pub(crate) fn count(engine: &BlockEngine, wanted: &str) -> u64 {
    let mut found = None;
    engine.counters(&mut |name, value| found = found.or((name == wanted).then_some(value)));
    found.expect(wanted)
}

/// A memory file system that this thread and those it starts see, until they end. None without the right to mount.
pub(crate) fn private_tmpfs(size: &str) -> Option<TempDir> {
    let dir = TempDir::new().unwrap();
    // SAFETY: no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return None;
    }
    let mount = |args: &[&str]| Command::new("mount").args(args).status().is_ok_and(|status| status.success());
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
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
