//! Shared receive queues: one pool of receives for many queue pairs.

use std::{
    fmt, io, ptr,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
};

use rdma_mummy_sys as sys;

use crate::{
    Error, Local, MemoryId, Mr, Pd,
    work::{Receives, locate},
};

/// A shared receive queue. Clones share it; queue pairs hold clones of theirs.
///
/// A peer that sends without pause uses up the receives of all others, so ports here give each peer its own.
#[derive(Clone)]
pub struct Srq(Arc<Shared>);

struct Shared {
    raw: NonNull<sys::ibv_srq>,
    pd: Pd,
    queue: Mutex<Queue>,
}

struct Queue {
    memory: Vec<Mr>,
    receives: Box<Receives>,
}

// SAFETY: the library's calls on a shared receive queue may be made from any thread; what is queued is behind a mutex.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: its queue pairs hold clones, so none is left; its memory, a field, is freed afterwards.
        unsafe { sys::ibv_destroy_srq(self.raw.as_ptr()) };
    }
}

impl Srq {
    /// Makes a queue with room for `receives` receives.
    pub fn new(pd: &Pd, receives: u32) -> Result<Self, Error> {
        let attr = sys::ibv_srq_attr { max_wr: receives, max_sge: 1, srq_limit: 0 };
        let mut attr = sys::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: the domain is allocated, and the queue keeps it.
        let raw = pd.context().made("ibv_create_srq", unsafe { sys::ibv_create_srq(pd.raw(), &raw mut attr) })?;
        let queue = Mutex::new(Queue { memory: Vec::new(), receives: Box::new(Receives::new()) });
        Ok(Self(Arc::new(Shared { raw, pd: pd.clone(), queue })))
    }

    /// Keeps a region for as long as the queue lives, and returns its name in receives.
    pub fn keep(&self, mr: &Mr) -> Result<MemoryId, Error> {
        if !mr.pd().is(&self.0.pd) {
            return Err(Error::Misuse("a shared receive queue uses regions of its own protection domain"));
        }
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.memory.push(mr.clone());
        Ok(MemoryId::new(queue.memory.len() - 1))
    }

    /// Posts receives into the given bytes, at most [`crate::BATCH`] in one call. Returns the number posted.
    pub fn receive(&self, receives: &[(u64, Local)]) -> (usize, Result<(), Error>) {
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let Queue { memory, receives: list } = &mut *queue;
        for (id, local) in receives {
            let queued = locate(memory, *local, None).and_then(|bytes| list.push(*id, Some(bytes)));
            if let Err(e) = queued {
                list.clear();
                return (0, Err(e));
            }
        }
        let (taken, result) = list.post(|first, bad| {
            // SAFETY: a well-formed list whose bytes lie in regions that this queue keeps.
            unsafe { sys::ibv_post_srq_recv(self.raw(), first, bad) }
        });
        let error = |result: i32| {
            if result == libc::ENOMEM {
                return Error::Full;
            }
            self.0.pd.context().failed("ibv_post_srq_recv", io::Error::from_raw_os_error(result.abs()))
        };
        (taken, if result == 0 { Ok(()) } else { Err(error(result)) })
    }

    /// The domain that it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_srq {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({})", self.0.pd.context().name())
    }
}
