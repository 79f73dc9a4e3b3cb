//! What C programs pass: pointers that are as HIP says, or null.
//!
//! Values of these types are made by callers in C alone, who promise what each says; so the functions that take them need
//! no `unsafe` of their own.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr, slice,
};

use berth_wire::hip::Code;

/// Where a result goes: null, or valid for a write of a `T`.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Refuses null, before anything is done.
    pub(crate) fn slot(self) -> Result<Slot<T>, Code> {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(Slot(self.0)) }
    }

    /// A slot where the caller wants the result.
    pub(crate) fn wanted(self) -> Option<Slot<T>> {
        self.slot().ok()
    }
}

/// A place for a result, which is not null.
#[derive(Debug)]
pub(crate) struct Slot<T>(*mut T);

impl<T> Slot<T> {
    pub(crate) fn set(self, value: T) {
        // SAFETY: the pointer is not null, so the caller promised that it is valid for this.
        unsafe { self.0.write(value) }
    }
}

/// A text that ends with a NUL, or null.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text, which the caller leaves as it is during the call.
    pub(crate) fn get<'a>(self) -> Option<&'a CStr> {
        // SAFETY: where it is not null the caller promised a NUL behind readable bytes.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) })
    }
}

/// An address: on the host, on a device, or null. What a function reads or writes there is what its caller promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Address(*mut c_void);

// SAFETY: it is a number until a call uses it, for which its caller promised that it is valid then.
unsafe impl Send for Address {}

impl Address {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// As the worker knows it, where it is of a device.
    pub(crate) fn number(self) -> u64 {
        self.0 as u64
    }

    pub(crate) fn of(pointer: *mut u8) -> Self {
        Self(pointer.cast())
    }

    pub(crate) fn pointer(self) -> *mut u8 {
        self.0.cast()
    }

    /// So many bytes behind it.
    pub(crate) fn add(self, bytes: usize) -> Self {
        Self(self.0.wrapping_byte_add(bytes))
    }

    /// The bytes of the host there, which a call reads.
    pub(crate) fn bytes<'a>(self, len: usize) -> &'a [u8] {
        if len == 0 || self.is_null() {
            return &[];
        }
        // SAFETY: the caller promised that a call that reads `len` bytes may do so.
        unsafe { slice::from_raw_parts(self.0.cast(), len) }
    }

    /// The bytes of the host there, which a call writes.
    pub(crate) fn bytes_mut<'a>(self, len: usize) -> &'a mut [u8] {
        if len == 0 || self.is_null() {
            return &mut [];
        }
        // SAFETY: the caller promised that a call that writes `len` bytes may do so, and that nobody else uses them.
        unsafe { slice::from_raw_parts_mut(self.0.cast(), len) }
    }

    /// Copies bytes of the host to here; they may overlap.
    pub(crate) fn copy_from(self, from: Self, len: usize) {
        // SAFETY: the caller promised that a call that copies `len` bytes may do so.
        unsafe { ptr::copy(from.pointer().cast_const(), self.pointer(), len) }
    }

    /// Whether these bytes stand there; reads no further than to the first that differs.
    pub(crate) fn starts_with(self, bytes: &[u8]) -> bool {
        bytes.iter().enumerate().all(|(at, byte)| self.add(at).bytes(1) == [*byte])
    }

    /// The text there.
    pub(crate) fn text<'a>(self) -> Option<&'a CStr> {
        Text(self.0.cast_const().cast()).get()
    }
}

/// An array of addresses, or null.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Addresses(*const Address);

impl Addresses {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The one with this index, of which the caller promised that there is one.
    pub(crate) fn get(self, index: usize) -> Address {
        // SAFETY: as the caller promised.
        unsafe { self.0.add(index).read() }
    }
}

/// `dim3`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Dim3 {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl From<Dim3> for [u32; 3] {
    fn from(dim: Dim3) -> Self {
        [dim.x, dim.y, dim.z]
    }
}
