//! Bit strings in wire format: least significant bit first in each byte, the last byte padded with zeros.

/// Number of bytes that hold `bits` bits.
pub(crate) const fn bytes_for(bits: usize) -> usize {
    bits.div_ceil(8)
}

/// Number of 64-bit words that hold `bits` bits.
pub(crate) const fn words_for(bits: usize) -> usize {
    bits.div_ceil(64)
}

/// Why bytes are not a bit string of the required length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BitsError {
    /// The byte string is too short or too long.
    #[error("{found} bytes hold the bits, {expected} are right")]
    Length {
        /// Number of bytes that the model needs.
        expected: usize,
        /// Number of bytes given.
        found: usize,
    },
    /// A bit behind the last one is set.
    #[error("a bit beyond the last is set; the padding of the last byte is zero")]
    Padding,
}

/// Checks that `bytes` is a string of `bits` bits.
pub(crate) fn check(bytes: &[u8], bits: usize) -> Result<(), BitsError> {
    check_length(bytes, bits)?;
    match bytes.last() {
        Some(last) if !bits.is_multiple_of(8) && last >> (bits % 8) != 0 => Err(BitsError::Padding),
        _ => Ok(()),
    }
}

/// Checks that `bytes` has exactly the length for `bits` bits.
pub(crate) fn check_length(bytes: &[u8], bits: usize) -> Result<(), BitsError> {
    let expected = bytes_for(bits);
    if bytes.len() == expected { Ok(()) } else { Err(BitsError::Length { expected, found: bytes.len() }) }
}

/// Copies a checked bit string into words; `words` has the length [`words_for`] its bits.
pub(crate) fn load(bytes: &[u8], words: &mut [u64]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()] = u64::from_le_bytes(last);
    }
}

/// Copies words into a byte string that holds their bits.
#[inline]
pub(crate) fn store(words: &[u64], bytes: &mut [u8]) {
    for (bytes, word) in bytes.chunks_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
}

/// Bit `at` of a bit string.
pub(crate) fn get(bytes: &[u8], at: usize) -> bool {
    bytes[at / 8] >> (at % 8) & 1 != 0
}
