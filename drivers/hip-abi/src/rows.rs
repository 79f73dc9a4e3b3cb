//! Copies and sets of rows that begin a pitch apart.

use berth_wire::hip::Code;

use crate::{
    args::Address,
    library::{answer, objects, on},
    memory::Direction,
};

/// Rows that are asked for in one call.
const BATCH: usize = 4096;

/// Rows: where the first one begins, and how far apart they do.
type Rows = (Address, usize);

/// The bytes from the first row's begin to the last one's end.
fn span(rows: Rows, width: usize, height: usize) -> Result<u64, Code> {
    let last = rows.1.checked_mul(height - 1).and_then(|last| last.checked_add(width));
    last.map(|bytes| bytes as u64).ok_or(Code::INVALID_VALUE)
}

fn copy(to: Rows, from: Rows, width: usize, height: usize, kind: i32, stream: u64) -> Result<(), Code> {
    let direction = Direction::of(kind, to.0, from.0)?;
    let stream = objects(|objects| objects.stream(stream))?;
    if width > to.1 || width > from.1 {
        return Err(Code::INVALID_PITCH);
    }
    if width == 0 || height == 0 {
        return Ok(());
    }
    direction.check((to.0, span(to, width, height)?), (from.0, span(from, width, height)?))?;
    if direction == Direction::Device {
        let place = |rows: Rows| (rows.0.number(), rows.1 as u64);
        return on(|session| session.copy_rows(place(to), place(from), width as u64, height as u64, stream));
    }
    // Of the host the rows are read and written, and not what is between them.
    let of = |side: Rows, row: usize| side.0.add(side.1 * row);
    for first in (0..height).step_by(BATCH) {
        let mut rows = first..height.min(first + BATCH);
        match direction {
            Direction::Host => rows.for_each(|row| of(to, row).copy_from(of(from, row), width)),
            Direction::In => on(|session| {
                rows.try_for_each(|row| session.copy_in(of(to, row).number(), of(from, row).bytes(width), stream))
            })?,
            _ => {
                let mut copies: Vec<_> =
                    rows.map(|row| (of(from, row).number(), of(to, row).bytes_mut(width))).collect();
                on(|session| session.copy_out_all(&mut copies, stream))?;
            }
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpy2D(
    to: Address,
    to_pitch: usize,
    from: Address,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: i32,
) -> i32 {
    answer(|| copy((to, to_pitch), (from, from_pitch), width, height, kind, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemcpy2DAsync(
    to: Address,
    to_pitch: usize,
    from: Address,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: i32,
    stream: u64,
) -> i32 {
    answer(|| copy((to, to_pitch), (from, from_pitch), width, height, kind, stream))
}

fn fill(at: Rows, byte: i32, width: usize, height: usize, stream: u64) -> Result<(), Code> {
    if width > at.1 {
        return Err(Code::INVALID_PITCH);
    }
    let stream = objects(|objects| {
        let stream = objects.stream(stream)?;
        if width > 0 && height > 0 {
            objects.range(at.0.number(), span(at, width, height)?)?;
        }
        Ok(stream)
    })?;
    if width == 0 {
        return Ok(());
    }
    on(|session| {
        let mut rows = (0..height).map(|row| at.0.add(at.1 * row).number());
        rows.try_for_each(|row| session.fill(row, byte as u8, width as u64, stream))
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipMemset2D(at: Address, pitch: usize, byte: i32, width: usize, height: usize) -> i32 {
    answer(|| fill((at, pitch), byte, width, height, 0))
}

#[unsafe(no_mangle)]
extern "C" fn hipMemset2DAsync(at: Address, pitch: usize, byte: i32, width: usize, height: usize, stream: u64) -> i32 {
    answer(|| fill((at, pitch), byte, width, height, stream))
}
