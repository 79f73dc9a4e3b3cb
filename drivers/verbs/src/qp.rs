//! Queue pairs: their making, their states, and work posted to them.

use std::{fmt, io, mem::zeroed, ptr, ptr::NonNull};

use rdma_mummy_sys::{self as sys, ibv_qp_attr_mask as mask};

use crate::{Access, Cq, Error, Mr, Mw, Pd, QpKind, Srq, State, device::mtu_number};

/// The most work that one ring of the doorbell posts.
pub const BATCH: usize = 32;

/// How a queue pair is made.
#[derive(Debug, Clone)]
pub struct QpConfig<'a> {
    /// Its type.
    pub kind: QpKind,
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// Where receives come from; without one the queue pair has its own.
    pub srq: Option<&'a Srq>,
    /// Sends it holds.
    pub sends: u32,
    /// Receives it holds.
    pub receives: u32,
    /// Bytes of a send that travel within its work request.
    pub inline: u32,
    /// Makes its number jump: up to 7 queue pairs are made and dropped before. Devices give numbers out in order, and a
    /// peer that knows its own would know its neighbour's.
    pub scatter: bool,
}

/// Where the peer of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its queue pair.
    pub qp_num: u32,
    /// The first packet sequence number it sends, 24 bits.
    pub psn: u32,
    /// Its port's address.
    pub gid: [u8; 16],
}

/// How a connection is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Our port.
    pub port: u8,
    /// Our address, by its place in the port's table.
    pub gid_index: u8,
    /// The longest packet's payload in bytes.
    pub mtu: u16,
}

/// How a reliable connection times out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// 4.096 us shifted left by this many bits until an unacknowledged packet is sent again; 0 waits forever.
    pub timeout: u8,
    /// How often it is sent again, at most 7. soft-RoCE takes 7 for without end.
    pub count: u8,
    /// How often a peer without a posted receive is tried again; 7 is without end.
    pub no_receive: u8,
}

impl Default for Retry {
    /// About half a second in all, and 6 waits for a receive.
    fn default() -> Self {
        Self { timeout: 14, count: 6, no_receive: 6 }
    }
}

/// A region that a queue pair keeps and its work requests name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryId(u32);

/// A datagram peer that a queue pair keeps and its work requests name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressId(u32);

/// Bytes of a kept region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The region.
    pub memory: MemoryId,
    /// The first byte, from the region's beginning.
    pub at: usize,
    /// How many.
    pub len: usize,
}

/// Bytes of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteBytes {
    /// The address of the first.
    pub addr: u64,
    /// The key of the memory.
    pub rkey: u32,
}

/// What a send does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Sends to a posted receive.
    Send,
    /// Sends with an immediate.
    SendImm(u32),
    /// Writes into the peer's memory.
    Write(RemoteBytes),
    /// Writes, and uses up a receive of the peer to tell it this immediate.
    WriteImm(RemoteBytes, u32),
    /// Reads from the peer's memory into ours.
    Read(RemoteBytes),
    /// Ends a window or region: its rkey is refused from then on.
    Invalidate(u32),
    /// Sends to a datagram peer's queue pair, with its queue key.
    Datagram(AddressId, u32, u32),
}

/// How a send is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags {
    /// It completes; without, it is over when a later signalled one of the queue pair is.
    pub signalled: bool,
    /// The bytes are copied into the work request and may be changed at once.
    pub inline: bool,
    /// It waits for earlier READs.
    pub fence: bool,
}

/// A queue pair. Owned by one thread at a time.
///
/// It keeps its domain, completion queues and the regions that its work names, so that nothing posted is ever freed
/// under the device; dropping it takes all posted work back first.
pub struct Qp {
    raw: NonNull<sys::ibv_qp>,
    number: u32,
    kind: QpKind,
    state: State,
    inline: u32,
    memory: Vec<Mr>,
    addresses: Vec<Address>,
    sends: Box<Sends>,
    receives: Box<Receives>,
    pd: Pd,
    _send_cq: Cq,
    _recv_cq: Cq,
    srq: Option<Srq>,
    destroyed: bool,
}

