//! A compaction: what the journal adds up to is written to a new file on a thread of its own, while commits go on. The
//! journal itself is the state: it is read back.

use std::{
    fs::File,
    io::{self, Take},
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
};

use berth_fabric::{
    Recovered,
    journal::{End, FRAME_HEADER_LEN, Replay, ReplayError, encode},
};

use crate::{
    Failure,
    file::{Directory, JournalFile},
    queue::Queue,
};

/// A frame of state holds this many bytes of records, and the last record beyond.
const FRAME: usize = 1 << 20;

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
        let state = read(old, &told.0)?;
        write(dir, state, &told.0).map_err(failed("writing the successor of"))
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

/// What the journal `old` adds up to, all of which must be sound.
fn read(old: Take<File>, queue: &Queue) -> Result<Recovered, Failure> {
    let failed = |error| match error {
        ReplayError::Read(error) => Failure::new("reading back", &error),
        ReplayError::Corrupt(_) => Failure { what: "reading back", errno: libc::EBADMSG },
    };
    let mut state = Recovered::default();
    let mut replay = Replay::new(old).map_err(failed)?;
    for record in &mut replay {
        state.apply(record.map_err(failed)?);
        if queue.cancelled.load(Relaxed) {
            return Err(Failure { what: "reading back", errno: libc::ECANCELED });
        }
    }
    if replay.end() != Some(End::Clean) {
        return Err(Failure { what: "reading back", errno: libc::EBADMSG });
    }
    Ok(state)
}

fn write(dir: Directory, mut state: Recovered, queue: &Queue) -> io::Result<JournalFile> {
    let mut new = JournalFile::begin(dir)?;
    let empty = vec![0; FRAME_HEADER_LEN];
    let mut frame = empty.clone();
    for record in state.records() {
        encode(&record, &mut frame);
        if frame.len() >= FRAME {
            if queue.cancelled.load(Relaxed) {
                return Err(io::Error::from_raw_os_error(libc::ECANCELED));
            }
            new.append(&mut frame)?;
            frame.clone_from(&empty);
        }
    }
    if frame.len() > empty.len() {
        new.append(&mut frame)?;
    }
    new.sync()?;
    Ok(new)
}
