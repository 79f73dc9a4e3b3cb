//! The port's side.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use berth_rendezvous::{Acceptor, Answer, Form, Offer, PeerId, Status};
use berth_roce::{AddError, Local, Registrar, Remote, Slots, Window};
use berth_wire::{
    rendezvous::{self, Peer, PeerKind, RdmaSide},
    roce::{Psn, Qpn},
};

use crate::{address_of, gid_of, path_mtu, random};

/// Takes peers of an endpoint at a rendezvous: unreliable connections whose requests are written or sent.
#[derive(Debug)]
pub struct RoceAcceptor {
    registrar: Registrar,
    form: Form,
    addresses: Vec<IpAddr>,
    peers: HashMap<PeerId, Qpn>,
    /// Peers that have left, which the endpoint could not be told yet.
    leaving: Vec<Qpn>,
}

impl RoceAcceptor {
    /// Accepts peers for the endpoint of `registrar`, which is reached at `addresses`.
    pub fn new(registrar: Registrar, form: Form, addresses: Vec<IpAddr>) -> Self {
        Self { registrar, form, addresses, peers: HashMap::new(), leaving: Vec::new() }
    }

    fn remote(offer: &Offer<'_>) -> Result<Remote, Status> {
        if !matches!(offer.kind, PeerKind::UcWriteImm | PeerKind::UcSend) {
            return Err(Status::UnsupportedOp);
        }
        let Peer::Rdma { qp_num, gid, psn, mtu } = offer.peer else { return Err(Status::UnsupportedOp) };
        let window = offer.window.map(|window| Window {
            rkey: window.rkey,
            slots: Slots {
                count: window.slots.count as usize,
                stride: window.slots.stride as usize,
                base: window.addr,
                form: window.slots.form,
            },
            unit: 1,
        });
        let path_mtu = path_mtu(mtu).ok_or(Status::InvalidParams)?;
        Ok(Remote { address: address_of(gid), qpn: Qpn::new(qp_num), psn: Psn::new(psn), path_mtu, window })
    }

    /// Our side of the connection from `address`, for the answer.
    fn side(&self, local: &Local, ours: IpAddr) -> RdmaSide {
        let slots = rendezvous::Slots {
            count: local.slots.count as u32,
            stride: local.slots.stride as u32,
            form: local.slots.form,
        };
        RdmaSide {
            qp_num: local.qpn.get(),
            gid: gid_of(ours),
            psn: local.psn.get(),
            rkey: local.rkey,
            addr: local.slots.base,
            slots: Some(slots),
            mtu: self.registrar.config().path_mtu as u16,
        }
    }
}

impl Acceptor for RoceAcceptor {
    fn offer(&mut self, peer: PeerId, _: SocketAddr, offer: &Offer<'_>, answer: &mut Answer) -> Result<(), Status> {
        let remote = Self::remote(offer)?;
        let family = |ours: &&IpAddr| ours.is_ipv4() == remote.address.is_ipv4();
        let ours = *self.addresses.iter().find(family).ok_or(Status::InvalidParams)?;
        let psn = match self.form {
            // Agreed upon.
            Form::HostApi => Psn::new(0),
            Form::Berth => Psn::new(random()),
        };
        let local = self.registrar.add(&remote, psn, random).map_err(|e| match e {
            AddError::Full(_) => Status::CapacityExceeded,
            AddError::Busy => Status::ResourceBusy,
            AddError::Window(_) => Status::InvalidParams,
        })?;
        self.peers.insert(peer, local.qpn);
        answer.push_rdma(&self.side(&local, ours));
        Ok(())
    }

    fn gone(&mut self, peer: PeerId) {
        if let Some(qpn) = self.peers.remove(&peer)
            && !self.registrar.remove(qpn)
        {
            self.leaving.push(qpn);
        }
    }

    fn tick(&mut self, _: &mut dyn FnMut(PeerId)) {
        self.leaving.retain(|qpn| !self.registrar.remove(*qpn));
    }
}
