//! Memory of the host that GPUs read and write, by the driver of whoever loaded the bridge.
//!
//! The driver is loaded when such memory is asked for, and not before: without the option no GPU is needed.

use std::{
    ffi::{c_int, c_uint, c_void},
    mem::ManuallyDrop,
    ptr::{self, NonNull},
    sync::OnceLock,
};

use berth_pages::Foreign;
use libloading::Library;

use crate::failure::Failure;

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`: for every context, at an address of devices.
const FLAGS: c_uint = 1 | 2;

/// The loader's name of the driver.
const LIBRARY: &str = "libcuda.so.1";

type Context = *mut c_void;

/// Takes a function's name and arguments a line.
macro_rules! functions {
    ($($field:ident $name:literal ($($argument:ty),*),)*) => {
        /// The functions of the driver that are used here.
        struct Driver {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Driver {
            fn find(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the driver's functions of these names have had these arguments since CUDA 4.
                unsafe { Ok(Self { $($field: *library.get($name)?,)* }) }
            }
        }
    };
}

functions! {
    init "cuInit" (c_uint),
    current "cuCtxGetCurrent" (*mut Context),
    device "cuDeviceGet" (*mut c_int, c_int),
    retain "cuDevicePrimaryCtxRetain" (*mut Context, c_int),
    release "cuDevicePrimaryCtxRelease_v2" (c_int),
    push "cuCtxPushCurrent_v2" (Context),
    pop "cuCtxPopCurrent_v2" (*mut Context),
    alloc "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint),
    free "cuMemFreeHost" (*mut c_void),
    address "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint),
}

impl Driver {
    /// The driver, which stays once it is loaded: it is not made to be closed.
    fn load() -> Result<&'static Self, Failure> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        // SAFETY: the driver's library is made to be loaded so; what it runs at its start is its own.
        let library = unsafe { Library::new(LIBRARY) };
        let missing = |why| {
            let why = anyhow::Error::from(why);
            Failure::cuda(format_args!("--pinned-rings needs a GPU and NVIDIA's driver: {why:#}"))
        };
        let library = ManuallyDrop::new(library.map_err(missing)?);
        let old = |why| {
            let why = anyhow::Error::from(why);
            Failure::cuda(format_args!("{LIBRARY} is too old for --pinned-rings: {why:#}"))
        };
        let driver = Self::find(&library).map_err(old)?;
        Ok(DRIVER.get_or_init(|| driver))
    }
}

/// A call of the driver that ended with `code`.
fn check(name: &str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::cuda(format_args!("--pinned-rings: {name} says {code}"))) }
}

/// A context, which is given back.
struct Held {
    driver: &'static Driver,
    context: Context,
    /// The device whose primary context we hold; `None` if the caller has one.
    retained: Option<c_int>,
}

impl Held {
    /// The context of the calling thread, else the primary one of the first device.
    fn new(driver: &'static Driver) -> Result<Self, Failure> {
        let (mut context, mut device): (Context, c_int) = (ptr::null_mut(), 0);
        // SAFETY: the pointers are of variables here.
        unsafe {
            check("cuInit", (driver.init)(0))?;
            check("cuCtxGetCurrent", (driver.current)(&raw mut context))?;
            if !context.is_null() {
                return Ok(Self { driver, context, retained: None });
            }
            check("cuDeviceGet", (driver.device)(&raw mut device, 0))?;
            check("cuDevicePrimaryCtxRetain", (driver.retain)(&raw mut context, device))?;
        }
        Ok(Self { driver, context, retained: Some(device) })
    }

    /// Calls `f` with the context made current.
    fn within<T>(&self, f: impl FnOnce(&Driver) -> Result<T, Failure>) -> Result<T, Failure> {
        // SAFETY: the context is held.
        check("cuCtxPushCurrent", unsafe { (self.driver.push)(self.context) })?;
        let result = f(self.driver);
        let mut popped: Context = ptr::null_mut();
        // SAFETY: the pointer is of a variable here.
        check("cuCtxPopCurrent", unsafe { (self.driver.pop)(&raw mut popped) })?;
        result
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(device) = self.retained {
            // SAFETY: it was retained once. At the end of a process the driver may be gone already, which it says.
            unsafe { (self.driver.release)(device) };
        }
    }
}

// SAFETY: contexts may be made current by any thread.
unsafe impl Send for Held {}
// SAFETY: as above; `&Held` calls the driver alone, which any threads may do at once.
unsafe impl Sync for Held {}

/// What the driver has allocated, and is given back.
pub(crate) struct Allocation {
    base: NonNull<u8>,
    held: Held,
}

// SAFETY: the address is for the driver, which may be told it by any thread.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated once. At the end of a process the driver may be gone already, which it says.
        let free = |driver: &Driver| check("cuMemFreeHost", unsafe { (driver.free)(self.base.as_ptr().cast()) });
        let _ = self.held.within(free);
    }
}

/// Allocates `size` zeroed bytes, which the driver has locked and mapped for its devices.
pub(crate) fn allocate(size: usize) -> Result<Foreign<Allocation>, Failure> {
    let held = Held::new(Driver::load()?)?;
    let base = held.within(|driver| {
        let mut host: *mut c_void = ptr::null_mut();
        // SAFETY: the pointer is of a variable here.
        check("cuMemHostAlloc", unsafe { (driver.alloc)(&raw mut host, size, FLAGS) })?;
        NonNull::new(host.cast::<u8>()).ok_or(Failure::cuda("cuMemHostAlloc gives no memory"))
    })?;
    let allocation = Allocation { base, held };
    let mut device = 0;
    allocation.held.within(|driver| {
        // SAFETY: the first pointer is of a variable here, the second one is the driver's own.
        let code = unsafe { (driver.address)(&raw mut device, base.as_ptr().cast(), 0) };
        check("cuMemHostGetDevicePointer", code)
    })?;
    if device != base.addr().get() as u64 {
        let message = "--pinned-rings: devices have other addresses than the host, there is no unified addressing";
        return Err(Failure::cuda(message));
    }
    // SAFETY: so many bytes, which nobody else knows yet and which live as long as the allocation, never to move.
    Ok(unsafe {
        base.write_bytes(0, size);
        Foreign::new(base, size, allocation)
    })
}
