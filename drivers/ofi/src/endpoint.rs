//! A reliable datagram endpoint with all the objects that it depends on.

use std::{
    ffi::c_void,
    mem::{MaybeUninit, zeroed},
    ptr::{self, NonNull},
};

use berth_libfabric_sys as sys;
use berth_port::BURST;

use crate::{
    Error, Reason,
    address::MAX_ADDRESS,
    buffers::{Arena, Buffer, Operation},
    info::{Info, Place},
    owned::Owned,
};

/// `FI_ADDR_NOTAVAIL` and `FI_ADDR_UNSPEC`, whose casts bindgen does not evaluate.
const NO_ADDR: sys::fi_addr_t = sys::fi_addr_t::MAX;

/// An index into the address vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FiAddr(sys::fi_addr_t);

impl FiAddr {
    /// Index as a number; `None` for a source that is not in the table.
    #[inline]
    pub(crate) fn index(self) -> Option<usize> {
        (self.0 != NO_ADDR).then_some(self.0 as usize)
    }
}

/// How an operation ended.
#[derive(Debug)]
pub(crate) enum Completion {
    /// A message of `len` bytes is at the front of the buffer. Its sender is `peer` if the receive was posted for one
    /// peer, otherwise the peer at the entry `from`.
    Received { buffer: Buffer, len: usize, peer: Option<u32>, from: FiAddr },
    /// A message to this peer was sent, or failed for good; its buffer is free.
    Sent { buffer: Buffer, peer: u32, failed: bool },
    /// A receive failed: the message was longer than the buffer, it was cancelled, or for another reason.
    ReceiveFailed { buffer: Buffer, peer: Option<u32>, reason: Reason },
    /// An operation failed, and the provider does not tell which.
    Lost,
}

/// The endpoint. Its owner's thread uses it alone: the provider takes no locks and has no threads.
///
/// Fields are closed in their order, each before what it depends on.
#[derive(Debug)]
pub(crate) struct Endpoint {
    ep: Owned<sys::fid_ep>,
    _mr: Option<Owned<sys::fid_mr>>,
    cq: Owned<sys::fid_cq>,
    av: Owned<sys::fid_av>,
    _domain: Owned<sys::fid_domain>,
    _fabric: Owned<sys::fid_fabric>,
    arena: Arena,
    info: Info,
    descriptor: *mut c_void,
}

// SAFETY: FI_THREAD_DOMAIN: the objects may be used from any thread, by one at a time, which owning them ensures.
unsafe impl Send for Endpoint {}

/// Sizes of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Longest message in either direction, in bytes.
    pub(crate) frame: usize,
    /// Limit on posted receives.
    pub(crate) receives: usize,
    /// Number of buffers for sends.
    pub(crate) sends: usize,
    /// Number of entries in the address vector.
    pub(crate) peers: usize,
}

