//! Data of commands and memory: where it cannot be written from where it was received.

use berth_lease::Op;
use berth_lease_io::AccessRequest;
use berth_port::Nanos;
use berth_wire::nvme::Status;

use super::Io;
use crate::queue::{Queue, Work};

/// Bytes that are copied or compared at once.
pub(super) const STEP: usize = 4096;

impl Io {
    /// Writes what was collected to memory, or compares it.
    pub(super) fn store(&mut self, queue: &mut Queue, index: usize, now: Nanos) -> Status {
        let slot = queue.slot(index);
        let (ask, work, len) = (slot.ask, slot.work, slot.buffers.size());
        let mut step = [0; STEP];
        for at in (0..len).step_by(STEP) {
            let piece = &mut step[..STEP.min(len - at)];
            slot.buffers.read_at(at, piece);
            let done = if work == Work::Compare {
                self.compare(&ask, at as u64, piece, now)
            } else {
                self.gate
                    .write_part(&ask, at as u64, piece, now)
                    .map(drop)
                    .map_err(|refusal| self.status(refusal, Op::Write))
            };
            if let Err(status) = done {
                return status;
            }
        }
        Status::SUCCESS
    }

    /// Compares memory with `piece`, from byte `at` of an access on.
    pub(super) fn compare(&mut self, ask: &AccessRequest, at: u64, piece: &[u8], now: Nanos) -> Result<(), Status> {
        let mut step = [0; STEP];
        for (nth, piece) in piece.chunks(STEP).enumerate() {
            let there = &mut step[..piece.len()];
            let read = self.gate.read_part(ask, at + (nth * STEP) as u64, there, now);
            read.map_err(|refusal| self.status(refusal, Op::Read))?;
            if there != piece {
                return Err(Status::COMPARE_FAILURE);
            }
        }
        Ok(())
    }
}
