//! A place in a ring, and what the words of an internal ring say there.

use crate::{ErrorCode, SlotIndex};

/// Toggles each time a cursor comes round. Words start at zero and cursors with the bit set, so a word that has the
/// cursor's bit is of this lap.
const LAP: u64 = 1 << 63;
/// The word carries an error code instead of a length.
const ERROR: u64 = 1 << 62;
/// The length or code.
const VALUE: u64 = (1 << 48) - 1;

/// The next slot of one role in one direction.
///
/// On an internal ring each slot gets exactly one word a lap, from a writer whom the reader keeps from lapping it. A word
/// is therefore never cleared: that of the next lap differs in one bit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    pub(crate) slot: SlotIndex,
    lap: u64,
}

impl Cursor {
    pub(crate) const START: Self = Self { slot: SlotIndex(0), lap: LAP };

    /// Moves on to the next of `slots`.
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

    /// The word that stands for an answer that there is none of.
    #[inline]
    pub(crate) fn error(self, code: ErrorCode) -> u64 {
        self.lap | ERROR | code.get()
    }

    /// What a word says, if it is of this lap.
    #[inline]
    pub(crate) fn read(self, word: u64) -> Option<Result<usize, ErrorCode>> {
        if (word ^ self.lap) & LAP != 0 {
            return None;
        }
        let value = word & VALUE;
        Some(if word & ERROR == 0 { Ok(value as usize) } else { Err(ErrorCode::from_value(value)) })
    }
}
