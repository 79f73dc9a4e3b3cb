//! Copying or moving the contents of one lease to another of the same holder.

use berth_port::Nanos;

use super::{LeaseError, Leases, REMEMBERED, record::Slot};
use crate::{LeaseId, LeaseKey, Rights, Span};

/// What becomes of source and destination (`RelocateMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Both stay valid.
    Copy,
    /// The source ends, revoked.
    Move,
    /// As a copy: the destination has the contents as they are now, and neither sees what the other writes later.
    CowSeed,
}

/// A relocation that was found sound: these bytes are to be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relocation {
    /// The source lease.
    pub src: LeaseId,
    /// The destination lease.
    pub dst: LeaseId,
    /// What becomes of them.
    pub mode: Mode,
    /// The bytes to copy: those of the source that its token's RANGE lets anyone see.
    pub from: Span,
    /// Where they go; of the same length.
    pub to: Span,
}

/// Why nothing was relocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RelocateError {
    /// The op is refused.
    #[error(transparent)]
    Refused(#[from] LeaseError),
    /// The op is answered as Failed, with this reason.
    #[error("{0}")]
    Failed(&'static str),
}

impl Leases {
    /// Begins a relocation between two active leases of `holder`; the source needs READ, the destination WRITE.
    ///
    /// The caller copies the bytes; neither lease may be released meanwhile. From here on the source of a move is
    /// revoked: the copy begins when the [`Leases::quiescence`] taken after this call is over, and when it is done,
    /// the source is to be journaled, torn down and released as after [`Leases::revoke`]. Where the copy fails,
    /// [`Leases::relocate_failed`] gives the source back.
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

    /// The copy failed: the source of a move is as it was, unless it was revoked for another reason meanwhile.
    pub fn relocate_failed(&mut self, relocation: &Relocation) {
        if relocation.mode == Mode::Move
            && let Some((slot, _)) = self.known(relocation.src)
            && self.stop_moving(slot)
        {
            self.unrevoke(slot);
        }
    }

    /// The source of a move is revoked for good; false where it is no such source.
    pub(super) fn stop_moving(&mut self, slot: Slot) -> bool {
        let record = &mut self.records[slot];
        let was_moving = std::mem::take(&mut record.moving);
        if was_moving {
            self.grantees.unlist(record.grantee, slot);
        }
        was_moving
    }

    /// Keeps the bytes of a moved source until `until`, though it is released (`preserve_until_ms`): at most until its
    /// grace would have ended, and for [`REMEMBERED`]. So long they count as its holder's.
    pub fn preserve(&mut self, id: LeaseId, until: Nanos, now: Nanos) {
        if let Some((_, lease)) = self.known(id) {
            self.kept.insert(id.key(), until.min(lease.ends()).min(now + REMEMBERED));
        }
    }
}
