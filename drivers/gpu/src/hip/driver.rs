//! AMD's HIP runtime: `libamdhip64`, looked up when it is needed. Nothing of ROCm is needed to build or to start Berth.
//!
//! Structures of HIP's changed with ROCm 6, and only one is read here, for the name of the instruction set. All else is told by
//! functions that take numbers, whose declarations and enumerations are the same from ROCm 5 to 7.

use std::{
    error::Error as _,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
};

use libloading::Library;

use crate::device::DeviceError;

/// What errors call the library.
const LIBRARY: &str = "libamdhip64.so";

/// Names that the loader looks for: those of ROCm 7, 6 and 5, and the one that is there to build with.
const NAMES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", LIBRARY];

/// Where ROCm lies, which the loader need not know.
const FOLDERS: [&str; 2] = ["", "/opt/rocm/lib/"];

/// `hipErrorNoDevice`, and `hipErrorInvalidDevice`, as ROCm 5 calls it.
const NO_DEVICE: [c_int; 2] = [100, 101];

/// Bytes that no layout of `hipDeviceProp_t` exceeds.
const PROPERTIES: usize = 4096;

/// Offset of `gcnArchName` in `hipDeviceProp_tR0600`, since ROCm 6, and before.
const ARCH_NAME: [usize; 2] = [1160, 396];
const ARCH_NAME_LEN: usize = 256;

/// A module or a function of the runtime.
pub(super) type Handle = *mut c_void;

type Properties = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

macro_rules! functions {
    ($($symbol:ident($($argument:ty),*);)*) => {
        /// The functions that Berth calls, as `hip_runtime_api.h` declares them. Each returns a `hipError_t`.
        #[allow(non_snake_case, reason = "they are named by HIP")]
        pub(super) struct Functions {
            $(pub(super) $symbol: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, DeviceError> {
                Ok(Self {
                    $($symbol: {
                        let symbol = concat!(stringify!($symbol), "\0").as_bytes();
                        // SAFETY: as the header declares it.
                        let found = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> c_int>(symbol) };
                        *found.map_err(|_| lacking(stringify!($symbol)))?
                    },)*
                })
            }
        }
    };
}

/// Calls a function of the runtime; an error if it does not return 0.
macro_rules! call {
    ($driver:ident.$symbol:ident($($argument:expr),* $(,)?)) => {
        $driver.check(stringify!($symbol), ($driver.functions.$symbol)($($argument),*))
    };
}
pub(super) use call;

functions! {
    hipInit(c_uint);
    hipGetDeviceCount(*mut c_int);
    hipSetDevice(c_int);
    hipDeviceGetName(*mut c_char, c_int, c_int);
    hipDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    hipDeviceTotalMem(*mut usize, c_int);
    hipDeviceGetAttribute(*mut c_int, c_int, c_int);
    hipDeviceSynchronize();
    hipHostRegister(*mut c_void, usize, c_uint);
    hipMalloc(*mut *mut c_void, usize);
    hipFree(*mut c_void);
    hipMemset(*mut c_void, c_int, usize);
    hipMemcpyHtoD(*mut c_void, *mut c_void, usize);
    hipMemcpyDtoH(*mut c_void, *mut c_void, usize);
    hipMemcpy2D(*mut c_void, usize, *const c_void, usize, usize, usize, c_int);
    hipModuleLoadData(*mut Handle, *const c_void);
    hipModuleUnload(Handle);
    hipModuleGetFunction(*mut Handle, Handle, *const c_char);
    hipModuleLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, *mut c_void, *mut *mut c_void, *mut *mut c_void
    );
}

type Word = unsafe extern "C" fn(c_int) -> *const c_char;

/// The runtime, initialised.
pub(super) struct Driver {
    pub(super) functions: Functions,
    /// `hipGetErrorName`, `hipGetErrorString`
    words: [Word; 2],
    /// The function that tells properties, and where in them the name of the instruction set begins.
    properties: (Properties, usize),
}

fn lacking(name: &str) -> DeviceError {
    DeviceError::other(format!("{LIBRARY} lacks {name}, which it has had since ROCm 5.0: reinstall ROCm"))
}

