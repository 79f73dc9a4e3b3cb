//! Errors: the thread's last one, and what codes are called.

use std::{
    collections::BTreeMap,
    ffi::{CString, c_char},
    sync::{Mutex, PoisonError},
};

use berth_wire::hip::Code;

use crate::{args::Out, library::LAST};

#[unsafe(no_mangle)]
extern "C" fn hipGetLastError() -> i32 {
    LAST.replace(Code::SUCCESS).0
}

/// The same; it is the library's own calls that are told here, as everywhere.
#[unsafe(no_mangle)]
extern "C" fn hipExtGetLastError() -> i32 {
    hipGetLastError()
}

#[unsafe(no_mangle)]
extern "C" fn hipPeekAtLastError() -> i32 {
    LAST.get().0
}

/// Texts that C was given, which stay where they are.
fn text(text: &'static str) -> *const c_char {
    static TEXTS: Mutex<BTreeMap<&'static str, CString>> = Mutex::new(BTreeMap::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts.entry(text).or_insert_with(|| CString::new(text).unwrap_or_default()).as_ptr()
}

fn name(code: i32) -> *const c_char {
    text(Code(code).describe().map_or("hipErrorUnknown", |(name, _)| name))
}

fn meaning(code: i32) -> *const c_char {
    text(Code(code).describe().map_or("unknown error", |(_, meaning)| meaning))
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorName(code: i32) -> *const c_char {
    name(code)
}

#[unsafe(no_mangle)]
extern "C" fn hipGetErrorString(code: i32) -> *const c_char {
    meaning(code)
}

#[unsafe(no_mangle)]
extern "C" fn hipDrvGetErrorName(code: i32, to: Out<*const c_char>) -> i32 {
    describe(code, to, name)
}

#[unsafe(no_mangle)]
extern "C" fn hipDrvGetErrorString(code: i32, to: Out<*const c_char>) -> i32 {
    describe(code, to, meaning)
}

fn describe(code: i32, to: Out<*const c_char>, what: fn(i32) -> *const c_char) -> i32 {
    match to.slot() {
        Ok(slot) if Code(code).describe().is_some() => {
            slot.set(what(code));
            0
        }
        _ => Code::INVALID_VALUE.0,
    }
}
