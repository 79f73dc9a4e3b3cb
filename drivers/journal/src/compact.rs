//! A compaction: the state is written to a new file on a thread of its own, while commits go on.

use std::{
    io,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread::{self, JoinHandle},
};

use berth_fabric::journal::{FRAME_HEADER_LEN, encode};

use crate::{
    Failure,
    file::{Directory, JournalFile},
    queue::{Queue, StateRecords},
};

/// A frame of state holds this many bytes of records, and the last record beyond.
const FRAME: usize = 1 << 20;

/// Begins a successor of `file` and writes `records` to it on a thread, which tells `queue` before it ends.
pub(crate) fn start(
    file: &JournalFile,
    records: StateRecords,
    queue: &Arc<Queue>,
) -> Result<JoinHandle<Result<JournalFile, Failure>>, Failure> {
    let failed = |what| move |error: io::Error| Failure::new(what, &error);
    let dir = file.directory().map_err(failed("beginning the successor of"))?;
    let told = TellAtEnd(Arc::clone(queue));
    let writer = move || write(dir, records, &told.0).map_err(failed("writing the successor of"));
    thread::Builder::new().name("berth-compact".into()).spawn(writer).map_err(failed("starting a thread to compact"))
}

/// Tells the queue that the thread ends, even if the caller's iterator panics.
struct TellAtEnd(Arc<Queue>);

impl Drop for TellAtEnd {
    fn drop(&mut self) {
        self.0.written();
    }
}

fn write(dir: Directory, records: StateRecords, queue: &Queue) -> io::Result<JournalFile> {
    let mut new = JournalFile::begin(dir)?;
    let empty = vec![0; FRAME_HEADER_LEN];
    let mut frame = empty.clone();
    for record in records {
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
