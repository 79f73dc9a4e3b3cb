//! What every codec of this module must hold.

use std::fmt::Debug;

use super::Wire;

/// Bytes of hex digits; blanks are free.
pub(super) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// `value` is exactly `bytes`, cut anywhere it is refused, and a surplus or flipped byte is refused or is another value
/// with that encoding.
pub(super) fn exact<'a, T: Wire<'a> + PartialEq + Debug>(value: &T, bytes: &str) {
    exact_but(value, bytes, &[]);
}

/// [`exact`], with lengths to which the message may be cut and still be one.
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

/// What parses is written back as it was.
pub(super) fn canonical<'a, T: Wire<'a> + Debug>(bytes: Vec<u8>) -> Option<T> {
    let bytes: &'static [u8] = bytes.leak();
    let value = T::parse(bytes).ok()?;
    assert_eq!(value.to_vec(), bytes, "{value:?}");
    Some(value)
}
