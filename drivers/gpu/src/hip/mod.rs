//! AMD's GPUs, by the HIP runtime's library alone, which is looked up at run time, for sessions of HIP Remote.
//!
//! Everything is done on the default stream and waited for. Code objects are looked at before the runtime gets them: it is told
//! what its own part of a bundle is, and no lengths but those that were checked.

mod driver;

use std::{
    ffi::{CString, c_int, c_void},
    os::fd::OwnedFd,
    ptr,
    sync::Arc,
};

use berth_amdgpu::{Error, Isa};
use berth_fabric::gpu_code as code;
use berth_memory::Memory as _;
use berth_pages::Foreign;

use self::driver::{Driver, Handle, call, text};
use crate::{
    choice::Choice,
    device::DeviceError,
    session::{Facts, INVALID_IMAGE, KernelFacts, NO_BINARY, Rows, SessionDevice, Shape, is_fatal},
};

/// Attributes of devices, as `hip_runtime_api.h` numbers them.
const MAJOR: c_int = 23;
const BLOCKS: c_int = 25;
const BLOCK: [c_int; 3] = [26, 27, 28];
const GRID: [c_int; 3] = [29, 30, 31];
const BLOCK_THREADS: c_int = 56;
const THREADS: c_int = 57;
const MINOR: c_int = 61;
const PROCESSORS: c_int = 63;
const SHARED: c_int = 74;
const WARP: c_int = 87;

/// `hipHostRegisterPortable | hipHostRegisterMapped`
const PINNED: u32 = 3;

/// `hipMemcpyDeviceToDevice`
const WITHIN: c_int = 3;

/// `HIP_LAUNCH_PARAM_BUFFER_POINTER`, `HIP_LAUNCH_PARAM_BUFFER_SIZE`, `HIP_LAUNCH_PARAM_END`
const PARAMS: [usize; 3] = [1, 2, 3];

/// Zeros behind a code object: the runtime is not told how long it is.
const BEHIND: usize = 4096;

/// The variable that has the runtime's threads stay on the CPUs of the process.
pub(crate) const AFFINITY: (&str, &str) = ("HSA_OVERRIDE_CPU_AFFINITY_DEBUG", "0");

/// One of AMD's GPUs, of this process and thread until they end.
pub(crate) struct Hip {
    driver: Driver,
    device: c_int,
    arch: String,
    /// What is pinned stays so, as long as the process lives.
    pinned: Vec<Arc<Foreign<()>>>,
    is_lost: bool,
}

/// A code object that is loaded.
pub(crate) struct Image {
    module: Handle,
    kernels: Vec<KernelFacts>,
    functions: Vec<Handle>,
    /// The runtime may go on reading it.
    _elf: Vec<u8>,
}

fn address(at: u64) -> *mut c_void {
    ptr::without_provenance_mut(at as usize)
}

impl Hip {
    fn attribute(&self, attribute: c_int) -> Result<u32, DeviceError> {
        let (driver, mut value) = (&self.driver, 0);
        // SAFETY: the place outlives the call.
        unsafe { call!(driver.hipDeviceGetAttribute(&raw mut value, attribute, self.device)) }?;
        Ok(value.max(0) as u32)
    }

