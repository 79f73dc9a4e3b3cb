//! Capability tokens and the scheduler's fence: CAP_REQUEST, CAP_REFRESH, CAP_REVOKE, SCHEDULER_FENCE_SET and _GET.

use berth_identity::{
    NodeId, Revocations,
    token::{Asked, Granted, Terms, TokenError, issue, refresh, stands_on, token_id},
};
use berth_port::{Nanos, Now};
use berth_wire::fabric::{
    CapRefresh, CapRequest, CapRevoke, FenceSet, FenceState, List, MAX_TOKEN_TTL, Perms, RevokeBroadcast, Status,
    Wire as _,
};

use super::{Reply, TimedRequest, params, wall_secs};
use crate::{
    host::{Host, random_u128},
    journal::Record,
    node::Node,
    request::Outcome,
};

impl<H: Host> Node<H> {
    /// Verifies the request's token for an operation that needs `perms` (decision 9) on `resource`. For 0, any
    /// resource, the caller must check [`Granted::covers`].
    pub(super) fn verify<'a>(
        &mut self,
        ask: &TimedRequest<'a>,
        perms: Perms,
        resource: u128,
        requested_bytes: Option<u64>,
    ) -> Result<Granted<'a>, Status> {
        let asked = Asked {
            presenter: NodeId(ask.request.presenter),
            source: ask.request.source.ip(),
            now_secs: ask.wall_secs(),
            fence: self.fence,
            resource_id: resource,
            perms,
            requested_bytes,
        };
        self.verifier.verify(ask.request.token, &asked, &self.keys).map_err(TokenError::status)
    }

    /// Verifies the token for an operation on the node itself, for which a token for one resource is not enough.
    pub(super) fn verify_for_node(&mut self, ask: &TimedRequest<'_>, perms: Perms) -> Result<(), Status> {
        let granted = self.verify(ask, perms, 0, None)?;
        if granted.token.resource_id == 0 { Ok(()) } else { Err(Status::InsufficientPerm) }
    }

    pub(super) fn cap_request(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let wanted: CapRequest = params(ask)?;
        if wanted.ttl_secs == 0 || wanted.perms == 0 {
            return Err(Status::InvalidParams);
        }
        let admin_alone = wanted.perms == Perms::ADMIN.bits();
        match (self.fence, wanted.epoch) {
            (None, _) if self.config.require_fence && !admin_alone => return Err(Status::FenceRequired),
            (Some(fence), epoch) if epoch != Some(fence) => return Err(Status::StaleEpoch),
            _ => {}
        }
        let (presenter, audience) = (ask.request.presenter, NodeId(wanted.audience));
        let resource = ask.request.resource;
        let perms = Perms::from_bits(wanted.perms).ok_or(Status::InsufficientPerm)?;
        let may = self.perms(presenter, resource);
        let for_another = audience.0 != presenter;
        let audience_may =
            !for_another || may.contains(Perms::DELEGATE) && self.perms(audience.0, resource).contains(perms);
        if !may.contains(perms) || !audience_may || self.keys.get(audience).is_none() {
            return Err(Status::InsufficientPerm);
        }
        let is_lease = self.gpu_lease(resource).is_some_and(|lease| lease.holder == audience.0);
        if resource != 0 && !is_lease && !self.resources().iter().any(|known| known.resource_id == resource) {
            return Err(Status::ResourceNotFound);
        }
        let (now, expires_at) = self.life(ask, wanted.ttl_secs);
        let terms = Terms {
            token_id: token_id(random_u128(&mut self.host) as u64, audience),
            audience,
            resource_id: resource,
            perms,
            issued_at: now,
            expires_at,
            epoch: self.fence.unwrap_or(0),
            caveats: &[],
        };
        Ok(Outcome::ok(issue(&self.identity, &terms).map_err(|_| Status::InternalError)?))
    }

    pub(super) fn cap_refresh(&mut self, ask: &TimedRequest<'_>) -> Reply {
        let granted = self.verify(ask, Perms::NONE, 0, None)?;
        let CapRefresh { ttl_secs } = params(ask)?;
        if ttl_secs == 0 {
            return Err(Status::InvalidParams);
        }
        if self.fence.is_none() && self.config.require_fence {
            return Err(Status::FenceRequired);
        }
        let perms = self.perms_of_now(&granted, ask.request.presenter);
        if granted.token.perms.and(perms) == Perms::NONE {
            return Err(Status::InsufficientPerm);
        }
        let (now, expires_at) = self.life(ask, ttl_secs);
        let successor = refresh(&self.identity, &granted, perms, now, expires_at, self.fence.unwrap_or(0));
        // More caveats than a token holds.
        Ok(Outcome::ok(successor.map_err(|_| Status::InvalidToken)?))
    }

    /// `issued_at` and `expires_at` of a token with this lifetime.
    fn life(&mut self, ask: &TimedRequest<'_>, ttl_secs: u32) -> (u64, u64) {
        let now = ask.wall_secs();
        let expires_at = now + u64::from(ttl_secs.min(MAX_TOKEN_TTL));
        self.issued_until = self.issued_until.max(expires_at);
        self.issued_latest = self.issued_latest.max(now);
        (now, expires_at)
    }

    /// Permissions that the present policy gives to the key that the token was issued to, before links and refreshes,
    /// which may have passed it to presenters without a policy. Nothing if that key is no longer known.
    fn perms_of_now(&self, granted: &Granted<'_>, presenter: u128) -> Perms {
        let token = &granted.token;
        let known = [token.audience, presenter, self.id()].into_iter().chain(self.config.policy.presenters());
        let origin = known.into_iter().find(|id| stands_on(token.token_id, NodeId(*id))).unwrap_or(presenter);
        if self.knows(origin) { self.perms(origin, token.resource_id) } else { Perms::NONE }
    }

    pub(super) fn cap_revoke(&mut self, ask: &TimedRequest<'_>) -> Reply {
        self.verify_for_node(ask, Perms::REVOKE)?;
        let CapRevoke { token_id, ttl_secs } = params(ask)?;
        let mut outcome = Outcome::default();
        let Some(at_least) = self.revoke_token(token_id, ask.now, &mut outcome) else {
            outcome.answer.status = Status::CapacityExceeded;
            return Ok(outcome.into());
        };
        let until = Revocations::until(ask.wall_secs(), ttl_secs).max(at_least);
        let issuer = self.identity.id().0;
        let broadcast = RevokeBroadcast { issuer, token_ids: List::of(&[token_id]).expect("one"), until }.to_vec();
        outcome.effects.broadcasts.push(broadcast.clone());
        outcome.answer.result = broadcast;
        Ok(outcome.into())
    }

    /// Revokes a token and every lease that was allocated under it. Returns the Unix second until which the revocation
    /// is remembered, when no token with this id can be valid. If the host's clock was set back, that is later than
    /// usual, because tokens issued before count by the earlier time. `None` if no further revocation can be
    /// remembered.
    pub(crate) fn revoke_token(&mut self, token: u128, now: Now, outcome: &mut Outcome) -> Option<u64> {
        let lives = |now_secs| Revocations::until(now_secs, 0);
        let until = lives(wall_secs(now)).max(self.issued_until).max(lives(self.clock.unix_secs(now.mono)));
        let remembered = self.verifier.revoked.revoke(token, until, wall_secs(now)).ok().map(|()| until);
        if remembered.is_some() {
            outcome.journal.push(Record::TokenRevoked { token, until: Nanos(until.saturating_mul(1_000_000_000)) });
        }
        self.revoke_leases_of(token, now, outcome);
        remembered
    }

    pub(super) fn fence_set(&mut self, ask: &TimedRequest<'_>) -> Reply {
        self.verify_for_node(ask, Perms::ADMIN)?;
        let FenceSet { new_epoch } = params(ask)?;
        match self.fence {
            Some(fence) if new_epoch <= fence => return Err(Status::StaleEpoch),
            None if new_epoch == 0 => return Err(Status::InvalidParams),
            _ => {}
        }
        self.fence = Some(new_epoch);
        let journal = vec![Record::FenceSet { epoch: new_epoch }];
        Ok(Outcome { journal, ..Outcome::default() }.into())
    }

    pub(super) fn fence_get(&mut self, ask: &TimedRequest<'_>) -> Reply {
        ask.no_params()?;
        let state = FenceState { installed: self.fence.is_some(), epoch: self.fence.unwrap_or(0) };
        Ok(Outcome::ok(state.to_vec()))
    }
}
