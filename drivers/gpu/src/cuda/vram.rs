//! Memory of a GPU that other processes map: exported by one, mapped by others where it is meant to be.

use std::{
    ffi::{c_int, c_ulonglong},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
};

use super::{
    Cuda,
    driver::{Access, Allocation, Driver, Location, Properties, Sharing, call},
};
use crate::device::DeviceError;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
const PINNED: c_int = 1;
const DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`
const FILE: c_int = 1;
const DMA_BUF: c_int = 1;

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`: network cards may reach such memory.
const REMOTE: c_int = 110;

/// `CUDA_ERROR_NOT_SUPPORTED`
const NOT_SUPPORTED: i32 = 801;

/// Memory that this process has mapped, and by which others do.
pub(crate) struct Exported {
    /// At least as many as were asked for.
    pub(crate) bytes: usize,
    /// What another process of the driver's imports. It keeps the memory.
    pub(crate) handle: OwnedFd,
    /// What the kernel's drivers and CPUs map.
    pub(crate) dma_buf: OwnedFd,
}

impl Cuda {
    fn sharing(&self) -> Result<(&Driver, &Sharing), DeviceError> {
        let driver = self.enter_idle()?;
        Ok((driver, driver.sharing.as_ref().map_err(Clone::clone)?))
    }

    fn location(&self) -> Location {
        Location { kind: DEVICE, id: self.device }
    }

    /// Allocates memory of the GPU, whose bytes are anything, and maps it where other processes are to, for as long as this one
    /// lives.
    pub(crate) fn export(&mut self, bytes: usize, at: u64) -> Result<Exported, DeviceError> {
        let (driver, sharing) = self.sharing()?;
        let properties = Properties {
            kind: PINNED,
            handles: FILE,
            location: self.location(),
            metadata: 0,
            compression: 0,
            remote: driver.attribute(self.device, REMOTE).is_ok_and(|told| told != 0).into(),
            usage: 0,
            reserved: [0; 4],
        };
        let (mut granule, mut allocation, mut handle, mut dma_buf) = (0, 0, -1, -1);
        // SAFETY: the places and the description outlive the calls.
        unsafe { call!(sharing of driver.granularity(&raw mut granule, &raw const properties, 0)) }?;
        let bytes = bytes.max(1).next_multiple_of(granule.max(1));
        // SAFETY: as above.
        unsafe { call!(sharing of driver.create(&raw mut allocation, bytes, &raw const properties, 0)) }?;
        // SAFETY: as above; a descriptor that the driver makes is this process's.
        let handle = unsafe {
            call!(sharing of driver.export(&raw mut handle, allocation, FILE, 0))?;
            OwnedFd::from_raw_fd(handle)
        };
        self.place(allocation, bytes, at)?;
        // SAFETY: as above.
        let dma_buf = unsafe {
            call!(sharing of driver.dma_buf(&raw mut dma_buf, at, bytes, DMA_BUF, 0)).map_err(explained)?;
            OwnedFd::from_raw_fd(dma_buf)
        };
        Ok(Exported { bytes, handle, dma_buf })
    }

    /// Maps memory that another process exported, where kernels are to see it, for as long as this process lives.
    pub(super) fn import(&mut self, handle: &OwnedFd, bytes: usize, at: u64) -> Result<(), DeviceError> {
        let (driver, sharing) = self.sharing()?;
        let (mut allocation, file) = (0, ptr::without_provenance_mut(handle.as_raw_fd() as usize));
        // SAFETY: the place outlives the call; a descriptor is passed as a number.
        unsafe { call!(sharing of driver.import(&raw mut allocation, file, FILE)) }?;
        self.place(allocation, bytes, at)
    }

    /// Maps an allocation at an address, and gives the handle of it back.
    fn place(&self, allocation: Allocation, bytes: usize, wanted: u64) -> Result<(), DeviceError> {
        const ANY: (usize, c_ulonglong) = (0, 0);
        let (driver, sharing) = self.sharing()?;
        let (mut at, access) = (0, Access { location: self.location(), rights: READ_WRITE });
        // SAFETY: places and description outlive the calls; the mapping keeps the allocation.
        unsafe {
            call!(sharing of driver.reserve(&raw mut at, bytes, ANY.0, wanted, ANY.1))?;
            if at != wanted {
                let message = format!("the driver maps it at {at:#x}, and not at {wanted:#x} as it is asked to");
                return Err(DeviceError::other(message));
            }
            call!(sharing of driver.map(at, bytes, 0, allocation, 0))?;
            call!(sharing of driver.access(at, bytes, &raw const access, 1))?;
            call!(sharing of driver.release(allocation))
        }
    }
}

/// Why it is not exported, where the driver says no more than that.
fn explained(failed: DeviceError) -> DeviceError {
    if failed.code != NOT_SUPPORTED {
        return failed;
    }
    DeviceError::new(failed.code, format!("{failed}; dma-bufs need the open kernel modules of NVIDIA's driver"))
}
