//! The linker, and modules.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    ptr,
};

use berth_gpu::{Device as _, DeviceError};
use berth_ptx::binary::{Entry, entries};

use crate::{
    linker,
    state::{Handle, INVALID_VALUE, export, idle, put, within},
};

const NO_BINARY: c_int = 209;
const INVALID_PTX: c_int = 218;
const NOT_FOUND: c_int = 500;

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const LOG: [c_int; 2] = [5, 6];

/// `CU_JIT_INPUT_PTX`
const PTX: c_int = 1;

/// Texts that are linked.
pub(crate) struct Linker {
    texts: Vec<String>,
    log: (*mut c_char, usize),
    /// What was linked. The caller has a pointer to it until the linker is destroyed.
    cubin: Vec<u8>,
}

// SAFETY: the log is the caller's, who calls from one thread at a time.
unsafe impl Send for Linker {}

impl Linker {
    /// Says what is wrong, as far as there is room.
    fn refuse(&self, error: &DeviceError) -> c_int {
        let (log, room) = self.log;
        if !log.is_null() && room > 0 {
            let said = error.to_string();
            let len = said.len().min(room - 1);
            // SAFETY: the caller has so much room, until the linker is destroyed.
            unsafe {
                log.copy_from_nonoverlapping(said.as_ptr().cast(), len);
                log.add(len).write(0);
            }
        }
        INVALID_PTX
    }
}

/// What begins a cubin of this library; then come the number of texts, and each with its length.
const MAGIC: [u8; 4] = *b"SOFT";

/// What begins a fat binary, and a cubin of NVIDIA's.
const FAT: u8 = 0x50;
const ELF: u8 = 0x7F;

fn packed(texts: &[String]) -> Vec<u8> {
    let word = |number: usize| (number as u32).to_le_bytes();
    let mut cubin = [MAGIC, word(texts.len())].concat();
    for text in texts {
        cubin.extend([&word(text.len())[..], text.as_bytes()].concat());
    }
    cubin
}

/// The texts of a cubin.
///
/// # Safety
/// `image` is one of this library, if it begins so.
unsafe fn unpacked(image: *const u8) -> Result<Vec<String>, c_int> {
    let mut at = image;
    let mut bytes = |len: usize| {
        // SAFETY: within the cubin, whose lengths are right.
        let bytes = unsafe { std::slice::from_raw_parts(at, len) }.to_vec();
        // SAFETY: as above.
        at = unsafe { at.add(len) };
        bytes
    };
    if bytes(4) != MAGIC {
        return Err(INVALID_VALUE);
    }
    let word = |bytes: Vec<u8>| bytes.iter().rev().fold(0, |word, byte| word << 8 | usize::from(*byte));
    let count = word(bytes(4));
    let mut texts = Vec::new();
    for _ in 0..count {
        let len = word(bytes(4));
        texts.push(String::from_utf8(bytes(len)).map_err(|_| INVALID_VALUE)?);
    }
    Ok(texts)
}

/// The PTX of a fat binary: what a driver takes that finds no code for its GPU.
///
/// # Safety
/// `image` is one, as long as it says.
unsafe fn of_fat(image: *const u8) -> Result<Vec<String>, c_int> {
    // SAFETY: the lengths of the header and of all else stand in it.
    let image = unsafe {
        let header = image.add(6).cast::<u16>().read_unaligned();
        let len = image.add(8).cast::<u64>().read_unaligned();
        std::slice::from_raw_parts(image, usize::from(header) + len as usize)
    };
    let all = entries(image).ok_or(INVALID_VALUE)?;
    let text = all.into_iter().find_map(|entry| if let Entry::Ptx(text) = entry { Some(text) } else { None });
    let text = text.ok_or(NO_BINARY)?.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(vec![String::from_utf8(text.to_vec()).map_err(|_| INVALID_VALUE)?])
}

