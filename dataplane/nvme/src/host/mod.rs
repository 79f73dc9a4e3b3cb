//! The initiator, without I/O: what a host says on NVMe/TCP connections, and what it holds controllers to.
//!
//! ```text
//! Controller  the admin queue: Connect, enable, Identify, number of queues, keep alive
//! Queue       a connection: PDUs, digests, R2T and data, a slot for each command
//! ```
//!
//! A controller is not trusted: a PDU that breaks the protocol ends the connection with `H2CTermReq`, no length of it is a
//! size to allocate, and each command ends once.

mod controller;
mod queue;
mod slots;

use std::time::Duration;

use berth_wire::nvme::{
    Sqe, Status,
    fabrics::{Connect, ConnectData, Nqn},
    pdu::{DATA_DIGEST, Fatal, HEADER_DIGEST},
};

pub use controller::{Controller, Facts};
pub use queue::Queue;

/// The most bytes that a capsule brings, whatever the controller takes.
const IN_CAPSULE_MAX: u32 = 16 << 10;

/// Bytes that capsules of Connect and of admin commands may bring (TCP, "Capsules").
const ADMIN_IN_CAPSULE: u32 = 8192;

/// The most commands of a queue: their identifiers have the slot in the low ten bits.
const DEPTH_MAX: u16 = 1024;

/// The two ends of an association.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// SUBNQN.
    pub subsystem: Nqn,
    /// HOSTNQN.
    pub host: Nqn,
    /// HOSTID, the same for all queues of a controller.
    pub host_id: [u8; 16],
}

impl Names {
    /// The data of Connect to the controller of this CNTLID, or to a new one: 0xFFFF.
    fn connect(&self, controller: u16) -> ConnectData {
        let mut data = ConnectData::zeroed();
        (data.host_id, data.controller) = (self.host_id, controller.into());
        (data.subnqn, data.hostnqn) = (self.subsystem, self.host);
        data
    }
}

/// Settings of all connections of an association.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// HDGST: headers have a CRC-32C.
    pub header_digest: bool,
    /// DDGST: data has one.
    pub data_digest: bool,
    /// KATO: a controller that hears nothing for so long gives the host up. Zero: never.
    pub keep_alive: Duration,
    /// How long an answer may take before the connection is given up.
    pub timeout: Duration,
}

impl Settings {
    /// DGST of `ICReq`: bit 0 for headers, bit 1 for data.
    fn digests(&self) -> u8 {
        (if self.header_digest { HEADER_DIGEST } else { 0 }) | if self.data_digest { DATA_DIGEST } else { 0 }
    }

    /// Connect of a queue with room for `depth` commands. Reads that succeed need no response.
    fn connect(&self, queue: u16, depth: u16) -> Connect {
        // A queue is full with one entry less than it has.
        let keep_alive = if queue == 0 { self.keep_alive.as_millis() as u32 } else { 0 };
        Connect { format: 0, queue, size: depth, attributes: Connect::NO_FLOW_CONTROL, keep_alive }
    }
}

/// A command, to be sent. Its identifier and its SGL are the queue's to choose.
#[derive(Debug, Clone, Copy)]
pub struct Command {
    /// Opcode, NSID and the dwords of the command.
    pub sqe: Sqe,
    /// How many bytes of data it has, and which way they go.
    pub data: Data,
}

/// Which way a command's data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// There is none.
    None,
    /// So many bytes come from the controller.
    In(u32),
    /// So many bytes go to it.
    Out(u32),
}

/// Whose commands are on a queue. Each is known by the number that [`Queue::submit`] gave it, until it has ended.
pub trait User {
    /// Fills `to` with what the command's data has from byte `offset` on.
    fn data(&mut self, command: usize, offset: usize, to: &mut [u8]);

    /// `bytes` of the command's data, from byte `offset` on, have come: in order, though perhaps with a wrong digest, which
    /// the command's status tells then.
    fn received(&mut self, command: usize, offset: usize, bytes: &[u8]);

    /// The command has ended, with dwords 0 and 1 of its completion in `result`.
    fn ended(&mut self, command: usize, status: Status, result: u64);
}

/// Why a connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The controller broke the protocol.
    #[error("the controller broke the protocol: {}", told(*.0))]
    Violation(Fatal),
    /// The controller says that we did.
    #[error("the controller ended the connection: {}", told(*.0))]
    Terminated(Fatal),
    /// It does not grant the digests that were asked for.
    #[error("the controller grants other digests than were asked for: {0}")]
    Digests(u8),
    /// Connect was refused; with the first dword of its completion.
    #[error("Connect was refused: {0:?}, {1:#x}")]
    Refused(Status, u32),
    /// The controller wants hosts to authenticate.
    #[error("the controller wants its hosts to authenticate, which this one does not")]
    Authentication,
    /// An admin command failed that has to succeed.
    #[error("{0} failed: {1:?}")]
    Failed(&'static str, Status),
    /// What it says of itself, or of the namespace, makes no sense or is not supported here.
    #[error("the controller says of itself what cannot be: {0}")]
    Nonsense(&'static str),
    /// An answer did not come in time.
    #[error("the controller did not answer in time")]
    Timeout,
}

fn told(fatal: Fatal) -> String {
    format!("fatal error status {}, information {}", fatal.status, fatal.information)
}
