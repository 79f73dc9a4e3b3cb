//! A peer's memory: slots side by side.

use berth_wire::rendezvous::ImmForm;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Addresses and strides are multiples of this many bytes, as FPGAs count in units of it.
pub(crate) const UNIT: usize = 128;
/// Addresses end below this, all that an FPGA's address registers hold.
const END: u64 = 1 << 39;

/// How a peer's memory is divided, and how it names the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// How many, from 1.
    pub count: usize,
    /// Bytes from one slot to the next, a multiple of 128.
    pub stride: usize,
    /// The virtual address of the first, a multiple of 128; slots end below 2^39.
    pub base: u64,
    /// How an immediate names a slot.
    pub form: ImmForm,
}

/// Why slots cannot be so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A number of slots that the immediates cannot name.
    #[error("{asked} slots: from 1 to {most}, which is what the immediate can name")]
    Count {
        /// Slots asked for.
        asked: usize,
        /// The form's limit.
        most: u32,
    },
    /// A stride that is no multiple of 128.
    #[error("a stride of {0} bytes: a multiple of 128")]
    Stride(usize),
    /// A base that is no multiple of 128.
    #[error("a base address of {0:#x}: a multiple of 128")]
    Base(u64),
    /// Slots beyond the addresses there are.
    #[error("{bytes} bytes from {base:#x} end beyond 2^39, which is as far as senders can address")]
    End {
        /// Where they start.
        base: u64,
        /// What they take.
        bytes: u64,
    },
    /// More peers than can be told apart, or none.
    #[error("{0} peers: from 1 to {max}", max = crate::PEERS_MAX)]
    Peers(usize),
    /// A padding unit that does not divide 128.
    #[error("padding to {0} bytes: 1, 2, 4, up to 128")]
    Unit(usize),
    /// No path MTU of the specification (IBTA 9.4.2).
    #[error("a path MTU of {0} bytes: 256, 512, 1024, 2048 or 4096")]
    PathMtu(usize),
}

impl Slots {
    /// All slots together, in bytes.
    pub fn bytes(&self) -> usize {
        self.count * self.stride
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let most = self.form.max_slots();
        if self.count == 0 || self.count > most as usize {
            return Err(ConfigError::Count { asked: self.count, most });
        }
        if self.stride == 0 || !self.stride.is_multiple_of(UNIT) {
            return Err(ConfigError::Stride(self.stride));
        }
        if !self.base.is_multiple_of(UNIT as u64) {
            return Err(ConfigError::Base(self.base));
        }
        let bytes = (self.count as u64).saturating_mul(self.stride as u64);
        if self.base.saturating_add(bytes) >= END {
            return Err(ConfigError::End { base: self.base, bytes });
        }
        Ok(())
    }
}

/// The bytes of one peer's slots.
#[derive(Debug)]
pub(crate) struct Region(Box<[Unit]>);

/// Aligned, so that no two slots share a cache line.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
struct Unit([u8; UNIT]);

impl Region {
    /// Zeroed memory for `slots`.
    pub(crate) fn new(slots: &Slots) -> Self {
        Self(vec![Unit([0; UNIT]); slots.bytes() / UNIT].into())
    }

    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_bounds() {
        let good = Slots { count: 4096, stride: 256, base: 0, form: ImmForm::Psn20 };
        assert_eq!(good.check(), Ok(()));
        let check = |change: fn(&mut Slots)| {
            let mut slots = good;
            change(&mut slots);
            slots.check()
        };
        assert_eq!(check(|s| s.count = 4097), Err(ConfigError::Count { asked: 4097, most: 4096 }));
        assert_eq!(check(|s| s.count = 0), Err(ConfigError::Count { asked: 0, most: 4096 }));
        assert_eq!(check(|s| s.form = ImmForm::Psn24), Err(ConfigError::Count { asked: 4096, most: 4 }));
        assert_eq!(check(|s| s.stride = 200), Err(ConfigError::Stride(200)));
        assert_eq!(check(|s| s.base = 64), Err(ConfigError::Base(64)));
        assert_eq!(check(|s| s.base = END - (1 << 20) - 128), Ok(()));
        assert_eq!(
            check(|s| s.base = END - (1 << 20)),
            Err(ConfigError::End { base: END - (1 << 20), bytes: 1 << 20 })
        );
    }

    #[test]
    fn regions_are_aligned() {
        let mut region = Region::new(&Slots { count: 3, stride: 384, base: 0, form: ImmForm::Psn20 });
        assert_eq!(region.bytes().len(), 3 * 384);
        assert_eq!(region.bytes().as_ptr().addr() % 128, 0);
    }
}
