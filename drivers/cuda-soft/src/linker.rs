//! NVIDIA's own linker, where a test wants to know what it says of what the driver is given.

use std::{
    env,
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
};

use libloading::Library;

use crate::state::Handle;

/// The variable that has all that is linked go through it, too; and its library.
const VARIABLE: &str = "CUDA_SOFT_NVJITLINK";
const LIBRARY: &str = "libnvJitLink.so.12";

/// What is linked for: Turing, Hopper, Blackwell.
const TARGETS: [&str; 3] = ["sm_75", "sm_90", "sm_100"];

/// `NVJITLINK_INPUT_PTX`
const PTX: c_int = 2;

/// Why NVIDIA's linker does not link these texts; nothing where it is not asked.
pub(crate) fn refused(texts: &[String]) -> Option<String> {
    env::var_os(VARIABLE)?;
    TARGETS.iter().find_map(|target| linked(texts, target).err().map(|why| format!("{target}: {why}")))
}

fn linked(texts: &[String], target: &str) -> Result<(), String> {
    type Create = unsafe extern "C" fn(*mut Handle, c_uint, *const *const c_char) -> c_int;
    type Add = unsafe extern "C" fn(Handle, c_int, *const c_void, usize, *const c_char) -> c_int;
    type Complete = unsafe extern "C" fn(Handle) -> c_int;
    type Size = unsafe extern "C" fn(Handle, *mut usize) -> c_int;
    type Log = unsafe extern "C" fn(Handle, *mut c_char) -> c_int;
    // SAFETY: NVIDIA's library, and its functions as nvJitLink.h of CUDA 12.0 declares them.
    let (create, add, complete, size, log_size, log) = unsafe {
        let library = Library::new(LIBRARY).map_err(|e| e.to_string())?;
        macro_rules! find {
            ($ty:ty, $name:literal) => {
                *library.get::<$ty>(concat!("__nvJitLink", $name, "_12_0\0").as_bytes()).map_err(|e| e.to_string())?
            };
        }
        let found = (
            find!(Create, "Create"),
            find!(Add, "AddData"),
            find!(Complete, "Complete"),
            find!(Size, "GetLinkedCubinSize"),
            find!(Size, "GetErrorLogSize"),
            find!(Log, "GetErrorLog"),
        );
        std::mem::forget(library);
        found
    };
    let option = format!("-arch={target}\0");
    let (mut linker, options) = (ptr::null_mut(), [option.as_ptr().cast()]);
    // SAFETY: place and options outlive the call.
    let made = unsafe { create(&raw mut linker, 1, options.as_ptr()) };
    let told = |code: c_int| {
        let mut len = 0;
        // SAFETY: the place outlives the call; there is as much room as the linker asks for.
        let text = unsafe {
            log_size(linker, &raw mut len);
            let mut text = vec![0_u8; len];
            log(linker, text.as_mut_ptr().cast());
            text
        };
        format!("{LIBRARY} fails with {code}: {}", String::from_utf8_lossy(&text))
    };
    if made != 0 {
        return Err(format!("{LIBRARY} fails with {made}"));
    }
    for text in texts {
        let text = format!("{text}\0");
        // SAFETY: a text with its end, copied by the linker.
        let code = unsafe { add(linker, PTX, text.as_ptr().cast(), text.len(), c"text".as_ptr()) };
        if code != 0 {
            return Err(told(code));
        }
    }
    let mut len = 0;
    // SAFETY: the linker has its texts; the place outlives the call.
    let code = unsafe {
        let code = complete(linker);
        if code == 0 { size(linker, &raw mut len) } else { code }
    };
    if code != 0 || len == 0 { Err(told(code)) } else { Ok(()) }
}
