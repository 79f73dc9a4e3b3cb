//! Memory of a GPU that other processes map: exported by one, mapped by others where it is meant to be.

use std::{
    ffi::{c_int, c_ulonglong},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
};

use super::{
    Cuda,
    driver::{Access, Allocation, Driver, Location, NOT_SUPPORTED, Properties, Sharing, call},
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
        let (allocation, bytes, handle) = self.allocation(bytes)?;
        self.reserve_at(bytes, at)?;
        self.place(allocation, bytes, at)?;
        self.open_up(bytes, at)?;
        let dma_buf = self.dma_buf(bytes, at)?;
        Ok(Exported { bytes, handle, dma_buf })
    }

    /// The same, in so many chunks of `bytes` each, which other processes map one by one; no dma-buf is made. What is returned
    /// are their handles.
    pub(crate) fn export_chunks(&mut self, count: usize, bytes: usize, at: u64) -> Result<Vec<OwnedFd>, DeviceError> {
        self.reserve_at(count * bytes, at)?;
        let chunk = |nth: usize| {
            let (allocation, made, handle) = self.allocation(bytes)?;
            if made != bytes {
                let message = format!("the driver allocates {made} bytes at least, and chunks have {bytes}");
                return Err(DeviceError::other(message));
            }
            self.place(allocation, bytes, at + (nth * bytes) as u64)?;
            Ok(handle)
        };
        let handles = (0..count).map(chunk).collect::<Result<_, _>>()?;
        self.open_up(count * bytes, at)?;
        Ok(handles)
    }

    /// Bytes of its memory that nothing has.
    pub(crate) fn free(&self) -> Result<u64, DeviceError> {
        let driver = self.enter_idle()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the places outlive the call.
        unsafe { call!(driver.memory_info(&raw mut free, &raw mut total)) }?;
        Ok(free as u64)
    }

    /// Maps memory that another process exported, in chunks of so many bytes, where kernels are to see it, for as long as this
    /// process lives.
    pub(crate) fn import(&mut self, chunks: &[OwnedFd], bytes: usize, at: u64) -> Result<(), DeviceError> {
        let (driver, sharing) = self.sharing()?;
        self.reserve_at(chunks.len() * bytes, at)?;
        for (nth, handle) in chunks.iter().enumerate() {
            let (mut allocation, file) = (0, ptr::without_provenance_mut(handle.as_raw_fd() as usize));
            // SAFETY: the place outlives the call; a descriptor is passed as a number.
            unsafe { call!(sharing of driver.import(&raw mut allocation, file, FILE)) }?;
            self.place(allocation, bytes, at + (nth * bytes) as u64)?;
        }
        self.open_up(chunks.len() * bytes, at)
    }

    /// Allocates at least so many bytes: the allocation, how many there are, and its handle.
    fn allocation(&self, bytes: usize) -> Result<(Allocation, usize, OwnedFd), DeviceError> {
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
        let (mut granule, mut allocation, mut handle) = (0, 0, -1);
        // SAFETY: the places and the description outlive the calls.
        unsafe { call!(sharing of driver.granularity(&raw mut granule, &raw const properties, 0)) }?;
        let bytes = bytes.max(1).next_multiple_of(granule.max(1));
        // SAFETY: as above; a descriptor that the driver makes is this process's.
        let handle = unsafe {
            call!(sharing of driver.create(&raw mut allocation, bytes, &raw const properties, 0))?;
            call!(sharing of driver.export(&raw mut handle, allocation, FILE, 0))?;
            OwnedFd::from_raw_fd(handle)
        };
        Ok((allocation, bytes, handle))
    }

    /// A dma-buf of memory that is mapped at this address.
    pub(crate) fn dma_buf(&self, bytes: usize, at: u64) -> Result<OwnedFd, DeviceError> {
        let (driver, sharing) = self.sharing()?;
        let mut dma_buf = -1;
        // SAFETY: the place outlives the call; a descriptor that the driver makes is this process's.
        unsafe {
            call!(sharing of driver.dma_buf(&raw mut dma_buf, at, bytes, DMA_BUF, 0)).map_err(explained)?;
            Ok(OwnedFd::from_raw_fd(dma_buf))
        }
    }

    /// Keeps these addresses for what is placed there.
    fn reserve_at(&self, bytes: usize, wanted: u64) -> Result<(), DeviceError> {
        const ANY: (usize, c_ulonglong) = (0, 0);
        let (driver, sharing) = self.sharing()?;
        let mut at = 0;
        // SAFETY: the place outlives the call.
        unsafe { call!(sharing of driver.reserve(&raw mut at, bytes, ANY.0, wanted, ANY.1)) }?;
        if at == wanted {
            return Ok(());
        }
        let message = format!("the driver maps it at {at:#x}, and not at {wanted:#x} as it is asked to");
        Err(DeviceError::other(message))
    }

    /// Maps an allocation at an address that was reserved, and gives the handle of it back.
    fn place(&self, allocation: Allocation, bytes: usize, at: u64) -> Result<(), DeviceError> {
        let (driver, sharing) = self.sharing()?;
        // SAFETY: the mapping keeps the allocation.
        unsafe {
            call!(sharing of driver.map(at, bytes, 0, allocation, 0))?;
            call!(sharing of driver.release(allocation))
        }
    }

    /// Lets kernels read and write what was placed there.
    fn open_up(&self, bytes: usize, at: u64) -> Result<(), DeviceError> {
        let (driver, sharing) = self.sharing()?;
        let access = Access { location: self.location(), rights: READ_WRITE };
        // SAFETY: the description outlives the call.
        unsafe { call!(sharing of driver.access(at, bytes, &raw const access, 1)) }
    }
}

/// Why it is not exported, where the driver says no more than that.
fn explained(failed: DeviceError) -> DeviceError {
    if failed.code != NOT_SUPPORTED {
        return failed;
    }
    DeviceError::new(failed.code, format!("{failed}; dma-bufs need the open kernel modules of NVIDIA's driver"))
}
