//! Maps refusals of leases to control-plane statuses.

use berth_lease::LeaseError;
use berth_wire::fabric::Status;

/// The status that answers this refusal.
pub(crate) fn of_lease(error: LeaseError) -> Status {
    match error {
        LeaseError::NotFound => Status::ResourceNotFound,
        LeaseError::NotHolder | LeaseError::Rights => Status::InsufficientPerm,
        // There is no status of its own for a revoked lease; either way it cannot be used again as it is.
        LeaseError::Expired | LeaseError::Revoked => Status::LeaseExpired,
        LeaseError::Invalid(_) => Status::InvalidParams,
        LeaseError::Range => Status::InvalidToken,
        LeaseError::Capacity | LeaseError::Quota => Status::CapacityExceeded,
        LeaseError::Fenced => Status::ResourceFenced,
        LeaseError::Busy => Status::ResourceBusy,
    }
}
