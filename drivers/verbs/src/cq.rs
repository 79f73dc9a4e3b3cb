//! Completion queues, which are polled.

use std::{fmt, ptr, ptr::NonNull, sync::Arc};

use rdma_mummy_sys::{self as sys, ibv_wc_opcode as opcode, ibv_wc_status as status};

use crate::{Context, Error};

/// A completion queue. Clones share it; queue pairs hold clones of theirs.
///
/// The code that posts work must leave room for its completions. If a queue overruns, the device fails it and all queue
/// pairs that use it ([`crate::Event::CqError`]).
#[derive(Clone)]
pub struct Cq(Arc<Queue>);

struct Queue {
    raw: NonNull<sys::ibv_cq>,
    context: Context,
}

// SAFETY: the library locks a completion queue in each call.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: its queue pairs hold clones, so none is left.
        unsafe { sys::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

impl Cq {
    /// Makes a queue for at least `depth` completions; the device may round up.
    pub fn new(context: &Context, depth: u32) -> Result<Self, Error> {
        // SAFETY: the context is open; no completion channel is wanted.
        let raw = unsafe { sys::ibv_create_cq(context.raw(), depth as i32, ptr::null_mut(), ptr::null_mut(), 0) };
        Ok(Self(Arc::new(Queue { raw: context.made("ibv_create_cq", raw)?, context: context.clone() })))
    }

    /// Number of completions that the queue can hold.
    pub fn depth(&self) -> u32 {
        // SAFETY: the queue is made.
        unsafe { (*self.raw()).cqe as u32 }
    }

    /// Takes as many completions off the queue as there are and as fit; returns their number.
    #[inline]
    pub fn poll(&self, into: &mut [Completion]) -> Result<usize, Error> {
        // SAFETY: the queue is made, and `into` is an array of the library's completions, which it overwrites.
        let polled = unsafe { sys::ibv_poll_cq(self.raw(), into.len() as i32, into.as_mut_ptr().cast()) };
        if polled < 0 {
            return Err(self.0.context.failed("ibv_poll_cq", std::io::Error::from_raw_os_error(libc::EIO)));
        }
        Ok(polled as usize)
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_cq {
        self.0.raw.as_ptr()
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cq({}, depth {})", self.0.context.name(), self.depth())
    }
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// It was flushed, because its queue pair is in the error state.
    Flushed,
    /// The peer refused the access: wrong rkey, range or rights.
    RemoteAccess,
    /// The peer could not carry it out, or refused it as malformed.
    RemoteFailed,
    /// The peer does not answer.
    Unreachable,
    /// The peer had no receive posted for too long.
    NoReceive,
    /// Our own memory, window or request was wrong.
    Local,
    /// Another error.
    Failed,
}

/// Kinds of completed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A receive that a SEND filled.
    Received,
    /// A receive that an RDMA WRITE with immediate used up; the data is in the written memory.
    Written,
    /// A SEND.
    Sent,
    /// An RDMA WRITE, with or without immediate.
    Wrote,
    /// An RDMA READ.
    Read,
    /// The binding of a window.
    Bound,
    /// The invalidation of an rkey.
    Invalidated,
    /// Another kind, and everything that failed: devices need not tell which it was.
    Other,
}

/// One completed work request.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Completion(sys::ibv_wc);

impl Default for Completion {
    fn default() -> Self {
        // SAFETY: a structure of integers.
        unsafe { std::mem::zeroed() }
    }
}

impl Completion {
    /// The number given to the work request.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Number of the queue pair.
    #[inline]
    pub fn qp_num(&self) -> u32 {
        self.0.qp_num
    }

    /// Number of the sender's queue pair; for datagrams only.
    #[inline]
    pub fn source(&self) -> u32 {
        self.0.src_qp
    }

    /// Whether and why the work failed.
    #[inline]
    pub fn outcome(&self) -> Outcome {
        match self.0.status {
            status::IBV_WC_SUCCESS => Outcome::Done,
            status::IBV_WC_WR_FLUSH_ERR => Outcome::Flushed,
            status::IBV_WC_REM_ACCESS_ERR => Outcome::RemoteAccess,
            status::IBV_WC_REM_OP_ERR | status::IBV_WC_REM_INV_REQ_ERR => Outcome::RemoteFailed,
            status::IBV_WC_RETRY_EXC_ERR | status::IBV_WC_RESP_TIMEOUT_ERR => Outcome::Unreachable,
            status::IBV_WC_RNR_RETRY_EXC_ERR => Outcome::NoReceive,
            status::IBV_WC_LOC_LEN_ERR
            | status::IBV_WC_LOC_QP_OP_ERR
            | status::IBV_WC_LOC_PROT_ERR
            | status::IBV_WC_LOC_ACCESS_ERR
            | status::IBV_WC_MW_BIND_ERR => Outcome::Local,
            _ => Outcome::Failed,
        }
    }

    /// Kind of the work. Only valid if [`Completion::outcome`] is [`Outcome::Done`].
    #[inline]
    pub fn work(&self) -> Work {
        match self.0.opcode {
            opcode::IBV_WC_RECV => Work::Received,
            opcode::IBV_WC_RECV_RDMA_WITH_IMM => Work::Written,
            opcode::IBV_WC_SEND => Work::Sent,
            opcode::IBV_WC_RDMA_WRITE => Work::Wrote,
            opcode::IBV_WC_RDMA_READ => Work::Read,
            opcode::IBV_WC_BIND_MW => Work::Bound,
            opcode::IBV_WC_LOCAL_INV => Work::Invalidated,
            _ => Work::Other,
        }
    }

    /// Bytes received, or written by the peer. For a datagram this includes the 40 bytes of its routing header.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.byte_len as usize
    }

    /// Whether no bytes were received.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.byte_len == 0
    }

    /// The immediate that the peer sent; `None` if there was none.
    #[inline]
    pub fn immediate(&self) -> Option<u32> {
        let flagged = self.0.wc_flags & sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0;
        // SAFETY: every bit pattern is an integer.
        flagged.then(|| u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data }))
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (id, work, outcome, code) = (self.id(), self.work(), self.outcome(), self.0.status);
        write!(f, "Completion({id}: {work:?} {outcome:?} ({code}) of queue pair {:#x})", self.qp_num())
    }
}