/// The library, by the first of its names that is there.
fn library() -> Result<Library, DeviceError> {
    let mut why = None;
    for path in FOLDERS.iter().flat_map(|folder| NAMES.map(|name| format!("{folder}{name}"))) {
        // SAFETY: the initialisers of a library that the operator has installed as the system's.
        match unsafe { Library::new(&path) } {
            Ok(library) => return Ok(library),
            Err(e) => {
                let e = e.source().map_or_else(|| e.to_string(), ToString::to_string);
                // One that is there and does not load tells more than one that is not there.
                let is_absent = e.starts_with(&format!("{path}: cannot open"));
                why = why.filter(|_| is_absent).or(Some(e));
            }
        }
    }
    let why = why.unwrap_or_default();
    Err(DeviceError::other(format!(
        "AMD's HIP runtime {LIBRARY} is not there: {why}; install ROCm 5.0 or later, or write device = \"soft\""
    )))
}

impl Driver {
    /// Loads and initialises it, and says what is wrong if that fails.
    pub(super) fn open() -> Result<Self, DeviceError> {
        let library = library()?;
        let functions = Functions::find(&library)?;
        // SAFETY: as the header declares them.
        let word = |name: &'static str| unsafe { library.get::<Word>(name.as_bytes()) }.map(|found| *found);
        let words = [
            word("hipGetErrorName\0").map_err(|_| lacking("hipGetErrorName"))?,
            word("hipGetErrorString\0").map_err(|_| lacking("hipGetErrorString"))?,
        ];
        // SAFETY: a place with room for any of its layouts is passed to it, and the device's number.
        let told = |name: &'static str| unsafe { library.get::<Properties>(name.as_bytes()) }.map(|found| *found);
        let properties = if let Ok(found) = told("hipGetDevicePropertiesR0600\0") {
            (found, ARCH_NAME[0])
        } else {
            let found = told("hipGetDeviceProperties\0").map_err(|_| lacking("hipGetDeviceProperties"))?;
            (found, ARCH_NAME[1])
        };
        // It has threads and tables that outlive any user.
        std::mem::forget(library);
        let driver = Self { functions, words, properties };
        // SAFETY: a number is passed.
        unsafe { call!(driver.hipInit(0)) }.map_err(explained)?;
        Ok(driver)
    }

    /// The number of GPUs.
    pub(super) fn count(&self) -> Result<c_int, DeviceError> {
        let mut count = 0;
        // SAFETY: the place outlives the call.
        unsafe { call!(self.hipGetDeviceCount(&raw mut count)) }.map_err(explained)?;
        Ok(count)
    }

    /// The instruction set of a GPU, such as `gfx90a:sramecc+:xnack-`.
    pub(super) fn arch(&self, device: c_int) -> Result<String, DeviceError> {
        let (get, at) = self.properties;
        let mut properties = [0_u64; PROPERTIES / 8];
        // SAFETY: the place has room for any of its layouts, and is aligned for them.
        self.check("hipGetDeviceProperties", unsafe { get(properties.as_mut_ptr().cast(), device) })?;
        let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(text(&bytes[at..at + ARCH_NAME_LEN]))
    }

    /// An error if a call did not return 0.
    pub(super) fn check(&self, name: &str, code: c_int) -> Result<(), DeviceError> {
        if code == 0 { Ok(()) } else { Err(DeviceError::new(code, format!("{name}: {}", self.told(code)))) }
    }

    /// A code in words: the runtime's own name for it, and its explanation.
    fn told(&self, code: c_int) -> String {
        let word = |word: Word| {
            // SAFETY: a number is passed.
            let text = unsafe { word(code) };
            // SAFETY: a text of the runtime, which is never freed.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match self.words.map(word) {
            [Some(name), Some(text)] => format!("{name} ({code}): {text}"),
            _ => format!("an error of the runtime ({code})"),
        }
    }
}

/// A text that ends with a zero.
pub(super) fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_string_lossy().into_owned()
}

/// Why there is no GPU: the runtime tells a device node that may not be opened as that.
fn explained(failed: DeviceError) -> DeviceError {
    if !NO_DEVICE.contains(&failed.code) {
        return failed;
    }
    let why = match std::fs::OpenOptions::new().read(true).write(true).open("/dev/kfd") {
        Err(e) => format!("/dev/kfd: {e}"),
        Ok(_) => "no /dev/dri/renderD* that may be opened is one of AMD's".into(),
    };
    DeviceError::new(failed.code, format!("{failed}; {why}"))
}
