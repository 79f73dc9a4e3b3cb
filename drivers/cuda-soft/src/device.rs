//! Errors, devices and contexts.

use std::{
    env,
    ffi::{c_char, c_int, c_uint},
    ptr,
    sync::PoisonError,
    thread,
    time::Duration,
};

use crate::{
    memory::TOTAL,
    state::{CONTEXTS, GPU, Gpu, Handle, INVALID_CONTEXT, INVALID_VALUE, export, handle, initialised, put, within},
};

/// Its version, where `CUDA_SOFT_VERSION` does not say another one.
const VERSION: c_int = 12_020;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;

/// PCI addresses of the GPUs, in the driver's spelling, and the first bytes of their uuids.
const ADDRESSES: [&[u8]; 2] = [b"0000:3B:00.0\0", b"0000:5E:00.0\0"];
const UUIDS: [u8; 2] = [0x11, 0x22];

/// The number of the one context's handle.
const CONTEXT: u32 = 1;

const NAME: &[u8] = b"GPU in software\0";

/// What errors are called, and what they mean.
const ERRORS: [(c_int, &[u8], &[u8]); 15] = [
    (0, b"CUDA_SUCCESS\0", b"no error\0"),
    (1, b"CUDA_ERROR_INVALID_VALUE\0", b"invalid argument\0"),
    (2, b"CUDA_ERROR_OUT_OF_MEMORY\0", b"out of memory\0"),
    (3, b"CUDA_ERROR_NOT_INITIALIZED\0", b"initialization error\0"),
    (100, b"CUDA_ERROR_NO_DEVICE\0", b"no CUDA-capable device is detected\0"),
    (101, b"CUDA_ERROR_INVALID_DEVICE\0", b"invalid device ordinal\0"),
    (201, b"CUDA_ERROR_INVALID_CONTEXT\0", b"invalid device context\0"),
    (218, b"CUDA_ERROR_INVALID_PTX\0", b"a PTX JIT compilation failed\0"),
    (400, b"CUDA_ERROR_INVALID_HANDLE\0", b"invalid resource handle\0"),
    (500, b"CUDA_ERROR_NOT_FOUND\0", b"named symbol not found\0"),
    (700, b"CUDA_ERROR_ILLEGAL_ADDRESS\0", b"an illegal memory access was encountered\0"),
    (716, b"CUDA_ERROR_MISALIGNED_ADDRESS\0", b"misaligned address\0"),
    (719, b"CUDA_ERROR_LAUNCH_FAILED\0", b"unspecified launch failure\0"),
    (801, b"CUDA_ERROR_NOT_SUPPORTED\0", b"operation not supported\0"),
    (999, b"CUDA_ERROR_UNKNOWN\0", b"unknown error\0"),
];

fn known(code: c_int) -> Result<&'static (c_int, &'static [u8], &'static [u8]), c_int> {
    ERRORS.iter().find(|(known, ..)| *known == code).ok_or(INVALID_VALUE)
}

fn is_device(device: c_int) -> Result<usize, c_int> {
    usize::try_from(device).ok().filter(|device| *device < ADDRESSES.len()).ok_or(INVALID_DEVICE)
}

/// Copies a text that ends with a zero, no more than fits.
///
/// # Safety
/// There is room for `len` bytes.
unsafe fn copy(text: &[u8], to: *mut c_char, len: c_int) -> Result<(), c_int> {
    if to.is_null() || (len as usize) < text.len() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: there is room, as the caller promises.
    unsafe { text.as_ptr().copy_to_nonoverlapping(to.cast(), text.len()) };
    Ok(())
}

export! {
    fn cuDriverGetVersion(version: *mut c_int) {
        let said = env::var("CUDA_SOFT_VERSION").ok().and_then(|version| version.parse().ok());
        // SAFETY: the caller's place.
        unsafe { put(version, said.unwrap_or(VERSION)) }
    }

    fn cuGetErrorName(code: c_int, name: *mut *const c_char) {
        // SAFETY: the caller's place.
        unsafe { put(name, known(code)?.1.as_ptr().cast()) }
    }

    fn cuGetErrorString(code: c_int, text: *mut *const c_char) {
        // SAFETY: the caller's place.
        unsafe { put(text, known(code)?.2.as_ptr().cast()) }
    }

    fn cuInit(flags: c_uint) {
        if env::var_os("CUDA_VISIBLE_DEVICES").is_some_and(|visible| visible.is_empty()) {
            return Err(NO_DEVICE);
        }
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(ms) = env::var("CUDA_SOFT_OPENS_MS").ok().and_then(|ms| ms.parse().ok()) {
            thread::sleep(Duration::from_millis(ms));
        }
        GPU.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Gpu::default);
        Ok(())
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(count, ADDRESSES.len() as c_int) })
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        is_device(ordinal)?;
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(device, ordinal) })
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        is_device(device)?;
        // SAFETY: the caller's room.
        initialised(|_| unsafe { copy(NAME, name, len) })
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let mut bytes = [0; 16];
        bytes[0] = UUIDS[is_device(device)?];
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(uuid, bytes) })
    }

    fn cuDeviceGetPCIBusId(address: *mut c_char, len: c_int, device: c_int) {
        let text = ADDRESSES[is_device(device)?];
        // SAFETY: the caller's room.
        initialised(|_| unsafe { copy(text, address, len) })
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        is_device(device)?;
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(bytes, TOTAL) })
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        is_device(device)?;
        // Threads of a block and blocks of a grid, of a warp and of a multiprocessor; multiprocessors; no time limit of
        // kernels; compute capability; memory of the host at its own addresses; shared memory; blocks of a multiprocessor;
        // network cards reach its memory, and all GPUs see in order what they wrote; dma-bufs; memory of the host that it only reads.
        let known = match attribute {
            1..=3 => 1024,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65_535,
            10 | 106 => 32,
            39 => 2048,
            97 => 227 << 10,
            16 => 4,
            17 | 76 => 0,
            75 => 9,
            91 | 116 | 124 => 1,
            113 => i32::from(env::var_os("CUDA_SOFT_WRITES_ALL").is_none()),
            118 => 200,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(value, known) })
    }

    fn cuCtxCreate_v2(context: *mut Handle, _flags: c_uint, device: c_int) {
        is_device(device)?;
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(context, handle(CONTEXT)) })?;
        CONTEXTS.set(CONTEXTS.get() + 1);
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) {
        is_device(device)?;
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(context, handle(CONTEXT)) })
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        is_device(device)?;
        initialised(|_| Ok(()))
    }

    fn cuCtxGetCurrent(context: *mut Handle) {
        let current = if CONTEXTS.get() > 0 { handle(CONTEXT) } else { ptr::null_mut() };
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(context, current) })
    }

    fn cuCtxSetCurrent(context: Handle) {
        initialised(|_| Ok(()))?;
        // In place of the uppermost.
        CONTEXTS.set(CONTEXTS.get().saturating_sub(1) + u32::from(!context.is_null()));
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        if context != handle(CONTEXT) {
            return Err(INVALID_CONTEXT);
        }
        initialised(|_| Ok(()))?;
        CONTEXTS.set(CONTEXTS.get() + 1);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut Handle) {
        CONTEXTS.set(CONTEXTS.get().checked_sub(1).ok_or(INVALID_CONTEXT)?);
        // SAFETY: the caller's place.
        initialised(|_| unsafe { put(context, handle(CONTEXT)) })
    }

    fn cuCtxSetLimit(_limit: c_int, _value: usize) {
        within(|_| Ok(()))
    }
}
