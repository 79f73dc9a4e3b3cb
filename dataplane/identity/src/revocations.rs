//! Revoked tokens.

use std::collections::HashMap;

use berth_wire::fabric::MAX_TOKEN_TTL;

/// Limit on the revocations remembered at a time.
pub const MAX_REVOCATIONS: usize = 1 << 20;

/// Revoked token ids, each until a time at which no token with that id can be valid; and holders whose tokens issued so
/// far were revoked.
#[derive(Debug, Clone, Default)]
pub struct Revocations {
    until: HashMap<u128, u64>,
    holders: HashMap<u128, HolderRevoked>,
}

/// Revocation of one holder's tokens; times are in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HolderRevoked {
    /// Tokens issued up to this second are refused.
    pub issued_by: u64,
    /// From this second on, all of them have expired.
    pub until: u64,
}

/// [`MAX_REVOCATIONS`] are remembered, and none of them has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_REVOCATIONS} revocations are remembered, and no more fit until some run out")]
pub struct RevocationsFull;

impl Revocations {
    /// End of a revocation asked for `ttl_secs`: never before a token can expire (decision 12).
    pub fn until(now_secs: u64, ttl_secs: u32) -> u64 {
        now_secs + u64::from(ttl_secs.max(MAX_TOKEN_TTL))
    }

    /// Revokes `token_id` until a time in seconds since the Unix epoch. A longer revocation stays in force.
    pub fn revoke(&mut self, token_id: u128, until: u64, now_secs: u64) -> Result<(), RevocationsFull> {
        if self.until.len() >= MAX_REVOCATIONS && !self.until.contains_key(&token_id) {
            self.until.retain(|_, until| *until > now_secs);
            if self.until.len() >= MAX_REVOCATIONS {
                return Err(RevocationsFull);
            }
        }
        let known = self.until.entry(token_id).or_insert(until);
        *known = until.max(*known);
        Ok(())
    }

    /// Whether tokens with this id are refused now.
    pub fn contains(&self, token_id: u128, now_secs: u64) -> bool {
        self.until.get(&token_id).is_some_and(|until| *until > now_secs)
    }

    /// Revokes all tokens that `holder` may hold. A longer revocation stays in force.
    pub fn revoke_holder(
        &mut self,
        holder: u128,
        revoked: HolderRevoked,
        now_secs: u64,
    ) -> Result<(), RevocationsFull> {
        if self.holders.len() >= MAX_REVOCATIONS && !self.holders.contains_key(&holder) {
            self.holders.retain(|_, known| known.until > now_secs);
            if self.holders.len() >= MAX_REVOCATIONS {
                return Err(RevocationsFull);
            }
        }
        let known = self.holders.entry(holder).or_insert(revoked);
        known.issued_by = revoked.issued_by.max(known.issued_by);
        known.until = revoked.until.max(known.until);
        Ok(())
    }

    /// Whether a token issued at `issued_at` is refused because `holder` holds it or passed it on.
    pub fn contains_holder(&self, holder: u128, issued_at: u64, now_secs: u64) -> bool {
        let known = self.holders.get(&holder);
        known.is_some_and(|known| known.until > now_secs && issued_at <= known.issued_by)
    }

    /// Revoked token ids with the end of their revocations, in no order. Expired ones are left out.
    pub fn iter(&self, now_secs: u64) -> impl Iterator<Item = (u128, u64)> {
        self.until.iter().map(|(id, until)| (*id, *until)).filter(move |(_, until)| *until > now_secs)
    }
}
