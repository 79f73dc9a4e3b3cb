//! The one function that decides on every access, whatever the dataplane.

use berth_port::Nanos;

use crate::{Entry, Generation, LeaseKey, RegionId, Rights, State};

/// What an access does to a lease's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Needs the right READ.
    Read,
    /// Needs the right WRITE.
    Write,
}

impl Op {
    /// The right that the lease's token must include.
    #[inline]
    pub fn right(self) -> Rights {
        match self {
            Self::Read => Rights::READ,
            Self::Write => Rights::WRITE,
        }
    }
}

/// An access that a peer asks for, as decoded from its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Read or write.
    pub op: Op,
    /// The lease, by the low 64 bits of its id.
    pub key: LeaseKey,
    /// The generation that the message names; `None` if the protocol has none (FBMT, FBBT, pages).
    pub generation: Option<Generation>,
    /// First byte, counted from the lease's first.
    pub offset: u64,
    /// Number of bytes; 0 is refused.
    pub len: u64,
    /// Whether the message is otherwise well formed: its lengths agree, and it carries no data that it should not.
    pub well_formed: bool,
}

/// The bytes that an access may touch, as a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The region that the lease lies in.
    pub region: RegionId,
    /// Offset of the first byte in the region.
    pub at: u64,
    /// Number of bytes.
    pub len: u64,
}

/// Why an access is refused. The variants are in the order of the checks (profile, decision 18); the first failure
/// counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such lease: never granted, freed, or past its grace.
    #[error("no such lease")]
    Unknown,
    /// The lease was revoked within the last 300 s.
    #[error("the lease was revoked")]
    Revoked,
    /// The lease has expired and is in its grace.
    #[error("the lease has expired")]
    Expired,
    /// The message names an older generation: a restart lost the contents that the peer knows.
    #[error("the generation is stale")]
    StaleGeneration,
    /// The message is malformed, or asks for no bytes.
    #[error("malformed request")]
    BadRequest,
    /// More bytes than the lease's `max_io`.
    #[error("more bytes than one access may have")]
    TooLong,
    /// Outside the lease, or outside the RANGE caveat of its token.
    #[error("outside the lease")]
    OutOfRange,
    /// The token lacked READ or WRITE.
    #[error("the token did not allow this")]
    Denied,
}

/// Decides on an access. `entry` is the answer of the probe for `access.key`, `now` the monotonic time.
///
/// Every dataplane and carrier decides by this function, and holds the probe's guard until its access has ended.
#[inline]
pub fn check(entry: Option<&Entry>, access: &Access, now: Nanos) -> Result<Span, Refusal> {
    let entry = entry.filter(|entry| entry.key() == access.key).ok_or(Refusal::Unknown)?;
    if entry.state == State::Revoked {
        return Err(Refusal::Revoked);
    }
    if now >= entry.expires {
        return Err(Refusal::Expired);
    }
    if access.generation.is_some_and(|generation| generation != entry.generation) {
        return Err(Refusal::StaleGeneration);
    }
    if !access.well_formed || access.len == 0 {
        return Err(Refusal::BadRequest);
    }
    if access.len > u64::from(entry.max_io) {
        return Err(Refusal::TooLong);
    }
    let end = access.offset.checked_add(access.len);
    if access.offset < entry.first || end.is_none_or(|end| end > entry.len) {
        return Err(Refusal::OutOfRange);
    }
    if !entry.rights.contains(access.op.right()) {
        return Err(Refusal::Denied);
    }
    Ok(Span { region: entry.region, at: entry.base + access.offset, len: access.len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LeaseId;

    fn entry() -> Entry {
        Entry {
            id: LeaseId(7 << 64 | 5),
            generation: Generation(3),
            rights: Rights::ALL,
            region: RegionId(2),
            base: 8192,
            len: 1000,
            first: 100,
            max_io: 256,
            expires: Nanos(50),
            state: State::Active,
        }
    }

    fn access(offset: u64, len: u64) -> Access {
        let generation = Some(Generation(3));
        Access { op: Op::Read, key: LeaseKey(5), generation, offset, len, well_formed: true }
    }

    #[test]
    fn a_sound_access_gets_its_bytes() {
        let span = |at, len| Ok(Span { region: RegionId(2), at, len });
        assert_eq!(check(Some(&entry()), &access(100, 256), Nanos(49)), span(8292, 256));
        assert_eq!(check(Some(&entry()), &access(999, 1), Nanos(0)), span(9191, 1));
        let unnumbered = Access { generation: None, ..access(744, 256) };
        assert_eq!(check(Some(&entry()), &unnumbered, Nanos(0)), span(8936, 256));
    }

    /// An access with every fault at once is refused for one reason after the other as they are mended in order.
    #[test]
    fn checks_come_in_the_order_of_the_profile() {
        let mut entry = Entry { state: State::Revoked, rights: Rights::READ, ..entry() };
        let mut asked =
            Access { op: Op::Write, generation: Some(Generation(2)), well_formed: false, ..access(u64::MAX, 300) };
        let refused = |entry: &Entry, asked: &Access, now| check(Some(entry), asked, Nanos(now)).unwrap_err();
        assert_eq!(check(None, &asked, Nanos(50)), Err(Refusal::Unknown));
        assert_eq!(refused(&entry, &Access { key: LeaseKey(6), ..asked }, 50), Refusal::Unknown);
        assert_eq!(refused(&entry, &asked, 50), Refusal::Revoked);
        entry.state = State::Active;
        assert_eq!(refused(&entry, &asked, 50), Refusal::Expired);
        assert_eq!(refused(&entry, &asked, 49), Refusal::StaleGeneration);
        asked.generation = Some(Generation(3));
        assert_eq!(refused(&entry, &asked, 49), Refusal::BadRequest);
        asked.well_formed = true;
        assert_eq!(refused(&entry, &Access { len: 0, ..asked }, 49), Refusal::BadRequest);
        assert_eq!(refused(&entry, &asked, 49), Refusal::TooLong);
        asked.len = 2;
        assert_eq!(refused(&entry, &asked, 49), Refusal::OutOfRange, "offset + len overflows");
        for (offset, len) in [(999, 2), (1000, 1), (99, 2), (0, 100)] {
            assert_eq!(refused(&entry, &Access { offset, len, ..asked }, 49), Refusal::OutOfRange, "{offset}+{len}");
        }
        asked.offset = 998;
        assert_eq!(refused(&entry, &asked, 49), Refusal::Denied);
        entry.rights = Rights::WRITE;
        assert_eq!(check(Some(&entry), &asked, Nanos(49)), Ok(Span { region: RegionId(2), at: 9190, len: 2 }));
        assert_eq!(refused(&entry, &Access { op: Op::Read, ..asked }, 49), Refusal::Denied);
    }
}
