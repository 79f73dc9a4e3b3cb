//! A GPU as sessions of HIP Remote use it: memory of its own, and one thing after the other, each to its end.

use std::{
    ffi::{c_int, c_void},
    os::fd::OwnedFd,
    ptr,
    sync::Arc,
};

use berth_fabric::gpu_code as code;
use berth_pages::Foreign;

use super::{Cuda, Image, PARAMS, SHARED, cards::PROCESSORS, driver::call};
use crate::{
    choice::Choice,
    device::{Device as _, DeviceError},
    session::{Facts, KernelFacts, Rows, SessionDevice, Shape, is_fatal},
};

/// Attributes of devices, as cuda.h numbers them.
const BLOCK_THREADS: c_int = 1;
const BLOCK: [c_int; 3] = [2, 3, 4];
const GRID: [c_int; 3] = [5, 6, 7];
const WARP: c_int = 10;
const THREADS: c_int = 39;
const SHARED_MOST: c_int = 97;
const BLOCKS: c_int = 106;

impl Cuda {
    /// Waits until all is done that was begun.
    fn settle(&mut self) -> Result<(), DeviceError> {
        // SAFETY: the stream is this context's.
        let ended = unsafe { (self.driver.functions.stream_wait.call)(self.stream) };
        self.outcome(ended).unwrap_or(Ok(()))
    }

    /// Notes an error that costs the context.
    fn noted<T>(&mut self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        self.is_lost |= result.as_ref().is_err_and(is_fatal);
        result
    }
}

impl SessionDevice for Cuda {
    type Image = Image;

    fn open(choice: &Choice) -> Result<Self, DeviceError> {
        Self::open(choice)
    }

    fn pin(&mut self, staging: Arc<Foreign<()>>) -> Result<(), DeviceError> {
        self.register(staging)
    }

    fn import(&mut self, chunks: &[OwnedFd], bytes: usize, at: u64) -> Result<(), DeviceError> {
        Self::import(self, chunks, bytes, at)
    }

    fn facts(&self) -> Result<Facts, DeviceError> {
        let of = |attribute| Ok(self.driver.attribute(self.device, attribute)?.max(0) as u32);
        let three = |[x, y, z]: [c_int; 3]| Ok::<_, DeviceError>([of(x)?, of(y)?, of(z)?]);
        Ok(Facts {
            address: self.card.address.clone(),
            name: self.card.name.clone(),
            memory: self.card.memory,
            shared: of(SHARED_MOST)?,
            block_threads: of(BLOCK_THREADS)?,
            block: three(BLOCK)?,
            grid: three(GRID)?,
            warp: of(WARP)?,
            resident: [of(BLOCKS)?, of(THREADS)?],
            processors: of(PROCESSORS)?,
            version: self.card.capability.map(|number| number.max(0) as u32),
            arch: format!("sm_{}{}", self.card.capability[0], self.card.capability[1]),
        })
    }

    fn take(&mut self, bytes: u64) -> Result<u64, DeviceError> {
        let driver = self.enter_idle()?;
        let mut at = 0;
        // SAFETY: the place outlives the call, and the memory that is zeroed has just been allocated.
        let taken = unsafe {
            call!(driver.memory_alloc(&raw mut at, bytes as usize))
                .and_then(|()| call!(driver.memory_fill(at, 0, bytes as usize, self.stream)))
        };
        self.noted(taken)?;
        self.settle().map(|()| at)
    }

    fn give_back(&mut self, at: u64) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        // SAFETY: nothing runs, and nobody has the address any more.
        let freed = unsafe { call!(driver.memory_free(at)) };
        self.noted(freed)
    }

    fn fill(&mut self, at: u64, len: u64, value: u8) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        // SAFETY: the driver checks the range.
        let begun = unsafe { call!(driver.memory_fill(at, value, len as usize, self.stream)) };
        self.noted(begun)?;
        self.settle()
    }

    unsafe fn put(&mut self, at: u64, from: *const u8, len: usize) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        // SAFETY: as the caller promises, until it is settled; the driver checks the device's range.
        let begun = unsafe { call!(driver.memory_put(at, from.cast(), len, self.stream)) };
        self.noted(begun)?;
        self.settle()
    }

    unsafe fn get(&mut self, at: u64, to: *mut u8, len: usize) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        // SAFETY: as above.
        let begun = unsafe { call!(driver.memory_get(to.cast(), at, len, self.stream)) };
        self.noted(begun)?;
        self.settle()
    }

    fn copy(&mut self, rows: &Rows) -> Result<(), DeviceError> {
        let Rows { dst: (dst, dpitch), src: (src, spitch), mut width, mut height } = *rows;
        if dpitch == width && spitch == width {
            (width, height) = (width * height, 1);
        }
        let driver = self.enter_idle()?;
        let begun = (0..height).try_for_each(|row| {
            let (dst, src) = (dst + row * dpitch, src + row * spitch);
            // SAFETY: the driver checks the ranges.
            unsafe { call!(driver.memory_move(dst, src, width as usize, self.stream)) }
        });
        self.noted(begun)?;
        self.settle()
    }

    fn load_image(&mut self, image: Vec<u8>) -> Result<Image, DeviceError> {
        let loaded = Image::load(self.enter_idle()?, image);
        self.noted(loaded)
    }

    fn kernels(image: &Image) -> &[KernelFacts] {
        &image.kernels
    }

    fn drop_image(&mut self, image: Image) {
        if let Ok(driver) = self.enter_idle() {
            image.unload(driver);
        }
    }

    fn run(&mut self, image: &Image, kernel: usize, shape: &Shape<'_>) -> Result<(), DeviceError> {
        let driver = self.enter_idle()?;
        let function = image.function(kernel).ok_or_else(|| DeviceError::new(code::NOT_FOUND, "no such kernel"))?;
        let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
        let mut size = shape.arguments.len();
        let [pointer, bytes] = PARAMS.map(ptr::without_provenance_mut);
        let arguments = shape.arguments.as_ptr().cast_mut().cast();
        let mut extra = [pointer, arguments, bytes, (&raw mut size).cast::<c_void>(), ptr::null_mut()];
        let (stream, none, extra) = (self.stream, ptr::null_mut(), extra.as_mut_ptr());
        // SAFETY: the function's module is loaded; the driver copies the arguments, as long as it is told, before the call
        // ends.
        let launched = unsafe {
            call!(driver.function_set(function, SHARED, shape.shared.cast_signed())).and_then(|()| {
                call!(driver.launch(function, gx, gy, gz, bx, by, bz, shape.shared, stream, none, extra))
            })
        };
        self.noted(launched)?;
        self.settle()
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }
}
