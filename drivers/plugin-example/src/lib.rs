//! An RPC plug-in in Rust: `popcount`, with the `DEVICE_CALL` signature.
//!
//! Takes any bytes and returns how many of their bits are set, as a little-endian `u32`. Configured as
//!
//! ```toml
//! [[function]]
//! name = "popcount"
//! handler = "plugin:/usr/lib/berth/libberth_plugin_example.so#popcount"
//! abi = "device_call"
//! ```

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    slice,
};

/// The status of a call whose result has no room.
const NO_ROOM: i32 = 1;
/// The status of a call that panicked. A panic must not leave a plug-in: it would end the whole appliance.
const PANICKED: i32 = 2;

/// Counts bits; the signature is `berth_device_call` of `berth_ring.h`.
///
/// # Safety
/// `input` must be valid for reads of `arg_len` bytes, `output` for writes of `max_result_len` bytes, and `result_len`
/// for a write. They must not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popcount(
    input: *const u8,
    output: *mut u8,
    arg_len: u32,
    max_result_len: u32,
    result_len: *mut u32,
) -> i32 {
    // SAFETY: validity is the caller's promise, and bytes have no other requirement.
    let (args, results, result_len) = unsafe {
        (
            slice::from_raw_parts(input, arg_len as usize),
            slice::from_raw_parts_mut(output, max_result_len as usize),
            &mut *result_len,
        )
    };
    catch_unwind(AssertUnwindSafe(|| match answer(args, results) {
        Some(len) => {
            *result_len = len;
            0
        }
        None => NO_ROOM,
    }))
    .unwrap_or(PANICKED)
}

/// Writes the answer to the front of `results` and returns its length. Panics on 13 bytes, to show what becomes of it.
fn answer(args: &[u8], results: &mut [u8]) -> Option<u32> {
    assert_ne!(args.len(), 13, "thirteen bytes");
    let ones: u32 = args.iter().map(|byte| byte.count_ones()).sum();
    results.get_mut(..4)?.copy_from_slice(&ones.to_le_bytes());
    Some(4)
}
