//! Protection domains, memory regions and memory windows.

use std::{
    fmt,
    ops::BitOr,
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use berth_memory::Part;
use rdma_mummy_sys as sys;

use crate::{Context, Error};

/// Accesses allowed to registered memory or through a queue pair. Local reads are always allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access(pub(crate) u32);

impl Access {
    /// Only local reads, for data to be sent.
    pub const LOCAL_READ: Self = Self(0);
    /// Local writes, for memory to receive into.
    pub const LOCAL_WRITE: Self = Self(sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0);
    /// RDMA READs by the peer.
    pub const REMOTE_READ: Self = Self(sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0);
    /// RDMA WRITEs by the peer. Memory regions must allow local writes, too.
    pub const REMOTE_WRITE: Self = Self(sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0);
    /// Atomics by the peer.
    pub const REMOTE_ATOMIC: Self = Self(sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0);
    /// Binding of windows to the region.
    pub const BIND: Self = Self(sys::ibv_access_flags::IBV_ACCESS_MW_BIND.0);
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How DMA buffers are refused for good: by the library, which has no such call for the device (ENOSYS), and by the kernel.
const NO_DMABUFS: [i32; 4] = [libc::ENOSYS, libc::EOPNOTSUPP, libc::EINVAL, libc::EFAULT];

/// A protection domain. Queue pairs reach only memory of their own domain.
#[derive(Clone)]
pub struct Pd(Arc<Domain>);

struct Domain {
    raw: NonNull<sys::ibv_pd>,
    context: Context,
}

// SAFETY: the library's calls on a protection domain may be made from any thread at any time.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything allocated in the domain holds a clone of it, so nothing is left.
        unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// Allocates a domain on the device.
    pub fn new(context: &Context) -> Result<Self, Error> {
        // SAFETY: the context is open.
        let raw = context.made("ibv_alloc_pd", unsafe { sys::ibv_alloc_pd(context.raw()) })?;
        Ok(Self(Arc::new(Domain { raw, context: context.clone() })))
    }

    /// The device that the domain was made on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Registers `memory`, which the region keeps. From then on the device, and peers through it, may access it at any
    /// time. Peers address its first byte as `iova`, which is to be as far into a page as the memory is, or, if that is
    /// `None`, by its address in this process.
    pub fn register(&self, memory: impl Into<Part>, access: Access, iova: Option<u64>) -> Result<Mr, Error> {
        let memory = memory.into();
        let (base, len) = (memory.base(), memory.size());
        let iova = iova.unwrap_or(base.addr().get() as u64);
        // SAFETY: the bytes are mapped, and the region keeps their owner until it is deregistered.
        let raw = unsafe { sys::ibv_reg_mr_iova2(self.raw(), base.as_ptr().cast(), len, iova, access.0) };
        let raw = self.context().made("ibv_reg_mr", raw)?;
        Ok(Mr::new(raw, self, Backing::Memory(memory), iova, len))
    }

    /// Registers `len` bytes from `offset` on of a DMA buffer, such as a GPU's memory, which the kernel keeps. The
    /// processor cannot access it through the region. `iova` is to be as far into a page as `offset` is.
    ///
    /// # Errors
    /// [`Error::NoDmaBufs`] where another buffer, device or driver is needed.
    pub fn register_dmabuf(
        &self,
        buffer: OwnedFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Mr, Error> {
        // SAFETY: the descriptor is open, and the region keeps it.
        let raw = unsafe { sys::ibv_reg_dmabuf_mr(self.raw(), offset, len, iova, buffer.as_raw_fd(), access.0 as i32) };
        let raw = self.context().made("ibv_reg_dmabuf_mr", raw).map_err(|failed| match failed {
            Error::Failed { device, error, .. } if error.raw_os_error().is_some_and(|no| NO_DMABUFS.contains(&no)) => {
                Error::NoDmaBufs { device, error }
            }
            failed => failed,
        })?;
        Ok(Mr::new(raw, self, Backing::Dmabuf { _buffer: buffer }, iova, len))
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_pd {
        self.0.raw.as_ptr()
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({})", self.context().name())
    }
}

/// A memory region. Clones share the registration. It ends, and frees what it keeps, when the last clone is dropped;
/// queue pairs and bound windows hold clones of the regions that they use.
#[derive(Clone)]
pub struct Mr(Arc<Registration>);

struct Registration {
    raw: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    iova: u64,
    len: usize,
    pd: Pd,
    gone: bool,
    backing: Backing,
}

enum Backing {
    Memory(Part),
    Dmabuf { _buffer: OwnedFd },
}

// SAFETY: the library's calls on a region may be made from any thread, and so may its memory be used.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

impl Drop for Registration {
    fn drop(&mut self) {
        if !self.gone {
            // SAFETY: deregistered once, before its memory is freed: `drop` runs before the fields are dropped. No work
            // request or window that names it is left, for each holds a clone.
            unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) };
        }
    }
}

impl Mr {
    /// Ends the registration, like dropping the last clone, and reports failure. On success the device refuses its
    /// keys. After a failure it can be tried again.
    pub fn deregister(self) -> Result<(), (Self, Error)> {
        let pd = self.0.pd.clone();
        let mut registration = match Arc::try_unwrap(self.0) {
            Ok(registration) => registration,
            Err(shared) => return Err((Self(shared), Error::Misuse("a queue pair or window keeps the region"))),
        };
        // SAFETY: a region that was not deregistered; where it is now, `drop` does nothing.
        let result = unsafe { sys::ibv_dereg_mr(registration.raw.as_ptr()) };
        match pd.context().check("ibv_dereg_mr", result) {
            Ok(()) => {
                registration.gone = true;
                Ok(())
            }
            Err(error) => Err((Self(Arc::new(registration)), error)),
        }
    }

    fn new(raw: NonNull<sys::ibv_mr>, pd: &Pd, backing: Backing, iova: u64, len: usize) -> Self {
        // SAFETY: the library fills the keys of a region it made.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        Self(Arc::new(Registration { raw, lkey, rkey, iova, len, pd: pd.clone(), gone: false, backing }))
    }

    /// The key by which peers name it.
    pub fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// The address by which peers name its first byte.
    pub fn iova(&self) -> u64 {
        self.0.iova
    }

    /// Size in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nobody registers nothing")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// The domain that it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Address of the first byte for the processor; `None` for a DMA buffer. Work requests and peers may write the
    /// bytes at any time: before making references to them, be sure that none does.
    pub fn base(&self) -> Option<NonNull<u8>> {
        match &self.0.backing {
            Backing::Memory(memory) => Some(memory.base()),
            Backing::Dmabuf { .. } => None,
        }
    }

    /// Fills `into` with the bytes from offset `at` on. A byte that is written meanwhile is copied as old or new.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.range(at, into.len())?;
        // SAFETY: the range is within the registration, and `into` is not: it is a reference, which nobody makes of
        // registered memory.
        unsafe { from.as_ptr().copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies `from` to the bytes from offset `at` on.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.range(at, from.len())?;
        // SAFETY: as in `read`.
        unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn range(&self, at: usize, len: usize) -> Result<NonNull<u8>, Error> {
        self.check(at, len)?;
        let base = self.base().ok_or(Error::Misuse("the processor does not reach a DMA buffer"))?;
        // SAFETY: within the registration.
        Ok(unsafe { base.add(at) })
    }

    pub(crate) fn check(&self, at: usize, len: usize) -> Result<(), Error> {
        if at.checked_add(len).is_some_and(|end| end <= self.0.len) {
            Ok(())
        } else {
            Err(Error::Range { at, len, registered: self.0.len })
        }
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.0.lkey
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_mr {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mr({} bytes at {:#x})", self.0.len, self.0.iova)
    }
}

/// A memory window of type 2: a range of a region with an rkey of its own. A work request of a queue pair binds it
/// ([`crate::Qp::bind`]), it serves only the peer of that queue pair, and another work request ends it
/// ([`crate::Op::Invalidate`]).
///
/// Dropping it ends it too, by a call of the kernel.
pub struct Mw {
    raw: NonNull<sys::ibv_mw>,
    pub(crate) pd: Pd,
    /// The region that it is, or may still be, bound to.
    pub(crate) bound: Option<Mr>,
    gone: bool,
}

// SAFETY: the library's calls on a window may be made from any thread, by one at a time.
unsafe impl Send for Mw {}

impl Mw {
    /// Allocates an unbound window.
    pub fn new(pd: &Pd) -> Result<Self, Error> {
        // SAFETY: the domain is allocated.
        let raw = unsafe { sys::ibv_alloc_mw(pd.raw(), sys::ibv_mw_type::IBV_MW_TYPE_2) };
        let raw = pd.context().made("ibv_alloc_mw", raw)?;
        Ok(Self { raw, pd: pd.clone(), bound: None, gone: false })
    }

    /// Deallocates the window, like dropping it, and reports failure. After a failure it can be tried again.
    pub fn dealloc(mut self) -> Result<(), (Self, Error)> {
        // SAFETY: a window that was not deallocated; where it is now, `drop` does nothing.
        let result = unsafe { sys::ibv_dealloc_mw(self.raw.as_ptr()) };
        match self.pd.context().check("ibv_dealloc_mw", result) {
            Ok(()) => {
                self.gone = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    /// The rkey, as the allocation or the last bind set it.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is allocated.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    pub(crate) fn set_rkey(&mut self, rkey: u32) {
        // SAFETY: as above; the library keeps the number for its user, who chooses its low byte.
        unsafe { (*self.raw.as_ptr()).rkey = rkey };
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_mw {
        self.raw.as_ptr()
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        if !self.gone {
            // SAFETY: deallocated once, before the region and the domain, which are fields.
            unsafe { sys::ibv_dealloc_mw(self.raw.as_ptr()) };
        }
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mw({:?})", self.bound)
    }
}
