//! Queue pairs: creation, states, and what they keep for their work ([`crate::Op`]).

use std::{fmt, mem::zeroed, ptr, ptr::NonNull};

use rdma_mummy_sys::{self as sys, ibv_qp_attr_mask as mask};

use crate::{
    Access, Cq, Error, Mr, Pd, QpKind, Srq, State,
    device::mtu_number,
    work::{AddressId, MemoryId, Receives, Sends},
};

/// Settings of a new queue pair.
#[derive(Debug, Clone)]
pub struct QpConfig<'a> {
    /// Reliable or unreliable connection, or datagrams.
    pub kind: QpKind,
    /// Completion queue of its sends.
    pub send_cq: &'a Cq,
    /// Completion queue of its receives.
    pub recv_cq: &'a Cq,
    /// Shared source of receives; if `None`, the queue pair has its own.
    pub srq: Option<&'a Srq>,
    /// Limit on queued sends.
    pub sends: u32,
    /// Limit on queued receives.
    pub receives: u32,
    /// Size in bytes of sends that must fit into their work request.
    pub inline: u32,
    /// Makes its number jump, by creating and dropping up to 7 queue pairs before. Devices assign numbers in order, and
    /// a peer that knows its own could guess its neighbour's.
    pub scatter: bool,
}

/// The remote end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Number of its queue pair.
    pub qp_num: u32,
    /// First packet sequence number that it sends, 24 bits.
    pub psn: u32,
    /// GID of its port.
    pub gid: [u8; 16],
}

/// The local end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// Our port number, from 1.
    pub port: u8,
    /// Index of our address in the port's GID table.
    pub gid_index: u8,
    /// Longest payload of a packet, in bytes.
    pub mtu: u16,
}

/// Timeouts of a reliable connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Time until an unacknowledged packet is sent again: 4.096 us shifted left by this many bits. 0 waits forever.
    pub timeout: u8,
    /// Limit on repetitions, at most 7. soft-RoCE takes 7 as no limit.
    pub count: u8,
    /// How often a send is repeated while the peer has no receive posted; 7 is no limit.
    pub no_receive: u8,
}

impl Default for Retry {
    /// Gives up after about half a second; 6 repetitions without a receive.
    fn default() -> Self {
        Self { timeout: 14, count: 6, no_receive: 6 }
    }
}

/// A queue pair. Owned by one thread at a time.
///
/// It keeps its domain, its completion queues and the regions that its work names, so nothing posted is ever freed
/// under the device. Dropping it flushes all posted work first.
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
    /// Makes a queue pair in [`State::Reset`].
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

    /// The state that it was last moved to. A device may have failed it since: see [`Qp::query_state`].
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Limit on inline sends in bytes; at least what was asked for.
    #[inline]
    pub fn max_inline(&self) -> usize {
        self.inline as usize
    }

    /// The domain that it belongs to.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Asks the device for the state, and updates [`Qp::state`].
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

    /// RESET to INIT: receives can be posted. `access` is what a connection's peer may do; datagrams use `qkey`.
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

    /// INIT to RTR, connected to `remote`, which datagrams do not have. `reads` limits the READs of the peer in flight
    /// on a reliable connection.
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

    /// RTR to RTS: sends can be posted, from packet sequence number `psn` on. On a reliable connection, `reads` limits
    /// our READs in flight and `retry` sets the timeouts.
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

    /// To ERROR: posted work is flushed. Once this returns, every packet of the peer is refused.
    pub fn to_error(&mut self) -> Result<(), Error> {
        self.modify(State::Error, blank(), mask(0))
    }

    /// To RESET: posted work is discarded without completions.
    pub fn to_reset(&mut self) -> Result<(), Error> {
        self.modify(State::Reset, blank(), mask(0))
    }

    /// Destroys the queue pair, like dropping it, and reports failure. On success the device no longer accesses memory
    /// for it. After a failure it can be tried again.
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

    /// Keeps a region for as long as the queue pair lives, and returns its name in work requests.
    pub fn keep(&mut self, mr: &Mr) -> Result<MemoryId, Error> {
        if !mr.pd().is(&self.pd) {
            return Err(Error::Misuse("a queue pair uses regions of its own protection domain"));
        }
        self.memory.push(mr.clone());
        Ok(MemoryId::new(self.memory.len() - 1))
    }

    /// Keeps a datagram peer for as long as the queue pair lives, and returns its name in work requests.
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

/// Address handle of a datagram peer.
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

/// A random number from the kernel. Without one, connections could be guessed.
///
/// # Panics
/// If the kernel gives no random bytes.
pub fn random() -> u32 {
    getrandom::u32().expect("the kernel gives random bytes")
}

/// A random packet sequence number to start with, 24 bits.
pub fn random_psn() -> u32 {
    random() >> 8
}