struct Sends {
    requests: [sys::ibv_send_wr; BATCH],
    bytes: [sys::ibv_sge; BATCH],
    queued: usize,
}

pub(crate) struct Receives {
    requests: [sys::ibv_recv_wr; BATCH],
    bytes: [sys::ibv_sge; BATCH],
    queued: usize,
}

// SAFETY: the library's calls on a queue pair may be made from any thread; the arrays' pointers are set in each call.
unsafe impl Send for Qp {}

impl Qp {
    /// Makes a queue pair, in [`State::Reset`].
    pub fn new(pd: &Pd, config: &QpConfig<'_>) -> Result<Self, Error> {
        let mut decoys = Vec::new();
        if config.scatter {
            for _ in 0..random() % 8 {
                // A device without room for a decoy has none for the queue pair either, and will say so.
                decoys.extend(Self::make(pd, config).ok());
            }
        }
        Self::make(pd, config)
    }

    fn make(pd: &Pd, config: &QpConfig<'_>) -> Result<Self, Error> {
        if config.srq.is_some_and(|srq| !srq.pd().is(pd)) {
            return Err(Error::Misuse("a shared receive queue serves queue pairs of its own protection domain"));
        }
        let cap = sys::ibv_qp_cap {
            max_send_wr: config.sends,
            max_recv_wr: if config.srq.is_some() { 0 } else { config.receives },
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: config.inline,
        };
        let mut attr = sys::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: config.send_cq.raw(),
            recv_cq: config.recv_cq.raw(),
            srq: config.srq.map_or(ptr::null_mut(), Srq::raw),
            cap,
            qp_type: match config.kind {
                QpKind::Rc => sys::ibv_qp_type::IBV_QPT_RC,
                QpKind::Uc => sys::ibv_qp_type::IBV_QPT_UC,
                QpKind::Ud => sys::ibv_qp_type::IBV_QPT_UD,
            },
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are alive, and the queue pair keeps them.
        let raw = pd.context().made("ibv_create_qp", unsafe { sys::ibv_create_qp(pd.raw(), &raw mut attr) })?;
        Ok(Self {
            raw,
            // SAFETY: the library fills the number of a queue pair it made.
            number: unsafe { (*raw.as_ptr()).qp_num },
            kind: config.kind,
            state: State::Reset,
            inline: attr.cap.max_inline_data,
            memory: Vec::new(),
            addresses: Vec::new(),
            // SAFETY: zeroes are a valid value of these structures of integers, pointers and unions of them.
            sends: Box::new(unsafe { zeroed() }),
            receives: Box::new(Receives::new()),
            pd: pd.clone(),
            _send_cq: config.send_cq.clone(),
            _recv_cq: config.recv_cq.clone(),
            srq: config.srq.cloned(),
            destroyed: false,
        })
    }

    /// Its number, 24 bits.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The state it was brought to. A device may have failed it since: see [`Qp::query_state`].
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Bytes of a send that can be inline; at least what was asked for.
    #[inline]
    pub fn max_inline(&self) -> usize {
        self.inline as usize
    }

    /// The domain it is of.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Asks the device for the state, which becomes [`Qp::state`].
    pub fn query_state(&mut self) -> Result<State, Error> {
        // SAFETY: zeroes are valid values of these structures, and the call fills them.
        let (mut attr, mut init) = unsafe { (zeroed::<sys::ibv_qp_attr>(), zeroed::<sys::ibv_qp_init_attr>()) };
        // SAFETY: the queue pair is made.
        let result =
            unsafe { sys::ibv_query_qp(self.raw.as_ptr(), &raw mut attr, mask::IBV_QP_STATE.0 as i32, &raw mut init) };
        self.pd.context().check("ibv_query_qp", result)?;
        self.state = State::from_raw(attr.qp_state);
        Ok(self.state)
    }

