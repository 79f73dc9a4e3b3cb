//! The writer's thread.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
};

use crate::{
    Failure, JournalError,
    compact::{self, Successor, write_failed},
    file::JournalFile,
    queue::{Done, Group, Queue, Work},
};

struct Writer {
    file: JournalFile,
    queue: Arc<Queue>,
    compaction: Option<Compaction>,
}

/// A compaction under way.
struct Compaction {
    thread: JoinHandle<Result<Successor, Failure>>,
    done: Done,
}

/// Starts the writer of `file`. It uses plain calls, because `io_uring` hands a sync to another thread, which costs two
/// more switches.
pub(crate) fn spawn(file: JournalFile, queue: Arc<Queue>) -> io::Result<JoinHandle<()>> {
    let run = || Writer { file, queue, compaction: None }.run();
    thread::Builder::new().name("berth-journal".into()).spawn(run)
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

    /// Checks whether a full disk has room again.
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
        self.file.write(frame, at).map_err(|error| Failure::new("writing", &error))?;
        self.file.sync().map_err(|error| Failure::new("syncing", &error))
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

    /// Ends a compaction that was told to give up; returns the one who waits for it.
    fn abandon(&self, compaction: Compaction) -> Done {
        let _ = compaction.thread.join();
        self.file.remove_successor();
        compaction.done
    }
}
