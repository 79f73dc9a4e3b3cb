//! Handles and relocation: LEASE_EXPORT_HANDLE, LEASE_IMPORT_HANDLE and LEASE_RELOCATE.

use berth_lease::{LeaseKey, Mode, RelocateError, Relocation};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    Binding, LeaseExport, LeaseExported, LeaseImport, LeaseImported, LeaseRelocate, LeaseRelocated, Op, RelocateMode,
    Relocation as Ending, Rights, Status, TargetRuntime, Text, Wire as _,
};

use super::{Reply, TimedRequest, params};
use crate::{
    clock::secs,
    ending::Why,
    host::{Host, random_u128},
    journal::{Handle, Record},
    node::Node,
    pending::{Origin, Pending},
    request::{Effects, Job, Outcome, Work},
    status::of_lease,
};

/// Reason of a failed move: a transport may still write to the source.
pub(crate) const STILL_CONNECTED: &str = "the source's binding cannot be torn down";

impl<H: Host> Node<H> {
    pub(super) fn lease_export(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let wanted: LeaseExport = params(ask)?;
        let (key, kind) = (LeaseKey(wanted.lease_id), wanted.target_runtime_kind.code());
        let (holder, target, rights) = (ask.request.presenter, wanted.target_identity, wanted.rights.bits());
        let (ttl, now) = (secs(wanted.ttl_secs), ask.now.mono);
        let lease = self.leases.exportable(key, holder, rights, ttl, now).map_err(of_lease)?;
        let is_vram = self.is_vram(&lease);
        if is_vram && wanted.target_runtime_kind == TargetRuntime::Accelerator {
            // It would be a dma-buf: the number of a descriptor, which means nothing to a peer.
            return Err(Status::UnsupportedOp);
        }
        let host = &mut self.host;
        let handle = self
            .leases
            .export(key, holder, target, kind, rights, ttl, now, &mut || random_u128(host))
            .map_err(of_lease)?;
        let binding = match wanted.target_runtime_kind {
            TargetRuntime::GpuWorker if is_vram => Binding::VramOffset { vram_offset: lease.base, len: lease.len },
            _ => Binding::FabricPage { page_id: lease.id.0, offset: 0, len: lease.len },
        };
        let exported =
            LeaseExported { export_handle: handle.id, expires_at: self.clock.unix_secs(handle.expires), binding };
        let mut outcome = Outcome::default();
        outcome.answer.result = exported.to_vec();
        outcome.journal.push(Record::Exported(Handle {
            handle: handle.id,
            lease: handle.lease.0,
            target: handle.target,
            kind: handle.kind,
            rights: handle.rights,
            expires: self.clock.unix(handle.expires),
        }));
        Ok(outcome.into())
    }

    pub(super) fn lease_import(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let LeaseImport { export_handle } = params(ask)?;
        let (presenter, host) = (ask.request.presenter, &mut self.host);
        let attachment =
            self.leases.import(export_handle, presenter, ask.now.mono, &mut || random_u128(host)).map_err(of_lease)?;
        let imported = LeaseImported {
            local_attach_id: attachment.key.0,
            rights: Rights::from_bits(attachment.rights).ok_or(Status::InternalError)?,
            expires_at: self.clock.unix_secs(attachment.expires),
        };
        let mut outcome = Outcome::default();
        outcome.answer.result = imported.to_vec();
        // Also where it was imported before: that may not be durable yet.
        let (handle, key) = (export_handle, attachment.key.0);
        outcome.journal.push(Record::Imported { handle, importer: presenter, key });
        Ok(outcome.into())
    }

    pub(super) fn lease_relocate(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let wanted: LeaseRelocate = params(ask)?;
        let mode = match wanted.mode {
            RelocateMode::Copy => Mode::Copy,
            RelocateMode::Move => Mode::Move,
            RelocateMode::CowSeed => Mode::CowSeed,
        };
        let (src, dst) = (LeaseKey(wanted.src_lease_id), LeaseKey(wanted.dst_lease_id));
        let relocation = match self.leases.relocate(src, dst, mode, ask.request.presenter, ask.now.mono) {
            Ok(relocation) => relocation,
            Err(RelocateError::Refused(error)) => return Err(of_lease(error)),
            Err(RelocateError::Failed(reason)) => return Ok(Outcome::ok(failed(reason))),
        };
        let (mut ending, mut effects) = (None, Effects::default());
        if mode == Mode::Move {
            self.stop_work(relocation.src);
            // What was written to the source and answered must be in the copy, whichever way it was written.
            let mut outcome = Outcome::default();
            let Ok(under_way) = self.end(relocation.src, Why::Disconnected, None, ask.now, &mut outcome) else {
                self.leases.relocate_failed(&relocation);
                let answer = Outcome::with(failed(STILL_CONNECTED)).answer;
                return Ok(Outcome { answer, ..outcome }.into());
            };
            ending = under_way;
            effects = outcome.into_effects();
        }
        let keep_until = wanted.preserve_until_ms.map(|ms| Nanos(ms.saturating_mul(1_000_000)));
        let quiescence = (mode == Mode::Move).then(|| self.leases.quiescence());
        let jobs = vec![Job::Copy(relocation.from, relocation.to)];
        let pending = Pending::Relocate { relocation, keep_until };
        let work = self.work(pending, Origin::of(Op::LeaseRelocate, &ask.request));
        Ok(Work { quiescence, ending, effects, jobs, ..work }.into())
    }

    /// Answers a relocation whose bytes were copied, or could not be for the reason in `failure`.
    pub(crate) fn relocated(
        &mut self,
        relocation: &Relocation,
        keep_until: Option<Nanos>,
        failure: Option<&'static str>,
        now: Now,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(reason) = failure {
            outcome.answer.result = failed(reason);
            return outcome;
        }
        let bytes_transferred = relocation.from.len;
        outcome.answer.result = LeaseRelocated { bytes_transferred, outcome: Ending::Complete }.to_vec();
        if relocation.mode == Mode::Move {
            if let Some(until) = keep_until {
                self.leases.preserve(relocation.src, self.clock.mono(until), now.mono);
            }
            let at = self.clock.unix(now.mono);
            outcome.journal.push(Record::LeaseRevoked { lease: relocation.src.0, at });
            self.wind_up(relocation.src, now, &mut outcome);
            outcome.quiescence = Some(self.leases.quiescence());
        }
        outcome
    }
}

fn failed(reason: &'static str) -> Vec<u8> {
    let reason = Text::of(reason).expect("reasons are short");
    LeaseRelocated { bytes_transferred: 0, outcome: Ending::Failed { reason } }.to_vec()
}
