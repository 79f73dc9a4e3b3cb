//! A peer's memory, an array of slots.

use berth_wire::rendezvous::ImmForm;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Addresses and strides are multiples of this many bytes, the unit in which FPGAs count.
pub(crate) const UNIT: usize = 128;
/// Addresses must be below this, the limit of an FPGA's address registers.
const END: u64 = 1 << 39;

/// Layout of a peer's memory, and how immediates name its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Number of slots, at least 1.
    pub count: usize,
    /// Bytes from the start of one slot to the next, a multiple of 128.
    pub stride: usize,
    /// Virtual address of slot 0, a multiple of 128. All slots end below 2^39.
    pub base: u64,
    /// How an immediate names a slot.
    pub form: ImmForm,
}

/// Why settings are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There are more slots than the immediates can name, or none.
    #[error("{asked} slots: from 1 to {most}, which is what the immediate can name")]
    Count {
        /// Number of slots asked for.
        asked: usize,
        /// Limit of the immediate's form.
        most: u32,
    },
    /// The stride is not a multiple of 128.
    #[error("a stride of {0} bytes: a multiple of 128")]
    Stride(usize),
    /// The base is not a multiple of 128.
    #[error("a base address of {0:#x}: a multiple of 128")]
    Base(u64),
    /// The slots exceed the range of addresses.
    #[error("{bytes} bytes from {base:#x} end beyond 2^39, which is as far as senders can address")]
    End {
        /// Virtual address of slot 0.
        base: u64,
        /// Size of all slots in bytes.
        bytes: u64,
    },
    /// The number of peers is zero, or more than [`PEERS_MAX`](crate::PEERS_MAX).
    #[error("{0} peers: from 1 to {max}", max = crate::PEERS_MAX)]
    Peers(usize),
    /// The padding unit does not divide 128.
    #[error("padding to {0} bytes: 1, 2, 4, up to 128")]
    Unit(usize),
    /// The path MTU is not one of the specification's (IBTA 9.4.2).
    #[error("a path MTU of {0} bytes: 256, 512, 1024, 2048 or 4096")]
    PathMtu(usize),
}

impl Slots {
    /// Size of all slots in bytes.
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

/// The memory of one peer's slots.
#[derive(Debug)]
pub(crate) struct Region(Box<[Unit]>);

/// Alignment that keeps slots from sharing a cache line.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(128))]
struct Unit([u8; UNIT]);

impl Region {
    /// Zeroed memory for `slots`.
    pub(crate) fn new(slots: &Slots) -> Self {
        Self(vec![Unit([0; UNIT]); slots.bytes() / UNIT].into())
    }

    /// Memory of all slots, slot 0 first.
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
