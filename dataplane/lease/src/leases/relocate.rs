//! Copies or moves contents between two leases of one holder.

use berth_port::Nanos;

use super::{LeaseError, Leases, REMEMBERED, record::Slot};
use crate::{LeaseId, LeaseKey, Rights, Span};

/// What becomes of the source (`RelocateMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Both leases stay valid.
    Copy,
    /// The source is revoked.
    Move,
    /// Served as a copy: the destination gets the present contents, and neither lease sees later writes to the other.
    CowSeed,
}

/// A relocation that was accepted, to be carried out by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// Copied from.
    pub src: LeaseId,
    /// Copied to.
    pub dst: LeaseId,
    /// As requested.
    pub mode: Mode,
    /// Bytes to copy: those of the source that its token's RANGE makes visible.
    pub from: Span,
    /// Where to copy them; of the same length.
    pub to: Span,
}

/// Why nothing was relocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// The operation is refused with an error status.
    #[error(transparent)]
    Refused(#[from] LeaseError),
    /// The operation is answered as Failed, with this reason.
    #[error("{0}")]
    Failed(&'static str),
}

impl Leases {
    /// Begins a relocation between two active leases of `holder`. The source needs READ, the destination WRITE.
    ///
    /// The caller copies the bytes; neither lease may be released meanwhile. The source of a move is revoked from here
    /// on. Its copy must wait for a [`Leases::quiescence`] taken after this call. Once it is copied, journal, tear down
    /// and release the source as after [`Leases::revoke`]. If the copy fails, [`Leases::relocate_failed`] takes the
    /// revocation back.
    pub fn relocate(
        &mut self,
        src: LeaseKey,
        dst: LeaseKey,
        mode: Mode,
        holder: u128,
        now: Nanos,
    ) -> Result<Relocation, RelocateError> {
        let id = |key| self.by_key(key).map(|lease| lease.id).ok_or(LeaseError::NotFound);
        let (src, dst) = (id(src)?, id(dst)?);
        let ((slot, source), (_, target)) = (self.usable(src, holder, now)?, self.usable(dst, holder, now)?);
        if !source.rights.contains(Rights::READ) || !target.rights.contains(Rights::WRITE) {
            return Err(LeaseError::Rights.into());
        }
        if src == dst {
            return Err(RelocateError::Failed("source and destination are the same lease"));
        }
        let (Some(from), Some(to)) = (source.region(), target.region()) else {
            return Err(RelocateError::Failed("a lease without bytes cannot be relocated"));
        };
        if source.len > target.len {
            return Err(RelocateError::Failed("the source is larger than the destination"));
        }
        let (first, len) = (source.first.min(source.len), source.len.saturating_sub(source.first));
        if target.first > first && len > 0 {
            return Err(RelocateError::Failed("the destination's RANGE begins after the source's"));
        }
        if mode == Mode::Move {
            self.revoke_live(slot, now);
            self.records[slot].moving = true;
            self.grantees.list(self.records[slot].grantee, slot);
        }
        let from = Span { region: from, at: source.base + first, len };
        let to = Span { region: to, at: target.base + first, len };
        Ok(Relocation { src, dst, mode, from, to })
    }

    /// Ends a relocation whose copy failed. The source of a move lives again, unless it was revoked for another reason.
    pub fn relocate_failed(&mut self, relocation: &Relocation) {
        if relocation.mode == Mode::Move
            && let Some((slot, _)) = self.known(relocation.src)
            && self.stop_moving(slot)
        {
            self.unrevoke(slot);
        }
    }

    /// Makes the revocation of a move's source final; false if it is not such a source.
    pub(super) fn stop_moving(&mut self, slot: Slot) -> bool {
        let record = &mut self.records[slot];
        let was_moving = std::mem::take(&mut record.moving);
        if was_moving {
            self.grantees.unlist(record.grantee, slot);
        }
        was_moving
    }

    /// Keeps the bytes of a moved source until `until` although it is released (`preserve_until_ms`), but no longer
    /// than its grace would have lasted, nor than [`REMEMBERED`]. Meanwhile they count towards its holder's quota.
    pub fn preserve(&mut self, id: LeaseId, until: Nanos, now: Nanos) {
        if let Some((_, lease)) = self.known(id) {
            self.kept.insert(id.key(), until.min(lease.ends()).min(now + REMEMBERED));
        }
    }
}