export! {
    fn cuLinkCreate_v2(count: c_uint, options: *mut c_int, values: *mut *mut c_void, linker: *mut Handle) {
        let mut log = (ptr::null_mut(), 0);
        for at in 0..count as usize {
            // SAFETY: the caller has so many options and values.
            match unsafe { (*options.add(at), *values.add(at)) } {
                (option, value) if option == LOG[0] => log.0 = value.cast(),
                (option, value) if option == LOG[1] => log.1 = value.addr(),
                _ => {}
            }
        }
        within(|gpu| {
            let made = Linker { texts: Vec::new(), log, cubin: Vec::new() };
            // SAFETY: the caller's place.
            unsafe { put(linker, gpu.add(|gpu| &mut gpu.linkers, made)) }
        })
    }

    fn cuLinkAddData_v2(
        linker: Handle,
        kind: c_int,
        data: *mut c_void,
        len: usize,
        _name: *const c_char,
        _count: c_uint,
        _options: *mut c_int,
        _values: *mut *mut c_void,
    ) {
        // SAFETY: the caller has so many bytes.
        let text = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
        let text = CStr::from_bytes_with_nul(text).ok().and_then(|text| text.to_str().ok());
        let text = text.filter(|_| kind == PTX).ok_or(INVALID_VALUE)?;
        within(|gpu| {
            gpu.linkers.get(linker)?.texts.push(text.to_owned());
            Ok(())
        })
    }

    fn cuLinkComplete(linker: Handle, cubin: *mut *mut c_void, size: *mut usize) {
        let mut texts = Vec::new();
        within(|gpu| {
            texts.clone_from(&gpu.linkers.get(linker)?.texts);
            Ok(())
        })?;
        // It asks this library for GPUs.
        let refused = linker::refused(&texts);
        idle(|gpu| {
            let made = gpu.linkers.get(linker)?;
            let texts: Vec<_> = made.texts.iter().map(String::as_str).collect();
            let program = gpu.soft.load(&texts).map_err(|e| made.refuse(&e))?;
            gpu.soft.unload(program);
            if let Some(why) = refused {
                return Err(made.refuse(&DeviceError::new(INVALID_PTX, why)));
            }
            made.cubin = packed(&made.texts);
            // SAFETY: the caller's places.
            unsafe {
                put(cubin, made.cubin.as_mut_ptr().cast())?;
                put(size, made.cubin.len())
            }
        })
    }

    fn cuLinkDestroy(linker: Handle) {
        within(|gpu| gpu.linkers.take(linker).map(drop))
    }

    fn cuModuleLoadData(module: *mut Handle, image: *const c_void) {
        // SAFETY: the caller has what the linker made, a code object, or a text that ends with a zero.
        let texts = unsafe {
            match std::slice::from_raw_parts(image.cast::<u8>(), 1) {
                [first] if *first == MAGIC[0] => unpacked(image.cast())?,
                [FAT] => of_fat(image.cast())?,
                [ELF] => return Err(NO_BINARY),
                _ => vec![CStr::from_ptr(image.cast()).to_str().map_err(|_| INVALID_VALUE)?.to_owned()],
            }
        };
        idle(|gpu| {
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            let program = gpu.soft.load(&texts).map_err(|e| e.code)?;
            // SAFETY: the caller's place.
            unsafe { put(module, gpu.add(|gpu| &mut gpu.modules, program)) }
        })
    }

    fn cuModuleUnload(module: Handle) {
        idle(|gpu| {
            let program = gpu.modules.take(module)?;
            gpu.soft.unload(program);
            Ok(())
        })
    }

    fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) {
        // SAFETY: the caller's text, which ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        idle(|gpu| {
            let program = *gpu.modules.get(module)?;
            gpu.soft.parameters(program, &name).map_err(|_| NOT_FOUND)?;
            // SAFETY: the caller's place.
            unsafe { put(function, gpu.add(|gpu| &mut gpu.functions, (program, name, 48 << 10))) }
        })
    }

    fn cuModuleGetFunctionCount(count: *mut c_uint, module: Handle) {
        idle(|gpu| {
            let program = *gpu.modules.get(module)?;
            // SAFETY: the caller's place.
            unsafe { put(count, gpu.soft.kernels(program).len() as c_uint) }
        })
    }

    fn cuModuleEnumerateFunctions(functions: *mut Handle, count: c_uint, module: Handle) {
        idle(|gpu| {
            let program = *gpu.modules.get(module)?;
            for (index, name) in gpu.soft.kernels(program).into_iter().take(count as usize).enumerate() {
                let function = gpu.add(|gpu| &mut gpu.functions, (program, name, 48 << 10));
                // SAFETY: the caller has room for so many.
                unsafe { put(functions.add(index), function) }?;
            }
            Ok(())
        })
    }

    fn cuFuncGetName(name: *mut *const c_char, function: Handle) {
        idle(|gpu| {
            let text = CString::new(gpu.functions.get(function)?.1.as_str()).map_err(|_| INVALID_VALUE)?;
            // SAFETY: the caller's place. The text lives as long as the process: a test's modules are few.
            unsafe { put(name, text.into_raw().cast_const()) }
        })
    }

    fn cuFuncGetParamInfo(function: Handle, index: usize, offset: *mut usize, size: *mut usize) {
        idle(|gpu| {
            let (program, name, _) = gpu.functions.get(function)?.clone();
            let parameters = gpu.soft.parameters(program, &name).map_err(|_| NOT_FOUND)?;
            let one = parameters.get(index).ok_or(INVALID_VALUE)?;
            // SAFETY: the caller's places.
            unsafe {
                put(offset, one.offset)?;
                put(size, one.bytes)
            }
        })
    }

    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int) {
        if attribute != 8 || !(0..=227 << 10).contains(&value) {
            return Err(INVALID_VALUE);
        }
        idle(|gpu| {
            gpu.functions.get(function)?.2 = value;
            Ok(())
        })
    }
}
