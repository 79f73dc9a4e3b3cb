//! 24-bit numbers and partition keys.

use core::fmt;

/// A packet sequence number: 24 bits, wrapping (IBTA 9.2.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00ff_ffff;

    /// Keeps the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number of the packet `count` packets later.
    #[inline]
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Packets by which `self` is ahead of `other`, from -2^23 to 2^23 - 1; negative if it is behind.
    #[inline]
    pub const fn ahead_of(self, other: Self) -> i32 {
        // The difference moved to the top of the word and back spreads its sign.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

/// A queue pair number: 24 bits. 0 and 1 are reserved for management, 0xffffff is multicast (IBTA 3.5.10).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// Keeps the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Self {
        Self(value & Psn::MASK)
    }

    /// The number, below 2^24.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether a connected queue pair may have this number.
    pub const fn is_ordinary(self) -> bool {
        self.0 > 1 && self.0 < Psn::MASK
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

/// A partition key: 15 bits of partition, and in the top bit whether its holder is a full member (IBTA 10.9.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PKey(pub u16);

/// The default partition, full member.
pub const P_KEY_DEFAULT: PKey = PKey(0xffff);

impl PKey {
    const FULL: u16 = 0x8000;

    /// Whether a queue pair with this key takes a packet with key `other`: the partitions must be equal, and at least
    /// one of the two a full member (IBTA 10.9.3).
    #[inline]
    pub const fn matches(self, other: Self) -> bool {
        (self.0 ^ other.0) & !Self::FULL == 0 && (self.0 | other.0) & Self::FULL != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        let last = Psn::new(0x00ff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(2).ahead_of(last), 3);
        assert_eq!(last.ahead_of(Psn::new(2)), -3);
        assert_eq!(Psn::new(0x0080_0000).ahead_of(Psn::new(0)), -0x0080_0000);
        assert_eq!(Psn::new(0x007f_ffff).ahead_of(Psn::new(0)), 0x007f_ffff);
        assert_eq!(Psn::new(0x1234_5678).get(), 0x0034_5678);
    }

    #[test]
    fn limited_members_do_not_meet() {
        for (own, other, meet) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0xffff, true),
            (0x7fff, 0x7fff, false),
            (0xffff, 0xfffe, false),
        ] {
            assert_eq!(PKey(own).matches(PKey(other)), meet, "{own:#x} {other:#x}");
        }
    }

    #[test]
    fn special_queue_pairs_are_none_of_ours() {
        assert!([0, 1, 0x00ff_ffff].iter().all(|&n| !Qpn::new(n).is_ordinary()));
        assert!([2, 0x00ff_fffe].iter().all(|&n| Qpn::new(n).is_ordinary()));
        assert_eq!(format!("{:?}", Qpn::new(0x2a)), "Qpn(0x00002a)");
    }
}
