//! The client's side.

use std::net::{IpAddr, SocketAddr};

use berth_port::Peer;
use berth_rendezvous::{CallError, Form, Held, Offer, call};
use berth_roce::{AddError, Local, Registrar, Remote, Slots, Window};
use berth_wire::{
    rendezvous::{Peer as Side, PeerKind},
    roce::{Psn, Qpn},
};

use crate::{address_of, gid_of, path_mtu, random};

/// Settings that the host-API form does not carry, so that both sides must be configured alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// Layout of the port's slots.
    pub slots: Slots,
    /// Requests are padded to a multiple of this many bytes; 1 means no padding.
    pub unit: usize,
}

/// A connection to a port. In the form that binds peers to connections, dropping it ends the peer there.
#[derive(Debug)]
pub struct Connection {
    /// Our queue pair.
    pub local: Local,
    /// The port's queue pair.
    pub remote: Remote,
    /// The name that our endpoint gives the port.
    pub peer: Peer,
    /// The TCP connection, which keeps the port's end alive.
    pub held: Held,
}

/// Why a connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The rendezvous failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer lacks a value, or has an invalid path MTU.
    #[error(
        "the rendezvous did not answer what an unreliable connection needs; is this a port with transport = \"roce\" or a verbs port?"
    )]
    Answer,
    /// Our own endpoint refused the peer.
    #[error(transparent)]
    Add(#[from] AddError),
}

/// Connects the endpoint of `registrar`, which is reached at `address`, to the port behind a rendezvous. Requests will
/// be written into the port's slots.
pub fn connect(
    registrar: &mut Registrar,
    address: IpAddr,
    rendezvous: SocketAddr,
    form: Form,
    agreed: &Agreed,
) -> Result<Connection, ConnectError> {
    let psn = match form {
        Form::HostApi => Psn::new(0),
        Form::Berth => Psn::new(random()),
    };
    let local = registrar.reserve(psn, random)?;
    let mtu = registrar.config().path_mtu as u16;
    let peer = Side::Rdma { qp_num: local.qpn.get(), gid: gid_of(address), psn: psn.get(), mtu };
    let offer = Offer { kind: PeerKind::UcWriteImm, peer, window: None };
    let (answer, held) = call(rendezvous, form, &offer)?;
    let side = answer.rdma().ok_or(ConnectError::Answer)?;
    let slots = side.slots.map_or(agreed.slots, |slots| Slots {
        count: slots.count as usize,
        stride: slots.stride as usize,
        base: side.addr,
        form: slots.form,
    });
    let remote = Remote {
        address: address_of(side.gid),
        qpn: Qpn::new(side.qp_num),
        psn: Psn::new(side.psn),
        path_mtu: path_mtu(side.mtu).ok_or(ConnectError::Answer)?,
        window: Some(Window { rkey: side.rkey, slots, unit: agreed.unit }),
    };
    registrar.connect(&local, &remote)?;
    Ok(Connection { peer: Registrar::peer(remote.address, &local), local, remote, held })
}
