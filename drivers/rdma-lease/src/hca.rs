//! What a binding needs of an RDMA device, and nothing more.

use std::fmt::Debug;

use berth_fabric::BoundLease;
use berth_lease::Rights;
use berth_wire::fabric::Status;

/// The client's side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Number of its queue pair, 24 bits.
    pub qp_num: u32,
    /// GID of its port.
    pub gid: [u8; 16],
    /// The first packet sequence number that it sends with, 24 bits.
    pub psn: u32,
    /// The longest payload of a packet in bytes, as it wants it.
    pub mtu: u16,
}

/// Our side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Number of our queue pair, 24 bits.
    pub qp_num: u32,
    /// GID of our port.
    pub gid: [u8; 16],
    /// Number of our port on its device, from 1 on.
    pub port: u8,
    /// The first packet sequence number that we send with, 24 bits, drawn anew for each connection.
    pub psn: u32,
}

/// By what a client reaches bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The remote key, good on the client's queue pair only.
    pub rkey: u32,
    /// The remote address of the region's first byte, not of the lease's.
    pub region_addr: u64,
}

/// An event of a connection, or of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The client's device has answered [`Hca::probe`] on this queue pair.
    Alive(u32),
    /// It has not: its process is gone, or nothing leads there.
    Lost(u32),
    /// The queue pair stopped because its client did what it may not.
    Faulted(u32),
    /// The device is gone, and with it all its connections.
    Removed,
}

/// A driver's error.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why a device did not do it.
#[derive(Debug, thiserror::Error)]
pub enum HcaError {
    /// The device is not there now.
    #[error("RDMA device {0} is not there; `rdma link` lists those that are")]
    Gone(String),
    /// Nothing leads to the client, or its description is wrong.
    #[error("the client's queue pair cannot be connected to: {0}")]
    Unreachable(Cause),
    /// The lease has no bytes of memory: it is of a region of blocks, or empty.
    #[error("the lease's bytes are not memory that the device could reach")]
    NotMemory,
    /// The lease's bytes are another device's, and no dma-buf makes them reachable for this one.
    #[error("{0}")]
    NoDmaBufs(Cause),
    /// The device or its driver refused.
    #[error("{0}")]
    Failed(Cause),
}

impl HcaError {
    /// The status of the answer to `LEASE_BIND`.
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Gone(_) => Status::ResourceBusy,
            Self::Unreachable(_) => Status::InvalidParams,
            Self::NotMemory | Self::NoDmaBufs(_) => Status::UnsupportedOp,
            Self::Failed(_) => Status::InternalError,
        }
    }
}

/// Connects a queue pair and makes its key; may take seconds.
pub type Connect<L> = Box<dyn FnOnce() -> Result<(L, Key), Unconnected<L>> + Send>;

/// A queue pair was not connected, or has no key.
#[derive(Debug)]
pub struct Unconnected<L> {
    /// What went wrong.
    pub error: HcaError,
    /// What there is of it, to be ended by [`Hca::end`]; `None` if nothing is.
    pub left: Option<Box<L>>,
}

impl<L> From<HcaError> for Unconnected<L> {
    fn from(error: HcaError) -> Self {
        Self { error, left: None }
    }
}

/// Ends a connection; may take milliseconds. Where it fails, the connection comes back.
pub type End<L> = Box<dyn FnOnce() -> Result<(), Unended<L>> + Send>;

/// A queue pair that may still reach memory.
#[derive(Debug)]
pub struct Unended<L> {
    /// What kept it from being ended.
    pub error: HcaError,
    /// To be ended by another try.
    pub link: Box<L>,
}

/// An RDMA device whose ports may come and go.
pub trait Hca: Debug + Send {
    /// A queue pair of type RC, and what belongs to it alone. Dropping it ends it.
    type Link: Debug + Send + 'static;

    /// Begins to connect a queue pair and to make a key for exactly the lease's bytes and rights, good on that queue pair
    /// only. What takes time is left to what this returns, from opening the device on. Its client reaches nothing before
    /// [`Hca::grant`].
    fn begin(&mut self, peer: Peer, lease: &BoundLease) -> Connect<Self::Link>;

    /// Our side of a connection, which the answer to `LEASE_BIND` tells the client.
    fn local(link: &Self::Link) -> Local;

    /// Lets the client of this queue pair reach what its key is for, with these rights. Must not wait for anybody.
    ///
    /// # Errors
    /// Whether the client reaches it is not known; [`Hca::end`] sees to it that it does not.
    fn grant(&mut self, link: &mut Self::Link, rights: Rights) -> Result<(), HcaError>;

    /// What takes the key away and ends the queue pair: when it is done, nothing that came over it touches memory any more.
    /// Nothing is [`Seen`] of it from now on.
    fn end(&mut self, link: Self::Link) -> End<Self::Link>;

    /// Asks the client's device for a sign of life; what comes of it is [`Seen`] later.
    fn probe(&mut self, link: &mut Self::Link) -> Result<(), HcaError>;

    /// Appends what was seen since the last call; never blocks.
    fn poll(&mut self, seen: &mut Vec<Seen>);

    /// Lets go of a device that was [`Seen::Removed`], so that it can go; the next connection opens it anew.
    fn close(&mut self);
}