    /// Notes an error that costs the device.
    fn noted<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        self.is_lost |= result.as_ref().is_err_and(is_fatal);
        result
    }

    /// Waits until all is done that was begun.
    fn settle(&mut self, begun: Result<(), DeviceError>) -> Result<(), DeviceError> {
        let driver = &self.driver;
        // SAFETY: nothing is passed.
        let settled = begun.and_then(|()| unsafe { call!(driver.hipDeviceSynchronize()) });
        self.noted(settled)
    }

    fn load(&self, image: &[u8]) -> Result<Image, DeviceError> {
        let driver = &self.driver;
        let gpu = Isa::parse(&self.arch).ok_or_else(|| DeviceError::other(format!("no target id: {}", self.arch)))?;
        let found = berth_amdgpu::find(image, &gpu).map_err(|e| {
            let number = match e {
                Error::Broken(_) => INVALID_IMAGE,
                Error::Foreign(_) => NO_BINARY,
                Error::Refused(_) => code::INVALID_PTX,
            };
            DeviceError::new(number, e.to_string())
        })?;
        let mut elf = found.elf.to_vec();
        elf.resize(elf.len() + BEHIND, 0);
        let mut module = ptr::null_mut();
        // SAFETY: its tables are within it, it ends with zeros, and it outlives the module. One that lies otherwise costs this
        // process, which is its session's alone.
        unsafe { call!(driver.hipModuleLoadData(&raw mut module, elf.as_ptr().cast())) }?;
        let mut image = Image { module, kernels: Vec::new(), functions: Vec::new(), _elf: elf };
        for kernel in found.kernels {
            let (name, mut function) = (CString::new(kernel.name.as_str()).unwrap_or_default(), ptr::null_mut());
            // SAFETY: the module is loaded, and the name and the place outlive the call.
            let known = unsafe { call!(driver.hipModuleGetFunction(&raw mut function, module, name.as_ptr())) };
            if let Err(e) = known {
                self.unload(&image);
                return Err(e);
            }
            image.kernels.push(KernelFacts { name: kernel.name, parameters: kernel.parameters });
            image.functions.push(function);
        }
        Ok(image)
    }

    fn unload(&self, image: &Image) {
        let driver = &self.driver;
        // SAFETY: nobody has the module any more. Where even this fails, the device is lost, and the next call tells.
        let _ = unsafe { call!(driver.hipModuleUnload(image.module)) };
    }
}

impl SessionDevice for Hip {
    type Image = Image;

    fn open(choice: &Choice) -> Result<Self, DeviceError> {
        let Choice::Hip(ordinal) = choice else { return Err(DeviceError::other(format!("{choice} is not AMD's"))) };
        let driver = Driver::open()?;
        let count = driver.count()?;
        let device = c_int::try_from(*ordinal).unwrap_or(c_int::MAX);
        if device >= count {
            let message = format!("no GPU {choice}; the runtime has {count}, from hip:0 on");
            return Err(DeviceError::other(message));
        }
        // SAFETY: a number is passed.
        unsafe { call!(driver.hipSetDevice(device)) }?;
        let arch = driver.arch(device)?;
        Ok(Self { driver, device, arch, pinned: Vec::new(), is_lost: false })
    }

