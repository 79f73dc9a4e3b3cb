//! Checks that every codec of this module must pass.

use std::fmt::Debug;

use super::Wire;

/// Bytes from hex digits; white space is ignored.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Checks that `value` encodes to exactly `bytes`, that every cut and surplus is refused, and that a flipped byte is
/// refused or parses to another value with that encoding.
pub(super) fn exact<'a, T: Wire<'a> + PartialEq + Debug>(value: &T, bytes: &str) {
    exact_but(value, bytes, &[]);
}

/// As [`exact`], with lengths at which a cut message is still valid.
pub(super) fn exact_but<'a, T: Wire<'a> + PartialEq + Debug>(value: &T, bytes: &str, shorter: &[usize]) {
    let bytes: &'static [u8] = hex(bytes).leak();
    assert_eq!(value.to_vec(), bytes, "{value:?}");
    assert_eq!(T::parse(bytes).as_ref(), Ok(value));
    for len in 0..bytes.len() {
        let cut = T::parse(&bytes[..len]);
        assert_eq!(cut.is_ok(), shorter.contains(&len), "cut to {len}: {cut:?}");
        assert_ne!(cut.as_ref(), Ok(value));
    }
    canonical::<T>([bytes, &[0]].concat());
    for at in 0..bytes.len() {
        for mask in [0x01, 0x10, 0x80, 0xFF] {
            let mut flipped = bytes.to_vec();
            flipped[at] ^= mask;
            if let Some(other) = canonical::<T>(flipped) {
                assert_ne!(&other, value, "byte {at} ^ {mask:#x}");
            }
        }
    }
}

/// Checks that what parses is written back unchanged.
pub(super) fn canonical<'a, T: Wire<'a> + Debug>(bytes: Vec<u8>) -> Option<T> {
    let bytes: &'static [u8] = bytes.leak();
    let value = T::parse(bytes).ok()?;
    assert_eq!(value.to_vec(), bytes, "{value:?}");
    Some(value)
}
