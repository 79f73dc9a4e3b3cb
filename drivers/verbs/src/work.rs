//! Work requests, and how they are posted.

use std::{io, mem::zeroed, ptr};

use rdma_mummy_sys as sys;

use crate::{Access, Error, Mr, Mw, Qp};

/// Limit on the work requests that one ring of the doorbell posts.
pub const BATCH: usize = 32;

/// Names a region that a queue pair keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryId(u32);

/// Names a datagram peer that a queue pair keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressId(u32);

/// A range of bytes in a kept region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The region's name in this queue pair.
    pub memory: MemoryId,
    /// Offset of the first byte in the region.
    pub at: usize,
    /// Number of bytes.
    pub len: usize,
}

/// A range of the peer's memory; its length is that of the local bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteBytes {
    /// Address of the first byte, as the peer announced it.
    pub addr: u64,
    /// Remote key of the memory.
    pub rkey: u32,
}

/// The operation of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Sends to a posted receive.
    Send,
    /// Sends to a posted receive with this immediate.
    SendImm(u32),
    /// Writes into the peer's memory, unnoticed by the peer.
    Write(RemoteBytes),
    /// Writes, and uses up a receive of the peer to deliver this immediate.
    WriteImm(RemoteBytes, u32),
    /// Reads from the peer's memory into ours.
    Read(RemoteBytes),
    /// Ends the window or region with this rkey, which is refused from then on.
    Invalidate(u32),
    /// Sends to a datagram peer: its queue pair's number and queue key follow.
    Datagram(AddressId, u32, u32),
}

/// Options of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// Makes it complete. Without, it is known to be over when a later signalled send of the queue pair is.
    pub signalled: bool,
    /// Copies the bytes into the work request, so that they may be changed at once.
    pub inline: bool,
    /// Makes it wait for earlier READs.
    pub fence: bool,
}

pub(crate) struct Sends {
    requests: [sys::ibv_send_wr; BATCH],
    bytes: [sys::ibv_sge; BATCH],
    queued: usize,
}

pub(crate) struct Receives {
    requests: [sys::ibv_recv_wr; BATCH],
    bytes: [sys::ibv_sge; BATCH],
    queued: usize,
}

impl Qp {
    /// Queues a send, to be posted by [`Qp::ring`]. [`Error::Full`] if [`BATCH`] are queued.
    #[inline]
    pub fn send(&mut self, id: u64, op: Op, bytes: Option<Local>, flags: Flags) -> Result<(), Error> {
        let mut request = self.request(id, op, flags)?;
        if let Some(local) = bytes {
            let inline = flags.inline.then_some(self.inline as usize);
            let bytes = locate(&self.memory, local, inline)?;
            request.num_sge = 1;
            self.sends.bytes[self.sends.queued] = bytes;
        }
        self.push(request);
        Ok(())
    }

    /// Posts the binding of a window to bytes of a kept region, behind everything queued. Returns the rkey by which the
    /// peer of this queue pair names it once the work has completed; `key` is its low byte.
    ///
    /// The region's access must allow [`Access::BIND`] and everything in `access`.
    pub fn bind(
        &mut self,
        id: u64,
        window: &mut Mw,
        bytes: Local,
        access: Access,
        key: u8,
        flags: Flags,
    ) -> Result<u32, Error> {
        let mr = self.memory.get(bytes.memory.0 as usize).ok_or(FOREIGN)?.clone();
        mr.check(bytes.at, bytes.len)?;
        if !window.pd.is(&self.pd) {
            return Err(Error::Misuse("a window is bound by a queue pair of its own protection domain"));
        }
        let rkey = window.rkey() & !0xFF | u32::from(key);
        let mut request = self.request(id, Op::Send, flags)?;
        request.opcode = sys::ibv_wr_opcode::IBV_WR_BIND_MW;
        request.bind_mw_tso_union.bind_mw = sys::bind_mw_t {
            mw: window.raw(),
            rkey,
            bind_info: sys::ibv_mw_bind_info {
                mr: mr.raw(),
                addr: mr.iova() + bytes.at as u64,
                length: bytes.len as u64,
                mw_access_flags: access.0,
            },
        };
        // Before the device can know of it; should it refuse, the region is only kept for longer.
        let before = window.bound.replace(mr);
        self.push(request);
        self.ring().1.inspect_err(|_| window.bound = before)?;
        // Drivers name the window to the device by the key it had, so it changes only now.
        window.set_rkey(rkey);
        Ok(rkey)
    }