    fn facts(&self) -> Result<Facts, DeviceError> {
        let three =
            |[x, y, z]: [c_int; 3]| Ok::<_, DeviceError>([self.attribute(x)?, self.attribute(y)?, self.attribute(z)?]);
        let (driver, device, mut memory) = (&self.driver, self.device, 0);
        let (mut name, mut address) = ([0_u8; 256], [0_u8; 32]);
        // SAFETY: the places outlive the calls, which are told how long texts may be.
        unsafe {
            call!(driver.hipDeviceTotalMem(&raw mut memory, device))?;
            call!(driver.hipDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device))?;
            call!(driver.hipDeviceGetPCIBusId(address.as_mut_ptr().cast(), address.len() as c_int, device))?;
        }
        let (warp, threads) = (self.attribute(WARP)?, self.attribute(THREADS)?);
        Ok(Facts {
            address: text(&address),
            name: text(&name),
            memory: memory as u64,
            shared: self.attribute(SHARED)?,
            block_threads: self.attribute(BLOCK_THREADS)?,
            block: three(BLOCK)?,
            grid: three(GRID)?,
            warp,
            // Before ROCm 6 the number of blocks is not told: no more than have one warp each.
            resident: [self.attribute(BLOCKS).unwrap_or(threads / warp.max(1)), threads],
            processors: self.attribute(PROCESSORS)?,
            version: [self.attribute(MAJOR)?, self.attribute(MINOR)?],
            arch: self.arch.clone(),
        })
    }

    fn pin(&mut self, staging: Arc<Foreign<()>>) -> Result<(), DeviceError> {
        let (driver, base, size) = (&self.driver, staging.base(), staging.size());
        // SAFETY: mapped by whole pages, and kept as long as the process lives.
        unsafe { call!(driver.hipHostRegister(base.as_ptr().cast(), size, PINNED)) }?;
        self.pinned.push(staging);
        Ok(())
    }

    fn import(&mut self, _: &[OwnedFd], _: usize, _: u64) -> Result<(), DeviceError> {
        Err(DeviceError::other("memory of AMD's GPUs is not shared among processes"))
    }

    fn take(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let (driver, mut at) = (&self.driver, ptr::null_mut());
        // SAFETY: the place outlives the call, and the memory that is zeroed has just been allocated.
        let begun = unsafe {
            call!(driver.hipMalloc(&raw mut at, bytes as usize))
                .and_then(|()| call!(driver.hipMemset(at, 0, bytes as usize)))
        };
        self.settle(begun).map(|()| at.addr() as u64)
    }

    fn give_back(&mut self, at: u64) -> Result<(), DeviceError> {
        let driver = &self.driver;
        // SAFETY: nothing runs, and nobody has the address any more.
        let freed = unsafe { call!(driver.hipFree(address(at))) };
        self.noted(freed)
    }

    fn fill(&mut self, at: u64, len: u64, value: u8) -> Result<(), DeviceError> {
        let driver = &self.driver;
        // SAFETY: the session's own range, as the books of `berth` have it.
        let begun = unsafe { call!(driver.hipMemset(address(at), value.into(), len as usize)) };
        self.settle(begun)
    }

    unsafe fn put(&mut self, at: u64, from: *const u8, len: usize) -> Result<(), DeviceError> {
        let driver = &self.driver;
        // SAFETY: as the caller promises; the device's range as above.
        let begun = unsafe { call!(driver.hipMemcpyHtoD(address(at), from.cast_mut().cast(), len)) };
        self.settle(begun)
    }

    unsafe fn get(&mut self, at: u64, to: *mut u8, len: usize) -> Result<(), DeviceError> {
        let driver = &self.driver;
        // SAFETY: as above.
        let begun = unsafe { call!(driver.hipMemcpyDtoH(to.cast(), address(at), len)) };
        self.settle(begun)
    }

    fn copy(&mut self, rows: &Rows) -> Result<(), DeviceError> {
        let Rows { dst: (dst, dpitch), src: (src, spitch), width, height } = *rows;
        let (to, from, driver) = (address(dst), address(src), &self.driver);
        let [dpitch, spitch, width, height] = [dpitch, spitch, width, height].map(|number| number as usize);
        // SAFETY: the session's own ranges, as above.
        let begun = unsafe { call!(driver.hipMemcpy2D(to, dpitch, from, spitch, width, height, WITHIN)) };
        self.settle(begun)
    }

    fn load_image(&mut self, image: Vec<u8>) -> Result<Image, DeviceError> {
        let loaded = self.load(&image);
        self.noted(loaded)
    }

    fn kernels(image: &Image) -> &[KernelFacts] {
        &image.kernels
    }

    fn drop_image(&mut self, image: Image) {
        self.unload(&image);
    }

    fn run(&mut self, image: &Image, kernel: usize, shape: &Shape<'_>) -> Result<(), DeviceError> {
        let function = image.functions.get(kernel).copied();
        let function = function.ok_or_else(|| DeviceError::new(code::NOT_FOUND, "no such kernel"))?;
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let mut size = shape.arguments.len();
        let [pointer, bytes, end] = PARAMS.map(ptr::without_provenance_mut);
        let arguments = shape.arguments.as_ptr().cast_mut().cast();
        let mut extra = [pointer, arguments, bytes, (&raw mut size).cast::<c_void>(), end];
        let (driver, none, extra) = (&self.driver, ptr::null_mut(), extra.as_mut_ptr());
        // SAFETY: the function's module is loaded; the runtime copies the arguments before the call ends.
        let begun = unsafe {
            call!(driver.hipModuleLaunchKernel(
                function,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shape.shared,
                ptr::null_mut(),
                none,
                extra
            ))
        };
        self.settle(begun)
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}
