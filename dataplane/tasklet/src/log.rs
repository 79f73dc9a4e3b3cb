//! The records that a run writes with `fb_log`, and the node's own (T8).

use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a message that are kept; the rest is cut off.
pub const MESSAGE: usize = 1024;
/// Records of a run that are kept, the node's own not counted.
pub const RECORDS: usize = 256;
/// Bytes of a run's messages that are kept, the node's own not counted.
pub const BYTES: usize = 64 << 10;
/// Level of the record that the node appends.
pub const NODE: u8 = 255;

/// One record of a run's log, written by `fb_log` or by the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// 0 error, 1 warning, 2 info, 3 debug, 4 trace; tasklets may use others up to 254.
    pub level: u8,
    /// At most [`MESSAGE`] bytes.
    pub message: Vec<u8>,
}

/// The records of one run: the first ones, and how many were dropped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    records: Vec<Record>,
    bytes: usize,
    dropped: u64,
}

impl Log {
    /// Adds a record, if there is room for it and no earlier one was dropped.
    pub fn write(&mut self, level: u32, message: &[u8]) {
        let message = &message[..message.len().min(MESSAGE)];
        if self.dropped > 0 || self.records.len() == RECORDS || self.bytes + message.len() > BYTES {
            self.dropped += 1;
            return;
        }
        self.bytes += message.len();
        let level = (level as u8).min(NODE - 1);
        self.records.push(Record { level, message: message.to_vec() });
    }

    /// Ends the log of a run: `reason` says why it was not OK. The node's record has no part in the limits.
    pub fn end(&mut self, reason: Option<&str>) {
        let dropped = (self.dropped > 0).then(|| format!("{} log records were dropped", self.dropped));
        let said: Vec<&str> = reason.into_iter().chain(dropped.as_deref()).collect();
        if !said.is_empty() {
            let mut message = said.join("; ").into_bytes();
            message.truncate(MESSAGE);
            self.bytes += message.len();
            self.records.push(Record { level: NODE, message });
        }
    }

    /// In the order in which they were written; the node's own is the last.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Bytes of all messages, the node's own included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A log that a run writes while others read it; clones are the same log.
#[derive(Debug, Clone, Default)]
pub struct SharedLog(Arc<Mutex<Log>>);

impl SharedLog {
    /// Calls `with` with the log, which is locked meanwhile.
    pub fn with<T>(&self, with: impl FnOnce(&mut Log) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_the_low_byte_and_never_the_nodes() {
        let mut log = Log::default();
        for level in [0, 4, 17, 254, 255, 0x1FF, 0x102] {
            log.write(level, b"");
        }
        let levels: Vec<u8> = log.records().iter().map(|record| record.level).collect();
        assert_eq!(levels, [0, 4, 17, 254, 254, 254, 2]);
    }

    #[test]
    fn messages_are_cut_and_the_first_records_kept() {
        let mut log = Log::default();
        log.write(0, &[7; MESSAGE + 1]);
        assert_eq!(log.records()[0].message, [7; MESSAGE]);
        for _ in 0..RECORDS + 9 {
            log.write(1, b"x");
        }
        assert_eq!((log.records().len(), log.bytes()), (RECORDS, MESSAGE + RECORDS - 1));
        log.end(None);
        let last = log.records().last().unwrap();
        assert_eq!((last.level, &last.message[..]), (NODE, &b"10 log records were dropped"[..]));
    }

    #[test]
    fn a_flood_keeps_64_kib_and_nothing_after_the_first_that_was_dropped() {
        let mut log = Log::default();
        for _ in 0..BYTES / MESSAGE - 1 {
            log.write(0, &[0; MESSAGE]);
        }
        log.write(0, &[0; MESSAGE - 1]);
        log.write(0, &[0; 2]);
        log.write(0, &[0; 1]);
        assert_eq!((log.records().len(), log.bytes()), (BYTES / MESSAGE, BYTES - 1));
        log.end(Some("cancelled"));
        assert_eq!(log.records().last().unwrap().message, b"cancelled; 2 log records were dropped");
    }

    #[test]
    fn a_run_that_was_well_gets_no_record_of_the_node() {
        let mut log = Log::default();
        log.end(None);
        assert_eq!(log.records(), []);
        log.end(Some(&"x".repeat(2000)));
        assert_eq!(log.records()[0].message.len(), MESSAGE);
    }
}
