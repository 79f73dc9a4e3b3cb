//! NVIDIA's driver: `libcuda.so.1`, looked up when it is needed. Nothing of CUDA is needed to build or to start Berth.

use std::{
    error::Error as _,
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    fmt,
    fs::OpenOptions,
    path::Path,
    ptr,
};

use libloading::Library;

use crate::device::DeviceError;

/// The name that the loader looks for.
const LIBRARY: &str = "libcuda.so.1";

/// The oldest driver that has all of the table, as it counts versions: 1000 times the major and 10 times the minor number.
const OLDEST: c_int = 11_040;

/// The first driver that tells what a module's kernels take.
const TELLS_KERNELS: c_int = 12_040;

/// `CUDA_ERROR_NO_DEVICE`
const NO_DEVICE: c_int = 100;

/// `CUDA_ERROR_NOT_SUPPORTED`
pub(crate) const NOT_SUPPORTED: i32 = 801;

/// `CUDA_ERROR_NOT_READY`: the kernel runs.
pub(super) const NOT_READY: c_int = 600;

/// A handle of the driver: a context, a stream, a module, and so on.
pub(super) type Handle = *mut c_void;

/// An address in the device's view.
pub(super) type DeviceAddress = u64;

/// A version, as the driver counts.
struct Version(c_int);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUDA {}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// A function of the driver, with its name for errors.
pub(super) struct Function<F> {
    pub(super) name: &'static str,
    pub(super) call: F,
}

macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $symbol:ident($($argument:ty),*) since $since:literal;)* }) => {
        $(#[$doc])*
        pub(super) struct $name {
            $(pub(super) $field: Function<unsafe extern "C" fn($($argument),*) -> c_int>,)*
        }

        impl $name {
            fn find(library: &Library, has: c_int) -> Result<Self, DeviceError> {
                Ok(Self {
                    $($field: {
                        let name = stringify!($symbol);
                        let symbol = concat!(stringify!($symbol), "\0").as_bytes();
                        // SAFETY: as cuda.h declares it, under the name that it gives the version of this signature.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(symbol) };
                        let call = *found.map_err(|_| lacking(name, $since, has))?;
                        Function { name, call }
                    },)*
                })
            }
        }
    };
}

/// Calls a function of the driver, or of another table of it; an error if it does not return 0.
macro_rules! call {
    ($driver:ident.$field:ident($($argument:expr),* $(,)?)) => {{
        let function = &$driver.functions.$field;
        $driver.check(function.name, (function.call)($($argument),*))
    }};
    ($table:ident of $driver:ident.$field:ident($($argument:expr),* $(,)?)) => {
        $driver.check($table.$field.name, ($table.$field.call)($($argument),*))
    };
}
pub(super) use call;

/// What tells of a module's kernels, since CUDA 12.4.
pub(super) struct Metadata {
    /// `cuModuleGetFunctionCount`
    pub(super) count: unsafe extern "C" fn(*mut c_uint, Handle) -> c_int,
    /// `cuModuleEnumerateFunctions`
    pub(super) all: unsafe extern "C" fn(*mut Handle, c_uint, Handle) -> c_int,
    /// `cuFuncGetName`
    pub(super) name: unsafe extern "C" fn(*mut *const c_char, Handle) -> c_int,
    /// `cuFuncGetParamInfo`
    pub(super) parameter: unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> c_int,
}

impl Metadata {
    fn find(library: &Library, has: c_int) -> Option<Self> {
        if has < TELLS_KERNELS {
            return None;
        }
        // SAFETY: as cuda.h of CUDA 12.4 declares them.
        unsafe {
            Some(Self {
                count: *library.get(b"cuModuleGetFunctionCount\0").ok()?,
                all: *library.get(b"cuModuleEnumerateFunctions\0").ok()?,
                name: *library.get(b"cuFuncGetName\0").ok()?,
                parameter: *library.get(b"cuFuncGetParamInfo\0").ok()?,
            })
        }
    }
}

fn lacking(name: &str, since: &str, has: c_int) -> DeviceError {
    let has = Version(has);
    let message =
        format!("{LIBRARY} of {has} lacks {name}, which it has had since CUDA {since}: reinstall NVIDIA's driver");
    DeviceError::new(NOT_SUPPORTED, message)
}

