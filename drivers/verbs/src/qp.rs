//! Queue pairs: their making, their states, and what they keep for their work ([`crate::Op`]).

use std::{fmt, mem::zeroed, ptr, ptr::NonNull};

use rdma_mummy_sys::{self as sys, ibv_qp_attr_mask as mask};

use crate::{
    Access, Cq, Error, Mr, Pd, QpKind, Srq, State,
    device::mtu_number,
    work::{AddressId, MemoryId, Receives, Sends},
};

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

/// A queue pair. Owned by one thread at a time.
///
/// It keeps its domain, completion queues and the regions that its work names, so that nothing posted is ever freed
/// under the device; dropping it takes all posted work back first.
pub struct Qp {
    pub(crate) raw: NonNull<sys::ibv_qp>,
    number: u32,
    kind: QpKind,
    pub(crate) state: State,
    pub(crate) inline: u32,
    pub(crate) memory: Vec<Mr>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) sends: Box<Sends>,
    pub(crate) receives: Box<Receives>,
    pub(crate) pd: Pd,
    _send_cq: Cq,
    _recv_cq: Cq,
    pub(crate) srq: Option<Srq>,
    destroyed: bool,
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
            sends: Box::new(Sends::new()),
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

    /// Changes what the peer of a connection in [`State::Rts`] may do.
    pub fn allow(&mut self, access: Access) -> Result<(), Error> {
        if self.state != State::Rts {
            return Err(Error::NotReady(self.state));
        }
        let mut attr = blank();
        attr.qp_access_flags = access.0;
        self.modify(State::Rts, attr, mask::IBV_QP_ACCESS_FLAGS)
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
        Ok(MemoryId::new(self.memory.len() - 1))
    }

    /// Keeps a datagram peer for as long as the queue pair lives, so that work may name it.
    pub fn address(&mut self, path: Path, gid: [u8; 16]) -> Result<AddressId, Error> {
        let mut attr = route(path, gid);
        // SAFETY: the domain is allocated, and outlives the address: the queue pair keeps both.
        let raw = unsafe { sys::ibv_create_ah(self.pd.raw(), &raw mut attr) };
        self.addresses.push(Address(self.pd.context().made("ibv_create_ah", raw)?));
        Ok(AddressId::new(self.addresses.len() - 1))
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

/// A datagram peer's address.
pub(crate) struct Address(pub(crate) NonNull<sys::ibv_ah>);

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

/// A number that nobody guesses. Without a source of such there is no connection that nobody else could guess.
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
