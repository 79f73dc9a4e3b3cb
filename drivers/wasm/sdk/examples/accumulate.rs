//! A ring kernel: adds the number at the end of each message to a sum that lives on. The message is, in its raw format,
//! MessageId (16 bytes), Priority (1), CorrelationId (1 + 16), Add i32; the answer has the sum, an i64, in its place.

#![no_std]

use berth_tasklet_sdk::{Error, ring_kernel};

/// Bytes before the number.
const HEAD: usize = 34;

fn answer(sum: &mut i64, message: &[u8], out: &mut [u8]) -> Result<usize, Error> {
    let (head, add) = message.split_at_checked(HEAD).ok_or(Error::BAD_INPUT)?;
    *sum += i64::from(i32::from_le_bytes(add.try_into().map_err(|_| Error::BAD_INPUT)?));
    out[..HEAD].copy_from_slice(head);
    out[HEAD..].copy_from_slice(&sum.to_le_bytes());
    Ok(out.len())
}

ring_kernel!(i64, 0, answer, HEAD + 8);