impl Endpoint {
    /// Opens an endpoint. Returns it with its buffers, and the number of receives that may be posted.
    pub(crate) fn open(place: &Place, size: Size) -> Result<(Self, Vec<Buffer>, usize), Error> {
        let info = Info::find(place)?;
        if place.bind.is_some() && info.addr_format() == sys::FI_ADDR_STR {
            return Err(Error::NoBind(info.provider()));
        }
        let failed = |call| move |reason| Error::Call { call, place: place.to_string(), reason };
        // SAFETY: the info outlives the call, and the fabric depends on nothing.
        let fabric = unsafe { Owned::open(|to| sys::fi_fabric(info.fabric_attr(), to, ptr::null_mut())) };
        let fabric: Owned<sys::fid_fabric> = fabric.map_err(failed("fi_fabric"))?;
        // SAFETY: the fabric is closed after the domain.
        let domain = unsafe { Owned::open(|to| sys::fi_domain(fabric.as_ptr(), info.as_ptr(), to, ptr::null_mut())) };
        let domain: Owned<sys::fid_domain> = domain.map_err(failed("fi_domain"))?;
        let mut av_attr = sys::fi_av_attr { type_: sys::FI_AV_TABLE, count: size.peers, ..Default::default() };
        // SAFETY: the domain is closed after the address vector.
        let av = unsafe { Owned::open(|to| sys::fi_av_open(domain.as_ptr(), &raw mut av_attr, to, ptr::null_mut())) };
        let av: Owned<sys::fid_av> = av.map_err(failed("fi_av_open"))?;
        if av_attr.type_ != sys::FI_AV_TABLE {
            return Err(Error::NoTable(info.provider()));
        }
        let [receives, sends] = info.depths();
        let receives = receives.min(size.receives);
        let mut cq_attr = sys::fi_cq_attr {
            size: receives + sends,
            format: sys::FI_CQ_FORMAT_MSG,
            wait_obj: sys::FI_WAIT_NONE,
            ..Default::default()
        };
        // SAFETY: the domain is closed after the completion queue.
        let cq = unsafe { Owned::open(|to| sys::fi_cq_open(domain.as_ptr(), &raw mut cq_attr, to, ptr::null_mut())) };
        let cq: Owned<sys::fid_cq> = cq.map_err(failed("fi_cq_open"))?;
        // SAFETY: the domain is closed after the endpoint, and so are the queue and the vector that it is bound to.
        let ep = unsafe { Owned::open(|to| sys::fi_endpoint(domain.as_ptr(), info.as_ptr(), to, ptr::null_mut())) };
        let ep: Owned<sys::fid_ep> = ep.map_err(failed("fi_endpoint"))?;
        let both = u64::from(sys::FI_TRANSMIT) | u64::from(sys::FI_RECV);
        // SAFETY: all three are open.
        unsafe {
            Reason::check(sys::fi_ep_bind(ep.as_ptr(), av.fid(), 0)).map_err(failed("fi_ep_bind"))?;
            Reason::check(sys::fi_ep_bind(ep.as_ptr(), cq.fid(), both)).map_err(failed("fi_ep_bind"))?;
        }
        // With a byte to tell a message that is too long by: ofi_rxd cuts it and says nothing.
        let (arena, buffers) = Arena::new(receives + size.sends, size.frame + 1);
        let (mr, descriptor) = if info.registers_buffers() {
            let (memory, len) = arena.memory();
            // SAFETY: the memory is freed after the registration, and the domain closed after it.
            let mr = unsafe {
                let register = |to| sys::fi_mr_reg(domain.as_ptr(), memory, len, both, 0, 0, 0, to, ptr::null_mut());
                Owned::open(register)
            };
            let mr: Owned<sys::fid_mr> = mr.map_err(failed("fi_mr_reg"))?;
            // SAFETY: the registration is open.
            let descriptor = unsafe { sys::fi_mr_desc(mr.as_ptr()) };
            (Some(mr), descriptor)
        } else {
            (None, ptr::null_mut())
        };
        // SAFETY: the endpoint is bound to all that it needs.
        Reason::check(unsafe { sys::fi_enable(ep.as_ptr()) }).map_err(failed("fi_enable"))?;
        let endpoint = Self { ep, _mr: mr, cq, av, _domain: domain, _fabric: fabric, arena, info, descriptor };
        Ok((endpoint, buffers, receives))
    }

    /// The provider's offer that the endpoint was opened with.
    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    /// The endpoint's own address, for peers to insert.
    pub(crate) fn name(&self) -> Result<Vec<u8>, Reason> {
        let mut name = vec![0; MAX_ADDRESS];
        let mut len = name.len();
        // SAFETY: the buffer is that long.
        let named = unsafe { sys::fi_getname(self.ep.fid(), name.as_mut_ptr().cast(), &raw mut len) };
        Reason::check(named)?;
        name.truncate(len);
        Ok(name)
    }

    /// Adds a peer. The address must be valid for this endpoint's format, and padded with zeros.
    pub(crate) fn insert(&mut self, address: &[u8; MAX_ADDRESS]) -> Result<FiAddr, Reason> {
        let mut entry = NO_ADDR;
        // SAFETY: no address format reads beyond MAX_ADDRESS, and texts end before it.
        let inserted = unsafe {
            sys::fi_av_insert(self.av.as_ptr(), address.as_ptr().cast(), 1, &raw mut entry, 0, ptr::null_mut())
        };
        match Reason::check(inserted)? {
            1 if entry != NO_ADDR => Ok(FiAddr(entry)),
            _ => Err(Reason(libc::EINVAL)),
        }
    }

    /// Removes a peer. Providers end its pending operations in their own time.
    pub(crate) fn remove(&mut self, peer: FiAddr) -> Result<(), Reason> {
        let mut entry = peer.0;
        // SAFETY: the entry was inserted before.
        Reason::check(unsafe { sys::fi_av_remove(self.av.as_ptr(), &raw mut entry, 1, 0) }).map(drop)
    }

    /// Posts a receive, from a single peer if `from` gives its number and entry. Returns the buffer if the provider
    /// takes no more.
    #[inline]
    pub(crate) fn receive(&mut self, mut buffer: Buffer, from: Option<(u32, FiAddr)>) -> Result<(), Buffer> {
        let (data, len) = (buffer.data(), buffer.bytes().len());
        let entry = from.map_or(NO_ADDR, |(_, entry)| entry.0);
        let context = buffer.into_context(Operation::Receive(from.map(|(peer, _)| peer)));
        // SAFETY: the buffer is the provider's until its completion names it; the arena outlives the endpoint.
        let posted = unsafe { sys::fi_recv(self.ep.as_ptr(), data, len, self.descriptor, entry, context) };
        check(posted, context).map_err(|(buffer, _)| buffer)
    }

