//! How refusals of the lease plane are told on the control plane.

use berth_lease::LeaseError;
use berth_wire::fabric::Status;

/// The status of an op that the leases refuse.
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