    /// RESET to INIT: receives can be posted. `access` is what the peer of a connection may do; datagrams have `qkey`.
    pub fn to_init(&mut self, port: u8, access: Access, qkey: u32) -> Result<(), Error> {
        let mut attr = blank();
        attr.port_num = port;
        let mut fields = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT;
        if self.kind == QpKind::Ud {
            attr.qkey = qkey;
            fields |= mask::IBV_QP_QKEY;
        } else {
            attr.qp_access_flags = access.0;
            fields |= mask::IBV_QP_ACCESS_FLAGS;
        }
        self.modify(State::Init, attr, fields)
    }

    /// INIT to RTR, connected to `remote`; datagrams have none. `reads` is how many READs of the peer may be in flight,
    /// where the connection is reliable.
    pub fn to_rtr(&mut self, path: Path, remote: Option<&Remote>, reads: u8) -> Result<(), Error> {
        let mut attr = blank();
        let mut fields = mask(0);
        if let (Some(remote), false) = (remote, self.kind == QpKind::Ud) {
            attr.path_mtu = mtu_number(path.mtu);
            attr.dest_qp_num = remote.qp_num;
            attr.rq_psn = remote.psn;
            attr.ah_attr = route(path, remote.gid);
            fields = mask::IBV_QP_AV | mask::IBV_QP_PATH_MTU | mask::IBV_QP_DEST_QPN | mask::IBV_QP_RQ_PSN;
            if self.kind == QpKind::Rc {
                attr.max_dest_rd_atomic = reads;
                // 0.64 ms between tries of a peer for which no receive is posted.
                attr.min_rnr_timer = 12;
                fields |= mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
            }
        } else if self.kind != QpKind::Ud {
            return Err(Error::Misuse("a connection is made to somebody"));
        }
        self.modify(State::Rtr, attr, fields)
    }

    /// RTR to RTS: sends can be posted, from packet sequence number `psn` on. `reads` is how many of our READs may be in
    /// flight, where the connection is reliable, and `retry` how it times out.
    pub fn to_rts(&mut self, psn: u32, reads: u8, retry: Retry) -> Result<(), Error> {
        let mut attr = blank();
        attr.sq_psn = psn;
        let mut fields = mask::IBV_QP_SQ_PSN;
        if self.kind == QpKind::Rc {
            attr.timeout = retry.timeout;
            attr.retry_cnt = retry.count;
            attr.rnr_retry = retry.no_receive;
            attr.max_rd_atomic = reads;
            fields |=
                mask::IBV_QP_TIMEOUT | mask::IBV_QP_RETRY_CNT | mask::IBV_QP_RNR_RETRY | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify(State::Rts, attr, fields)
    }

    /// To ERROR: posted work is flushed, and every packet of the peer is refused once this has returned.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.modify(State::Error, blank(), mask(0))
    }

    /// To RESET: posted work is forgotten, without completions.
    pub fn to_reset(&mut self) -> Result<(), Error> {
        self.modify(State::Reset, blank(), mask(0))
    }

