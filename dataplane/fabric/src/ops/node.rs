//! Operations on the node: PING, GET_IDENTITY, GET_INVENTORY, GET_THERMAL, ENROLL_REQUEST.

use berth_identity::{EnrolError, PublicKey, certify};
use berth_wire::fabric::{Enroll, Identity, Inventory, Pong, Status, Wire as _};

use super::{Reply, TimedRequest, params};
use crate::{
    host::Host,
    journal::Record,
    node::Node,
    request::{Carrier, Outcome, Step},
};

/// Validity of a certificate in seconds: one year.
const CERTIFICATE_SECS: u64 = 365 * 24 * 3600;

impl<H: Host> Node<H> {
    pub(super) fn ping(&self, ask: &TimedRequest<'_>) -> Reply {
        ask.no_params()?;
        Ok(Outcome::ok(Pong { uptime_secs: (ask.now.mono - self.started).as_secs() }.to_vec()))
    }

    pub(super) fn get_identity(&self, ask: &TimedRequest<'_>) -> Reply {
        ask.no_params()?;
        let key = self.identity.public_key();
        Ok(Outcome::ok(Identity { node_id: key.id().0, controller_pubkey: *key.as_bytes() }.to_vec()))
    }

    pub(super) fn get_inventory(&self, ask: &TimedRequest<'_>) -> Reply {
        ask.no_params()?;
        let resources = self.resources();
        Ok(Outcome::ok(Inventory::of(&resources).map_err(|_| Status::InternalError)?.to_vec()))
    }

    pub(super) fn get_thermal(&mut self, ask: &TimedRequest<'_>) -> Reply {
        ask.no_params()?;
        Ok(Outcome::ok(self.host.thermal().to_vec()))
    }

    /// On UDP only (decision 2). On QUIC, TLS refuses unknown keys before this.
    pub(super) fn enroll(&mut self, ask: &TimedRequest<'_>) -> Reply {
        if ask.request.carrier == Carrier::Quic {
            return Err(Status::UnsupportedOp);
        }
        let Ok(Enroll { node_id, public_key }) = params(ask) else { return Ok(Step::Drop) };
        let key = PublicKey::from_bytes(&public_key).map_err(|_| Status::InvalidParams)?;
        if node_id != key.id().0 || node_id != ask.request.presenter {
            return Err(Status::InvalidParams);
        }
        let new = self.keys.enrol(key).map_err(|error| match error {
            EnrolError::Closed | EnrolError::Removed => Status::InsufficientPerm,
            EnrolError::Full => Status::CapacityExceeded,
        })?;
        let now = ask.wall_secs();
        let certificate = certify(&self.identity, &key, now, now + CERTIFICATE_SECS, &[]);
        let mut outcome = Outcome::default();
        outcome.answer.result = certificate.map_err(|_| Status::InternalError)?;
        outcome.journal.extend(new.then_some(Record::Enrolled { public_key }));
        Ok(outcome.into())
    }
}
