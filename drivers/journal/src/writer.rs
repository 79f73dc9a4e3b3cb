//! The thread that writes.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use berth_uring::UringError;
use io_uring::{
    IoUring, opcode,
    squeue::Flags,
    types::{Fd, FsyncFlags},
};

use crate::{
    Failure, JournalError,
    compact::{self, Successor, write_failed},
    file::JournalFile,
    queue::{Done, Group, Queue, Work},
};

const WRITE: u64 = 0;
const SYNC: u64 = 1;

struct Writer {
    file: JournalFile,
    ring: IoUring,
    queue: Arc<Queue>,
    compaction: Option<Compaction>,
}

/// A compaction under way.
struct Compaction {
    thread: JoinHandle<Result<Successor, Failure>>,
    done: Done,
}

/// Starts the writer of `file`.
pub(crate) fn spawn(file: JournalFile, queue: Arc<Queue>) -> Result<JoinHandle<()>, UringError> {
    let (ready, started) = mpsc::sync_channel(1);
    let run = move || {
        // The ring belongs to the thread that makes it.
        let ring = match berth_uring::ring(8) {
            Ok(ring) => ring,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let _ = ready.send(Ok(()));
        Writer { file, ring, queue, compaction: None }.run();
    };
    let failed = |source| UringError::Io { what: "starting the journal's thread", source };
    let thread = thread::Builder::new().name("berth-journal".into()).spawn(run).map_err(failed)?;
    started.recv().unwrap_or_else(|_| Err(failed(io::ErrorKind::BrokenPipe.into())))?;
    Ok(thread)
}

impl Writer {
    fn run(mut self) {
        loop {
            match self.queue.next() {
                Work::Group(group) => self.commit(group),
                Work::Compact(done) => self.begin_compaction(done),
                Work::Written => self.end_compaction(),
                Work::Room => self.look_for_room(),
                Work::Close => break,
            }
        }
        if let Some(compaction) = self.compaction.take() {
            let done = self.abandon(compaction);
            let _ = done.send(Err(JournalError::Closed));
        }
    }

    fn commit(&mut self, Group { mut frame, waiters }: Group) {
        match self.write(&mut frame) {
            Ok(()) => {
                self.file.advance(frame.len());
                self.queue.committed(waiters, self.file.end());
            }
            Err(failure) => self.fail(failure, waiters),
        }
    }

    fn fail(&mut self, failure: Failure, waiters: Vec<Done>) {
        self.queue.fail(failure, waiters);
        if let Some(compaction) = self.compaction.take() {
            let done = self.abandon(compaction);
            self.queue.compacted(Err(failure), done);
        }
    }

    /// Looks whether a full disk has room again.
    fn look_for_room(&mut self) {
        // Where it has not, the next commit says so.
        let _ = self.file.reserve(0);
        self.queue.full.store(self.file.is_full(), Relaxed);
    }

    /// Writes a frame and makes it durable.
    fn write(&mut self, frame: &mut [u8]) -> Result<(), Failure> {
        let placed = self.file.place(frame);
        self.queue.full.store(self.file.is_full(), Relaxed);
        let at = placed.map_err(|error| Failure::new("making room in", &error))?;
        let fd = Fd(self.file.fd());
        let write = opcode::Write::new(fd, frame.as_ptr(), frame.len() as u32).offset(at).build();
        let sync = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
        let linked = [write.flags(Flags::IO_LINK).user_data(WRITE), sync.user_data(SYNC)];
        // SAFETY: the frame outlives both requests: this does not return before they are over.
        let pushed = unsafe { self.ring.submission().push_multiple(&linked) };
        pushed.expect("the ring is empty between frames");
        let (mut written, mut synced, mut under_way) = (0, 0, linked.len());
        while under_way > 0 {
            if self.ring.submit_and_wait(under_way).is_err() {
                // Signals and a lack of memory pass; a request that the kernel has must not be abandoned.
                thread::sleep(Duration::from_millis(1));
            }
            for completion in self.ring.completion() {
                under_way -= 1;
                *(if completion.user_data() == WRITE { &mut written } else { &mut synced }) = completion.result();
            }
        }
        if written < 0 {
            return Err(Failure { what: "writing", errno: -written });
        }
        if written as usize != frame.len() {
            // What is left did not fit.
            return Err(Failure { what: "writing", errno: libc::ENOSPC });
        }
        if synced < 0 {
            return Err(Failure { what: "syncing", errno: -synced });
        }
        Ok(())
    }

    fn begin_compaction(&mut self, done: Done) {
        match compact::start(&self.file, &self.queue) {
            Ok(thread) => self.compaction = Some(Compaction { thread, done }),
            Err(failure) => {
                self.file.remove_successor();
                self.queue.compacted(Err(failure), done);
            }
        }
    }

    fn end_compaction(&mut self) {
        let Some(compaction) = self.compaction.take() else { return };
        let panicked = Failure { what: "compacting", errno: libc::ECANCELED };
        let written = compaction.thread.join().unwrap_or(Err(panicked));
        let result = written.and_then(|Successor { file: mut new, mut rest }| {
            while rest.at() < self.file.end() {
                rest.copy_frame(&mut new)?;
            }
            new.sync().map_err(|error| write_failed(&error))?;
            if let Err(error) = new.take_over() {
                // Which of the two a restart would find is not known.
                let failure = Failure::new("replacing", &error);
                self.queue.fail(failure, Vec::new());
                return Err(failure);
            }
            self.file = new;
            Ok(self.file.end())
        });
        if result.is_err() {
            self.file.remove_successor();
        }
        self.queue.compacted(result, compaction.done);
    }

    /// Ends a compaction that was told to give up; who waits for it is left.
    fn abandon(&self, compaction: Compaction) -> Done {
        let _ = compaction.thread.join();
        self.file.remove_successor();
        compaction.done
    }
}