    /// Cancels the receives that were posted for one peer; they complete as failed.
    pub(crate) fn cancel_receives(&mut self, peer: u32) {
        for context in self.arena.contexts(Operation::Receive(Some(peer))) {
            // SAFETY: the context of an operation that has not been reported yet. Where it cannot be cancelled any more, it is
            // about to be.
            unsafe { sys::fi_cancel(self.ep.fid(), context) };
        }
    }

    /// Sends the first `len` bytes of a buffer to the peer with number `peer` and entry `to`. Returns the buffer with
    /// the reason if the provider refuses it.
    #[inline]
    pub(crate) fn send(&mut self, buffer: Buffer, len: usize, peer: u32, to: FiAddr) -> Result<(), (Buffer, Reason)> {
        let data = buffer.data();
        let context = buffer.into_context(Operation::Send(peer));
        // SAFETY: as for `receive`.
        let sent = unsafe { sys::fi_send(self.ep.as_ptr(), data, len, self.descriptor, to.0, context) };
        check(sent, context)
    }

    /// Sends a copy of `bytes`, at most [`Info::inject_size`] long. It has no completion.
    #[inline]
    pub(crate) fn inject(&mut self, bytes: &[u8], to: FiAddr) -> Result<(), Reason> {
        // SAFETY: the bytes are copied before the call returns.
        let sent = unsafe { sys::fi_inject(self.ep.as_ptr(), bytes.as_ptr().cast(), bytes.len(), to.0) };
        Reason::check(sent as i64).map(drop)
    }

    /// Makes the provider progress, and reports completed operations, at most [`BURST`]. `each` may start new ones.
    ///
    /// # Errors
    /// The completion queue itself failed.
    #[inline]
    pub(crate) fn poll(&mut self, mut each: impl FnMut(&mut Self, Completion)) -> Result<(), Reason> {
        let mut entries = [const { MaybeUninit::<sys::fi_cq_msg_entry>::uninit() }; BURST];
        let mut sources = [NO_ADDR; BURST];
        // SAFETY: both arrays have room for BURST entries of the queue's format.
        let read =
            unsafe { sys::fi_cq_readfrom(self.cq.as_ptr(), entries.as_mut_ptr().cast(), BURST, sources.as_mut_ptr()) };
        if read < 0 {
            return match -read as u32 {
                sys::FI_EAGAIN => Ok(()),
                sys::FI_EAVAIL => {
                    let failed = self.read_error()?;
                    each(self, failed);
                    Ok(())
                }
                reason => Err(Reason(reason as i32)),
            };
        }
        for (entry, source) in entries.iter().zip(sources).take(read as usize) {
            // SAFETY: that many entries were written.
            let entry = unsafe { entry.assume_init_ref() };
            let Some(context) = NonNull::new(entry.op_context) else {
                each(self, Completion::Lost);
                continue;
            };
            // SAFETY: the operation has ended, and its context is a buffer's.
            let completion = match unsafe { Buffer::from_context(context) } {
                (buffer, Operation::Receive(peer)) => {
                    Completion::Received { buffer, len: entry.len, peer, from: FiAddr(source) }
                }
                (buffer, Operation::Send(peer)) => Completion::Sent { buffer, peer, failed: false },
                (_, Operation::None) => Completion::Lost,
            };
            each(self, completion);
        }
        Ok(())
    }

    #[cold]
    fn read_error(&mut self) -> Result<Completion, Reason> {
        // SAFETY: an all-zero entry asks for no further data.
        let mut entry: sys::fi_cq_err_entry = unsafe { zeroed() };
        // SAFETY: the queue is open.
        let read = unsafe { sys::fi_cq_readerr(self.cq.as_ptr(), &raw mut entry, 0) };
        if read != 1 {
            return Reason::check(read as i64).map(|_| Completion::Lost);
        }
        let Some(context) = NonNull::new(entry.op_context) else { return Ok(Completion::Lost) };
        // Positive by the book; shm has it negative.
        let reason = Reason(entry.err.abs());
        // SAFETY: the operation has ended, and its context is a buffer's.
        Ok(match unsafe { Buffer::from_context(context) } {
            (buffer, Operation::Receive(peer)) => Completion::ReceiveFailed { buffer, peer, reason },
            (buffer, Operation::Send(peer)) => Completion::Sent { buffer, peer, failed: true },
            (_, Operation::None) => Completion::Lost,
        })
    }
}

/// Recovers the buffer of an operation that was not started.
#[inline]
fn check(result: isize, context: *mut c_void) -> Result<(), (Buffer, Reason)> {
    Reason::check(result as i64).map(drop).map_err(|reason| {
        // SAFETY: the context is a buffer's, and the provider did not keep it.
        let (buffer, _) = unsafe { Buffer::from_context(NonNull::new_unchecked(context)) };
        (buffer, reason)
    })
}
