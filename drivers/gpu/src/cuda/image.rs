//! Code objects of sessions: PTX text, cubins and fat binaries, and what their kernels take.

use std::{
    ffi::{CStr, CString, c_uint},
    ptr,
};

use berth_fabric::gpu_code as code;
use berth_ptx::binary::{self, Entry};

use super::driver::{Driver, Handle, Metadata, call};
use crate::{
    device::DeviceError,
    ptx_entries::entries,
    session::{INVALID_IMAGE, KernelFacts, NO_BINARY, PARAMETERS_MAX},
};

/// Most kernels of a module.
const KERNELS_MAX: usize = 4096;

/// The machine of an ELF file that is a cubin.
const EM_CUDA: u16 = 190;

/// Zeros behind an image: the driver is not told how long it is.
const BEHIND: usize = 4096;

/// A code object that is loaded.
pub(crate) struct Image {
    module: Handle,
    pub(crate) kernels: Vec<KernelFacts>,
    functions: Vec<Handle>,
}

/// What an image is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ptx,
    Binary,
}

fn kind(image: &[u8]) -> Result<Kind, DeviceError> {
    let word = |at: usize| image.get(at..at + 2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    let refused = |number, what: &str| Err(DeviceError::new(number, what));
    if image.starts_with(b"\x7FELF") {
        return match word(18) {
            Some(EM_CUDA) => Ok(Kind::Binary),
            _ => refused(NO_BINARY, "an ELF file that is no cubin"),
        };
    }
    if image.starts_with(b"\x50\xED\x55\xBA") {
        let size = image.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let whole = size.zip(word(6)).and_then(|(size, header)| size.checked_add(header.into()));
        return match whole {
            Some(whole) if whole <= image.len() as u64 => Ok(Kind::Binary),
            _ => refused(INVALID_IMAGE, "a fat binary that is cut off"),
        };
    }
    if image.starts_with(b"__CLANG_OFFLOAD_BUNDLE__") || image.starts_with(b"CCOB") {
        return refused(NO_BINARY, "code objects of AMD's GPUs");
    }
    Ok(Kind::Ptx)
}

/// A text, which ends with a zero or with the bytes.
fn text_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

impl Image {
    /// Loads it. Bytes behind it are ignored.
    pub(super) fn load(driver: &Driver, mut image: Vec<u8>) -> Result<Self, DeviceError> {
        let kind = kind(&image)?;
        let mut text = None;
        if kind == Kind::Ptx {
            let found = text_of(&image).filter(|text| text.contains(".version"));
            let found = found.ok_or_else(|| DeviceError::new(INVALID_IMAGE, "neither a code object nor PTX"))?;
            text = Some(found.to_owned());
        }
        image.resize(image.len() + BEHIND, 0);
        let mut module = ptr::null_mut();
        // SAFETY: the image ends with zeros, and it and the place outlive the call. A binary that lies about its own
        // lengths costs this process, which is its session's alone.
        unsafe { call!(driver.module_load(&raw mut module, image.as_ptr().cast())) }?;
        let known = match (&driver.metadata, text) {
            (Some(metadata), _) => enumerated(driver, metadata, module),
            (None, Some(text)) => named(driver, module, entries(&text), "parameters that are not read"),
            (None, None) => {
                let what = "this binary does not tell what its kernels take, which drivers of CUDA 12.4 or later know";
                named(driver, module, of_binary(&image), what)
            }
        };
        let (kernels, functions) = known.inspect_err(|_| unload(driver, module))?;
        if kernels.iter().any(|kernel| kernel.parameters.len() > PARAMETERS_MAX) {
            unload(driver, module);
            return Err(DeviceError::new(code::INVALID_PTX, "a kernel of more than 64 parameters"));
        }
        Ok(Self { module, kernels, functions })
    }

    pub(super) fn function(&self, kernel: usize) -> Option<Handle> {
        self.functions.get(kernel).copied()
    }

    pub(super) fn unload(self, driver: &Driver) {
        unload(driver, self.module);
    }
}

fn unload(driver: &Driver, module: Handle) {
    // SAFETY: nobody has the module any more. Where even this fails, the device is lost, and the next call tells.
    let _ = unsafe { call!(driver.module_unload(module)) };
}

type Kernels = (Vec<KernelFacts>, Vec<Handle>);

/// As the driver tells.
fn enumerated(driver: &Driver, metadata: &Metadata, module: Handle) -> Result<Kernels, DeviceError> {
    let mut count: c_uint = 0;
    // SAFETY: the module is loaded, and the place outlives the call.
    driver.check("cuModuleGetFunctionCount", unsafe { (metadata.count)(&raw mut count, module) })?;
    if count as usize > KERNELS_MAX {
        return Err(DeviceError::new(code::INVALID_PTX, "too many kernels"));
    }
    let mut functions = vec![ptr::null_mut(); count as usize];
    // SAFETY: there is room for so many.
    driver.check("cuModuleEnumerateFunctions", unsafe { (metadata.all)(functions.as_mut_ptr(), count, module) })?;
    let mut kernels = Vec::new();
    for function in &functions {
        let mut name = ptr::null();
        // SAFETY: the function is the module's, and the place outlives the call.
        driver.check("cuFuncGetName", unsafe { (metadata.name)(&raw mut name, *function) })?;
        // SAFETY: a text of the driver's, which lives as long as the module.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let mut parameters = Vec::new();
        for index in 0..=PARAMETERS_MAX {
            let (mut offset, mut size) = (0_usize, 0_usize);
            // SAFETY: as above.
            let told = unsafe { (metadata.parameter)(*function, index, &raw mut offset, &raw mut size) };
            if told == code::INVALID_VALUE {
                break;
            }
            driver.check("cuFuncGetParamInfo", told)?;
            parameters.push((offset as u32, size as u32));
        }
        kernels.push(KernelFacts { name, parameters });
    }
    Ok((kernels, functions))
}

/// What the kernels of a cubin take, or of a fat binary: of the first in it that tells, since all are of one program.
fn of_binary(image: &[u8]) -> Option<Vec<KernelFacts>> {
    let of_cubin = |cubin: &[u8]| {
        let facts = |binary::Kernel { name, parameters }| KernelFacts { name, parameters };
        Some(binary::kernels(cubin)?.into_iter().map(facts).collect())
    };
    let Some(all) = binary::entries(image) else { return of_cubin(image) };
    all.into_iter().find_map(|entry| match entry {
        Entry::Cubin(cubin) => of_cubin(cubin),
        Entry::Ptx(text) => entries(text_of(text)?),
        Entry::Other => None,
    })
}

/// As the code object says; `what` is wrong where it does not.
fn named(
    driver: &Driver,
    module: Handle,
    kernels: Option<Vec<KernelFacts>>,
    what: &str,
) -> Result<Kernels, DeviceError> {
    let kernels = kernels.ok_or_else(|| DeviceError::new(code::INVALID_PTX, what))?;
    let mut functions = Vec::new();
    for kernel in &kernels {
        let (name, mut function) = (CString::new(kernel.name.as_str()).unwrap_or_default(), ptr::null_mut());
        // SAFETY: the module is loaded, and the name and the place outlive the call.
        unsafe { call!(driver.module_function(&raw mut function, module, name.as_ptr())) }?;
        functions.push(function);
    }
    Ok((kernels, functions))
}