    /// Destroys the queue pair, as dropping it does, and says whether that was done: the device then touches no memory for
    /// it any more. Where it was not, it can be tried again.
    #[expect(clippy::result_large_err, reason = "the queue pair is given back")]
    pub fn destroy(mut self) -> Result<(), (Self, Error)> {
        // SAFETY: a queue pair that was not destroyed; where it is now, `drop` does nothing.
        let result = unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        match self.pd.context().check("ibv_destroy_qp", result) {
            Ok(()) => {
                self.destroyed = true;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }

    fn modify(&mut self, to: State, mut attr: sys::ibv_qp_attr, fields: mask) -> Result<(), Error> {
        if !self.state.leads_to(to) {
            return Err(Error::State { kind: self.kind, from: self.state, to });
        }
        attr.qp_state = to.to_raw();
        let fields = fields | mask::IBV_QP_STATE;
        // SAFETY: the queue pair is made, and the fields named are set.
        let result = unsafe { sys::ibv_modify_qp(self.raw.as_ptr(), &raw mut attr, fields.0 as i32) };
        let step = match to {
            State::Init => "ibv_modify_qp to INIT",
            State::Rtr => "ibv_modify_qp to RTR",
            State::Rts => "ibv_modify_qp to RTS",
            _ => "ibv_modify_qp",
        };
        self.pd.context().check(step, result)?;
        self.state = to;
        Ok(())
    }

    /// Keeps a region for as long as the queue pair lives, so that work may name it.
    pub fn keep(&mut self, mr: &Mr) -> Result<MemoryId, Error> {
        if !mr.pd().is(&self.pd) {
            return Err(Error::Misuse("a queue pair uses regions of its own protection domain"));
        }
        self.memory.push(mr.clone());
        Ok(MemoryId(self.memory.len() as u32 - 1))
    }

    /// Keeps a datagram peer for as long as the queue pair lives, so that work may name it.
    pub fn address(&mut self, path: Path, gid: [u8; 16]) -> Result<AddressId, Error> {
        let mut attr = route(path, gid);
        // SAFETY: the domain is allocated, and outlives the address: the queue pair keeps both.
        let raw = unsafe { sys::ibv_create_ah(self.pd.raw(), &raw mut attr) };
        self.addresses.push(Address(self.pd.context().made("ibv_create_ah", raw)?));
        Ok(AddressId(self.addresses.len() as u32 - 1))
    }

    /// Queues a send, to be posted by [`Qp::ring`]. [`Error::Full`] where [`BATCH`] are queued.
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

    /// Posts the binding of a window to bytes of a kept region, behind whatever was queued, and returns the rkey that
    /// peers of this queue pair name it by once the work has completed. `key` becomes the low byte of it.
    ///
    /// The region's access must allow [`Access::BIND`], and what `access` allows.
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

    /// A send that is complete but for its bytes.
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

    /// Posts what [`Qp::send`] queued, in one call. Returns how many the device took; those that it did
    /// not take are forgotten, and will not complete.
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

    /// Queues a receive into the bytes, or one that RDMA WRITEs with immediate use up, to be posted by
    /// [`Qp::ring_receives`].
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

    /// Posts what [`Qp::receive`] queued, as [`Qp::ring`] does.
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

impl Drop for Qp {
    fn drop(&mut self) {
        if !self.destroyed {
            // SAFETY: destroyed once, before what it keeps, which are fields. The device touches no memory for it
            // afterwards.
            unsafe { sys::ibv_destroy_qp(self.raw.as_ptr()) };
        }
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({} {:#x} in {})", self.kind, self.number, self.state)
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

    /// Posts what is queued by `call`, and returns how many were taken and what it said.
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

/// The device's description of bytes of a kept region; inline ones are copied by the library, from where the processor
/// sees them.
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

const FOREIGN: Error = Error::Misuse("a region or address is named that this queue does not keep");

/// A datagram peer's address.
struct Address(NonNull<sys::ibv_ah>);

impl Drop for Address {
    fn drop(&mut self) {
        // SAFETY: destroyed once, after its queue pair, whose work named it.
        unsafe { sys::ibv_destroy_ah(self.0.as_ptr()) };
    }
}

fn blank() -> sys::ibv_qp_attr {
    // SAFETY: zeroes are a valid value of this structure of integers.
    unsafe { zeroed() }
}

fn route(path: Path, gid: [u8; 16]) -> sys::ibv_ah_attr {
    sys::ibv_ah_attr {
        grh: sys::ibv_global_route {
            dgid: sys::ibv_gid { raw: gid },
            flow_label: 0,
            sgid_index: path.gid_index,
            hop_limit: 64,
            traffic_class: 0,
        },
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: path.port,
    }
}

/// A number that nobody guesses. Without a source of such there is no connection that a stranger could not guess.
///
/// # Panics
/// Where the kernel gives no random bytes.
pub fn random() -> u32 {
    getrandom::u32().expect("the kernel gives random bytes")
}

/// A packet sequence number to start with, 24 bits, that nobody guesses.
pub fn random_psn() -> u32 {
    random() >> 8
}
