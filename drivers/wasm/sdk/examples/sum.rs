//! Adds the bytes of its first capability, a lease of memory, and returns the sum as text.

#![no_std]

extern crate alloc;

use alloc::{format, vec::Vec};

use berth_tasklet_sdk::{Error, Input, Level, Memory, log, tasklet};

fn run(input: Input<'_>) -> Result<Vec<u8>, Error> {
    let lease = Memory { id: input.caps().next().ok_or(Error::INVALID_LEASE)?.token };
    let size = lease.query()?.size;
    log(Level::Info, &format!("adding {size} bytes"));
    let (mut piece, mut sum) = ([0; 4096], 0_u64);
    for at in (0..size).step_by(piece.len()) {
        let piece = &mut piece[..(size - at).min(4096) as usize];
        lease.read(at, piece)?;
        sum += piece.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    Ok(format!("{sum}\n").into_bytes())
}

tasklet!(run);