functions! {
    /// The functions that Berth calls, as the CUDA Driver API declares them. Each returns a `CUresult`.
    Functions {
        error_name: cuGetErrorName(c_int, *mut *const c_char) since "6.0";
        error_string: cuGetErrorString(c_int, *mut *const c_char) since "6.0";
        init: cuInit(c_uint) since "2.0";
        device_count: cuDeviceGetCount(*mut c_int) since "2.0";
        device_get: cuDeviceGet(*mut c_int, c_int) since "2.0";
        device_name: cuDeviceGetName(*mut c_char, c_int, c_int) since "2.0";
        device_uuid: cuDeviceGetUuid_v2(*mut [u8; 16], c_int) since "11.4";
        device_address: cuDeviceGetPCIBusId(*mut c_char, c_int, c_int) since "4.1";
        device_memory: cuDeviceTotalMem_v2(*mut usize, c_int) since "3.2";
        device_attribute: cuDeviceGetAttribute(*mut c_int, c_int, c_int) since "2.0";
        context_create: cuCtxCreate_v2(*mut Handle, c_uint, c_int) since "3.2";
        context_set: cuCtxSetCurrent(Handle) since "4.0";
        context_limit: cuCtxSetLimit(c_int, usize) since "3.1";
        stream_create: cuStreamCreate(*mut Handle, c_uint) since "2.0";
        stream_query: cuStreamQuery(Handle) since "2.0";
        stream_wait: cuStreamSynchronize(Handle) since "2.0";
        stream_capture: cuStreamBeginCapture_v2(Handle, c_int) since "10.1";
        stream_captured: cuStreamEndCapture(Handle, *mut Handle) since "10.0";
        host_alloc: cuMemHostAlloc(*mut *mut c_void, usize, c_uint) since "2.2";
        host_register: cuMemHostRegister_v2(*mut c_void, usize, c_uint) since "6.5";
        host_address: cuMemHostGetDevicePointer_v2(*mut DeviceAddress, *mut c_void, c_uint) since "3.2";
        memory_info: cuMemGetInfo_v2(*mut usize, *mut usize) since "3.2";
        memory_alloc: cuMemAlloc_v2(*mut DeviceAddress, usize) since "3.2";
        link_create: cuLinkCreate_v2(c_uint, *mut c_int, *mut *mut c_void, *mut Handle) since "6.5";
        link_add: cuLinkAddData_v2(
            Handle, c_int, *mut c_void, usize, *const c_char, c_uint, *mut c_int, *mut *mut c_void
        ) since "6.5";
        link_complete: cuLinkComplete(Handle, *mut *mut c_void, *mut usize) since "5.5";
        link_destroy: cuLinkDestroy(Handle) since "5.5";
        module_load: cuModuleLoadData(*mut Handle, *const c_void) since "2.0";
        module_unload: cuModuleUnload(Handle) since "2.0";
        module_function: cuModuleGetFunction(*mut Handle, Handle, *const c_char) since "2.0";
        function_set: cuFuncSetAttribute(Handle, c_int, c_int) since "9.0";
        occupancy: cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, Handle, c_int, usize) since "6.5";
        launch: cuLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        ) since "4.0";
        graph_instantiate: cuGraphInstantiateWithFlags(*mut Handle, Handle, c_ulonglong) since "11.4";
        graph_launch: cuGraphLaunch(Handle, Handle) since "10.0";
        graph_exec_destroy: cuGraphExecDestroy(Handle) since "10.0";
        graph_destroy: cuGraphDestroy(Handle) since "10.0";
        memory_free: cuMemFree_v2(DeviceAddress) since "3.2";
        memory_fill: cuMemsetD8Async(DeviceAddress, u8, usize, Handle) since "3.2";
        memory_put: cuMemcpyHtoDAsync_v2(DeviceAddress, *const c_void, usize, Handle) since "3.2";
        memory_get: cuMemcpyDtoHAsync_v2(*mut c_void, DeviceAddress, usize, Handle) since "3.2";
        memory_move: cuMemcpyDtoDAsync_v2(DeviceAddress, DeviceAddress, usize, Handle) since "3.2";
    }
}

functions! {
    /// What makes memory of a GPU that other processes map.
    Sharing {
        granularity: cuMemGetAllocationGranularity(*mut usize, *const Properties, c_int) since "10.2";
        create: cuMemCreate(*mut Allocation, usize, *const Properties, c_ulonglong) since "10.2";
        release: cuMemRelease(Allocation) since "10.2";
        export: cuMemExportToShareableHandle(*mut c_int, Allocation, c_int, c_ulonglong) since "10.2";
        import: cuMemImportFromShareableHandle(*mut Allocation, *mut c_void, c_int) since "10.2";
        reserve: cuMemAddressReserve(*mut DeviceAddress, usize, usize, DeviceAddress, c_ulonglong) since "10.2";
        map: cuMemMap(DeviceAddress, usize, usize, Allocation, c_ulonglong) since "10.2";
        access: cuMemSetAccess(DeviceAddress, usize, *const Access, usize) since "10.2";
        dma_buf: cuMemGetHandleForAddressRange(*mut c_int, DeviceAddress, usize, c_int, c_ulonglong) since "11.7";
    }
}

