//! What queues count.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use berth_port::{Family, Tables};
use berth_wire::nvme::{Status, pdu::Fatal};

const CONNECTS: Family = Family::counter("nvme_connects", "Connect commands over NVMe/TCP, by what became of them");
const AUTHENTICATIONS: Family =
    Family::counter("nvme_authentications", "authentications of NVMe/TCP queues, by what became of them");
const COMMANDS: Family = Family::counter("nvme_commands", "commands over NVMe/TCP");
const BYTES: Family = Family::counter("nvme_bytes", "leased bytes read and written over NVMe/TCP");
const ERRORS: Family =
    Family::counter("nvme_errors", "commands over NVMe/TCP that failed, by the type of their status");
const FATAL: Family =
    Family::counter("nvme_fatal_errors", "NVMe/TCP connections that were ended because a host broke the protocol");
const ENDED: Family = Family::counter("nvme_connections_ended", "NVMe/TCP connections that ended before their time");

berth_port::counters! {
    /// What connections count; each is a place in [`Counts`].
    pub(crate) enum Event {
        Connected = nvme_connected: CONNECTS { result: "connected" },
        ConnectsRefused = nvme_connects_refused: CONNECTS { result: "refused" },
        Authenticated = nvme_authenticated: AUTHENTICATIONS { result: "done" },
        AuthenticationsFailed = nvme_authentications_failed: AUTHENTICATIONS { result: "wrong_secret" },
        AuthenticationsNotUsable = nvme_authentications_not_usable: AUTHENTICATIONS { result: "nothing_in_common" },
        AuthenticationsMalformed = nvme_authentications_malformed: AUTHENTICATIONS { result: "malformed" },
        AuthenticationsLate = nvme_authentications_late: AUTHENTICATIONS { result: "timed_out" },
        Admin = nvme_admin_commands: COMMANDS { kind: "admin" },
        Reads = nvme_reads: COMMANDS { kind: "read" },
        Writes = nvme_writes: COMMANDS { kind: "write" },
        Others = nvme_other_commands: COMMANDS { kind: "other" },
        BytesRead = nvme_bytes_read: BYTES { op: "read" },
        BytesWritten = nvme_bytes_written: BYTES { op: "write" },
        BufferWaits = nvme_buffer_waits: "times that data of commands waited for a buffer",
        GenericErrors = nvme_generic_errors: ERRORS { kind: "generic" },
        SpecificErrors = nvme_command_specific_errors: ERRORS { kind: "command_specific" },
        MediaErrors = nvme_media_errors: ERRORS { kind: "media" },
        PathErrors = nvme_path_errors: ERRORS { kind: "path" },
        DataDigests = nvme_data_digest_errors: "commands whose data came with a wrong digest",
        FatalFields = nvme_fatal_header_field: FATAL { reason: "header_field" },
        FatalSequence = nvme_fatal_sequence: FATAL { reason: "sequence" },
        FatalHeaderDigests = nvme_fatal_header_digest: FATAL { reason: "header_digest" },
        FatalRanges = nvme_fatal_out_of_range: FATAL { reason: "out_of_range" },
        FatalLimits = nvme_fatal_limit_exceeded: FATAL { reason: "limit_exceeded" },
        FatalUnsupported = nvme_fatal_unsupported: FATAL { reason: "unsupported" },
        EndedByHost = nvme_ended_by_host: ENDED { reason: "host_error" },
        KeepAliveExpired = nvme_keep_alive_expired: ENDED { reason: "keep_alive" },
        DataLate = nvme_data_late: ENDED { reason: "data_late" },
    }
}

berth_port::counters! {
    #[derive(Clone, Copy)]
    pub(crate) struct Present {
        leases = nvme_leases: gauge "leases that are bound over NVMe/TCP",
        controllers = nvme_controllers: gauge "controllers over NVMe/TCP, those of discovery included",
        hosts = nvme_hosts: gauge "hosts that have connected a lease over NVMe/TCP",
        queues = nvme_queues: gauge "I/O queues over NVMe/TCP",
    }
}

/// Declarations of the counters of an NVMe/TCP target.
pub const COUNTERS: Tables = &[Event::TABLE, Present::TABLE];

/// The counters of one connection.
#[derive(Debug, Default)]
pub(crate) struct Counts([u64; Event::TABLE.len()]);

impl Counts {
    #[inline]
    pub(crate) fn add(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    #[inline]
    pub(crate) fn get(&self, event: Event) -> u64 {
        self.0[event as usize]
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
pub(crate) struct Totals([AtomicU64; Event::TABLE.len()]);

impl Totals {
    /// Adds `counts` and sets them to zero.
    pub(crate) fn take(&self, counts: &mut Counts) {
        for (total, count) in self.0.iter().zip(&mut counts.0).filter(|(_, count)| **count > 0) {
            total.fetch_add(std::mem::take(count), Relaxed);
        }
    }

    pub(crate) fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        Event::report(self.0.iter().map(|total| total.load(Relaxed)), visit);
    }
}
