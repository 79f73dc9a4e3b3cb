//! Positions in a ring, and the meaning of an internal ring's words.

use crate::{ErrorCode, SlotIndex};

/// Bit that toggles each time a cursor wraps around. Words start at zero and cursors with the bit set, so a word whose
/// bit equals the cursor's is of this lap.
const LAP: u64 = 1 << 63;
/// Bit of a word that carries an error code instead of a length.
const ERROR: u64 = 1 << 62;
/// Mask of the length or code.
const VALUE: u64 = (1 << 48) - 1;

/// The next slot for one role in one direction.
///
/// On an internal ring each slot gets exactly one word per lap, and its writer cannot lap the reader. A word is
/// therefore never cleared: the next lap's word differs in one bit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    pub(crate) slot: SlotIndex,
    lap: u64,
}

impl Cursor {
    pub(crate) const START: Self = Self { slot: SlotIndex(0), lap: LAP };

    /// Moves on to the next of `slots` slots.
    #[inline]
    pub(crate) fn advance(&mut self, slots: u32) {
        self.slot = self.slot.next(slots);
        if self.slot.0 == 0 {
            self.lap ^= LAP;
        }
    }

    /// The word that announces a message of `len` bytes.
    #[inline]
    pub(crate) fn message(self, len: usize) -> u64 {
        self.lap | len as u64
    }

    /// The word that stands in place of an answer.
    #[inline]
    pub(crate) fn error(self, code: ErrorCode) -> u64 {
        self.lap | ERROR | code.get()
    }

    /// The length or error that a word carries; `None` if it is not of this lap.
    #[inline]
    pub(crate) fn read(self, word: u64) -> Option<Result<usize, ErrorCode>> {
        if (word ^ self.lap) & LAP != 0 {
            return None;
        }
        let value = word & VALUE;
        Some(if word & ERROR == 0 { Ok(value as usize) } else { Err(ErrorCode::from_value(value)) })
    }
}
