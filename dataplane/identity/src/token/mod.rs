//! Capability tokens (profile, "Payloads", and decisions 6 to 12).

mod origin;
mod proven;
mod verify;

pub use origin::{stands_on, token_id};
pub use verify::{Asked, Granted, TokenError, Verifier};

use berth_wire::fabric::{
    CapabilityToken, Caveat, FabricError, Link, List, MAX_LINKS, Perms, SIGNATURE_LEN, Wire as _,
};

use crate::{Identity, NodeId};

/// Contents of a token to be issued.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Random; names the token in revocations.
    pub token_id: u128,
    /// Id of the key that may present the token.
    pub audience: NodeId,
    /// The resource that it is for; 0 for any.
    pub resource_id: u128,
    /// What it permits.
    pub perms: Perms,
    /// Seconds since the Unix epoch.
    pub issued_at: u64,
    /// Seconds since the Unix epoch, at most 300 later.
    pub expires_at: u64,
    /// Epoch of the installed fence; 0 if there is none.
    pub epoch: u64,
    /// Restrictions set by the issuer.
    pub caveats: &'a [Caveat],
}

/// Why a token was not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DelegateError {
    /// It does not parse as a token, or there are more caveats than a link can hold.
    #[error("the token is malformed: {0}")]
    Malformed(#[from] FabricError),
    /// Another key, with this id, holds the token.
    #[error("the token is held by {0}, who alone can pass it on")]
    NotHolder(NodeId),
    /// The token lacks the permission DELEGATE.
    #[error("the token has no DELEGATE permission")]
    NoDelegate,
    /// No further link is allowed.
    #[error("the token's DEPTH, or the limit of {MAX_LINKS} links, is reached")]
    Depth,
}

/// Makes and signs a token; returns its encoding.
pub fn issue(issuer: &Identity, terms: &Terms<'_>) -> Result<Vec<u8>, FabricError> {
    let mut token = CapabilityToken {
        token_id: terms.token_id,
        issuer: issuer.id().0,
        audience: terms.audience.0,
        resource_id: terms.resource_id,
        perms: terms.perms,
        issued_at: terms.issued_at,
        expires_at: terms.expires_at,
        epoch: terms.epoch,
        caveats: List::of(terms.caveats)?,
        signature: [0; SIGNATURE_LEN],
        links: List::EMPTY,
    };
    token.signature = issuer.sign(&token.signed_bytes());
    Ok(token.to_vec())
}

/// Passes a token on with further `caveats`. The token's own signatures are not checked; the node does that.
pub fn delegate(token: &[u8], holder: &Identity, to: NodeId, caveats: &[Caveat]) -> Result<Vec<u8>, DelegateError> {
    let token = CapabilityToken::parse(token)?;
    if NodeId(token.holder()) != holder.id() {
        return Err(DelegateError::NotHolder(NodeId(token.holder())));
    }
    if !token.perms.contains(Perms::DELEGATE) {
        return Err(DelegateError::NoDelegate);
    }
    if links_left(&token) == Some(0) {
        return Err(DelegateError::Depth);
    }
    let mut links: Vec<_> = token.links.iter().collect();
    links.push(Link { delegate: to.0, caveats: List::of(caveats)?, signature: [0; SIGNATURE_LEN] });
    let last = links.len() - 1;
    let unsigned = CapabilityToken { links: List::of(&links)?, ..token };
    let signed = unsigned.link_signed_bytes(last).expect("the link is there");
    links[last].signature = holder.sign(&signed);
    Ok(CapabilityToken { links: List::of(&links)?, ..token }.to_vec())
}

/// Renews a verified token for its presenter (decision 11). Id, resource and every caveat stay, as do those permissions
/// that are in `perms`. The caveats of links become the issuer's, and each DEPTH is lowered by the links that followed
/// it. Fails if the caveats together are more than one token can hold.
pub fn refresh(
    issuer: &Identity,
    granted: &Granted<'_>,
    perms: Perms,
    issued_at: u64,
    expires_at: u64,
    epoch: u64,
) -> Result<Vec<u8>, FabricError> {
    let token = &granted.token;
    let links = token.links.len() as u8;
    let mut caveats: Vec<Caveat> = caveats(token)
        .map(|(caveat, followed_by)| match caveat {
            Caveat::Depth(depth) => Caveat::Depth(depth.saturating_sub(followed_by)),
            other => other,
        })
        .collect();
    let most = MAX_LINKS as u8 - links;
    // Without this a refresh would give back the links that the chain has used.
    if links > 0 && !caveats.iter().any(|caveat| matches!(caveat, Caveat::Depth(depth) if *depth <= most)) {
        caveats.push(Caveat::Depth(most));
    }
    let terms = Terms {
        token_id: token.token_id,
        audience: NodeId(token.holder()),
        resource_id: token.resource_id,
        perms: token.perms.and(perms),
        issued_at,
        expires_at,
        epoch,
        caveats: &caveats,
    };
    issue(issuer, &terms)
}

/// Every caveat with the number of links that follow it.
fn caveats(token: &CapabilityToken<'_>) -> impl Iterator<Item = (Caveat, u8)> {
    let links = token.links.len() as u8;
    let of_issuer = token.caveats.iter().map(move |caveat| (caveat, links));
    let of_links = token.links.iter().enumerate();
    let of_links =
        of_links.flat_map(move |(i, link)| link.caveats.iter().map(move |caveat| (caveat, links - 1 - i as u8)));
    of_issuer.chain(of_links)
}

/// Number of links that may still follow; `None` if there are too many already.
fn links_left(token: &CapabilityToken<'_>) -> Option<u8> {
    let most = MAX_LINKS as u8 - token.links.len() as u8; // the codec refuses more
    caveats(token)
        .filter_map(|(caveat, followed_by)| match caveat {
            Caveat::Depth(depth) => Some(depth.checked_sub(followed_by)),
            _ => None,
        })
        .try_fold(most, |least, left| Some(least.min(left?)))
}
