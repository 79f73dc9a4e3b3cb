//! The client's half: a port whose only peer is the server.

use std::sync::Arc;

use berth_port::{Peer as Name, mailbox};
use berth_rendezvous::call;
use berth_wire::rendezvous::{Peer, Slots};

use super::{Device, Form, OpenError, PeerKind, PortConfig, VerbsPort, Way, peer::Outbound};
use crate::{Remote, RemoteBytes};

impl VerbsPort {
    /// Connects to the port behind a rendezvous. Returns a port of our own and the name of its only peer.
    ///
    /// In the form of the host API, both sides must know the slots beforehand: those of `config`.
    pub fn connect(config: &PortConfig, kind: PeerKind) -> Result<(Self, Name), OpenError> {
        let config = PortConfig { peers: 1, ..config.clone() };
        let device = Device::open(&config)?;
        let queues = device.queues(1, config.shape())?;
        let (mut peer, offer) = device.offer(kind, &queues, &config)?;
        let (answer, held) = call(config.rendezvous, config.form, &offer)?;
        let side = answer.rdma().ok_or(OpenError::Answer)?;
        let known = || {
            let stride = config.shape().stride as u32;
            (config.form == Form::HostApi).then_some(Slots { count: config.slots, stride, form: config.immediate })
        };
        if kind.writes_slots() {
            let slots = side.slots.or_else(known).filter(|slots| slots.count > 0).ok_or(OpenError::Answer)?;
            if (slots.stride as usize) < config.max_frame {
                let message =
                    format!("the port's slots are of {} bytes, and frames of {}", slots.stride, config.max_frame);
                return Err(OpenError::Config(message));
            }
            peer.send_by(Outbound::WriteSlots { to: RemoteBytes { addr: side.addr, rkey: side.rkey }, slots });
        }
        let Peer::Rdma { psn, .. } = offer.peer else { return Err(OpenError::Answer) };
        let remote = Remote { qp_num: side.qp_num, psn: side.psn, gid: side.gid };
        device.connect(peer.qp(), remote, psn, side.mtu)?;
        let name = peer.name;
        // Nobody gives orders or collects what is given back.
        let (_, mailbox) = mailbox(1, 1);
        let mut port = Self::new(&config, queues, mailbox, Arc::default());
        port.peers[0] = Some(Box::new(peer));
        port.way = Way::Client(held);
        Ok((port, name))
    }
}
