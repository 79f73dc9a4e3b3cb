//! Bit-packed data: least significant bit first within each byte (section "Bit-Packed Data Encoding").

/// Number of bytes that hold `bits` bits.
#[inline]
pub const fn bytes_for(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// A view of `len` bits over exactly [`bytes_for`]`(len)` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Bits<'a> {
    /// Views the first `len` bits of `bytes`; `None` if there are fewer.
    #[inline]
    pub fn new(bytes: &'a [u8], len: usize) -> Option<Self> {
        Some(Self { bytes: bytes.get(..bytes_for(len))?, len })
    }

    /// Number of bits.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view covers no bits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that hold the bits, unused bits of the last one included.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Bit `index`; `None` beyond the last.
    #[inline]
    pub fn get(&self, index: usize) -> Option<bool> {
        (index < self.len).then(|| self.bytes[index / 8] >> (index % 8) & 1 == 1)
    }

    /// Iterates from the least significant bit of the first byte.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = bool> + use<'a> {
        let bytes = self.bytes;
        (0..self.len).map(move |i| bytes[i / 8] >> (i % 8) & 1 == 1)
    }

    /// Whether the unused bits of the last byte are zero, as the document requires.
    #[inline]
    pub fn unused_are_zero(&self) -> bool {
        match (self.len % 8, self.bytes.last()) {
            (0, _) | (_, None) => true,
            (used, Some(last)) => last >> used == 0,
        }
    }
}

/// Packs `bits` into the front of `bytes`, unused bits zero, and returns the bytes used; `None` if they do not fit.
#[inline]
pub fn pack(bits: impl ExactSizeIterator<Item = bool>, bytes: &mut [u8]) -> Option<usize> {
    let used = bytes.get_mut(..bytes_for(bits.len()))?;
    used.fill(0);
    for (i, bit) in bits.enumerate() {
        used[i / 8] |= u8::from(bit) << (i % 8);
    }
    Some(used.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ten_bits_as_in_the_document() {
        let ten = [true, false, false, true, true, false, false, false, false, true];
        let mut bytes = [0xFF; 3];
        assert_eq!(pack(ten.into_iter(), &mut bytes), Some(2));
        assert_eq!(bytes, [0b0001_1001, 0b0000_0010, 0xFF]);
        let bits = Bits::new(&bytes, 10).unwrap();
        assert_eq!(bits.as_bytes().len(), 2);
        assert!(bits.unused_are_zero());
        assert!(!Bits::new(&[0, 0b100], 10).unwrap().unused_are_zero());
        assert_eq!((bits.get(9), bits.get(10)), (Some(true), None));
        assert_eq!(Bits::new(&bytes, 25), None);
        assert_eq!(pack(ten.into_iter(), &mut bytes[..1]), None);
    }

    proptest! {
        #[test]
        fn bits_round_trip(bits in prop::collection::vec(any::<bool>(), 0..70)) {
            let mut bytes = [0xFF; 9];
            let used = pack(bits.iter().copied(), &mut bytes).unwrap();
            let view = Bits::new(&bytes[..used], bits.len()).unwrap();
            prop_assert!(view.unused_are_zero());
            prop_assert_eq!(view.iter().collect::<Vec<_>>(), bits);
        }
    }
}
