//! Copying or moving the contents of one lease to another of the same holder.

use berth_port::Nanos;

use super::{LeaseError, Leases, place::CHUNK};
use crate::{LeaseId, LeaseKey, Rights, Span, Storage};

/// How often a move looks whether the accesses to its source have ended, before it gives up.
const LOOKS: u32 = 1_000;

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
    /// The bytes are then to be copied by [`Leases::copy`], or by the caller where that cannot. From here on, the
    /// source of a move is revoked: when the copy is done, it is to be journaled, torn down and released as after
    /// [`Leases::revoke`]; where the copy fails, [`Leases::relocate_failed`] gives it back.
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
        let (source, target) = (*self.usable(src, holder, now)?, *self.usable(dst, holder, now)?);
        if !source.rights.contains(Rights::READ) || !target.rights.contains(Rights::WRITE) {
            return Err(LeaseError::Rights.into());
        }
        if src == dst {
            return Err(RelocateError::Failed("source and destination are the same lease"));
        }
        let (Some(from), Some(to)) = (source.region, target.region) else {
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
            self.revoke_live(&source, now);
        }
        let from = Span { region: from, at: source.base + first, len };
        let to = Span { region: to, at: target.base + first, len };
        Ok(Relocation { src, dst, mode, from, to })
    }

    /// Copies the bytes of a relocation, where both leases are in memory. `None`: at least one is behind a block
    /// engine, and the caller copies: for a move, when [`Leases::quiescence`] is over; and always within a guard of
    /// the table ([`crate::Held`]), which keeps the bytes of both leases theirs should they end meanwhile.
    pub fn copy(&self, relocation: &Relocation) -> Option<Result<u64, RelocateError>> {
        let Relocation { mode, from, to, .. } = *relocation;
        let bytes = |span: Span| match &self.places.regions.get(span.region)?.storage {
            Storage::Bytes(bytes) => Some(bytes),
            Storage::Blocks(_) => None,
        };
        let (source, target) = (bytes(from)?, bytes(to)?);
        if mode == Mode::Move && !self.settles() {
            return Some(Err(RelocateError::Failed("accesses to the source have not ended; try again")));
        }
        let mut chunk = vec![0; CHUNK.min(from.len) as usize];
        let mut done = 0;
        while done < from.len {
            let chunk = &mut chunk[..CHUNK.min(from.len - done) as usize];
            source.read(from.at + done, chunk);
            target.write(to.at + done, chunk);
            done += chunk.len() as u64;
        }
        Some(Ok(done))
    }

    /// The copy failed: the source of a move is as it was.
    pub fn relocate_failed(&mut self, relocation: &Relocation) {
        if relocation.mode == Mode::Move {
            self.unrevoke(relocation.src.key());
        }
    }

    /// Keeps the bytes of a moved source until `until`, at most until its grace would have ended, though it is
    /// released (`preserve_until_ms`).
    pub fn preserve(&mut self, id: LeaseId, until: Nanos) {
        if let Some(record) = self.records.get_mut(&id.key()).filter(|record| record.lease.id == id) {
            record.keep_until = until.min(record.lease.ends());
        }
    }

    /// Waits a moment for the accesses from before to end.
    fn settles(&self) -> bool {
        let mut quiescence = self.quiescence();
        (0..LOOKS).any(|_| {
            let over = quiescence.is_over();
            if !over {
                crate::sync::yield_now();
            }
            over
        })
    }
}
