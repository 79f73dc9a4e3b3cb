//! Streams, launches and graphs.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use berth_gpu::{Device as _, Launch, ProgramId};

use crate::state::{Gpu, Handle, INVALID_VALUE, export, handle, idle, put, within};

/// The one stream, and how many blocks a multiprocessor has room for.
const STREAM: u32 = 7;
const BLOCKS: c_int = 8;

const CAPTURE: c_int = 901;

/// Reads what `extra` of a launch says: the parameters.
///
/// # Safety
/// As cuda.h says of `extra`.
unsafe fn parameters(extra: *mut *mut c_void) -> Result<Vec<u8>, c_int> {
    if extra.is_null() {
        return Err(INVALID_VALUE);
    }
    let (mut from, mut len, mut at) = (None, None, extra);
    loop {
        // SAFETY: the list ends with 0.
        let [key, value] = unsafe { [*at, if (*at).is_null() { *at } else { *at.add(1) }] };
        match key.addr() {
            0 => break,
            1 => from = Some(value.cast::<u8>()),
            // SAFETY: the caller's number.
            2 => len = Some(unsafe { *value.cast::<usize>() }),
            _ => return Err(INVALID_VALUE),
        }
        // SAFETY: as above.
        at = unsafe { at.add(2) };
    }
    let (Some(from), Some(len)) = (from, len) else { return Err(INVALID_VALUE) };
    // SAFETY: the caller has so many bytes.
    Ok(unsafe { std::slice::from_raw_parts(from, len) }.to_vec())
}

/// Copies the parameters of a kernel from where `params` of a launch says each lies.
///
/// # Safety
/// As cuda.h says of `kernelParams`.
unsafe fn listed(gpu: &Gpu, program: ProgramId, kernel: &str, params: *mut *mut c_void) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, one) in gpu.soft.parameters(program, kernel).unwrap_or_default().into_iter().enumerate() {
        bytes.resize(one.offset, 0);
        // SAFETY: the caller's list has an entry for each parameter, which is so long.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts((*params.add(index)).cast::<u8>(), one.bytes) });
    }
    bytes
}

/// Whether the launch is within the device's limits, with exactly as many bytes of parameters as the kernel takes.
fn fits(gpu: &Gpu, program: ProgramId, launch: &Launch) -> bool {
    let [bx, by, bz] = launch.block.map(u64::from);
    let [gx, gy, gz] = launch.grid;
    let parameters = gpu.soft.parameters(program, &launch.kernel).unwrap_or_default();
    let takes = parameters.last().map_or(0, |last| last.offset + last.bytes);
    (1..=1024).contains(&(bx * by * bz))
        && bz <= 64
        && (1..=i32::MAX as u32).contains(&gx)
        && (1..=65_535).contains(&gy)
        && (1..=65_535).contains(&gz)
        && launch.params.len() == takes
}

export! {
    fn cuStreamCreate(stream: *mut Handle, _flags: c_uint) {
        // SAFETY: the caller's place.
        idle(|_| unsafe { put(stream, handle(STREAM)) })
    }

    fn cuStreamQuery(_stream: Handle) {
        within(Gpu::look)
    }

    fn cuStreamSynchronize(_stream: Handle) {
        within(|gpu| {
            let ended = gpu.soft.wait();
            gpu.ended(ended)
        })
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) {
        if stream != handle(STREAM) || !(0..=2).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        idle(|gpu| {
            gpu.capture = Some(Vec::new());
            Ok(())
        })
    }

    fn cuStreamEndCapture(_stream: Handle, graph: *mut Handle) {
        idle(|gpu| {
            let mut captured = gpu.capture.take().ok_or(CAPTURE)?;
            let one = captured.pop().filter(|_| captured.is_empty()).ok_or(CAPTURE)?;
            // SAFETY: the caller's place.
            unsafe { put(graph, gpu.add(|gpu| &mut gpu.graphs, one)) }
        })
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        function: Handle,
        _threads: c_int,
        _shared: usize,
    ) {
        within(|gpu| {
            gpu.functions.get(function)?;
            // SAFETY: the caller's place.
            unsafe { put(blocks, BLOCKS) }
        })
    }

    fn cuLaunchKernel(
        function: Handle,
        gx: c_uint,
        gy: c_uint,
        gz: c_uint,
        bx: c_uint,
        by: c_uint,
        bz: c_uint,
        shared: c_uint,
        _stream: Handle,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        idle(|gpu| {
            let (program, kernel, most) = gpu.functions.get(function)?.clone();
            // SAFETY: the caller's lists.
            let params = unsafe {
                if params.is_null() { parameters(extra)? } else { listed(gpu, program, &kernel, params) }
            };
            let (grid, block) = ([gx, gy, gz], [bx, by, bz]);
            let launch = Launch { kernel, grid, block, shared: shared as usize, params, endless: false };
            if !fits(gpu, program, &launch) || shared > most as c_uint {
                return Err(INVALID_VALUE);
            }
            if gpu.capture.is_some() {
                let graph = gpu.soft.prepare(program, &launch).map_err(|e| e.code)?;
                gpu.capture.iter_mut().for_each(|captured| captured.push(graph));
                return Ok(());
            }
            gpu.soft.launch(program, &launch).map_err(|e| e.code)?;
            gpu.is_running = true;
            Ok(())
        })
    }

    fn cuGraphInstantiateWithFlags(ready: *mut Handle, graph: Handle, _flags: c_ulonglong) {
        idle(|gpu| {
            let one = *gpu.graphs.get(graph)?;
            // SAFETY: the caller's place.
            unsafe { put(ready, gpu.add(|gpu| &mut gpu.graphs, one)) }
        })
    }

    fn cuGraphLaunch(graph: Handle, _stream: Handle) {
        idle(|gpu| {
            let one = *gpu.graphs.get(graph)?;
            gpu.soft.start(one).map_err(|e| e.code)?;
            gpu.is_running = true;
            Ok(())
        })
    }

    fn cuGraphExecDestroy(graph: Handle) {
        idle(|gpu| gpu.graphs.take(graph).map(drop))
    }

    fn cuGraphDestroy(graph: Handle) {
        idle(|gpu| gpu.graphs.take(graph).map(drop))
    }
}
