//! What a session's worker needs of a GPU: memory of its own, and one thing after the other, each to its end.

use std::{os::fd::OwnedFd, sync::Arc};

use berth_fabric::gpu_code as code;
use berth_pages::Foreign;

use super::control::{Facts, KernelFacts, Rows};
use crate::{choice::Choice, device::DeviceError};

/// The bytes are no code object.
pub(crate) const INVALID_IMAGE: i32 = 200;
/// It is for other GPUs.
pub(crate) const NO_BINARY: i32 = 209;

/// The last of the errors that a kernel costs the device with, beside 700 and those that follow.
const FATAL_MAX: i32 = 719;

/// Errors from 700 on after which the device goes on: too many resources, access between peers, registered memory.
const HARMLESS: [i32; 5] = [701, 704, 705, 712, 713];

/// Whether an error costs the device. CUDA and HIP number them alike.
pub(crate) fn is_fatal(e: &DeviceError) -> bool {
    (code::ILLEGAL_ADDRESS..=FATAL_MAX).contains(&e.code) && !HARMLESS.contains(&e.code)
}

/// A kernel of an image, and how it is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) arguments: &'a [u8],
}

/// A GPU that one session has, by its driver in this process.
pub(crate) trait SessionDevice: Sized {
    /// A code object that is loaded.
    type Image;

    /// Opens the GPU that is meant, which is one of this driver's.
    fn open(choice: &Choice) -> Result<Self, DeviceError>;

    /// What the driver says of the GPU.
    fn facts(&self) -> Result<Facts, DeviceError>;

    /// Pins the staging area, which stays as long as the process.
    fn pin(&mut self, staging: Arc<Foreign<()>>) -> Result<(), DeviceError>;

    /// Maps memory of the device's own that another process exported, chunks of so many bytes each, one behind the other from
    /// this address on.
    fn import(&mut self, chunks: &[OwnedFd], bytes: usize, at: u64) -> Result<(), DeviceError>;

    /// Zeroed memory of the device's own.
    fn take(&mut self, bytes: u64) -> Result<u64, DeviceError>;

    /// Frees it.
    fn give_back(&mut self, at: u64) -> Result<(), DeviceError>;

    /// Sets bytes.
    fn fill(&mut self, at: u64, len: u64, value: u8) -> Result<(), DeviceError>;

    /// Copies from memory of the host.
    ///
    /// # Safety
    /// So many bytes can be read there.
    unsafe fn put(&mut self, at: u64, from: *const u8, len: usize) -> Result<(), DeviceError>;

    /// Copies to memory of the host.
    ///
    /// # Safety
    /// So many bytes can be written there.
    unsafe fn get(&mut self, at: u64, to: *mut u8, len: usize) -> Result<(), DeviceError>;

    /// Copies rows within the device's memory, which do not overlap.
    fn copy(&mut self, rows: &Rows) -> Result<(), DeviceError>;

    /// Loads a code object. Bytes behind it are ignored.
    fn load_image(&mut self, image: Vec<u8>) -> Result<Self::Image, DeviceError>;

    /// The kernels of an image; [`SessionDevice::run`] takes an index of these.
    fn kernels(image: &Self::Image) -> &[KernelFacts];

    /// Forgets an image.
    fn drop_image(&mut self, image: Self::Image);

    /// Runs a kernel of an image to its end.
    fn run(&mut self, image: &Self::Image, kernel: usize, shape: &Shape<'_>) -> Result<(), DeviceError>;

    /// After what a kernel did nothing works any more, until another process has the device.
    fn is_lost(&self) -> bool;

    /// Copies rows within the device's memory, which may overlap.
    fn rows(&mut self, rows: &Rows) -> Result<(), DeviceError> {
        let Rows { dst: (dst, dpitch), src: (src, spitch), width, height } = *rows;
        let end = |at: u64, pitch: u64| at + (height - 1) * pitch + width;
        let (to, from) = (dst..end(dst, dpitch), src..end(src, spitch));
        if to.start >= from.end || from.start >= to.end {
            return self.copy(rows);
        }
        // What is still to be read must not be written: by way of memory of its own.
        let between = self.take(width * height)?;
        let copied = self
            .copy(&Rows { dst: (between, width), ..*rows })
            .and_then(|()| self.copy(&Rows { src: (between, width), ..*rows }));
        self.give_back(between)?;
        copied
    }
}