/// `CUmemGenericAllocationHandle`
pub(super) type Allocation = c_ulonglong;

/// `CUmemAllocationProp`: of which kind, for which handles, where; no metadata; compression, what a NIC may reach, usage.
#[repr(C)]
pub(super) struct Properties {
    pub(super) kind: c_int,
    pub(super) handles: c_int,
    pub(super) location: Location,
    pub(super) metadata: usize,
    pub(super) compression: u8,
    pub(super) remote: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

/// `CUmemLocation`: of which kind, and which.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

/// `CUmemAccessDesc`
#[repr(C)]
pub(super) struct Access {
    pub(super) location: Location,
    pub(super) rights: c_int,
}

/// The driver, initialised.
pub(super) struct Driver {
    pub(super) functions: Functions,
    pub(super) metadata: Option<Metadata>,
    /// Older drivers lack some of it.
    pub(super) sharing: Result<Sharing, DeviceError>,
    version: c_int,
}

impl Driver {
    /// Loads and initialises it, and says what is wrong if that fails.
    pub(super) fn open() -> Result<Self, DeviceError> {
        // SAFETY: the initialisers of a library that the operator has installed as the system's.
        let library = unsafe { Library::new(LIBRARY) }.map_err(|e| {
            let e = e.source().map_or_else(|| e.to_string(), ToString::to_string);
            DeviceError::other(format!("NVIDIA's driver is not there: {e}; install it, or write device = \"soft\""))
        })?;
        let version = Self::version_of(&library)?;
        if version < OLDEST {
            let (has, oldest) = (Version(version), Version(OLDEST));
            return Err(DeviceError::other(format!(
                "{LIBRARY} is of {has}; {oldest} or later is needed: update NVIDIA's driver"
            )));
        }
        let functions = Functions::find(&library, version)?;
        let metadata = Metadata::find(&library, version);
        let sharing = Sharing::find(&library, version);
        // It has threads and tables that outlive any user.
        std::mem::forget(library);
        let driver = Self { functions, metadata, sharing, version };
        // SAFETY: a number is passed.
        let initialised = unsafe { call!(driver.init(0)) };
        initialised.map_err(explained)?;
        Ok(driver)
    }

    fn version_of(library: &Library) -> Result<c_int, DeviceError> {
        // SAFETY: the declaration of cuda.h since CUDA 2.2.
        let get = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0") };
        let get = get.map_err(|_| {
            DeviceError::other(format!(
                "{LIBRARY} lacks cuDriverGetVersion: it is not NVIDIA's, or older than CUDA 2.2"
            ))
        })?;
        let mut version = 0;
        // SAFETY: the place outlives the call, which may be made before the driver is initialised.
        match unsafe { get(&raw mut version) } {
            0 => Ok(version),
            code => Err(DeviceError::new(code, format!("{LIBRARY}: cuDriverGetVersion fails with {code}"))),
        }
    }

    /// The version of CUDA that it is of: major and minor number.
    pub(super) fn version(&self) -> (u32, u32) {
        (self.version as u32 / 1000, self.version as u32 % 1000 / 10)
    }

    /// A code in words: the driver's own name for it, and its explanation.
    pub(super) fn told(&self, code: c_int) -> String {
        let Functions { error_name, error_string, .. } = &self.functions;
        let word = |function: &Function<unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>| {
            let mut text = ptr::null();
            // SAFETY: the place outlives the call.
            let found = unsafe { (function.call)(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: a text of the driver, which is never freed.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (word(error_name), word(error_string)) {
            (Some(name), Some(text)) => format!("{name} ({code}): {text}"),
            _ => format!("an error of the driver ({code})"),
        }
    }

    /// An error if a call did not return 0.
    pub(super) fn check(&self, name: &str, code: c_int) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(DeviceError::new(code, format!("{name}: {}", self.told(code)))) }
    }
}

/// Why it was not initialised. The driver tells a device node that may not be opened as no device.
fn explained(failed: DeviceError) -> DeviceError {
    let more = match refused_node(Path::new("/dev")) {
        Some(node) => node,
        None if failed.code == NO_DEVICE => "the card, or the kernel's module nvidia, is not there".into(),
        None => return failed,
    };
    DeviceError::new(failed.code, format!("{failed}; {more}"))
}

/// The first device node of NVIDIA's in this folder that this process may not open, and why.
pub fn refused_node(dev: &Path) -> Option<String> {
    ["nvidiactl", "nvidia0", "nvidia-uvm"].into_iter().find_map(|name| {
        let node = dev.join(name);
        let error = OpenOptions::new().read(true).write(true).open(&node).err()?;
        let is_there = std::fs::symlink_metadata(&node).is_ok();
        is_there.then(|| format!("{}: {error}", node.display()))
    })
}
