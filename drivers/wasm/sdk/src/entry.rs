//! What the node calls.

use alloc::vec::Vec;

use crate::{Error, Input};

/// The high word of a run that failed by itself.
const FAILED: u64 = u32::MAX as u64;

/// Room for `len` bytes, which is never given back.
pub fn room(len: i32) -> i32 {
    let mut room = Vec::<u8>::with_capacity(len as u32 as usize);
    let at = room.as_mut_ptr();
    core::mem::forget(room);
    at as i32
}

/// Runs a tasklet on the input that the node wrote into its [`room`].
pub fn run(at: i32, len: i32, run: impl FnOnce(Input<'_>) -> Result<Vec<u8>, Error>) -> i64 {
    match Input::new(bytes(at, len)).and_then(run) {
        Ok(output) => {
            let returned = returned(output.as_ptr() as u32, output.len());
            core::mem::forget(output);
            returned
        }
        Err(error) => failed(error),
    }
}

/// Answers a message of a ring kernel.
pub fn answer(
    at: i32,
    len: i32,
    out: &mut [u8],
    answer: impl FnOnce(&[u8], &mut [u8]) -> Result<usize, Error>,
) -> i64 {
    match answer(bytes(at, len), out) {
        Ok(len) => returned(out.as_ptr() as u32, len),
        Err(error) => failed(error),
    }
}

fn bytes<'a>(at: i32, len: i32) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the node wrote that many bytes into room that it was given, and calls nothing meanwhile.
    unsafe { core::slice::from_raw_parts(at as u32 as *const u8, len as u32 as usize) }
}

fn returned(at: u32, len: usize) -> i64 {
    (u64::from(at) << 32 | len as u64) as i64
}

fn failed(error: Error) -> i64 {
    (FAILED << 32 | u64::from(error.0 as u32)) as i64
}

/// What lives on in a guest of one thread.
pub struct Single<T>(core::cell::UnsafeCell<T>);

// SAFETY: a guest has one thread.
unsafe impl<T> Sync for Single<T> {}

impl<T> Single<T> {
    /// It, with this value.
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// The value.
    ///
    /// # Safety
    /// No other borrow of it is there.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller's.
        unsafe { &mut *self.0.get() }
    }
}

/// Makes a `fn(Input<'_>) -> Result<Vec<u8>, Error>` the tasklet of this module.
#[macro_export]
macro_rules! tasklet {
    ($run:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn tasklet_alloc(len: i32) -> i32 {
            $crate::entry::room(len)
        }
        #[unsafe(no_mangle)]
        extern "C" fn tasklet_run(at: i32, len: i32) -> i64 {
            $crate::entry::run(at, len, $run)
        }
    };
}

/// Makes a `fn(&mut State, &[u8], &mut [u8]) -> Result<usize, Error>` the ring kernel of this module: the state's type, its first value, the
/// function, the bytes of an answer at most. It writes its answer and returns how long it is.
#[macro_export]
macro_rules! ring_kernel {
    ($state:ty, $first:expr, $answer:path, $most:expr) => {
        static STATE: $crate::entry::Single<($state, [u8; $most])> = $crate::entry::Single::new(($first, [0; $most]));
        #[unsafe(no_mangle)]
        extern "C" fn ring_kernel_alloc(len: i32) -> i32 {
            $crate::entry::room(len)
        }
        #[unsafe(no_mangle)]
        extern "C" fn ring_kernel_run(at: i32, len: i32) -> i64 {
            // SAFETY: the node calls this again when it has returned, and nothing else borrows it.
            let (state, out) = unsafe { STATE.get() };
            $crate::entry::answer(at, len, out, |message, out| $answer(state, message, out))
        }
    };
}
