//! The driver's state: one GPU, one context.

use std::{
    cell::Cell,
    collections::BTreeMap,
    ffi::{c_int, c_void},
    fs::File,
    ptr,
    sync::{Mutex, PoisonError},
};

use berth_gpu::{Buffer, Device as _, GraphId, ProgramId, Soft};

use crate::module::Linker;

/// Codes, as cuda.h numbers them.
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NOT_INITIALIZED: c_int = 3;
pub(crate) const INVALID_CONTEXT: c_int = 201;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const UNKNOWN: c_int = 999;

/// A handle: a number, which no pointer is made of.
pub(crate) type Handle = *mut c_void;

pub(crate) fn handle(number: u32) -> Handle {
    ptr::without_provenance_mut(number as usize)
}

/// A function of a module, with the most dynamic shared memory that it may be launched with.
pub(crate) type Function = (ProgramId, String, c_int);

/// What was made, by its handle.
pub(crate) struct Table<T>(BTreeMap<u32, T>);

impl<T> Table<T> {
    pub(crate) fn get(&mut self, handle: Handle) -> Result<&mut T, c_int> {
        self.0.get_mut(&(handle.addr() as u32)).ok_or(INVALID_HANDLE)
    }

    pub(crate) fn take(&mut self, handle: Handle) -> Result<T, c_int> {
        self.0.remove(&(handle.addr() as u32)).ok_or(INVALID_HANDLE)
    }
}

#[derive(Default)]
pub(crate) struct Gpu {
    pub(crate) soft: Soft,
    /// Memory of the host and of the device.
    pub(crate) memory: Vec<Buffer>,
    /// Addresses of registered memory of the host, where each piece begins.
    pub(crate) registered: Vec<u64>,
    /// Bytes of its own memory that this process has.
    pub(crate) taken: usize,
    /// Memory that others map, by the handles of it; addresses and lengths that are reserved; and what is mapped there.
    pub(crate) allocations: Table<File>,
    pub(crate) reserved: Vec<(u64, usize)>,
    pub(crate) placed: Vec<(u64, usize, File)>,
    pub(crate) linkers: Table<Linker>,
    pub(crate) modules: Table<ProgramId>,
    pub(crate) functions: Table<Function>,
    pub(crate) graphs: Table<GraphId>,
    /// `Some` between the begin and the end of a capture: what was launched meanwhile.
    pub(crate) capture: Option<Vec<GraphId>>,
    pub(crate) is_running: bool,
    /// What a kernel did, which every call tells from then on.
    fatal: c_int,
    last: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl Gpu {
    /// A new handle for what is put into this table.
    pub(crate) fn add<T>(&mut self, table: impl FnOnce(&mut Self) -> &mut Table<T>, made: T) -> Handle {
        self.last += 1;
        let last = self.last;
        table(self).0.insert(last, made);
        handle(last)
    }

    /// Takes note of a kernel that has ended.
    pub(crate) fn ended(&mut self, ended: Result<(), berth_gpu::DeviceError>) -> Result<(), c_int> {
        self.is_running = false;
        ended.map_err(|e| {
            eprintln!("cuda-soft: {e}");
            self.fatal = e.code;
            e.code
        })
    }

    /// `NOT_READY` while the kernel runs; its error, where it failed.
    pub(crate) fn look(&mut self) -> Result<(), c_int> {
        match self.soft.ended() {
            Some(ended) => self.ended(ended),
            None if self.is_running => Err(NOT_READY),
            None => Ok(()),
        }
    }
}

/// `None` until it is initialised.
pub(crate) static GPU: Mutex<Option<Gpu>> = Mutex::new(None);

thread_local! {
    /// How many times the one context lies on this thread's stack of contexts.
    pub(crate) static CONTEXTS: Cell<u32> = const { Cell::new(0) };
}

/// Does what needs the driver to be initialised, and no more.
pub(crate) fn initialised(f: impl FnOnce(&mut Gpu) -> Result<(), c_int>) -> Result<(), c_int> {
    f(GPU.lock().unwrap_or_else(PoisonError::into_inner).as_mut().ok_or(NOT_INITIALIZED)?)
}

/// Calls `f`, unless the context is not this thread's (`INVALID_CONTEXT`) or a kernel has failed (its code).
pub(crate) fn within(f: impl FnOnce(&mut Gpu) -> Result<(), c_int>) -> Result<(), c_int> {
    initialised(|gpu| match (CONTEXTS.get(), gpu.fatal) {
        (0, _) => Err(INVALID_CONTEXT),
        (_, 0) => f(gpu),
        (_, fatal) => Err(fatal),
    })
}

/// As `within`, for calls in which the driver would wait for the kernel: `UNKNOWN` while one runs.
pub(crate) fn idle(f: impl FnOnce(&mut Gpu) -> Result<(), c_int>) -> Result<(), c_int> {
    within(|gpu| {
        if gpu.look() == Err(NOT_READY) {
            eprintln!("cuda-soft: a call that waits for the kernel which runs");
            return Err(UNKNOWN);
        }
        f(gpu)
    })
}

/// Writes what a caller is to get.
///
/// # Safety
/// `at` is null, or a place for it.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> Result<(), c_int> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: as the caller promises.
    unsafe { at.write(value) };
    Ok(())
}

/// Functions of the driver, each with a body that returns its error.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $ty),*) -> std::ffi::c_int {
            let call = || -> Result<(), std::ffi::c_int> { $body };
            call().err().unwrap_or(0)
        }
    )*};
}
pub(crate) use export;
