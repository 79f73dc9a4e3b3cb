//! Objects of libfabric that are closed on drop.

use std::ptr::{self, NonNull};

use berth_libfabric_sys as sys;

/// An object that libfabric opened. All kinds of them begin with a `fid`.
#[derive(Debug)]
pub(crate) struct Owned<T>(NonNull<T>);

/// # Safety
/// The structure must begin with a `fid`.
pub(crate) unsafe trait Fid {}

// SAFETY: fabric.h, fi_domain.h, fi_eq.h and fi_endpoint.h define each with `struct fid fid` first.
unsafe impl Fid for sys::fid_fabric {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_domain {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_av {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_cq {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_ep {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_mr {}

impl<T: Fid> Owned<T> {
    /// Takes the object that `open` writes to its argument.
    ///
    /// # Safety
    /// If `open` returns 0, it must have written an object that nobody else closes, and everything that the object
    /// depends on must outlive it.
    pub(crate) unsafe fn open(open: impl FnOnce(*mut *mut T) -> i32) -> Result<Self, crate::Reason> {
        let mut object = ptr::null_mut();
        crate::Reason::check(open(&raw mut object))?;
        // A provider that claims success and writes nothing has failed.
        NonNull::new(object).map(Self).ok_or(crate::Reason(libc::EIO))
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }

    pub(crate) fn fid(&self) -> *mut sys::fid {
        self.0.as_ptr().cast()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object begins with its `fid`, and only this closes it. What it depends on still lives. A provider
        // that cannot close it leaks it; there is nothing else to do.
        unsafe { sys::fi_close(self.0.as_ptr().cast()) };
    }
}
