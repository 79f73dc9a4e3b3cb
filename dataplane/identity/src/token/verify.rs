//! Verification of a presented token.

use std::net::IpAddr;

use berth_wire::fabric::{CLOCK_SKEW, CapabilityToken, Caveat, FabricError, MAX_TOKEN_TTL, Perms, Status, Wire as _};

use super::{caveats, links_left, proven::Proven};
use crate::{Enrolled, NodeId, PublicKey, Rates, Revocations};

/// The use that a token is presented for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// Id of the presenter, proven by its signature or by TLS.
    pub presenter: NodeId,
    /// Address that the request came from.
    pub source: IpAddr,
    /// Seconds since the Unix epoch.
    pub now_secs: u64,
    /// Epoch of the installed scheduler fence; `None` if there is none.
    pub fence: Option<u64>,
    /// The resource to be used. For 0, any, the caller must check [`Granted::covers`].
    pub resource_id: u128,
    /// Permissions that the operation needs (decision 9).
    pub perms: Perms,
    /// Size of the allocation; `None` if the operation allocates nothing.
    pub requested_bytes: Option<u64>,
}

/// Permissions of a verified token.
#[derive(Debug, Clone, Copy)]
pub struct Granted<'a> {
    /// The token itself, parsed.
    pub token: CapabilityToken<'a>,
    /// The bytes that may be accessed, counted from the lease's first: the first one, and the one after the last. All
    /// bytes without a RANGE; none if the two are equal.
    pub span: (u64, u64),
}

impl Granted<'_> {
    /// Whether the token is for this resource.
    pub fn covers(&self, resource_id: u128) -> bool {
        self.token.resource_id == 0 || self.token.resource_id == resource_id
    }
}

