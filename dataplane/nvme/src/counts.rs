//! What queues count.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use berth_wire::nvme::{Status, pdu::Fatal};

berth_port::counters! {
    /// One countable thing.
    pub(crate) enum Event {
        Connected = "connected",
        ConnectsRefused = "connects_refused",
        Admin = "admin_commands",
        Reads = "reads",
        Writes = "writes",
        Others = "other_commands",
        BytesRead = "bytes_read",
        BytesWritten = "bytes_written",
        BufferWaits = "buffer_waits",
        GenericErrors = "generic_errors",
        SpecificErrors = "command_specific_errors",
        MediaErrors = "media_errors",
        PathErrors = "path_errors",
        DataDigests = "data_digest_errors",
        FatalFields = "fatal_header_field",
        FatalSequence = "fatal_sequence",
        FatalHeaderDigests = "fatal_header_digest",
        FatalRanges = "fatal_out_of_range",
        FatalLimits = "fatal_limit_exceeded",
        FatalUnsupported = "fatal_unsupported",
        EndedByHost = "ended_by_host",
        KeepAliveExpired = "keep_alive_expired",
        DataLate = "data_late",
    }
}

/// The counters of one connection.
#[derive(Debug, Default)]
pub(crate) struct Counts([u64; Event::NAMES.len()]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    #[inline]
    pub(crate) fn bytes(&mut self, event: Event, bytes: u64) {
        self.0[event as usize] += bytes;
    }

    /// Counts a command that failed, by its status code type.
    #[cold]
    pub(crate) fn failed(&mut self, status: Status) {
        self.add(match status.number() >> 8 {
            0 => Event::GenericErrors,
            1 => Event::SpecificErrors,
            2 => Event::MediaErrors,
            _ => Event::PathErrors,
        });
    }

    #[cold]
    pub(crate) fn fatal(&mut self, fatal: Fatal) {
        self.add(match fatal.status {
            1 => Event::FatalFields,
            2 => Event::FatalSequence,
            3 => Event::FatalHeaderDigests,
            4 => Event::FatalRanges,
            5 => Event::FatalLimits,
            _ => Event::FatalUnsupported,
        });
    }
}

/// Counters that all connections add theirs to.
#[derive(Debug, Default)]
pub(crate) struct Totals([AtomicU64; Event::NAMES.len()]);

impl Totals {
    /// Adds `counts` and sets them to zero.
    pub(crate) fn take(&self, counts: &mut Counts) {
        for (total, count) in self.0.iter().zip(&mut counts.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(std::mem::take(count), Relaxed);
        }
    }

    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Event::NAMES.iter().zip(&self.0).for_each(|(name, total)| visit(name, total.load(Relaxed)));
    }
}
