//! Adds and removes peers on a thread other than the one that serves them.

use std::net::IpAddr;

use berth_port::{Peer, Sender, mailbox};
use berth_wire::roce::{Psn, Qpn};

use crate::{
    Config, ConfigError, Endpoint, Slots,
    queue_pair::{self, QueuePair},
    region::UNIT,
};

/// A peer as it describes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its IP address; packets from other addresses are refused.
    pub address: IpAddr,
    /// Number of its queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that it sends.
    pub psn: Psn,
    /// Longest payload of a packet that it accepts, in bytes.
    pub path_mtu: usize,
    /// Slots that messages to it are written to; if `None`, they are sent.
    pub window: Option<Window>,
}

/// Slots of a peer that messages to it are written to: an answer goes into the slot of its request, other messages into
/// each slot in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Remote key of the peer's memory.
    pub rkey: u32,
    /// Layout of the peer's slots.
    pub slots: Slots,
    /// Messages other than answers are padded with zeros to a multiple of this many bytes, a power of two up to 128. 1
    /// means no padding.
    pub unit: usize,
}

/// Our side of a connection, to be told to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Number of our queue pair.
    pub qpn: Qpn,
    /// Sequence number of the first packet that we send.
    pub psn: Psn,
    /// Remote key of the peer's slots here.
    pub rkey: u32,
    /// Layout of those slots.
    pub slots: Slots,
}

/// Why a peer was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The endpoint already has this many peers, its limit.
    #[error("there are {0} peers, and no more are allowed")]
    Full(usize),
    /// The endpoint has not applied the latest changes yet; try again.
    #[error("the port is busy; try again")]
    Busy,
    /// The peer's window is invalid.
    #[error("the peer's window: {0}")]
    Window(#[from] ConfigError),
}

/// A change for the endpoint to apply.
#[derive(Debug)]
pub(crate) enum Change {
    Add(Box<QueuePair>),
    Remove(Qpn),
}

/// Adds and removes the peers of one [`Endpoint`].
#[derive(Debug)]
pub struct Registrar {
    config: Config,
    /// Numbers of the queue pairs in use, each at the index that its low bits give.
    taken: Box<[Option<Qpn>]>,
    peers: usize,
    /// Brings changes to the endpoint, and removed queue pairs back: to free them takes longer than a poll core may
    /// spend.
    endpoint: Sender<Change, Box<QueuePair>>,
}

/// Makes an endpoint without peers, and the registrar that adds them.
pub fn endpoint(config: Config) -> Result<(Endpoint, Registrar), ConfigError> {
    config.check()?;
    // At least twice the places, so that a random number finds a free one soon.
    let places = (2 * config.peers).next_power_of_two();
    let depth = 2 * config.peers;
    let (endpoint, changes) = mailbox(depth, depth);
    let registrar = Registrar { config, taken: vec![None; places].into(), peers: 0, endpoint };
    Ok((Endpoint::new(config, places, changes), registrar))
}

impl Registrar {
    /// Settings that all peers share.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The peer at `address` that our side `local` is connected to.
    pub fn peer(address: IpAddr, local: &Local) -> Peer {
        queue_pair::peer(address, local.qpn)
    }

    /// Draws number and key of a queue pair, whose peer follows by [`Registrar::connect`]. `psn` is the sequence number
    /// of the first packet that the queue pair sends.
    pub fn reserve(&mut self, psn: Psn, mut random: impl FnMut() -> u32) -> Result<Local, AddError> {
        self.free_removed();
        if self.peers == self.config.peers {
            return Err(AddError::Full(self.peers));
        }
        let qpn = loop {
            let qpn = Qpn::new(random());
            if qpn.is_ordinary() && self.taken[self.place(qpn)].is_none() {
                break qpn;
            }
        };
        let place = self.place(qpn);
        self.taken[place] = Some(qpn);
        self.peers += 1;
        Ok(Local { qpn, psn, rkey: random(), slots: self.config.slots })
    }

    /// Gives a reserved queue pair its peer. To be called once.
    pub fn connect(&mut self, local: &Local, remote: &Remote) -> Result<(), AddError> {
        if let Some(window) = &remote.window {
            window.slots.check()?;
            if !window.unit.is_power_of_two() || window.unit > UNIT {
                return Err(ConfigError::Unit(window.unit).into());
            }
        }
        let Config { p_key, path_mtu, .. } = self.config;
        let pair = Box::new(QueuePair::new(*local, *remote, p_key, path_mtu));
        self.endpoint.send(Change::Add(pair)).map_err(|_| AddError::Busy)
    }

    /// Calls [`Registrar::reserve`] and [`Registrar::connect`].
    pub fn add(&mut self, remote: &Remote, psn: Psn, random: impl FnMut() -> u32) -> Result<Local, AddError> {
        let local = self.reserve(psn, random)?;
        match self.connect(&local, remote) {
            Ok(()) => Ok(local),
            Err(e) => {
                self.release(local.qpn);
                Err(e)
            }
        }
    }

    /// Removes a peer, from the endpoint's next burst on. False if the endpoint has not applied the latest changes yet:
    /// try again.
    pub fn remove(&mut self, qpn: Qpn) -> bool {
        self.free_removed();
        let told = self.endpoint.send(Change::Remove(qpn)).is_ok();
        if told {
            self.release(qpn);
        }
        told
    }

    fn release(&mut self, qpn: Qpn) {
        let place = self.place(qpn);
        if self.taken[place] == Some(qpn) {
            self.taken[place] = None;
            self.peers -= 1;
        }
    }

    fn place(&self, qpn: Qpn) -> usize {
        qpn.get() as usize & (self.taken.len() - 1)
    }

    fn free_removed(&mut self) {
        self.endpoint.returned().for_each(drop);
    }
}
