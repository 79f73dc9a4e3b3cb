//! What NVIDIA's management library says of a card. It comes with the driver; where it is not there, nothing but this is missing.

use std::{
    error::Error as _,
    ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void},
    ptr,
};

use libloading::Library;
use serde::{Deserialize, Serialize};

const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_CLOCK_SM`
const SM: c_int = 1;

/// `NVML_MEMORY_ERROR_TYPE_UNCORRECTED`, since the driver was loaded (`NVML_VOLATILE_ECC`).
const UNCORRECTED: (c_int, c_int) = (1, 0);

/// Most processes that are listed.
const PROCESSES: usize = 64;

type Handle = *mut c_void;

/// How a card does. What the library does not tell of it is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Lanes of its link, and those that it has room for.
    pub width: Option<[u32; 2]>,
    /// The generation of PCI Express that the link runs at, and the one that it can. Idle cards go down.
    pub generation: Option<[u32; 2]>,
    /// The clock of its multiprocessors, and the highest one, in MHz.
    pub clock: Option<[u32; 2]>,
    /// What holds its clocks down: the bits of `nvmlDeviceGetCurrentClocksThrottleReasons`.
    pub throttled: Option<u64>,
    /// Whether error correction of its memory is on now.
    pub ecc: Option<bool>,
    /// Uncorrected memory errors since the driver was loaded.
    pub errors: Option<u64>,
    /// Whether the driver keeps it ready while nobody uses it.
    pub persistent: Option<bool>,
    /// Who may use it: 0 all, 2 nobody, 3 one process.
    pub compute_mode: Option<u32>,
    /// Whether it is divided into instances (MIG), and whether it will be after its next reset.
    pub mig: Option<[bool; 2]>,
    /// Bytes of the window to its memory that are in use, and all of them.
    pub bar1: Option<[u64; 2]>,
    /// Ids of the processes that have compute contexts on it.
    pub processes: Option<Vec<u32>>,
}

/// `nvmlProcessInfo_v2_t`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: c_uint,
    memory: c_ulonglong,
    instance: c_uint,
    compute_instance: c_uint,
}

/// The library, initialised.
pub(super) struct Management {
    nvml: Library,
    /// The version of the kernel's driver.
    pub(super) driver: String,
}

type Number = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;

impl Management {
    pub(super) fn open() -> Result<Self, String> {
        // SAFETY: the initialisers of a library that the operator has installed as the system's.
        let nvml = unsafe { Library::new(LIBRARY) }
            .map_err(|e| e.source().map_or_else(|| e.to_string(), ToString::to_string))?;
        let mut this = Self { nvml, driver: String::new() };
        let init = this.find::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2");
        let version = this.find::<unsafe extern "C" fn(*mut c_char, c_uint) -> c_int>("nvmlSystemGetDriverVersion");
        let (Some(init), Some(version)) = (init, version) else {
            return Err(format!("{LIBRARY} lacks nvmlInit_v2: it is not NVIDIA's"));
        };
        let mut text: [c_char; 80] = [0; 80];
        // SAFETY: the place outlives the call, which is told its length.
        match unsafe { (init(), version(text.as_mut_ptr(), text.len() as c_uint)) } {
            (0, 0) => this.driver = super::cards::text(&text),
            (0, code) | (code, _) => return Err(format!("{LIBRARY}: {}", this.told(code))),
        }
        Ok(this)
    }

    /// A function of this name and, as nvml.h declares it, of this type.
    fn find<F: Copy>(&self, name: &str) -> Option<F> {
        let name = CString::new(name).ok()?;
        // SAFETY: whoever calls it says the type that nvml.h has.
        unsafe { self.nvml.get::<F>(name.as_bytes_with_nul()) }.ok().map(|found| *found)
    }

    fn told(&self, code: c_int) -> String {
        let Some(text) = self.find::<unsafe extern "C" fn(c_int) -> *const c_char>("nvmlErrorString") else {
            return format!("error {code}");
        };
        // SAFETY: it returns a constant text for every number.
        unsafe { CStr::from_ptr(text(code)) }.to_string_lossy().into_owned()
    }

    /// What it says of the card at this PCI address.
    pub(super) fn health(&self, address: &str) -> Option<Health> {
        type Call = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
        let (find, address) = (self.find::<Call>("nvmlDeviceGetHandleByPciBusId_v2")?, CString::new(address).ok()?);
        let mut card = ptr::null_mut();
        // SAFETY: text and place outlive the call.
        if unsafe { find(address.as_ptr(), &raw mut card) } != 0 {
            return None;
        }
        let number = |name: &str| {
            let (call, mut value) = (self.find::<Number>(name)?, 0);
            // SAFETY: the handle is the library's, and the place outlives the call.
            (unsafe { call(card, &raw mut value) } == 0).then_some(value)
        };
        let pair = |now: &str, most: &str| Some([number(now)?, number(most)?]);
        let clock = |name: &str| {
            let (call, mut value) = (self.find::<unsafe extern "C" fn(Handle, c_int, *mut c_uint) -> c_int>(name)?, 0);
            // SAFETY: as above.
            (unsafe { call(card, SM, &raw mut value) } == 0).then_some(value)
        };
        Some(Health {
            width: pair("nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"),
            generation: pair("nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration"),
            clock: clock("nvmlDeviceGetClockInfo").zip(clock("nvmlDeviceGetMaxClockInfo")).map(Into::into),
            throttled: self.throttled(card),
            ecc: self.modes(card, "nvmlDeviceGetEccMode").map(|[now, _]| now),
            errors: self.errors(card),
            persistent: number("nvmlDeviceGetPersistenceMode").map(|mode| mode == 1),
            compute_mode: number("nvmlDeviceGetComputeMode"),
            mig: self.modes(card, "nvmlDeviceGetMigMode"),
            bar1: self.bar1(card),
            processes: self.processes(card),
        })
    }

    fn throttled(&self, card: Handle) -> Option<u64> {
        type Call = unsafe extern "C" fn(Handle, *mut c_ulonglong) -> c_int;
        let (call, mut reasons) = (self.find::<Call>("nvmlDeviceGetCurrentClocksThrottleReasons")?, 0);
        // SAFETY: the handle is the library's, and the place outlives the call.
        (unsafe { call(card, &raw mut reasons) } == 0).then_some(reasons)
    }

    /// Whether a mode is on, and whether it will be after the next reset.
    fn modes(&self, card: Handle, name: &str) -> Option<[bool; 2]> {
        type Call = unsafe extern "C" fn(Handle, *mut c_uint, *mut c_uint) -> c_int;
        let (call, mut now, mut then) = (self.find::<Call>(name)?, 0, 0);
        // SAFETY: as above.
        (unsafe { call(card, &raw mut now, &raw mut then) } == 0).then_some([now == 1, then == 1])
    }

    fn bar1(&self, card: Handle) -> Option<[u64; 2]> {
        /// `nvmlBAR1Memory_t`: all, free and used bytes.
        type Memory = [c_ulonglong; 3];
        type Call = unsafe extern "C" fn(Handle, *mut Memory) -> c_int;
        let (call, mut bytes) = (self.find::<Call>("nvmlDeviceGetBAR1MemoryInfo")?, Memory::default());
        // SAFETY: as above.
        (unsafe { call(card, &raw mut bytes) } == 0).then_some([bytes[2], bytes[0]])
    }

    fn errors(&self, card: Handle) -> Option<u64> {
        type Call = unsafe extern "C" fn(Handle, c_int, c_int, *mut c_ulonglong) -> c_int;
        let (call, mut count) = (self.find::<Call>("nvmlDeviceGetTotalEccErrors")?, 0);
        // SAFETY: as above.
        (unsafe { call(card, UNCORRECTED.0, UNCORRECTED.1, &raw mut count) } == 0).then_some(count)
    }

    fn processes(&self, card: Handle) -> Option<Vec<u32>> {
        type Call = unsafe extern "C" fn(Handle, *mut c_uint, *mut Process) -> c_int;
        let call = self.find::<Call>("nvmlDeviceGetComputeRunningProcesses_v3")?;
        let (mut all, mut count) = ([Process::default(); PROCESSES], PROCESSES as c_uint);
        // SAFETY: the handle is the library's; there is room for as many as it is told.
        let code = unsafe { call(card, &raw mut count, all.as_mut_ptr()) };
        (code == 0).then(|| all.iter().take(count as usize).map(|process| process.pid).collect())
    }
}
