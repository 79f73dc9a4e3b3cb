//! Looks for its payload in its first capability, a lease of blocks, and returns the numbers of the blocks that have it.

#![no_std]

extern crate alloc;

use alloc::{format, vec::Vec};

use berth_tasklet_sdk::{BLOCK_LEN, Blocks, Error, Input, tasklet};

fn run(input: Input<'_>) -> Result<Vec<u8>, Error> {
    let lease = Blocks { id: input.caps().next().ok_or(Error::INVALID_LEASE)?.token };
    if input.payload.is_empty() {
        return Err(Error::BAD_INPUT);
    }
    let (mut block, mut found) = ([0; BLOCK_LEN], Vec::new());
    for number in 0..lease.query()?.size {
        lease.read(number, &mut block)?;
        if block.windows(input.payload.len()).any(|part| part == input.payload) {
            found.extend_from_slice(format!("{number}\n").as_bytes());
        }
    }
    Ok(found)
}

tasklet!(run);
