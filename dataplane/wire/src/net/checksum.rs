//! The Internet checksum (RFC 1071).

use core::net::IpAddr;

/// A running one's-complement sum.
///
/// RFC 1071 section 2(B): the sum does not depend on byte order, so words are added as the processor loads them and
/// only the folded result is put into network order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Starts with the pseudo-header of UDP or ICMPv6 (RFC 768; RFC 8200 section 8.1). Both addresses are of one
    /// family.
    #[inline]
    pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: u16) -> Self {
        let sum = Self::default().word(u16::from(protocol)).word(length);
        match (source, destination) {
            (IpAddr::V4(s), IpAddr::V4(d)) => sum.bytes(&s.octets()).bytes(&d.octets()),
            (IpAddr::V6(s), IpAddr::V6(d)) => sum.bytes(&s.octets()).bytes(&d.octets()),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => sum,
        }
    }

    /// Adds bytes that start at an even offset of the summed data; an odd last byte is padded with zero.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let mut sum = self;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            sum = sum.add(u64::from_ne_bytes(*word));
        }
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            sum = sum.add(u64::from(u32::from_ne_bytes(*word)));
        }
        let (pairs, last) = rest.as_chunks::<2>();
        for pair in pairs {
            sum = sum.add(u64::from(u16::from_ne_bytes(*pair)));
        }
        if let [byte] = last {
            sum = sum.add(u64::from(u16::from_ne_bytes([*byte, 0])));
        }
        sum
    }

    /// Adds one 16-bit word, given in host order.
    #[inline]
    #[must_use]
    pub fn word(self, word: u16) -> Self {
        self.add(u64::from(word.to_be()))
    }

    /// Adds four words at once; the carry out of the top is added at the bottom, as 2^64 is 1 modulo 2^16 - 1.
    #[inline]
    fn add(self, words: u64) -> Self {
        let (sum, carry) = self.0.overflowing_add(words);
        Self(sum + u64::from(carry))
    }

    /// The sum folded to 16 bits, in host order: 0xffff over data with a correct checksum in it.
    #[inline]
    pub fn folded(self) -> u16 {
        let mut sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the sum, in host order.
    #[inline]
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// Whether the bytes, checksum field included, sum to all ones.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn example_of_rfc_1071() {
        let sum = Sum::default().bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        assert_eq!(sum.checksum(), 0x220d);
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let mut plain = 0u32;
            for pair in bytes.chunks(2) {
                plain += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
                plain = (plain & 0xffff) + (plain >> 16);
            }
            prop_assert_eq!(u32::from(Sum::default().bytes(&bytes).folded()), plain);
        }

        #[test]
        fn any_flipped_bit_shows(mut bytes in proptest::collection::vec(any::<u8>(), 2..200), bit in any::<usize>()) {
            let sum = Sum::default().bytes(&bytes).checksum();
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!Sum::default().bytes(&bytes).word(sum).is_valid() || bytes.len() % 2 == 1);
            prop_assert_ne!(Sum::default().bytes(&bytes).checksum(), sum);
        }
    }
}
