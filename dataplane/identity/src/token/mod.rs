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

/// What an issuer grants.
#[derive(Debug, Clone, Copy)]
pub struct Terms<'a> {
    /// Drawn at random; names the token in revocations.
    pub token_id: u128,
    /// Who may present the token.
    pub audience: NodeId,
    /// The resource; 0 for any.
    pub resource_id: u128,
    /// What is permitted.
    pub perms: Perms,
    /// Seconds since the epoch.
    pub issued_at: u64,
    /// Seconds since the epoch, at most 300 later.
    pub expires_at: u64,
    /// The installed fence, 0 for none.
    pub epoch: u64,
    /// Restrictions.
    pub caveats: &'a [Caveat],
}

/// Why a token was not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DelegateError {
    /// Not the encoding of a token, or more caveats than one link holds.
    #[error("the token is malformed: {0}")]
    Malformed(#[from] FabricError),
    /// The token is held by another.
    #[error("the token is held by {0}, who alone can pass it on")]
    NotHolder(NodeId),
    /// The token lacks DELEGATE.
    #[error("the token has no DELEGATE permission")]
    NoDelegate,
    /// No link may follow.
    #[error("the token's DEPTH, or the limit of {MAX_LINKS} links, is reached")]
    Depth,
}

/// Issues a token.
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

/// Passes a token on, narrowed by `caveats`. The token's own signatures are not looked at: the node does that.
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

/// The successor of a verified token for its presenter (decision 11): id, resource and every caveat stay, and of the
/// permissions those in `perms`; links become caveats of the issuer, and what DEPTH they used up is gone. An error says
/// that all of the caveats together are more than one token holds.
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

/// Every caveat, each with the number of links that follow where it stands.
fn caveats(token: &CapabilityToken<'_>) -> impl Iterator<Item = (Caveat, u8)> {
    let links = token.links.len() as u8;
    let of_issuer = token.caveats.iter().map(move |caveat| (caveat, links));
    let of_links = token.links.iter().enumerate();
    let of_links =
        of_links.flat_map(move |(i, link)| link.caveats.iter().map(move |caveat| (caveat, links - 1 - i as u8)));
    of_issuer.chain(of_links)
}

/// How many more links the token may get; `None` if it has too many already.
fn links_left(token: &CapabilityToken<'_>) -> Option<u8> {
    let most = MAX_LINKS as u8 - token.links.len() as u8; // the codec refuses more
    caveats(token)
        .filter_map(|(caveat, followed_by)| match caveat {
            Caveat::Depth(depth) => Some(depth.checked_sub(followed_by)),
            _ => None,
        })
        .try_fold(most, |least, left| Some(least.min(left?)))
}
