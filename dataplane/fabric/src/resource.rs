//! What leases are granted of.

use std::fmt::Debug;

use berth_lease::{Item, LeaseId, Leases, RegionId};
use berth_wire::fabric::{ResourceType, Status};
use sha2::{Digest as _, Sha256};

use crate::{binding::TeardownFailed, blocking::BlockingWork};

/// How much there is of a resource, in what its kind is counted in: bytes, or units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stock {
    /// What can be leased at all.
    pub capacity: u64,
    /// What can be leased now.
    pub available: u64,
    /// Nothing is leased of it, as something that it gave could not be taken back.
    pub fenced: bool,
}

/// Something that leases are granted of: a region of bytes, or a stock of units that have none, such as proxies, virtual
/// functions or cores. [`Leases`] keeps the lives of all leases, and the bytes; a resource of units gives them out and
/// takes them back. No call may wait for anybody.
pub trait Resource: Debug + Send {
    /// The type that GET_INVENTORY tells of it.
    fn kind(&self) -> ResourceType;

    /// What tells it from others of its kind on this node.
    fn name(&self) -> &str;

    /// How much there is of it, as [`Stock`] counts.
    fn stock(&self, leases: &Leases) -> Stock;

    /// As what a unit counts among what its holder has; `None` for bytes.
    fn counts_as(&self) -> Option<Item> {
        None
    }

    /// Gives a unit to a lease. `wanted` is what the op asks for, in the resource's own form; returned is the unit, as it
    /// is to be journaled: at most 64 KiB.
    ///
    /// # Errors
    /// The status to answer with; the lease is not granted.
    fn grant(&mut self, _lease: LeaseId, _wanted: &[u8]) -> Result<Vec<u8>, Status> {
        Err(Status::UnsupportedOp)
    }

    /// Begins to take back what a lease holds that is over and connected to nobody any more. Returns what takes time, if
    /// anything does, and then [`Resource::ended`] follows.
    ///
    /// # Errors
    /// It may still be in use, and is nobody's until a restart.
    fn end(&mut self, _lease: LeaseId) -> Result<Option<BlockingWork>, TeardownFailed> {
        Ok(None)
    }

    /// The work that [`Resource::end`] returned is done, or has panicked.
    ///
    /// # Errors
    /// As those of [`Resource::end`].
    fn ended(&mut self, _lease: LeaseId) -> Result<(), TeardownFailed> {
        Ok(())
    }

    /// Gives a live lease after a restart the unit that it had; false where that is not there any more. Units that no lease
    /// has then are free, whoever used them before.
    fn recover(&mut self, _lease: LeaseId, _unit: &[u8]) -> bool {
        true
    }
}

/// A region: its bytes are placed, drained and zeroed by [`Leases`].
#[derive(Debug)]
pub(crate) struct RegionResource {
    pub(crate) id: RegionId,
    pub(crate) kind: ResourceType,
    pub(crate) name: String,
}

impl Resource for RegionResource {
    fn kind(&self) -> ResourceType {
        self.kind
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn stock(&self, leases: &Leases) -> Stock {
        let (capacity, available) = (leases.capacity(self.id), leases.available(self.id));
        Stock { capacity, available, fenced: leases.is_fenced(self.id) }
    }
}

/// The id of a node's resource: the same after every restart, another on every node.
pub fn resource_id(node: u128, kind: ResourceType, name: &str) -> u128 {
    let digest = Sha256::new()
        .chain_update(b"berth-resource\0")
        .chain_update(node.to_be_bytes())
        .chain_update(kind.code().to_be_bytes())
        .chain_update(name)
        .finalize();
    u128::from_be_bytes(*digest.first_chunk().expect("32 bytes"))
}
