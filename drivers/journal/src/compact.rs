//! A compaction: what the journal adds up to is written to a new file on a thread of its own, while commits go on. The
//! journal itself is the state: it is read back, as often as keeps it small what is in memory of it.

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
    file::{JournalFile, Sound},
    queue::Queue,
};

/// A frame of state holds this many bytes of records, and the last record beyond.
const FRAME: usize = 1 << 20;

/// For each of so many bytes the old journal is read once, for an equal part of its leases: about 250 000, of 220 bytes.
const PASS: u64 = 32 << 20;

/// Begins a successor of `file` and writes to it what the sound part of `file` adds up to now, on a thread, which tells
/// `queue` before it ends.
pub(crate) fn start(
    file: &JournalFile,
    queue: &Arc<Queue>,
) -> Result<JoinHandle<Result<JournalFile, Failure>>, Failure> {
    let failed = |what| move |error: io::Error| Failure::new(what, &error);
    let dir = file.directory().map_err(failed("beginning the successor of"))?;
    let old = file.sound().map_err(failed("reading back"))?;
    let told = TellAtEnd(Arc::clone(queue));
    let run = move || {
        let new = JournalFile::begin(dir).map_err(failed("beginning the successor of"))?;
        Compaction { old, new, frame: vec![0; FRAME_HEADER_LEN], queue: &told.0 }.run()
    };
    thread::Builder::new().name("berth-compact".into()).spawn(run).map_err(failed("starting a thread to compact"))
}

/// Tells the queue that the thread ends, however it does.
struct TellAtEnd(Arc<Queue>);

impl Drop for TellAtEnd {
    fn drop(&mut self) {
        self.0.written();
    }
}

struct Compaction<'a> {
    old: Sound,
    new: JournalFile,
    /// Room for a frame's header, and the records of it so far.
    frame: Vec<u8>,
    queue: &'a Queue,
}

impl Compaction<'_> {
    fn run(mut self) -> Result<JournalFile, Failure> {
        let parts = 1 + self.old.len() / PASS;
        for part in 0..parts {
            let state = self.read(|lease| lease as u64 % parts == part)?;
            if part + 1 < parts {
                self.write(state.lease_records())?;
            } else {
                self.write(state.records())?;
            }
        }
        self.flush()?;
        self.new.sync().map_err(|error| write_failed(&error))?;
        Ok(self.new)
    }

    /// What the old journal adds up to, all of which must be sound: of its leases, `wanted` ones.
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
            let unwanted = match &record {
                Record::Granted(grant) if !wanted(grant.lease) => Some(grant.lease),
                _ => None,
            };
            state.apply(record);
            if let Some(lease) = unwanted {
                state.leases.remove(&lease);
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

    /// Appends the frame.
    fn flush(&mut self) -> Result<(), Failure> {
        if self.frame.len() > FRAME_HEADER_LEN {
            self.new.append(&mut self.frame).map_err(|error| write_failed(&error))?;
            self.frame.truncate(FRAME_HEADER_LEN);
        }
        Ok(())
    }

    /// Fails where the compaction is to give up.
    fn go_on(&self) -> Result<(), Failure> {
        let cancelled = self.queue.cancelled.load(Relaxed);
        if cancelled { Err(Failure { what: "compacting", errno: libc::ECANCELED }) } else { Ok(()) }
    }
}

fn write_failed(error: &io::Error) -> Failure {
    Failure::new("writing the successor of", error)
}
