//! Compaction: the state that the journal adds up to is written to a new file on a separate thread, while commits go
//! on. The state is read back from the journal itself, in several passes if that keeps memory use small. Commits made
//! meanwhile are copied from the old file, too, until little is left; the writer copies that between two commits.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
};

use berth_fabric::{
    Recovered,
    journal::{End, FRAME_HEADER_LEN, Record, Replay, ReplayError, encode},
};

use crate::{
    Failure,
    file::{JournalFile, Sound, Tail},
    queue::Queue,
};

/// Bytes of records per frame of state, plus the last record.
const FRAME: usize = 1 << 20;

/// Bytes of the old journal per pass. Each pass reads it once, for an equal part of its leases: about 250 000, of 220
/// bytes.
const PASS: u64 = 32 << 20;

/// Limit on the passes, however long the journal is, so that the time of a compaction stays linear in its length.
const PASSES: u64 = 8;

/// Once at most this many bytes were committed since the state was read, the writer copies them.
const LITTLE: u64 = 1 << 20;

/// A journal that is to replace another, and what it still lacks.
pub(crate) struct Successor {
    pub(crate) file: JournalFile,
    pub(crate) rest: Tail,
}

/// Begins a successor of `file`. A thread writes to it what the sound part of `file` adds up to now, and tells `queue`
/// before it ends.
pub(crate) fn start(file: &JournalFile, queue: &Arc<Queue>) -> Result<JoinHandle<Result<Successor, Failure>>, Failure> {
    let failed = |what| move |error: io::Error| Failure::new(what, &error);
    let dir = file.directory().map_err(failed("beginning the successor of"))?;
    let (old, since) = file.sound().map_err(failed("reading back"))?;
    let told = TellAtEnd(Arc::clone(queue));
    let run = move || {
        let new = JournalFile::begin(dir).map_err(failed("beginning the successor of"))?;
        Compaction { old, since, new, frame: vec![0; FRAME_HEADER_LEN], queue: &told.0 }.run()
    };
    thread::Builder::new().name("berth-compact".into()).spawn(run).map_err(failed("starting a thread to compact"))
}

/// Tells the queue on drop that the thread ends, however it does.
struct TellAtEnd(Arc<Queue>);

impl Drop for TellAtEnd {
    fn drop(&mut self) {
        self.0.written();
    }
}

struct Compaction<'a> {
    old: Sound,
    /// What is committed meanwhile.
    since: Tail,
    new: JournalFile,
    /// Room for a frame's header, followed by its records so far.
    frame: Vec<u8>,
    queue: &'a Queue,
}

impl Compaction<'_> {
    fn run(mut self) -> Result<Successor, Failure> {
        let parts = (1 + self.old.len() / PASS).min(PASSES);
        for part in 0..parts {
            let state = self.read(|lease| lease as u64 % parts == part)?;
            // What concerns many leases stands before all of them.
            if part == 0 {
                self.write(state.records())?;
            } else {
                self.write(state.lease_records())?;
            }
        }
        self.flush()?;
        while self.queue.durable() - self.since.at() > LITTLE {
            self.go_on()?;
            self.since.copy_frame(&mut self.new)?;
        }
        self.new.sync().map_err(|error| write_failed(&error))?;
        Ok(Successor { file: self.new, rest: self.since })
    }

    /// What the old journal adds up to, all of which must be sound. Of its leases and their handles only the `wanted`
    /// ones.
    fn read(&self, wanted: impl Fn(u128) -> bool) -> Result<Recovered, Failure> {
        let failed = |error| match error {
            ReplayError::Read(error) => Failure::new("reading back", &error),
            ReplayError::Corrupt(_) => Failure { what: "reading back", errno: libc::EBADMSG },
        };
        let mut state = Recovered::default();
        let old = self.old.reader().map_err(|error| Failure::new("reading back", &error))?;
        let mut replay = Replay::new(old).map_err(failed)?;
        for record in &mut replay {
            self.go_on()?;
            let record = record.map_err(failed)?;
            match record {
                Record::Granted(grant) if !wanted(grant.lease) => {
                    let lease = grant.lease;
                    // For its time.
                    state.apply(Record::Granted(grant));
                    state.leases.remove(&lease);
                }
                Record::Exported(handle) if !wanted(handle.lease) => {}
                record => state.apply(record),
            }
        }
        if replay.end() != Some(End::Clean) {
            return Err(Failure { what: "reading back", errno: libc::EBADMSG });
        }
        state.forget_lapsed();
        Ok(state)
    }

    fn write(&mut self, records: impl Iterator<Item = Record>) -> Result<(), Failure> {
        for record in records {
            encode(&record, &mut self.frame);
            if self.frame.len() >= FRAME {
                self.go_on()?;
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Appends the frame to the file.
    fn flush(&mut self) -> Result<(), Failure> {
        if self.frame.len() > FRAME_HEADER_LEN {
            self.new.append(&mut self.frame).map_err(|error| write_failed(&error))?;
            self.frame.truncate(FRAME_HEADER_LEN);
        }
        Ok(())
    }

    /// Fails if the compaction is to give up.
    fn go_on(&self) -> Result<(), Failure> {
        let cancelled = self.queue.cancelled.load(Relaxed);
        if cancelled { Err(Failure { what: "compacting", errno: libc::ECANCELED }) } else { Ok(()) }
    }
}

pub(crate) fn write_failed(error: &io::Error) -> Failure {
    Failure::new("writing the successor of", error)
}
