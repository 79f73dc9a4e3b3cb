//! Recovery of leases from a journal.

use berth_port::Nanos;

use super::{Lease, Leases, Standing};

/// Why a lease of the journal cannot be restored. To go on without it could give its bytes to another holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The configuration has no region with these bytes.
    #[error("the region of the lease is not configured, or is smaller than it was")]
    Region,
    /// The region is leased in larger units now, and the lease does not begin at one.
    #[error("the region of the lease is leased in other units than it was")]
    Granule,
    /// Another lease has its key or its bytes.
    #[error("another lease has the same key or the same bytes")]
    Taken,
    /// The table is too small.
    #[error("more leases than the configured capacity")]
    Capacity,
}

impl Leases {
    /// Restores a lease after a restart, at the same bytes. Returns it in its present state: if its contents were in
    /// memory, they are lost and its generation is raised, which must be journaled before it is served. `None` if its
    /// time is over, or its revocation need not be remembered any longer.
    ///
    /// Revoked leases are restored as revoked, without bytes. Fenced ones keep theirs, and their region stays fenced.
    pub fn restore(&mut self, mut lease: Lease, now: Nanos) -> Result<Option<Lease>, RestoreError> {
        if lease.status(now).is_none() {
            if !lease.fenced {
                return Ok(None);
            }
            lease.standing = Standing::Over;
        }
        if self.records.len() >= self.config.capacity {
            return Err(RestoreError::Capacity);
        }
        if !lease.id.is_usable() || !self.is_free(lease.id.key()) {
            return Err(RestoreError::Taken);
        }
        let holds = lease.standing == Standing::Live || lease.fenced;
        if let Some(region) = lease.region() {
            let sound =
                lease.len > 0 && lease.base.checked_add(lease.len).is_some_and(|end| end <= self.capacity(region));
            if !sound {
                return Err(RestoreError::Region);
            }
            let extent = self.places.extent(&lease);
            if holds && !self.places.is_aligned(region, extent) {
                return Err(RestoreError::Granule);
            }
            if holds && !self.places.place_at(region, extent) {
                return Err(RestoreError::Taken);
            }
            if lease.standing == Standing::Live && self.places.is_volatile(region) {
                lease.generation = lease.generation.next();
            }
            if lease.fenced {
                self.places.fence(region);
            }
        }
        self.add(lease, holds).map_err(|_| RestoreError::Capacity)?;
        Ok(Some(lease))
    }
}
