//! Programs of NVIDIA's driver: PTX is linked to a cubin, which is loaded.

use std::{
    ffi::{CString, c_char, c_int, c_uint, c_void},
    ptr,
};

use berth_fabric::gpu_code as code;
use berth_ptx::{Module, Space};

use super::driver::{Driver, Handle, call};
use crate::device::{DeviceError, Parameter};

/// `CU_JIT_INPUT_PTX`
const PTX: c_int = 1;

/// Options of the JIT: `CU_JIT_INFO_LOG_BUFFER` and its size, `CU_JIT_ERROR_LOG_BUFFER` and its size.
const LOGS: [c_int; 4] = [3, 4, 5, 6];

/// Bytes of a log.
const LOG: usize = 16 << 10;

/// A kernel: its name and what it takes.
type Kernel = (String, Vec<Parameter>);

/// A program that is loaded.
pub(super) struct Program {
    module: Handle,
    cubin: Vec<u8>,
    pub(super) kernels: Vec<Kernel>,
    /// It has variables that keep their values from launch to launch.
    has_variables: bool,
}

/// What the JIT says, in places that stay where they are.
struct Log([Box<[u8; LOG]>; 2]);

impl Log {
    fn new() -> Self {
        Self([Box::new([0; LOG]), Box::new([0; LOG])])
    }

    /// The values of [`LOGS`].
    fn values(&mut self) -> [*mut c_void; 4] {
        let size = ptr::without_provenance_mut(LOG);
        let [info, error] = &mut self.0;
        [info.as_mut_ptr().cast(), size, error.as_mut_ptr().cast(), size]
    }

    /// What was wrong, or else what it had to say.
    fn text(&self) -> String {
        let text = |log: &[u8; LOG]| {
            let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG);
            String::from_utf8_lossy(&log[..end]).trim().to_owned()
        };
        let [info, error] = &self.0;
        Some(text(error)).filter(|text| !text.is_empty()).unwrap_or_else(|| text(info))
    }
}

impl Program {
    /// Links texts and loads what comes of it.
    pub(super) fn load(driver: &Driver, texts: &[&str]) -> Result<Self, DeviceError> {
        let (mut kernels, mut has_variables) = (Vec::new(), false);
        for (index, text) in texts.iter().enumerate() {
            let module = Module::parse(text).map_err(|e| DeviceError {
                module: Some(index),
                code: code::INVALID_PTX,
                message: e.to_string(),
            })?;
            has_variables |= module.variables.iter().any(|variable| variable.space == Space::Global);
            kernels.extend(module.functions.iter().filter(|one| one.entry && one.body.is_some()).map(kernel));
        }
        let cubin = link(driver, texts)?;
        let module = load(driver, &cubin)?;
        Ok(Self { module, cubin, kernels, has_variables })
    }

    /// The variables are again as the texts have them.
    pub(super) fn reset(&mut self, driver: &Driver) -> Result<(), DeviceError> {
        if self.has_variables {
            let before = std::mem::replace(&mut self.module, load(driver, &self.cubin)?);
            unload(driver, before);
        }
        Ok(())
    }

    /// The driver's handle of a kernel.
    pub(super) fn function(&self, driver: &Driver, kernel: &str) -> Result<Handle, DeviceError> {
        let mut function = ptr::null_mut();
        let name = CString::new(kernel).map_err(|_| DeviceError::new(code::NOT_FOUND, "a name with a zero byte"))?;
        // SAFETY: the module is loaded, and the name and the place outlive the call.
        unsafe { call!(driver.module_function(&raw mut function, self.module, name.as_ptr())) }?;
        Ok(function)
    }

    /// Forgets it; no kernel of it may run.
    pub(super) fn unload(self, driver: &Driver) {
        unload(driver, self.module);
    }
}

fn unload(driver: &Driver, module: Handle) {
    // SAFETY: nobody has the module any more.
    let unloaded = unsafe { call!(driver.module_unload(module)) };
    // Where even this fails, the device is lost, and the next call tells.
    let _ = unloaded;
}

/// Its name, and where the driver expects its parameters: one after the other, each aligned.
fn kernel(function: &berth_ptx::Function<'_>) -> Kernel {
    let mut end: usize = 0;
    let parameters = function.signature.params.iter().map(|param| {
        let offset = end.next_multiple_of(param.align.max(1) as usize);
        end = offset + param.bytes() as usize;
        Parameter { offset, bytes: param.bytes() as usize }
    });
    (function.name.to_owned(), parameters.collect())
}

fn load(driver: &Driver, cubin: &[u8]) -> Result<Handle, DeviceError> {
    let mut module = ptr::null_mut();
    // SAFETY: the image is what the driver has linked; it and the place outlive the call.
    unsafe { call!(driver.module_load(&raw mut module, cubin.as_ptr().cast())) }?;
    Ok(module)
}

/// A cubin of these texts.
fn link(driver: &Driver, texts: &[&str]) -> Result<Vec<u8>, DeviceError> {
    let (mut log, mut options, mut state) = (Log::new(), LOGS, ptr::null_mut());
    let mut values = log.values();
    let count = options.len() as c_uint;
    // SAFETY: options and values are as many as are told; the logs that they name live as long as the linker.
    unsafe { call!(driver.link_create(count, options.as_mut_ptr(), values.as_mut_ptr(), &raw mut state)) }?;
    let linked = joined(driver, state, texts);
    // SAFETY: the linker is used no more.
    let destroyed = unsafe { call!(driver.link_destroy(state)) };
    let cubin = linked.map_err(|e| {
        let log = log.text();
        let message = if log.is_empty() { e.message } else { log };
        DeviceError { message, ..e }
    })?;
    destroyed.map(|()| cubin)
}

fn joined(driver: &Driver, state: Handle, texts: &[&str]) -> Result<Vec<u8>, DeviceError> {
    for (index, text) in texts.iter().enumerate() {
        let zero = |_| DeviceError { module: Some(index), ..DeviceError::new(code::INVALID_PTX, "a zero byte") };
        // The driver wants its end marked, and counted.
        let bytes = CString::new(*text).map_err(zero)?.into_bytes_with_nul();
        let name = format!("text {index}\0");
        let (data, len, name) = (bytes.as_ptr().cast_mut().cast(), bytes.len(), name.as_ptr().cast::<c_char>());
        let none = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: text and name outlive the call, which copies what it keeps, and changes neither.
        let added = unsafe { call!(driver.link_add(state, PTX, data, len, name, 0, none.0, none.1)) };
        added.map_err(|e| DeviceError { module: Some(index), ..e })?;
    }
    let (mut cubin, mut size) = (ptr::null_mut(), 0);
    // SAFETY: the places outlive the call.
    unsafe { call!(driver.link_complete(state, &raw mut cubin, &raw mut size)) }?;
    // SAFETY: so many bytes, which live as long as the linker.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), size) }.to_vec())
}