/// Why a token grants nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token or a caveat does not parse.
    #[error("the token is malformed: {0}")]
    Malformed(#[from] FabricError),
    /// This node did not sign it, or it was changed since.
    #[error("the token does not bear this node's signature")]
    Issuer,
    /// A link is not signed by the holder before it, or that holder is not enrolled.
    #[error("a delegation link does not bear the signature of an enrolled previous holder")]
    Link,
    /// The token has links but lacks the permission DELEGATE.
    #[error("the token was passed on without a DELEGATE permission")]
    NoDelegate,
    /// The presenter is not this holder.
    #[error("the token is held by {0}, not by its presenter")]
    Presenter(NodeId),
    /// The token has expired, was issued in the future, or has too long a lifetime.
    #[error("the token is not valid at this time")]
    Time,
    /// The token was revoked by its id, or with one of its holders.
    #[error("the token was revoked")]
    Revoked,
    /// The caveat of this name is violated.
    #[error("the token's {0} caveat does not hold")]
    Caveat(&'static str),
    /// The token's epoch is older than the installed fence.
    #[error("the token is of epoch {0}, before the installed fence")]
    StaleEpoch(u64),
    /// The token lacks a permission, or is for another resource.
    #[error("the token does not permit this op on this resource")]
    InsufficientPerm,
    /// `RATE_LIMIT` is used up in this second.
    #[error("the token was used as often as its RATE_LIMIT allows in one second")]
    RateLimited,
}

impl TokenError {
    /// The status to answer with.
    pub fn status(self) -> Status {
        match self {
            Self::StaleEpoch(_) => Status::StaleEpoch,
            Self::InsufficientPerm => Status::InsufficientPerm,
            Self::RateLimited => Status::RateLimited,
            _ => Status::InvalidToken,
        }
    }
}

/// Verifies tokens that one node issued.
#[derive(Debug)]
pub struct Verifier {
    issuer: PublicKey,
    /// Revocations that it refuses tokens by.
    pub revoked: Revocations,
    rates: Rates<u128>,
    proven: Proven,
}

impl Verifier {
    /// `issuer` is the key of the node that signs the tokens.
    pub fn new(issuer: PublicKey) -> Self {
        Self { issuer, revoked: Revocations::default(), rates: Rates::default(), proven: Proven::default() }
    }

    /// Checks `token` for the use in `asked`.
    ///
    /// The order is: the token itself ([`Status::InvalidToken`]; cheap checks before signatures), its epoch, its
    /// permissions, its rate. Only a token that passed all other checks counts against its `RATE_LIMIT`.
    pub fn verify<'a>(&mut self, token: &'a [u8], asked: &Asked, keys: &Enrolled) -> Result<Granted<'a>, TokenError> {
        let token = CapabilityToken::parse(token)?;
        self.check_claims(&token, asked)?;
        let limits = Limits::of(&token, asked)?;
        self.check_signatures(&token, keys)?;
        if asked.fence.is_some_and(|fence| token.epoch < fence) {
            return Err(TokenError::StaleEpoch(token.epoch));
        }
        let granted = Granted { token, span: limits.span };
        if !token.perms.contains(asked.perms) || asked.resource_id != 0 && !granted.covers(asked.resource_id) {
            return Err(TokenError::InsufficientPerm);
        }
        if limits.per_second.is_some_and(|most| !self.rates.admit(token.token_id, most, asked.now_secs)) {
            return Err(TokenError::RateLimited);
        }
        Ok(granted)
    }

    /// Checks holder, times, revocation and delegation.
    fn check_claims(&self, token: &CapabilityToken<'_>, asked: &Asked) -> Result<(), TokenError> {
        if token.issuer != self.issuer.id().0 {
            return Err(TokenError::Issuer);
        }
        if token.holder() != asked.presenter.0 {
            return Err(TokenError::Presenter(NodeId(token.holder())));
        }
        let life = token.expires_at.checked_sub(token.issued_at);
        if token.expires_at <= asked.now_secs
            || token.issued_at > asked.now_secs.saturating_add(CLOCK_SKEW)
            || life.is_none_or(|life| life > u64::from(MAX_TOKEN_TTL))
        {
            return Err(TokenError::Time);
        }
        let mut holders = std::iter::once(token.audience).chain(token.links.iter().map(|link| link.delegate));
        if self.revoked.contains(token.token_id, asked.now_secs)
            || holders.any(|holder| self.revoked.contains_holder(holder, token.issued_at, asked.now_secs))
        {
            return Err(TokenError::Revoked);
        }
        if !token.links.is_empty() && !token.perms.contains(Perms::DELEGATE) {
            return Err(TokenError::NoDelegate);
        }
        Ok(())
    }

    fn check_signatures(&mut self, token: &CapabilityToken<'_>, keys: &Enrolled) -> Result<(), TokenError> {
        if !self.proven.verifies(&self.issuer, &token.signed_bytes(), &token.signature) {
            return Err(TokenError::Issuer);
        }
        let mut holder = token.audience;
        for (i, link) in token.links.iter().enumerate() {
            let key = keys.get(NodeId(holder)).ok_or(TokenError::Link)?;
            let signed = token.link_signed_bytes(i).ok_or(TokenError::Link)?;
            if !self.proven.verifies(&key, &signed, &link.signature) {
                return Err(TokenError::Link);
            }
            holder = link.delegate;
        }
        Ok(())
    }
}

/// What the caveats leave, if none is violated.
struct Limits {
    span: (u64, u64),
    per_second: Option<u32>,
}

impl Limits {
    fn of(token: &CapabilityToken<'_>, asked: &Asked) -> Result<Self, TokenError> {
        links_left(token).ok_or(TokenError::Caveat("DEPTH"))?;
        let mut limits = Self { span: (0, u64::MAX), per_second: None };
        for (caveat, _) in caveats(token) {
            match caveat {
                Caveat::TimeBound { start, end } if !(start..end).contains(&asked.now_secs) => {
                    return Err(TokenError::Caveat("TIME_BOUND"));
                }
                Caveat::SourceIp(address) if address.to_canonical() != asked.source.to_canonical() => {
                    return Err(TokenError::Caveat("SOURCE_IP"));
                }
                Caveat::Audience(id) if id != asked.presenter.0 => return Err(TokenError::Caveat("AUDIENCE")),
                Caveat::Range { offset, len } => {
                    let end = offset + len; // the codec refuses an overflow
                    if asked.requested_bytes.is_some_and(|bytes| bytes > end) {
                        return Err(TokenError::Caveat("RANGE"));
                    }
                    limits.span = (limits.span.0.max(offset), limits.span.1.min(end));
                }
                Caveat::RateLimit(most) => {
                    limits.per_second = Some(limits.per_second.map_or(most, |least| least.min(most)));
                }
                Caveat::TimeBound { .. } | Caveat::SourceIp(_) | Caveat::Audience(_) | Caveat::Depth(_) => {}
            }
        }
        limits.span.1 = limits.span.1.max(limits.span.0); // disjoint ranges leave no byte
        Ok(limits)
    }
}
