//! Peers that come and go, from another thread than the one that serves them.

use std::net::IpAddr;

use berth_port::{Peer, Sender, mailbox};
use berth_wire::roce::{Psn, Qpn};

use crate::{
    Config, ConfigError, Endpoint, Slots,
    queue_pair::{self, QueuePair},
    region::UNIT,
};

/// A peer, as it describes itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its address; packets from elsewhere are not its.
    pub address: IpAddr,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The number of the first packet that it sends.
    pub psn: Psn,
    /// The longest payload of a packet that it takes, in bytes.
    pub path_mtu: usize,
    /// Where messages to it are written; without it they are sent.
    pub window: Option<Window>,
}

/// Slots of a peer, into which messages to it are written: an answer into the slot of its request, any other message
/// into each in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The key.
    pub rkey: u32,
    /// The slots.
    pub slots: Slots,
    /// Messages that are no answers are filled up with zeros to a multiple of so many bytes, a power of two up to 128; 1
    /// leaves them as they are.
    pub unit: usize,
}

/// What a peer must know of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Its queue pair here.
    pub qpn: Qpn,
    /// The number of the first packet that it gets.
    pub psn: Psn,
    /// The key of its slots.
    pub rkey: u32,
    /// Its slots.
    pub slots: Slots,
}

/// Why a peer was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There are as many as there may be.
    #[error("there are {0} peers, and no more are allowed")]
    Full(usize),
    /// The endpoint has not taken note of the latest changes yet.
    #[error("the port is busy; try again")]
    Busy,
    /// A window that is none.
    #[error("the peer's window: {0}")]
    Window(#[from] ConfigError),
}

/// What the endpoint is told.
#[derive(Debug)]
pub(crate) enum Change {
    Add(Box<QueuePair>),
    Remove(Qpn),
}

/// Makes and unmakes the peers of one [`Endpoint`].
#[derive(Debug)]
pub struct Registrar {
    config: Config,
    /// The queue pairs there are, each at the place that its low bits name.
    taken: Box<[Option<Qpn>]>,
    peers: usize,
    /// Changes for the endpoint, and the queue pairs that it removed: freeing them takes longer than a poll core has.
    endpoint: Sender<Change, Box<QueuePair>>,
}

/// An endpoint without peers, and what gives it some.
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
    /// What all peers have in common.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The peer at `address` that a queue pair leads to.
    pub fn peer(address: IpAddr, local: &Local) -> Peer {
        queue_pair::peer(address, local.qpn)
    }

    /// Draws the number and the key of a queue pair, whose peer comes with [`Registrar::connect`]. `psn` is the number of
    /// the first packet that it sends.
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

    /// Gives a reserved queue pair its peer, once.
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

    /// Takes a peer in: [`Registrar::reserve`] and [`Registrar::connect`].
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

    /// Lets a peer go, from the endpoint's next burst on. `false`: the endpoint has not taken note of the latest changes
    /// yet, try again.
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