    /// A send that is complete except for its bytes.
    #[inline]
    fn request(&self, id: u64, op: Op, flags: Flags) -> Result<sys::ibv_send_wr, Error> {
        use sys::ibv_send_flags as flag;
        if !self.state.takes_sends() {
            return Err(Error::NotReady(self.state));
        }
        if self.sends.queued == BATCH {
            return Err(Error::Full);
        }
        // SAFETY: zeroes are a valid value of this structure.
        let mut request: sys::ibv_send_wr = unsafe { zeroed() };
        request.wr_id = id;
        let set = |on: bool, bit: flag| if on { bit.0 } else { 0 };
        request.send_flags = set(flags.signalled, flag::IBV_SEND_SIGNALED)
            | set(flags.inline, flag::IBV_SEND_INLINE)
            | set(flags.fence, flag::IBV_SEND_FENCE);
        let to = |remote: RemoteBytes| sys::rdma_t { remote_addr: remote.addr, rkey: remote.rkey };
        let union = &mut request.imm_data_invalidated_rkey_union;
        request.opcode = match op {
            Op::Send => sys::ibv_wr_opcode::IBV_WR_SEND,
            Op::SendImm(immediate) => {
                union.imm_data = immediate.to_be();
                sys::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM
            }
            Op::Write(remote) => {
                request.wr.rdma = to(remote);
                sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE
            }
            Op::WriteImm(remote, immediate) => {
                request.wr.rdma = to(remote);
                union.imm_data = immediate.to_be();
                sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Op::Read(remote) => {
                request.wr.rdma = to(remote);
                sys::ibv_wr_opcode::IBV_WR_RDMA_READ
            }
            Op::Invalidate(rkey) => {
                union.invalidated_rkey = rkey;
                sys::ibv_wr_opcode::IBV_WR_LOCAL_INV
            }
            Op::Datagram(address, qp_num, qkey) => {
                let address = self.addresses.get(address.0 as usize).ok_or(FOREIGN)?;
                request.wr.ud = sys::ud_t { ah: address.0.as_ptr(), remote_qpn: qp_num, remote_qkey: qkey };
                sys::ibv_wr_opcode::IBV_WR_SEND
            }
        };
        Ok(request)
    }

    #[inline]
    fn push(&mut self, request: sys::ibv_send_wr) {
        self.sends.requests[self.sends.queued] = request;
        self.sends.queued += 1;
    }

    /// Posts what [`Qp::send`] queued, in one call. Returns the number that the device took; the others are dropped and
    /// will not complete.
    #[inline]
    pub fn ring(&mut self) -> (usize, Result<(), Error>) {
        let Sends { requests, bytes, queued } = &mut *self.sends;
        let count = std::mem::take(queued);
        if count == 0 {
            return (0, Ok(()));
        }
        let (first, sges) = (requests.as_mut_ptr(), bytes.as_mut_ptr());
        for index in 0..count {
            // SAFETY: within the arrays, whose elements link to each other until the call below returns.
            unsafe {
                let request = first.add(index);
                (*request).sg_list = sges.add(index);
                (*request).next = if index + 1 < count { first.add(index + 1) } else { ptr::null_mut() };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: a well-formed list whose bytes lie in regions that this queue pair keeps.
        let result = unsafe { sys::ibv_post_send(self.raw.as_ptr(), first, &raw mut bad) };
        if result == 0 {
            return (count, Ok(()));
        }
        // SAFETY: the library names an element of the list.
        let taken = if bad.is_null() { 0 } else { unsafe { bad.offset_from(first) }.max(0) as usize };
        (taken, Err(self.posted("ibv_post_send", result)))
    }

    /// Queues a receive into the given bytes, or one without memory for RDMA WRITEs with immediate;
    /// [`Qp::ring_receives`] posts it.
    #[inline]
    pub fn receive(&mut self, id: u64, bytes: Option<Local>) -> Result<(), Error> {
        if self.srq.is_some() {
            return Err(Error::Misuse("receives of this queue pair are posted to its shared receive queue"));
        }
        if !self.state.takes_receives() {
            return Err(Error::NotReady(self.state));
        }
        let bytes = bytes.map(|local| locate(&self.memory, local, None)).transpose()?;
        self.receives.push(id, bytes)
    }

    /// Posts what [`Qp::receive`] queued, like [`Qp::ring`].
    #[inline]
    pub fn ring_receives(&mut self) -> (usize, Result<(), Error>) {
        let raw = self.raw.as_ptr();
        let (taken, result) = self.receives.post(|first, bad| {
            // SAFETY: a well-formed list whose bytes lie in regions that this queue pair keeps.
            unsafe { sys::ibv_post_recv(raw, first, bad) }
        });
        (taken, if result == 0 { Ok(()) } else { Err(self.posted("ibv_post_recv", result)) })
    }

    #[cold]
    fn posted(&self, step: &'static str, result: i32) -> Error {
        if result == libc::ENOMEM {
            return Error::Full;
        }
        self.pd.context().failed(step, io::Error::from_raw_os_error(result.abs()))
    }
}

impl Sends {
    pub(crate) fn new() -> Self {
        // SAFETY: zeroes are a valid value of these structures of integers, pointers and unions of them.
        unsafe { zeroed() }
    }
}

impl Receives {
    pub(crate) fn new() -> Self {
        // SAFETY: zeroes are a valid value of these structures of integers and pointers.
        unsafe { zeroed() }
    }

    #[inline]
    pub(crate) fn push(&mut self, id: u64, bytes: Option<sys::ibv_sge>) -> Result<(), Error> {
        if self.queued == BATCH {
            return Err(Error::Full);
        }
        let index = self.queued;
        self.requests[index].wr_id = id;
        self.requests[index].num_sge = i32::from(bytes.is_some());
        if let Some(bytes) = bytes {
            self.bytes[index] = bytes;
        }
        self.queued += 1;
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.queued = 0;
    }

    /// Posts what is queued by `call`. Returns the number taken, and the call's error.
    #[inline]
    pub(crate) fn post(
        &mut self,
        call: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> (usize, i32) {
        let count = std::mem::take(&mut self.queued);
        if count == 0 {
            return (0, 0);
        }
        let (first, sges) = (self.requests.as_mut_ptr(), self.bytes.as_mut_ptr());
        for index in 0..count {
            // SAFETY: within the arrays, whose elements link to each other until the call below returns.
            unsafe {
                let request = first.add(index);
                (*request).sg_list = sges.add(index);
                (*request).next = if index + 1 < count { first.add(index + 1) } else { ptr::null_mut() };
            }
        }
        let mut bad = ptr::null_mut();
        let result = call(first, &raw mut bad);
        // SAFETY: the library names an element of the list.
        let taken = || if bad.is_null() { 0 } else { unsafe { bad.offset_from(first) }.max(0) as usize };
        (if result == 0 { count } else { taken() }, result)
    }
}

/// The device's description of bytes in a kept region. The library copies inline bytes from the processor's view of
/// them.
#[inline]
pub(crate) fn locate(memory: &[Mr], local: Local, inline: Option<usize>) -> Result<sys::ibv_sge, Error> {
    let mr = memory.get(local.memory.0 as usize).ok_or(FOREIGN)?;
    mr.check(local.at, local.len)?;
    let addr = match inline {
        None => mr.iova() + local.at as u64,
        Some(most) if local.len > most => {
            return Err(Error::Misuse("inline bytes are more than the queue pair was made for"));
        }
        Some(_) => {
            let base = mr.base().ok_or(Error::Misuse("the processor does not reach a DMA buffer"))?;
            (base.addr().get() + local.at) as u64
        }
    };
    Ok(sys::ibv_sge { addr, length: local.len as u32, lkey: mr.lkey() })
}

impl MemoryId {
    pub(crate) fn new(index: usize) -> Self {
        Self(index as u32)
    }
}

impl AddressId {
    pub(crate) fn new(index: usize) -> Self {
        Self(index as u32)
    }
}

const FOREIGN: Error = Error::Misuse("a region or address is named that this queue does not keep");
