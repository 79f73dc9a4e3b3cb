//! A port's device, and the making of its peers. Lives on the rendezvous's thread; the device may come and go.

use berth_memory::{Heap, Part};
use berth_port::Peer as Name;
use berth_rendezvous::{Form, PeerId};
use berth_wire::{
    fabric::Status,
    rendezvous::{Offer, Peer as Who, PeerKind, RdmaSide, Slots},
};

use crate::{
    Access, Context, Cq, Error, Gid, Mr, Path, Pd, Qp, QpConfig, QpKind, Remote, Retry,
    port::{
        PortConfig,
        peer::{Inbound, Outbound, Peer, Shape, name},
        shared::Frames,
    },
    random_psn,
};

/// Size in bytes of sends that should travel within their work request; every card supports that many.
const INLINE: u32 = 128;

/// Completion queues for the peers of one queue of the port.
#[derive(Debug, Clone)]
pub(super) struct Queues {
    pub(super) sent: Cq,
    pub(super) received: Cq,
}

/// An open device.
pub(super) struct Device {
    pub(super) context: Context,
    pd: Pd,
    path: Path,
    gid: Gid,
}

impl Device {
    pub(super) fn open(config: &PortConfig) -> Result<Self, Error> {
        let context = Context::open(&config.device)?;
        let info = context.port(config.port)?;
        let gid = context.gid(config.port, config.gid_index)?;
        let pd = Pd::new(&context)?;
        let path = Path { port: config.port, gid_index: config.gid_index, mtu: info.mtu };
        Ok(Self { context, pd, path, gid })
    }

    /// Makes completion queues that the work of `peers` peers cannot overrun.
    pub(super) fn queues(&self, peers: usize, shape: Shape) -> Result<Queues, Error> {
        let most = self.context.limits().completions;
        let depth = |each: u32| (peers as u32).saturating_mul(each).min(most);
        Ok(Queues {
            sent: Cq::new(&self.context, depth(shape.sends()))?,
            received: Cq::new(&self.context, depth(shape.receives()))?,
        })
    }

    /// Limit on the peers whose work the completion queues can hold.
    pub(super) fn most_peers(&self, shape: Shape) -> usize {
        (self.context.limits().completions / shape.sends().max(shape.receives())) as usize
    }

    /// Whether the kernel still has the device. A driver that needs its users to close the device waits for that, and
    /// says so nowhere else.
    pub(super) fn is_there(&self) -> bool {
        self.context.is_present()
    }

    fn qp(&self, kind: PeerKind, queues: &Queues, shape: Shape) -> Result<Qp, Error> {
        let config = QpConfig {
            kind: if kind.is_reliable() { QpKind::Rc } else { QpKind::Uc },
            send_cq: &queues.sent,
            recv_cq: &queues.received,
            srq: None,
            sends: shape.sends(),
            receives: shape.receives(),
            inline: INLINE,
            scatter: true,
        };
        let mut qp = Qp::new(&self.pd, &config)?;
        let access = if kind.writes_slots() { Access::REMOTE_WRITE } else { Access::LOCAL_READ };
        qp.to_init(self.path.port, access, 0)?;
        Ok(qp)
    }

    /// The NUMA node that the device is at; `None` if it has none.
    pub(super) fn numa(&self) -> Option<u32> {
        let file = format!("/sys/class/infiniband/{}/device/numa_node", self.context.name());
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// Memory for a peer, whose requests come into `requests`, which begins with a page, if it is given. Its addresses
    /// start at 0, as the host API requires; for others any address will do.
    fn memory(&self, remote: bool, shape: Shape, requests: Option<Part>) -> Result<[Mr; 2], Error> {
        let access = if remote { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let [size, own] = shape.bytes(remote);
        let requests = self.pd.register(requests.unwrap_or_else(|| Heap::new(size).into()), access, Some(0))?;
        Ok([requests, self.pd.register(Heap::new(own), Access::LOCAL_READ, Some(0))?])
    }

    /// Takes a peer: connects it and posts its receives. Returns it with our side of the connection.
    pub(super) fn accept(
        &self,
        (id, place, generation): (PeerId, usize, u16),
        offer: &Offer<'_>,
        (queues, frames): (&Queues, Option<&Frames>),
        config: &PortConfig,
        psn: u32,
    ) -> Result<(Peer, RdmaSide), Refusal> {
        let Who::Rdma { qp_num, gid, psn: theirs, mtu } = offer.peer else {
            return Err(Refusal::Status(Status::UnsupportedOp));
        };
        let shape = config.shape();
        let most = shape.max_frame as u64;
        if mtu < 256 || offer.window.is_some_and(|w| w.slots.count < shape.slots || u64::from(w.slots.stride) < most) {
            return Err(Refusal::Status(Status::InvalidParams));
        }
        let mtu = mtu.min(self.path.mtu);
        let writes = offer.kind.writes_slots();
        let qp = self.qp(offer.kind, queues, shape)?;
        let number = qp.number();
        let requests = frames.filter(|_| !writes).and_then(|frames| frames.part(place));
        let [mr, own] = self.memory(writes, shape, requests)?;
        let inbound = if writes { Inbound::Slots(config.immediate) } else { Inbound::Receives };
        let outbound = offer.window.map_or(Outbound::Send, Outbound::WriteBack);
        let name = name(gid, place, generation);
        let mut peer = Peer::new((id, name, place, generation), qp, [&mr, &own], shape, (inbound, outbound), mtu)?;
        self.connect(peer.qp(), Remote { qp_num, psn: theirs, gid }, psn, mtu)?;
        let slots = Slots { count: shape.slots, stride: shape.stride as u32, form: config.immediate };
        let slots = writes.then_some(slots);
        Ok((peer, RdmaSide { qp_num: number, gid: self.gid.raw, psn, rkey: mr.rkey(), addr: mr.iova(), slots, mtu }))
    }

    /// Makes a client's peer. Returns its queue pair's number and what is needed to connect it later.
    pub(super) fn offer(
        &self,
        kind: PeerKind,
        queues: &Queues,
        config: &PortConfig,
    ) -> Result<(Peer, Offer<'static>), Error> {
        let shape = config.shape();
        let qp = self.qp(kind, queues, shape)?;
        let psn = if config.form == Form::HostApi { 0 } else { random_psn() };
        let who = Who::Rdma { qp_num: qp.number(), gid: self.gid.raw, psn, mtu: self.path.mtu };
        let [mr, own] = self.memory(false, shape, None)?;
        let ways = (Inbound::Receives, Outbound::Send);
        let name = Name::Connection { number: 0, host: None };
        let peer = Peer::new((PeerId(0), name, 0, 0), qp, [&mr, &own], shape, ways, self.path.mtu)?;
        Ok((peer, Offer { kind, peer: who, window: None }))
    }

    /// Connects a client's peer to the other side.
    pub(super) fn connect(&self, qp: &mut Qp, to: Remote, psn: u32, mtu: u16) -> Result<(), Error> {
        qp.to_rtr(Path { mtu: mtu.min(self.path.mtu), ..self.path }, Some(&to), 0)?;
        qp.to_rts(psn, 0, Retry::default())
    }
}

/// Why a peer was refused.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Its offer is not acceptable.
    Status(Status),
    /// The device failed.
    Device(Error),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}
