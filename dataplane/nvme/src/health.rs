//! What the logs tell of commands: how much was read and written, and which failed.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use berth_wire::nvme::{
    Status,
    log::{ErrorEntry, Health},
};
use zerocopy::IntoBytes as _;

use crate::counts::{Counts, Event};

/// Entries of the error log; ELPE is one less (Base, "Identify Controller").
pub(crate) const ERRORS: usize = 16;

/// Bytes of a data unit, in which the health log counts (Base, "SMART / Health Information").
const UNIT: u64 = 1000 * 512;

/// TRTYPE of TCP.
const TCP: u8 = 3;

/// Parameter Error Location where no field of the command is wrong.
const NO_LOCATION: u16 = 0xFFFF;

/// The figures behind a controller's health and error logs; its queues add to them from their cores.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// As [`EVENTS`].
    traffic: [AtomicU64; 4],
    errors: Mutex<Errors>,
}

#[derive(Debug, Default)]
struct Errors {
    count: u64,
    /// The newest first.
    entries: VecDeque<ErrorEntry>,
}

/// What of a connection's counters is recorded.
const EVENTS: [Event; 4] = [Event::BytesRead, Event::BytesWritten, Event::Reads, Event::Writes];

impl Record {
    /// Adds what a connection has counted since it did so last.
    pub(crate) fn add(&self, counts: &Counts) {
        for (total, event) in self.traffic.iter().zip(EVENTS) {
            match counts.get(event) {
                0 => {}
                count => _ = total.fetch_add(count, Relaxed),
            }
        }
    }

    /// A command of a queue has failed; `lba` is its first block.
    #[cold]
    pub(crate) fn failed(&self, queue: u16, cid: u16, status: Status, lba: u64, nsid: u32) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.count += 1;
        let mut entry = ErrorEntry::zeroed();
        entry.count = errors.count.into();
        (entry.queue, entry.cid, entry.location) = (queue.into(), cid.into(), NO_LOCATION.into());
        (entry.lba, entry.nsid, entry.transport) = (lba.into(), nsid.into(), TCP);
        entry.set_status(status);
        errors.entries.truncate(ERRORS - 1);
        errors.entries.push_front(entry);
    }

    /// The error log.
    pub(crate) fn errors(&self) -> Vec<u8> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let mut page: Vec<u8> = errors.entries.iter().flat_map(|entry| entry.as_bytes().to_vec()).collect();
        page.resize(ERRORS * ErrorEntry::LEN, 0);
        page
    }

    /// The health log.
    pub(crate) fn health(&self) -> Health {
        let [read, written, reads, writes] = self.traffic.each_ref().map(|total| total.load(Relaxed));
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).count;
        let mut health = Health::zeroed();
        health.spare = 100;
        health.units_read = u128::from(read.div_ceil(UNIT)).into();
        health.units_written = u128::from(written.div_ceil(UNIT)).into();
        health.reads = u128::from(reads).into();
        health.writes = u128::from(writes).into();
        health.error_entries = u128::from(errors).into();
        health
    }
}
